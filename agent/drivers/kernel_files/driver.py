# SPDX-License-Identifier: Apache-2.0
"""Small files of the kernel below /proc and /sys, read again and again.

Descriptors stay open over readings, for opening takes longer than reading; they keep no group from being removed, and
reading one of a group that is gone says so. Never: writes, or knows what a text means. Blocking; called in threads.
"""

import errno
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

READ_BYTES = 16 << 10
# A group or a process went while it was read. That is no fault of anybody's.
GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ESRCH, errno.ENOTDIR})
# Pressure stall information is switched off.
OFF = errno.EOPNOTSUPP
SOCKET = "socket:"


class KernelFiles:
    """Paths are absolute, below `root`. At most `most_open` descriptors are kept."""

    def __init__(self, root: Path = Path("/"), most_open: int = 8192) -> None:
        self._root = str(root).rstrip("/")
        self._most_open = most_open
        self._open: dict[str, int] = {}

    def close(self) -> None:
        self.forget(list(self._open))

    @property
    def kept(self) -> int:
        return len(self._open)

    def read(self, path: str) -> bytes:
        """One file as a whole, without keeping it. Raises OSError."""
        handle = os.open(self._root + path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            while part := os.read(handle, READ_BYTES):
                parts.append(part)
            return b"".join(parts)
        finally:
            os.close(handle)

    def read_all(self, paths: Sequence[str]) -> tuple[list[bytes | None], list[OSError]]:
        """The first bytes of each; None for what is gone, switched off or unreadable, of which only the last is a
        fault."""
        texts: list[bytes | None] = []
        faults: list[OSError] = []
        kept = self._open
        for path in paths:
            try:
                handle = kept.get(path)
                texts.append(self._read_new(path) if handle is None else os.pread(handle, READ_BYTES, 0))
            except OSError as error:
                texts.append(None)
                self.forget([path])
                if error.errno not in GONE and error.errno != OFF:
                    error.filename = path
                    faults.append(error)
        return texts, faults

    def _read_new(self, path: str) -> bytes:
        handle = os.open(self._root + path, os.O_RDONLY | os.O_CLOEXEC)
        if len(self._open) < self._most_open:
            self._open[path] = handle
            return os.pread(handle, READ_BYTES, 0)
        try:
            return os.pread(handle, READ_BYTES, 0)
        finally:
            os.close(handle)

    def forget(self, paths: Iterable[str]) -> None:
        for path in paths:
            handle = self._open.pop(path, None)
            if handle is not None:
                with suppress(OSError):
                    os.close(handle)

    def is_there(self, path: str) -> bool:
        return Path(self._root + path).exists()

    def hold_process(self, pid: int) -> int:
        """A hold on one process, whatever gets its number later. Raises OSError where it is gone."""
        return os.open(f"{self._root}/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def read_of_process(self, hold: int, name: str) -> bytes | None:
        """A file below /proc/PID; None once the process has ended."""
        try:
            handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=hold)
        except OSError as error:
            if error.errno in GONE:
                return None
            raise
        try:
            return os.read(handle, READ_BYTES)
        except OSError as error:
            if error.errno in GONE:
                return None
            raise
        finally:
            os.close(handle)

    def count_open(self, pid: int, most: int) -> tuple[int, int] | None:
        """Descriptors of a process and the sockets among them, counted up to a number; None once it has ended. Raises
        OSError where it may not be looked at."""
        folder = f"{self._root}/proc/{pid}/fd"
        descriptors = sockets = 0
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if descriptors >= most:
                        break
                    descriptors += 1
                    with suppress(FileNotFoundError):
                        sockets += os.readlink(entry.path).startswith(SOCKET)  # noqa: PTH115 - a million times
        except OSError as error:
            if error.errno in GONE:
                return None
            raise
        return descriptors, sockets

    def let_go(self, hold: int) -> None:
        with suppress(OSError):
            os.close(hold)
