# SPDX-License-Identifier: Apache-2.0
"""Puts another parent into a block of headers, so that the tables of both ends stay as they would be.

A field that the client's encoder puts into its table is put into the runtime's with our value of the same length, so
the sizes agree. From then on that entry means something else to the runtime: a later field that is only its index is
written out. A block without a parent gets one at its end, as a literal that no table keeps.
"""

from collections.abc import Iterator

import msgspec

from agent.model.span import HEADER
from agent.proxy.frames.hpack import Headers, field_places, plain_block

KEPT = 0x40
NAME = plain_block([(HEADER, b"")])[:-1]


class Rewritten(msgspec.Struct, frozen=True):
    """`is_kept`: a table has the new value from now on."""

    block: bytes
    is_kept: bool


def parents_in(headers: Headers) -> list[bytes]:
    return [value for name, value in headers if name == HEADER]


def with_parent(block: bytes, headers: Headers, value: bytes) -> Rewritten:
    """The block with this parent, which has less than 127 bytes; `headers` is what it means, with one parent of the
    same length or none. Raises ValueError for more."""
    if not parents_in(headers):
        return Rewritten(block + _literal(value), is_kept=False)
    ((start, value_start, stop),) = _places(block, headers)
    if value_start is None:
        return Rewritten(block[:start] + _literal(value) + block[stop:], is_kept=False)
    text = bytes([len(value)]) + value
    return Rewritten(block[:value_start] + text + block[stop:], is_kept=bool(block[start] & KEPT))


def _literal(value: bytes) -> bytes:
    """A field that no table keeps."""
    return b"%b%c%b" % (NAME, len(value), value)


def is_only_index(block: bytes, headers: Headers) -> bool:
    """Whether the parent of this block is what a table has."""
    return any(value_start is None for _, value_start, _ in _places(block, headers))


def _places(block: bytes, headers: Headers) -> Iterator[tuple[int, int | None, int]]:
    for place, (name, _) in zip(field_places(block), headers, strict=True):
        if name == HEADER:
            yield place
