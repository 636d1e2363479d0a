# SPDX-License-Identifier: Apache-2.0
"""The lines of a container's log as the runtime writes them: `TIME STREAM TAG text`.

A reader follows one container over its instances and over rotation: it ends with one file before it begins another.
Its methods wait for the disk, and are called in a thread.
"""

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

CHUNK_BYTES = 256 << 10
PART = b"P"


class ContainerLog:
    """`tail` counts lines from the end of the first file, 0 = all; `since_s` is wall time."""

    def __init__(self, *, tail: int = 0, since_s: float = 0.0, has_timestamps: bool = False) -> None:
        self._tail = tail
        self._since_s = since_s
        self._has_timestamps = has_timestamps
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        # A line that was too long for the runtime comes in parts; only the first shows its time.
        self._is_inside = False

    def read(self, path: Path) -> list[bytes]:
        """What is new and whole; nothing if there is nothing, or not yet a file."""
        if self._path not in (None, path):
            if rest := self._read_on():
                return rest
            self.close()
        self._path = path
        if self._file is None and not self._open(path):
            return []
        lines = self._read_on()
        if not lines and self._is_replaced(path):
            self.close()
            return self.read(path)
        return lines

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, path: Path) -> bool:
        try:
            self._file = path.open("rb")
        except FileNotFoundError:
            return False
        if self._tail:
            self._file.seek(_tail_place(self._file, self._tail))
        # What comes after the first file is new.
        self._tail = 0
        return True

    def _is_replaced(self, path: Path) -> bool:
        """The runtime goes on in a new file when kepd has moved the old one aside."""
        if self._file is None:
            return False
        with suppress(FileNotFoundError):
            return path.stat().st_ino != os.fstat(self._file.fileno()).st_ino
        return False

    def _read_on(self) -> list[bytes]:
        """The next lines that are asked for. Each round leaves the file after a whole line."""
        while self._file is not None:
            place = self._file.tell()
            content = self._file.read(CHUNK_BYTES)
            whole = content[: content.rfind(b"\n") + 1]
            self._file.seek(place + len(whole))
            if not whole:
                return []
            # A carriage return is the container's own, and no end of a line.
            if lines := [text for line in whole.split(b"\n")[:-1] if (text := self._line(line)) is not None]:
                return lines
        return []

    def _line(self, line: bytes) -> bytes | None:
        stamp, _, rest = line.partition(b" ")
        _, _, rest = rest.partition(b" ")
        tag, _, text = rest.partition(b" ")
        if self._since_s and _seconds(stamp) < self._since_s:
            return None
        # Lines are in the order of their times: those that follow need not be looked at.
        self._since_s = 0.0
        head = stamp + b" " if self._has_timestamps and not self._is_inside else b""
        self._is_inside = tag == PART
        return head + text if tag == PART else head + text + b"\n"


def _seconds(stamp: bytes) -> float:
    """Wall time; a stamp that cannot be read is always recent enough."""
    try:
        return datetime.fromisoformat(stamp.decode()).timestamp()
    except ValueError:
        return float("inf")


def _tail_place(file: BinaryIO, count: int) -> int:
    """Where the last `count` lines begin. Lines in parts count as one."""
    size = file.seek(0, 2)
    length = CHUNK_BYTES
    while True:
        begin = max(size - length, 0)
        file.seek(begin)
        content = file.read(size - begin)
        left = count
        end = content.rfind(b"\n")
        while end > 0:
            before = content.rfind(b"\n", 0, end)
            if before < 0 and begin:
                break
            parts = content[before + 1 : end].split(b" ", 3)
            left -= len(parts) < 3 or parts[2] != PART
            if left < 0:
                return begin + end + 1
            end = before
        if not begin:
            return 0
        length *= 2
