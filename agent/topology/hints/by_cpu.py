# SPDX-License-Identifier: Apache-2.0
"""Zone hints in proportion to CPU: the whole of one sync, for one Service and address family.

Source of behaviour: k8s.io/endpointslice/topologycache (AddHints, RemoveHintsFromSlices).
"""

import math
from collections import Counter
from collections.abc import Mapping
from itertools import chain

import msgspec

from agent.topology.hints.allocation import OVERLOAD_THRESHOLD, Allocation, Refusal, allocate, overload_factor
from agent.topology.hints.capacity import ZoneCapacity
from agent.topology.hints.donation import Donations, plan_donations, walk_donations
from agent.topology.hints.slices import Endpoint, Hints, Slice, SliceLists, ready_endpoints, strip_hints, with_hints


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """The result of a sync: the slices as they are to be, and the numbers that led there. `slices.to_update` is what
    has to be written, `slices.unchanged` what was kept. `have` are the hints before donation, `per_zone` those after
    it; both are None on refusal."""

    refusal: Refusal | None
    ready_count: int
    allocation: Allocation | None
    slices: SliceLists
    have: dict[str, int] | None = None
    planned: Donations | None = None
    per_zone: dict[str, int] | None = None
    donated: dict[str, int] = {}
    received: dict[str, int] = {}

    @property
    def is_active(self) -> bool:
        return self.refusal is None


def assign_hints(lists: SliceLists, capacity: ZoneCapacity | None, threshold: float = OVERLOAD_THRESHOLD) -> Assignment:
    """Gives every ready endpoint a zone to serve, or takes all hints away and says why."""
    ready_count = len(ready_endpoints(lists.all))
    allocation = allocate(capacity, ready_count, threshold)
    if allocation is None:
        return Assignment("node-info", ready_count, None, strip_hints(lists))
    if allocation.refusal is not None:
        return Assignment(allocation.refusal, ready_count, allocation, strip_hints(lists))
    lists, have = _keep_what_fits(lists, allocation)
    if any(not endpoint.zone for endpoint in ready_endpoints(lists.to_create + lists.to_update)):
        return Assignment("endpoint-without-zone", ready_count, allocation, strip_hints(lists))
    lists = _point_home(lists, have)
    desired = {zone: row.desired for zone, row in allocation.zones.items()}
    planned = plan_donations(desired, have)
    walked = walk_donations(lists.to_create + lists.to_update, planned)
    border = len(lists.to_create)
    return Assignment(
        refusal=None,
        ready_count=ready_count,
        allocation=allocation,
        slices=SliceLists(walked.slices[:border], walked.slices[border:], lists.unchanged),
        have=have,
        planned=planned,
        per_zone=_moved(have, walked.donated, walked.received),
        donated=walked.donated,
        received=walked.received,
    )


def is_overloaded(
    per_zone: Mapping[str, int], capacity: ZoneCapacity | None, threshold: float = OVERLOAD_THRESHOLD
) -> bool:
    """Whether hints handed out earlier leave some zone with too few endpoints for its present CPU share."""
    if not per_zone:
        return False
    if capacity is None:
        return True
    total = float(sum(per_zone.values()))
    factor = overload_factor(threshold)
    return any(
        zone not in per_zone or per_zone[zone] < math.ceil(total * ratio * factor)
        for zone, ratio in capacity.ratios.items()
    )


def _keep_what_fits(lists: SliceLists, allocation: Allocation) -> tuple[SliceLists, dict[str, int]]:
    """Unchanged slices stay while no zone exceeds its maximum; the rest is rewritten. There is no other hysteresis."""
    have: dict[str, int] = {}
    kept: list[Slice] = []
    moved: list[Slice] = []
    for piece in lists.unchanged:
        counts = _hinted(piece)
        if counts is None or not _fits(counts, have, allocation):
            moved.append(piece)
            continue
        kept.append(piece)
        for zone, count in counts.items():
            have[zone] = have.get(zone, 0) + count
    return SliceLists(lists.to_create, lists.to_update + tuple(moved), tuple(kept)), have


def _hinted(piece: Slice) -> dict[str, int] | None:
    """Ready endpoints per hinted zone; None if one of them has no zone hint."""
    zones = [
        () if endpoint.hints is None else endpoint.hints.zones for endpoint in piece.endpoints if endpoint.is_ready
    ]
    return Counter(chain.from_iterable(zones)) if all(zones) else None


def _fits(counts: Mapping[str, int], have: Mapping[str, int], allocation: Allocation) -> bool:
    for zone, count in counts.items():
        row = allocation.zones.get(zone)
        if row is None or row.most is None or have.get(zone, 0) + count > row.most:
            return False
    return True


def _point_home(lists: SliceLists, have: dict[str, int]) -> SliceLists:
    """Every ready endpoint of the work list serves its own zone, also one without capacity; `have` is counted on."""

    def at_home(endpoint: Endpoint) -> Endpoint:
        if not endpoint.is_ready or not endpoint.zone:
            return endpoint
        have[endpoint.zone] = have.get(endpoint.zone, 0) + 1
        return with_hints(endpoint, Hints(zones=(endpoint.zone,)))

    def rewritten(pieces: tuple[Slice, ...]) -> tuple[Slice, ...]:
        return tuple(Slice(piece.name, tuple(map(at_home, piece.endpoints))) for piece in pieces)

    return SliceLists(rewritten(lists.to_create), rewritten(lists.to_update), lists.unchanged)


def _moved(have: Mapping[str, int], donated: Mapping[str, int], received: Mapping[str, int]) -> dict[str, int]:
    zones = sorted({*have, *received})
    return {zone: have.get(zone, 0) - donated.get(zone, 0) + received.get(zone, 0) for zone in zones}
