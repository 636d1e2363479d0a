# SPDX-License-Identifier: Apache-2.0
"""Pages as gzip. What was packed of a column is used again while the column is the same: a page is put together of
parts that end at whole bytes and know nothing of each other, and checksums of parts give that of the whole.
"""

import struct
from collections.abc import Iterable

import msgspec
from isal import isal_zlib

from agent.observe.pages.columns import FigureColumn
from agent.observe.pages.exposition import RenderedFamily, end_of

LEVEL, PLAIN = 1, -15
# Deflate, no name, no time, the fastest level, no system.
BEGIN = b"\x1f\x8b\x08\0\0\0\0\0\x04\xff"
LAST_BLOCK = isal_zlib.compress(b"", wbits=PLAIN)
# Fewer lines are packed with what stands beside them.
LEAST_LINES = 32


class PackedPart(msgspec.Struct, frozen=True, gc=False):
    packed: bytes
    checksum: int
    size: int


class Packing:
    """Of pages that follow each other."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[FigureColumn, PackedPart]] = {}

    def page(self, families: Iterable[RenderedFamily], *, is_open: bool) -> bytes:
        before, now = self._kept, dict[int, tuple[FigureColumn, PackedPart]]()
        parts, loose = list[PackedPart](), list[bytes]()
        for one in families:
            if one.series:
                loose.append(one.head)
            for column in one.columns:
                if column.count < LEAST_LINES:
                    loose.append(column.text)
                    continue
                parts.append(_part(b"".join(loose)))
                loose.clear()
                # A column that is kept keeps its number from being another's.
                now[id(column)] = kept = before.get(id(column)) or (column, _part(column.text))
                parts.append(kept[1])
        parts.append(_part(b"".join((*loose, end_of(is_open=is_open)))))
        self._kept = now
        return _whole(parts)


def _part(text: bytes) -> PackedPart:
    packing = isal_zlib.compressobj(LEVEL, wbits=PLAIN)
    packed = packing.compress(text) + packing.flush(isal_zlib.Z_FULL_FLUSH)
    return PackedPart(packed, isal_zlib.crc32(text), len(text))


def _whole(parts: Iterable[PackedPart]) -> bytes:
    checksum = size = 0
    pieces = [BEGIN]
    for one in parts:
        pieces.append(one.packed)
        checksum = isal_zlib.crc32_combine(checksum, one.checksum, one.size)
        size += one.size
    return b"".join((*pieces, LAST_BLOCK, struct.pack("<II", checksum, size & 0xFFFFFFFF)))
