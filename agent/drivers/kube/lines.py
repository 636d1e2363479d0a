# SPDX-License-Identifier: Apache-2.0
"""A stream of chunks cut into lines.

Line iteration of HTTP libraries stops at sizes that real objects exceed, so this is our own; a line of many chunks is
joined once, when it ends. A line above the bound is an error before it is in memory as a whole.
"""

from agent.drivers.kube.errors import AnswerTooBig

MAX_LINE_BYTES = 64 << 20


class LineSplitter:
    """Keeps what has arrived of the line under way; whoever reads the stream owns it."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._pieces: list[bytes] = []
        self._held_bytes = 0

    @property
    def has_partial_line(self) -> bool:
        return self._held_bytes > 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes, without their ends; empty ones are left out."""
        *complete, rest = chunk.split(b"\n")
        if complete and self._pieces:
            self._check(self._held_bytes + len(complete[0]))
            complete[0] = b"".join((*self._pieces, complete[0]))
            self._pieces.clear()
            self._held_bytes = 0
        if rest:
            self._pieces.append(rest)
            self._held_bytes += len(rest)
            self._check(self._held_bytes)
        return [line for line in complete if line and not line.isspace()]

    def _check(self, line_bytes: int) -> None:
        if line_bytes > self._max_line_bytes:
            self._pieces.clear()
            self._held_bytes = 0
            raise AnswerTooBig(f"an event of more than {self._max_line_bytes >> 20} MiB on one line")
