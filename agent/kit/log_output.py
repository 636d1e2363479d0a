# SPDX-License-Identifier: Apache-2.0
"""Where log lines go: a writer that never fails and never waits long, whatever became of the file, pipe or terminal.

A full disk, a reader that is gone and one that does not read cost lines, which are counted; the daemon goes on. Each
line tries the same descriptor again, so the log returns with the room or the reader.
"""

import os
import select
import sys
import threading
from contextlib import suppress

# What a pipe takes as a whole once it has any room.
PIECE_BYTES = 4096
# A reader may be busy for a moment; one that stopped costs this once, until it reads again.
PATIENCE_MS = 20


class LogOutput:
    """Like a text stream. `lost_lines` is what could not be written, since the start."""

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._lock = threading.Lock()
        self._is_well = True
        self._is_inside = False
        """Whether the last line was broken off, so that the next must not continue it."""
        self.lost_lines = 0

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, text: str) -> int:
        """From any thread: lines must not mix, and one poll at a time is all that Python allows."""
        with self._lock:
            self._write(text)
        return len(text)

    def _write(self, text: str) -> None:
        data = memoryview((("\n" if self._is_inside else "") + text).encode("utf-8", "replace"))
        written = 0
        with suppress(OSError):
            while written < len(data) and self._has_room():
                written += os.write(self._descriptor, data[written : written + PIECE_BYTES])
        self._is_well = written == len(data)
        self._is_inside = self._is_inside if not written else not self._is_well
        if not self._is_well:
            self.lost_lines += 1

    def flush(self) -> None:
        """All is written at once."""

    def _has_room(self) -> bool:
        return any(state & select.POLLOUT for _, state in self._poll.poll(PATIENCE_MS if self._is_well else 0))


def hold_standard_places() -> None:
    """What is opened later must not get the number of a closed standard stream, or the log would go there."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115  # as long as the process
