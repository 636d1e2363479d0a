# SPDX-License-Identifier: Apache-2.0
"""The network namespace of a lab: bridge, pods' veths, rules and ports live there and go with it.

Owns: creation of the namespace, kept by a bind mount on a file in the lab's directory, and the ways into it.
Never: `ip netns exec`, which hides /sys/fs/cgroup behind a fresh /sys so that runc fails (LAB-4).
"""

import ctypes
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tests.lab.errors import LabError
from tests.lab.packages import Programs

__all__ = ["Netns", "namespace_inode"]

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)


def namespace_inode(path: Path) -> int | None:
    """What identifies the namespace bound to `path`; none when nothing is."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino if status.st_dev == Path("/proc/self/ns/net").stat().st_dev else None


class Netns:
    """A private network namespace with its loopback up."""

    def __init__(self, path: Path, programs: Programs) -> None:
        self.path = path
        self._programs = programs

    def create(self) -> None:
        self.path.touch()
        loopback_up = [self._programs["ip"], "link", "set", "lo", "up"]
        self._check([self._programs["unshare"], f"--net={self.path}", "--", *loopback_up], "create network namespace")

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` inside; the process keeps its pid when it is executed."""
        return [self._programs["nsenter"], f"--net={self.path}", "--", *argv]

    def run(self, argv: Sequence[str], within_s: float = 60.0) -> str:
        """Run a program inside to its end and return what it printed; its failure is an error with its words."""
        return self._check(self.command(argv), f"{Path(argv[0]).name} in {self.path}", within_s)

    def _check(self, argv: Sequence[str], what: str, within_s: float = 60.0) -> str:
        environment = self._programs.environment()
        try:
            done = subprocess.run(
                argv,
                check=False,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=within_s,
            )
        except subprocess.TimeoutExpired as error:
            raise LabError(f"{what}: not finished after {within_s} s: {' '.join(argv)}") from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            raise LabError(f"{what}: status {done.returncode} from {' '.join(argv)}: {said}")
        return done.stdout

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread that is inside; sockets it makes stay inside wherever they are used later."""

        def inside() -> T:
            self._enter()
            return work()

        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(inside).result()

    def _enter(self) -> None:
        """Move the calling thread, and no other, inside."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            if libc.setns(descriptor, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns", str(self.path))
        finally:
            os.close(descriptor)

    def connect(self, port: int, host: str = "127.0.0.1", within_s: float = 5.0) -> socket.socket:
        """A TCP connection to a port inside, usable from outside."""
        return self.call(lambda: socket.create_connection((host, port), within_s))
