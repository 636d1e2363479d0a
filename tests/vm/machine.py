# SPDX-License-Identifier: Apache-2.0
"""One virtual machine under QEMU: its disk above a base that stays as it is, its console, and a way in by SSH.

Its network ends at this machine's loopback: one port leads to its SSH, nothing leads out. A reboot ends QEMU, and the
machine is started again once the old process is gone. Asserts nothing about time: emulation is slow.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Self

from tests.host.forked_kepctl import forked_kepctl
from tests.ports import take_port
from tests.vm.architecture import Architecture, chosen
from tests.vm.disk import Disk

MEMORY_MIB = 3072
BOOT_S, END_S, CALL_S = 600.0, 400.0, 300.0
# A look by the shell costs an emulated machine most of a second of its processor.
POLL_S = 2.0
KVM_TRIAL_S = 15.0
GREETING_S = 3.0
# What guards a kernel against its real processor, and checks of itself, cost an emulated machine a third of its time.
APPEND = (
    "root=/dev/vda rw panic=-1 quiet systemd.show_status=0 mitigations=off init_on_alloc=0 nowatchdog audit=0 "
    "rcupdate.rcu_expedited=1"
)
SSH = (
    "-q", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=20",
    "-o", "ServerAliveInterval=20", "-o", "ServerAliveCountMax=10", "-o", "BatchMode=yes",
    "-o", "StreamLocalBindUnlink=yes",
)  # fmt: skip
NO_CONNECTION = 255
STATE = """
uptime
kepctl --timeout 60 get pods
kepctl --timeout 60 get events | tail -n 30 | cut -c -200
journalctl -b -u kepd -u containerd -n 40 --no-pager -o short-monotonic | cut -c -300
"""


class MachineError(AssertionError):
    """Something in the machine is not as a test expects; the text has what it said."""


class Machine:
    def __init__(self, disk: Disk, folder: Path) -> None:
        self.disk = disk
        self._folder = folder
        self._layer = folder / "disk.qcow2"
        # Beside the key, for the name of a socket has room for a hundred characters.
        self._socket = disk.key.with_name(f"s{folder.name[:8]}")
        # kepd's socket in the machine, as the login brings it here.
        self._api = self._socket.with_suffix(".api")
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: subprocess.Popen[bytes] | None = None
        self.port = 0
        command = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(disk.image), str(self._layer)]
        subprocess.run(command, check=True, timeout=60)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut_power()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def console(self) -> str:
        """Of the last start."""
        path = self._folder / "console.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, *, waits: bool = True) -> None:
        self.port = take_port()
        command = [
            *command_of(chosen(), self.disk),
            "-drive", f"file={self._layer},if=virtio,format=qcow2,cache=unsafe",
            "-netdev", f"user,id=lan,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-:22",
            "-device", "virtio-net-pci,netdev=lan", "-device", "virtio-rng-pci",
            "-serial", f"file:{self._folder / 'console.log'}",
        ]  # fmt: skip
        with (self._folder / "qemu.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        if waits:
            self.wait_until_up()

    def wait_until_up(self) -> None:
        """Until it lets us in and systemd has started what it was to start."""
        deadline_s = time.monotonic() + BOOT_S
        # QEMU takes each connection at once and asks the machine for it ever more seldom, so a short one is given up.
        while not (self._is_answered() and self._has_started()):
            if not self.is_on:
                raise MachineError(f"the machine ended while it started: {self._last_words()}")
            if time.monotonic() > deadline_s:
                raise MachineError(f"no way into the machine after {BOOT_S:.0f} s: {self._last_words()}")
            time.sleep(1)
        # One login for all that follows: each costs an emulated processor seconds.
        self._connection = subprocess.Popen(
            [*self.ssh_command(), "-N", "-M", "-S", str(self._socket), "-L", f"{self._api}:/run/kepd/kepd.sock"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def _is_answered(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), GREETING_S) as connection:
            connection.settimeout(GREETING_S)
            return connection.recv(4) == b"SSH-"
        return False

    def _has_started(self) -> bool:
        return self._ssh("systemctl is-system-running --wait", within_s=BOOT_S).returncode != NO_CONNECTION

    @property
    def is_on(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def cut_power(self) -> None:
        """The machine's kernel ends where it stands. What it had handed to its disk is there afterwards."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection.wait()
            self._connection = None

    def wait_until_off(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired as error:
            raise MachineError(f"the machine does not end within {END_S:.0f} s: {self._last_words()}") from error
        self._disconnect()

    def reboot(self, how: str = "systemctl reboot") -> None:
        """In order, as an administrator does it."""
        self._ssh(how)
        self.wait_until_off()
        self.start()

    def run(self, script: str, *, given: str = "", within_s: float = CALL_S) -> str:
        """What the shell's lines print, as root; they must work."""
        done = self.attempt(script, given=given, within_s=within_s)
        if done.returncode != 0:
            raise MachineError(f"{script!r} ended with {done.returncode}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def attempt(self, script: str, *, given: str = "", within_s: float = CALL_S) -> "subprocess.CompletedProcess[str]":
        return self._ssh(script, given=given, within_s=within_s)

    def kepctl(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Of this machine, at the API of that one: there it takes seconds to start."""
        return forked_kepctl("--endpoint", str(self._api), "--timeout", "60", *words, within_s=CALL_S)

    def write(self, path: str, text: str, mode: str = "0644") -> None:
        """A whole file at once, under its name only when it is complete, and on the disk: its power may be cut."""
        folder = Path(path).parent
        draft = folder / ".draft"
        kept = f"cat >{draft} && chmod {mode} {draft} && sync {draft} && mv {draft} {path} && sync {folder}"
        self.run(f"mkdir -p {folder} && {kept}", given=text)

    def lead_back(self, port: int, path: Path | str) -> None:
        """From that port of its loopback to a socket or `host:port` here, for as long as the login lasts, which may not
        stand yet."""
        self._lead("-R", f"127.0.0.1:{port}:{path}")

    def lead_here(self, path: str) -> Path:
        """A socket here that leads to that one of the machine, in the same way."""
        here = self._socket.with_suffix(".led")
        self._lead("-L", f"{here}:{path}")
        return here

    def _lead(self, *what: str) -> None:
        command = [*self.ssh_command(), "-S", str(self._socket), "-O", "forward", *what]
        self.until("a port leads back", lambda: subprocess.run(command, check=False, timeout=CALL_S).returncode == 0)

    def until(self, what: str, holds: Callable[[], bool], within_s: float = CALL_S) -> None:
        deadline_s = time.monotonic() + within_s
        while not holds():
            if time.monotonic() > deadline_s:
                raise MachineError(f"not so after {within_s:.0f} s: {what}\n{self._state()}")
            time.sleep(POLL_S)

    def until_prints(self, script: str, expected: str, within_s: float = CALL_S) -> None:
        self.until(f"{script} prints {expected!r}", lambda: expected in self.attempt(script).stdout, within_s)

    def ssh_command(self) -> list[str]:
        return ["ssh", *SSH, "-i", str(self.disk.key), "-p", str(self.port), "root@127.0.0.1"]

    def _ssh(self, script: str, *, given: str = "", within_s: float = CALL_S) -> "subprocess.CompletedProcess[str]":
        command = [*self.ssh_command(), "-S", str(self._socket), f"export LC_ALL=C.UTF-8; {script}"]
        try:
            return subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=within_s)
        except subprocess.TimeoutExpired as error:
            raise MachineError(f"{script!r} takes longer than {within_s:.0f} s") from error

    def _state(self) -> str:
        return self.attempt(STATE).stdout[-12000:] if self.is_on else self._last_words()

    def _last_words(self) -> str:
        return (self._folder / "qemu.log").read_text(errors="replace")[-1000:] + self.console[-3000:]


def command_of(architecture: Architecture, disk: Disk) -> list[str]:
    """Its board, processor and kernel."""
    return [
        architecture.qemu, *accelerator(architecture, disk), "-smp", "2", "-m", str(MEMORY_MIB), "-no-reboot",
        "-display", "none", "-monitor", "none", "-kernel", str(disk.kernel), "-initrd", str(disk.initrd),
        "-append", f"{APPEND} {architecture.append}",
    ]  # fmt: skip


@cache
def accelerator(architecture: Architecture, disk: Disk) -> tuple[str, ...]:
    """KVM where a guest's own kernel starts and ends under it: it opens on machines where none does, and on others a
    kernel stops at an instruction that an emulated KVM does not know."""
    if not architecture.is_ours or not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return architecture.emulation
    with_kvm = ("-machine", architecture.board, "-accel", "kvm", "-cpu", "host")
    # A first process that ends at once is a panic, which ends the machine.
    trial = [
        architecture.qemu, *with_kvm, "-smp", "2", "-m", "512", "-no-reboot", "-display", "none", "-monitor", "none",
        "-kernel", str(disk.kernel), "-initrd", str(disk.initrd), "-append", "rdinit=/bin/true panic=-1",
        "-serial", "none",
    ]  # fmt: skip
    try:
        done = subprocess.run(trial, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=KVM_TRIAL_S)
    except subprocess.TimeoutExpired:
        return architecture.emulation
    return with_kvm if done.returncode == 0 and b"KVM internal error" not in done.stderr else architecture.emulation
