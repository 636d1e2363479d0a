# SPDX-License-Identifier: Apache-2.0
"""What sources reported, as bytes that a later process reads: after a boot, old endpoints beat none.

Services and slices as the plane keeps them, checked already; a reader takes all of it or nothing. What decided how they
were read is beside them, so that other settings or another version of kepd are no match.
Never: knows a file or a clock.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal

import msgspec

from agent.model.services.service import ServiceFacts, SliceFacts
from agent.services.objects.node_state import NodeSight

FORMAT = 1
LONGEST_AGE_S = 3600.0
AT_ONCE = 200
"""More objects in one piece would hold up the event loop."""


class SnapshotHead(msgspec.Struct, frozen=True, kw_only=True):
    """`read_by` is what objects were read with."""

    format: int = FORMAT
    read_by: tuple[str, ...]
    sight: NodeSight
    service_ranges: tuple[str, ...]
    services: int
    slices: int


class ServiceSnapshot(msgspec.Struct, frozen=True):
    head: SnapshotHead
    services: tuple[ServiceFacts, ...]
    slices: tuple[SliceFacts, ...]


Refusal = Literal["old", "other settings", "damaged"]
_ENCODER = msgspec.msgpack.Encoder()
_LENGTH_BYTES = 4


def pieces(head: SnapshotHead, services: Iterable[ServiceFacts], slices: Iterable[SliceFacts]) -> Iterator[bytes]:
    """Bytes to be joined; between two the world may go on, for what is in them does not change."""
    yield _framed(head)
    for found in (iter(services), iter(slices)):
        while some := tuple(islice(found, AT_ONCE)):
            yield _framed(some)


def _framed(what: object) -> bytes:
    encoded = _ENCODER.encode(what)
    return len(encoded).to_bytes(_LENGTH_BYTES, "big") + encoded


def read_snapshot(content: bytes, read_by: Sequence[str], age_s: float) -> ServiceSnapshot | Refusal:
    """`age_s` since sources last said that all of it holds. One from the future is as old as any."""
    if not 0 <= age_s <= LONGEST_AGE_S:
        return "old"
    try:
        frames = list(_frames(content))
        head = msgspec.msgpack.decode(frames[0], type=SnapshotHead)
        if head.format != FORMAT or head.read_by != tuple(read_by):
            return "other settings"
        services: list[ServiceFacts] = []
        slices: list[SliceFacts] = []
        for frame in frames[1:]:
            if len(services) < head.services:
                services += msgspec.msgpack.decode(frame, type=tuple[ServiceFacts, ...])
            else:
                slices += msgspec.msgpack.decode(frame, type=tuple[SliceFacts, ...])
    except (msgspec.DecodeError, ValueError, IndexError, RecursionError):
        return "damaged"
    if (len(services), len(slices)) != (head.services, head.slices):
        return "damaged"
    return ServiceSnapshot(head, tuple(services), tuple(slices))


def _frames(content: bytes) -> Iterator[bytes]:
    """Raises ValueError where the end is missing."""
    at = 0
    while at < len(content):
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(content[at:start], "big")
        if at > len(content):
            raise ValueError("cut off")
        yield content[start:at]
