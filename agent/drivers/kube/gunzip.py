# SPDX-License-Identifier: Apache-2.0
"""A compressed answer, unpacked while it arrives, with a bound on what a few bytes may become.

How large an answer may be as a whole is for its reader.
Never: takes an answer that stops in the middle for a whole one.
"""

import zlib

from agent.drivers.kube.errors import AnswerTooBig, AnswerUnreadable

PIECE_BYTES = 64 << 10
MOST_TIMES = 100
# Objects that resemble each other pack well; this much of them is harmless.
HARMLESS_BYTES = 4 << 20
GZIP_ALONE = 31


class Gunzip:
    """Of one answer; `what` names it in errors."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._inflater = zlib.decompressobj(GZIP_ALONE)
        self._packed = b""
        self._taken_bytes = 0
        self._given_bytes = 0

    def feed(self, chunk: bytes) -> None:
        self._packed += chunk
        self._taken_bytes += len(chunk)

    def piece(self) -> bytes:
        """The next piece; empty when more has to arrive first. Raises AnswerTooBig, AnswerUnreadable."""
        try:
            piece = self._inflater.decompress(self._packed, PIECE_BYTES)
        except zlib.error as error:
            raise AnswerUnreadable(f"{self._what}: the answer is no gzip: {error}") from None
        if self._inflater.unused_data:
            raise AnswerUnreadable(f"{self._what}: something follows the end of the gzip answer")
        self._packed = self._inflater.unconsumed_tail
        self._given_bytes += len(piece)
        if self._given_bytes > max(HARMLESS_BYTES, MOST_TIMES * self._taken_bytes):
            raise AnswerTooBig(f"{self._what}: the answer unpacks to more than {MOST_TIMES} times its size")
        return piece

    def finish(self) -> None:
        """Nothing more arrives. Raises AnswerUnreadable."""
        if not self._inflater.eof:
            raise AnswerUnreadable(f"{self._what}: the gzip answer was cut short")


def unpacked_start(packed: bytes, most_bytes: int) -> bytes:
    """What can be made of it; nothing if it is no gzip."""
    try:
        return zlib.decompressobj(GZIP_ALONE).decompress(packed, most_bytes)
    except zlib.error:
        return b""
