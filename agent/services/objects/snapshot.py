# SPDX-License-Identifier: Apache-2.0
"""What sources reported, as bytes that a later process reads: after a boot, old endpoints beat none.

Services and slices as the plane keeps them, checked already; a reader takes all of it or nothing. What decided how they
were read is beside them, so that other settings or another version of kepd are no match, and the cluster that they are
of. Changes since then may stand in a second file, each with all that there is of one Service: so what the API said is
gone does not come back. Its last piece may be torn, where a crash cut it off; nothing else may.
Never: knows a file or a clock.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Literal
from zlib import crc32

import msgspec

from agent.model.services.nft_table import Family
from agent.model.services.service import Address, Backend, Range, ServiceFacts, ServiceKey, SliceFacts
from agent.services.objects.addresses import unfit_endpoint
from agent.services.objects.node_state import NodeSight

FORMAT = 2
LONGEST_AGE_S = 3600.0
MOST_ENTRY_BYTES = 400
"""Of what is kept for one entry of `services.elementsMax`; a larger file is none of kepd's."""
AT_ONCE = 200
"""More objects in one piece would hold up the event loop."""


class SnapshotHead(msgspec.Struct, frozen=True, kw_only=True):
    """`read_by` is what objects were read with, `mark` what a file of changes calls this snapshot."""

    format: int = FORMAT
    read_by: tuple[str, ...]
    cluster: str = ""
    mark: str = ""
    sight: NodeSight
    service_ranges: tuple[str, ...]
    services: int
    slices: int


class ServiceSnapshot(msgspec.Struct, frozen=True):
    head: SnapshotHead
    services: tuple[ServiceFacts, ...]
    slices: tuple[SliceFacts, ...]


class ChangedService(msgspec.Struct, frozen=True):
    """All that there is of one Service; no `facts`: it is gone, or was never for us."""

    key: ServiceKey
    facts: ServiceFacts | None
    slices: tuple[SliceFacts, ...]


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot has to be to be taken."""

    read_by: tuple[str, ...]
    cluster: str = ""
    longest_age_s: float = LONGEST_AGE_S
    most_ahead_s: float = 0.0
    """How far the clock may be behind that of whoever wrote it: one without a battery is, after a boot."""
    most_bytes: int = 1 << 28


Refusal = Literal["old", "from the future", "other settings", "damaged", "another cluster", "too large"]
_ENCODER = msgspec.msgpack.Encoder()
_LENGTH_BYTES = 4
_PREFIX_BYTES = 8
_PACKED = {"IPv4": 4, "IPv6": 16}
_TAIL_BYTES = 4
"""Of the port of an endpoint."""
_LONGEST_NAME = 253
_LONGEST_LABEL = _LONGEST_NAME + 64
_HIGHEST_PORT = 65535


def pieces(head: SnapshotHead, services: Iterable[ServiceFacts], slices: Iterable[SliceFacts]) -> Iterator[bytes]:
    """Bytes to be joined; between two the world may go on, for what is in them does not change."""
    yield framed(head)
    for found in (iter(services), iter(slices)):
        while some := tuple(islice(found, AT_ONCE)):
            yield framed(some)


def framed(what: object) -> bytes:
    encoded = _ENCODER.encode(what)
    return len(encoded).to_bytes(_LENGTH_BYTES, "big") + crc32(encoded).to_bytes(_LENGTH_BYTES, "big") + encoded


def read_snapshot(content: bytes, changes: bytes, expected: Expected, age_s: float) -> ServiceSnapshot | Refusal:
    """`age_s` since sources last said that all of it holds. One from the future may be as old as any."""
    if not -expected.most_ahead_s <= age_s <= expected.longest_age_s:
        return "from the future" if age_s < 0 else "old"
    if len(content) > expected.most_bytes or len(changes) > expected.most_bytes:
        return "too large"
    try:
        frames = list(_frames(content))
        head = msgspec.msgpack.decode(frames[0], type=SnapshotHead)
        if head.format != FORMAT or head.read_by != expected.read_by:
            return "other settings"
        if head.cluster != expected.cluster:
            return "another cluster"
        services, slices = _objects(head, frames[1:])
        services, slices = _changed(services, slices, head.mark, changes)
        is_impossible = any(map(_is_impossible_service, services)) or any(map(_is_impossible_slice, slices))
        if is_impossible or _is_impossible_head(head):
            return "damaged"
    except (msgspec.DecodeError, ValueError, IndexError, RecursionError):
        return "damaged"
    return ServiceSnapshot(head, tuple(services), tuple(slices))


def _objects(head: SnapshotHead, frames: Sequence[bytes]) -> tuple[list[ServiceFacts], list[SliceFacts]]:
    services: list[ServiceFacts] = []
    slices: list[SliceFacts] = []
    for frame in frames:
        if len(services) < head.services:
            services += msgspec.msgpack.decode(frame, type=tuple[ServiceFacts, ...])
        else:
            slices += msgspec.msgpack.decode(frame, type=tuple[SliceFacts, ...])
    if (len(services), len(slices)) != (head.services, head.slices):
        raise ValueError("counts differ")
    return services, slices


def _changed(
    services: list[ServiceFacts], slices: list[SliceFacts], mark: str, changes: bytes
) -> tuple[list[ServiceFacts], list[SliceFacts]]:
    """With what was told since. Changes of another snapshot are older than this one, and in it."""
    frames = _frames(changes, may_be_torn=True)
    if msgspec.msgpack.decode(next(frames, framed("")[_PREFIX_BYTES:]), type=str) != mark or not mark:
        return services, slices
    last: dict[ServiceKey, ChangedService] = {}
    for frame in frames:
        last.update((one.key, one) for one in msgspec.msgpack.decode(frame, type=tuple[ChangedService, ...]))
    kept = [one for one in services if one.key not in last]
    return (
        [*kept, *(one.facts for one in last.values() if one.facts is not None)],
        [*(one for one in slices if one.service not in last), *chain(*(one.slices for one in last.values()))],
    )


def _frames(content: bytes, *, may_be_torn: bool = False) -> Iterator[bytes]:
    """Raises ValueError where the end is missing, or a piece is not what was written."""
    at = 0
    while at < len(content):
        start = at + _PREFIX_BYTES
        end = start + int.from_bytes(content[at : at + _LENGTH_BYTES], "big")
        if may_be_torn and (end > len(content) or not any(content[at:])):
            return
        if start > len(content) or end > len(content) or end == start:
            raise ValueError("cut off")
        if crc32(content[start:end]) != int.from_bytes(content[at + _LENGTH_BYTES : start], "big"):
            raise ValueError("not what was written")
        yield content[start:end]
        at = end


def _is_impossible_head(head: SnapshotHead) -> bool:
    sight = head.sight
    known: tuple[Address | Range, ...] = (*sight.addresses, *sight.pod_ranges)
    texts = (*chain(*sight.labels.items()), *sight.taints, *head.service_ranges)
    return any(map(_is_odd_label, texts)) or any(_is_impossible_address(one, one.family) for one in known)


def _is_impossible_service(one: ServiceFacts) -> bool:
    """Nothing that kepd wrote; what comes from elsewhere reaches neither kernel nor terminal."""
    for family in ("IPv4", "IPv6"):
        part = one.v4 if family == "IPv4" else one.v6
        if part is None:
            continue
        addresses: tuple[Address | Range, ...] = (
            part.cluster_ip, *part.external_ips, *part.balancer_ips, *part.aliases, *part.source_ranges,
        )  # fmt: skip
        if any(_is_impossible_address(address, family) for address in addresses):
            return True
    ports = any(not 0 < port.port <= _HIGHEST_PORT or not 0 <= port.node_port <= _HIGHEST_PORT for port in one.ports)
    options = (*one.options.topology_keys, *(text for text, _ in one.options.weights))
    texts = (*one.key, one.type, one.uid, one.created, *(port.name for port in one.ports))
    return ports or any(map(_is_odd_text, texts)) or any(map(_is_odd_label, options))


def _is_impossible_address(one: Address | Range, family: str) -> bool:
    packed = (one.packed,) if isinstance(one, Address) else (one.first, one.last)
    return one.family != family or _is_odd_text(one.text) or any(len(found) != _PACKED[family] for found in packed)


def _is_impossible_slice(one: SliceFacts) -> bool:
    size = _PACKED[one.family] + _TAIL_BYTES
    numbers = any(not 0 < number <= _HIGHEST_PORT for _, number in one.ports)
    names = (*one.service, one.name, *(key.name for key, _ in one.ports))
    return (
        numbers
        or any(map(_is_odd_text, names))
        or any(_is_impossible_end(end, size, one.family) for end in one.endpoints)
    )


def _is_impossible_end(one: Backend, size: int, family: Family) -> bool:
    texts = (one.key, one.node, *one.zones, *one.nodes)
    if len(one.data) != size or any(map(_is_odd_text, texts)):
        return True
    return bool(unfit_endpoint(Address(family, "", one.data[:-_TAIL_BYTES])))


def _is_odd_text(text: str) -> bool:
    return len(text) > _LONGEST_NAME or not text.isprintable()


def _is_odd_label(text: str) -> bool:
    """Its key has a domain before the name."""
    return len(text) > _LONGEST_LABEL or not text.isprintable()
