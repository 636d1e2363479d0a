# SPDX-License-Identifier: Apache-2.0
"""EndpointSlices of a Service from change to change, with the hints that the control plane leaves, or writes anew.

Hints have a memory. Where no endpoint changed they stay as they are, although nodes came or went, unless a zone has too
few of them now; and a Service that was refused stays so until its own endpoints change. Source of behaviour:
k8s.io/endpointslice (reconciler, topologycache) and the EndpointSlice controller.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from agent.topology.hints.allocation import allocate
from agent.topology.hints.by_cpu import assign_hints, is_overloaded
from agent.topology.hints.capacity import CapacityReading
from agent.topology.hints.distribution import distribute_hints
from agent.topology.hints.mode import ModeChoice, choose_mode
from agent.topology.hints.slices import Endpoint, Slice, SliceLists, ready_endpoints, strip_hints
from agent.topology.hints.standalone import HintStatus, fill_hints
from kepd_rehearsal.plan.cluster import Member, Traffic, Written

MOST_ENDPOINTS = 100
FAMILY = "IPv4"
WAITS = "it was refused, and is looked at again when its endpoints change"


def endpoints_of(members: Iterable[Member], traffic: Traffic, zone_of: Mapping[str, str]) -> dict[str, Endpoint]:
    """By pod, those of pods that have a node."""
    return {
        one.key: Endpoint(
            addresses=(one.key,), zone=zone_of[one.node] or None, node=one.node, target=one.key, serving=one.is_ready,
            ready=one.is_ready or traffic.publishes_unready, terminating=False,
        )
        for one in sorted(members, key=lambda each: each.key)
        if one.node in zone_of
    }  # fmt: skip


def as_found(traffic: Traffic, slices: tuple[Slice, ...], reading: CapacityReading) -> Written:
    """As the API server has them."""
    return Written(slices, *_standing(slices, _choice(traffic), reading))


def written_first(traffic: Traffic, endpoints: Mapping[str, Endpoint], reading: CapacityReading) -> Written:
    """By somebody who knows nothing of the Service yet, as a bare node does each time."""
    filled = fill_hints(traffic.service, FAMILY, (Slice("all", tuple(endpoints.values())),), (), reading=reading)
    why = filled.choice.why if filled.status.reason is None else str(filled.status.reason)
    return Written(filled.slices, filled.status, why)


def written_anew(
    traffic: Traffic,
    endpoints: Mapping[str, Endpoint],
    nodes: Mapping[str, str],
    reading: CapacityReading,
    before: Written,
    *,
    is_edited: bool = False,
) -> Written:
    """`is_edited`: the Service itself changed, which makes the control plane look at it again."""
    choice = _choice(traffic)
    lists = sorted_in(before.slices, endpoints, nodes)
    is_same = not lists.to_create and not lists.to_update and len(lists.unchanged) == len(before.slices)
    if is_same and not is_edited and not _has_too_few(choice, before, reading):
        return Written(before.slices, *_standing(before.slices, choice, reading))
    return _hinted(choice, lists, reading)


def looked_at(traffic: Traffic, before: Written, reading: CapacityReading) -> Written:
    """By a control plane that sees these slices now."""
    return _hinted(_choice(traffic), SliceLists(unchanged=before.slices), reading)


def _hinted(choice: ModeChoice, lists: SliceLists, reading: CapacityReading) -> Written:
    if choice.mode == "topology":
        assignment = assign_hints(lists, reading.capacity)
        slices = assignment.slices.all
        if assignment.refusal is not None:
            return Written(_by_name(slices), HintStatus("refused", assignment.refusal), str(assignment.refusal))
        return Written(_by_name(slices), HintStatus("active"), choice.why)
    slices = (distribute_hints(lists, choice.value) if choice.mode == "distribution" else strip_hints(lists)).all
    return Written(_by_name(slices), *_standing(slices, choice, reading))


def _choice(traffic: Traffic) -> ModeChoice:
    return choose_mode(traffic.service.annotations, traffic.service.traffic_distribution)


def _by_name(slices: Iterable[Slice]) -> tuple[Slice, ...]:
    return tuple(sorted(slices, key=lambda one: one.name))


def _has_too_few(choice: ModeChoice, before: Written, reading: CapacityReading) -> bool:
    """In some zone, for the CPU that it has now: what makes the control plane look again on its own."""
    if choice.mode != "topology" or before.status.state != "active":
        return False
    zones = Counter(zone for one in ready_endpoints(before.slices) if one.hints for zone in one.hints.zones)
    return is_overloaded(zones, reading.capacity)


def _standing(slices: Sequence[Slice], choice: ModeChoice, reading: CapacityReading) -> tuple[HintStatus, str]:
    """What hints are, where nobody writes them now."""
    if choice.mode != "topology":
        return HintStatus("distribution" if choice.mode == "distribution" else "none"), choice.why
    ready = ready_endpoints(slices)
    if ready and all(one.hints is not None and one.hints.zones for one in ready):
        return HintStatus("active"), choice.why
    allocation = allocate(reading.capacity, len(ready))
    refusal = "node-info" if allocation is None else allocation.refusal
    if refusal is None and any(not one.zone for one in ready):
        refusal = "endpoint-without-zone"
    return HintStatus("refused", refusal), str(refusal) if refusal is not None else WAITS


def sorted_in(slices: Sequence[Slice], endpoints: Mapping[str, Endpoint], nodes: Mapping[str, str]) -> SliceLists:
    """Endpoints into the slices that have them, and new ones where there is room."""
    left = dict(endpoints)
    unchanged: list[Slice] = []
    updated: list[tuple[str, list[Endpoint]]] = []
    for piece in slices:
        found = [(old, _as_it_is_now(old, left, nodes)) for old in piece.endpoints]
        stays = [(old, new) for old, new in found if new is not None]
        if len(stays) == len(found) and all(_is_like(old, new) for old, new in stays):
            unchanged.append(piece)
        elif stays:
            updated.append((piece.name, [replace(new, addresses=old.addresses, hints=None) for old, new in stays]))
    rest = list(left.values())
    for _, kept in sorted(updated, key=lambda one: -len(one[1])):
        room = MOST_ENDPOINTS - len(kept)
        kept.extend(rest[:room])
        del rest[:room]
    roomy = [one for one in unchanged if len(one.endpoints) + len(rest) <= MOST_ENDPOINTS]
    if 0 < len(rest) < MOST_ENDPOINTS and roomy:
        fullest = max(roomy, key=lambda one: len(one.endpoints))
        unchanged.remove(fullest)
        updated.append((fullest.name, [*fullest.endpoints, *rest]))
        rest = []
    created = tuple(
        Slice(f"new-{len(slices)}-{start}", tuple(rest[start : start + MOST_ENDPOINTS]))
        for start in range(0, len(rest), MOST_ENDPOINTS)
    )
    return SliceLists(created, tuple(Slice(name, tuple(kept)) for name, kept in updated), tuple(unchanged))


def _as_it_is_now(old: Endpoint, left: dict[str, Endpoint], nodes: Mapping[str, str]) -> Endpoint | None:
    """Taken out of `left`. One of no pod that is known stays as long as its node does."""
    if old.target is None:
        return old if old.node is None or old.node in nodes else None
    return left.pop(old.target, None)


def _is_like(old: Endpoint, new: Endpoint) -> bool:
    return (new.ready, new.zone, new.node) == (old.ready, old.zone, old.node)
