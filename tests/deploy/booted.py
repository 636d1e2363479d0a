# SPDX-License-Identifier: Apache-2.0
"""A systemd that is the first process of its own namespaces, with an installation of kepd on this machine's files.

Owns: starting and ending it, and running commands in it. Never: leaves anything: what it writes is in memory.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

__all__ = ["Booted", "NotBootable"]

WITHIN_S = 40.0
SCRIPT = Path(__file__).with_name("boot_systemd.sh")
NAMESPACES = ("--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "--kill-child")


REMOVE = (
    'mount -t cgroup -o none,name=systemd cgroup "$1" && [ -d "$1/$2" ] || exit 0; '
    'for i in $(seq 50); do find "$1/$2" -depth -type d -exec rmdir {} + 2>/dev/null && exit 0; sleep 0.1; done; exit 1'
)
"""What is left of a control group once its last process is gone, which may take a moment."""


class NotBootable(Exception):
    """This machine does not let systemd be the first process of a namespace; the text has systemd's words."""


class Booted:
    """One system. Nothing of kepd runs in it until a test starts it."""

    def __init__(self, scratch: Path, installation: Path) -> None:
        self._log = scratch / "console.log"
        self._root = scratch / "root"
        self._root.mkdir()
        self._group = f"kepd-boot-{os.getpid()}"
        places = [str(self._root), str(installation), sys.base_prefix, self._group]
        command = ["unshare", *NAMESPACES, str(SCRIPT), *places]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._first = ""

    def __enter__(self) -> Self:
        deadline_s = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
            with suppress(OSError):
                self._first = children.read_text().strip()
            if self._first and self.run("systemctl", "is-active", "basic.target").stdout.strip() == "active":
                return self
            time.sleep(0.1)
        self.__exit__()
        raise NotBootable(self.console)

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        remove = ["unshare", "--mount", "sh", "-c", REMOVE, "sh", str(self._root), self._group]
        subprocess.run(remove, check=True, timeout=30)

    @property
    def console(self) -> str:
        """What was said in it."""
        return self._log.read_text(errors="replace")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """In it, as root."""
        inside = ["nsenter", "--target", self._first, "--all", "--root", "--wd", *command]
        environment = {"PATH": "/opt/kepd/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        return subprocess.run(inside, capture_output=True, text=True, check=False, timeout=60, env=environment)

    def start(self, *command: str) -> "subprocess.Popen[str]":
        """The same without waiting."""
        inside = ["nsenter", "--target", self._first, "--all", "--root", "--wd", *command]
        return subprocess.Popen(inside, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def shown(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).stdout.strip()

    def wait_active(self, unit: str, *, but: str = "0") -> str:
        """Until it has said that it is ready, with another main process than `but`; the process."""
        deadline_s = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline_s:
            pid = self.shown(unit, "MainPID")
            if self.shown(unit, "ActiveState") == "active" and pid not in ("0", but):
                return pid
            time.sleep(0.1)
        raise AssertionError(f"{unit} is not active: {self.run('systemctl', 'status', unit).stdout}{self.console}")
