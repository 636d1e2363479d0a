# SPDX-License-Identifier: Apache-2.0
"""Mounting and unmounting by system call.

Never: follows a link that stands in the way: a mount point is made by its owner and opened without following.
"""

import ctypes
import os
import stat
from pathlib import Path

from agent.model.pods.mount_access import Access

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND = 2, 4, 8, 4096
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
MOUNT_TABLE = Path("/proc/self/mountinfo")


class Mounts:
    """Blocking calls; whoever uses them does so in a thread. They raise OSError."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def tmpfs(self, path: Path, size_bytes: int, access: Access, *, is_secret: bool) -> None:
        """Memory at a path; what is mounted there already stays. It has its rights from the first moment on."""
        if self.is_mounted(path):
            return
        options = _options(access)
        if size_bytes:
            options.append(f"size={size_bytes}")
        flags = MS_NOSUID | MS_NODEV | (MS_NOEXEC if is_secret else 0)
        try:
            self._mount("tmpfs", path, "tmpfs", flags, ",".join([*options, "noswap"]))
        except OSError:
            # Kernels before 6.4 do not know noswap.
            self._mount("tmpfs", path, "tmpfs", flags, ",".join(options))

    def huge_pages(self, path: Path, page_bytes: int, size_bytes: int, access: Access) -> None:
        """Memory in pages of one size; what is mounted there already stays."""
        if not self.is_mounted(path):
            options = [f"pagesize={page_bytes}", *_options(access), *([f"size={size_bytes}"] if size_bytes else [])]
            self._mount("nodev", path, "hugetlbfs", MS_NOSUID | MS_NODEV, ",".join(options))
        if access.mode & stat.S_ISGID and not path.stat().st_mode & stat.S_ISGID:
            # The only right that this file system does not take from its options.
            path.chmod(access.mode)

    def bind(self, source: Path, target: Path) -> None:
        """What an opened descriptor shows, at another path."""
        if not self.is_mounted(target):
            self._mount(str(source), target, "", MS_BIND, "")

    def is_mounted(self, path: Path) -> bool:
        """Whether something is mounted exactly there, whatever links lead there."""
        return str(path.resolve()) in mount_points()

    def unmount_below(self, directory: Path) -> None:
        """Everything, deepest first."""
        top = directory.resolve()
        below = [point for point in mount_points() if Path(point).is_relative_to(top)]
        for point in sorted(below, key=len, reverse=True):
            self._check(self._libc.umount2(os.fsencode(point), MNT_DETACH | UMOUNT_NOFOLLOW), point)

    def _mount(self, source: str, target: Path, kind: str, flags: int, options: str) -> None:
        result = self._libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode() or None,
            ctypes.c_ulong(flags),
            options.encode() or None,
        )
        self._check(result, str(target))

    @staticmethod
    def _check(result: int, path: str) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)


def _options(access: Access) -> list[str]:
    return [f"mode={access.mode:04o}", *([f"gid={access.group}"] if access.group is not None else [])]


def mount_points() -> list[str]:
    """All of this process's view."""
    lines = MOUNT_TABLE.read_text("utf-8", "surrogateescape").splitlines()
    return [_unescaped(line.split()[4]) for line in lines if line]


def _unescaped(path: str) -> str:
    for code, sign in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, sign)
    return path
