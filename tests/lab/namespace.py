# SPDX-License-Identifier: Apache-2.0
"""Network namespaces without a name, for tests that need nothing but packets and rules.

Owns: namespaces that live as long as a descriptor of this process, so that nothing is left behind even by a kill.
Never: mounts, or moves any thread but the short-lived one that does the work inside.
"""

import ctypes
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

__all__ = ["Namespace"]

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """One namespace with its loopback up. Sockets made inside stay inside, wherever they are used."""

    def __init__(self) -> None:
        self._descriptor = _in_thread(_fresh)
        self.run("ip", "link", "set", "lo", "up")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> str:
        """For `ip link set … netns` and `nsenter --net=`."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def command(self, *argv: str) -> tuple[str, ...]:
        """The command line that runs `argv` inside."""
        return ("nsenter", f"--net={self.path}", "--", *argv)

    def run(self, *argv: str, text: str = "", within_s: float = 60.0) -> str:
        """Run a program inside to its end; its failure is an error with its words."""
        done = subprocess.run(
            self.command(*argv), check=False, input=text, capture_output=True, text=True, timeout=within_s
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: status {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread that is inside."""

        def inside() -> T:
            if _libc.setns(self._descriptor, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            return work()

        return _in_thread(inside)

    def set(self, key: str, value: str | int) -> None:
        """A sysctl of the namespace, `net.ipv4.ip_forward` for instance."""
        path = Path("/proc/sys", *key.split("."))
        self.call(lambda: path.write_text(f"{value}\n"))

    def close(self) -> None:
        """The kernel removes it with its last socket."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _fresh() -> int:
    if _libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare: needs root")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _in_thread(work: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()
