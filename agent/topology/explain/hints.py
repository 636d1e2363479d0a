# SPDX-License-Identifier: Apache-2.0
"""Why a Service has zone hints or has none, with the numbers that decided and what to change.

It is built from the same FilledHints that the services plane uses, so it cannot tell another story.
Source of behaviour: ours; history in kubernetes/kubernetes#103888, #119990, #122437.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agent.model.finding import Finding
from agent.model.nodes.node import ZONE_LABEL
from agent.topology.hints.allocation import Refusal
from agent.topology.hints.assign_document import AssignDocument, assign_document
from agent.topology.hints.by_cpu import Assignment, assign_hints
from agent.topology.hints.capacity import BrokenNode, CapacityReading, LeftOutNode
from agent.topology.hints.mode import MODE_ANNOTATION, ModeChoice
from agent.topology.hints.routing import zone_uses_hints
from agent.topology.hints.slices import Endpoint, SliceLists
from agent.topology.hints.standalone import FilledHints, HintStatus
from agent.topology.hints.zones import ActivatingCounts, activating_counts

# Loads are quotients of doubles; a load of exactly 1.2 must not be marked because of its last bit.
NOISE = 1e-9
PREFER_SAME_ZONE = "spec.trafficDistribution: PreferSameZone"


class HintAdvice(msgspec.Struct, frozen=True, gc=False):
    """One thing that would change the outcome."""

    text: str


class ZoneExplanation(msgspec.Struct, frozen=True, gc=False):
    """One zone. None: the number does not exist, because the zone has no capacity or a step was not reached. `load` is
    what an endpoint hinted for the zone carries compared with an even share over all; `uses_hints` says whether proxies
    in the zone stay with the endpoints hinted for it or use all."""

    zone: str
    milli_cpu: int | None
    share: float | None
    want: float | None
    least: int | None
    desired: float | None
    most: int | None
    have: int
    give: int
    receive: int
    final: int | None
    load: float | None
    is_overloaded: bool
    uses_hints: bool


class FamilyExplanation(msgspec.Struct, frozen=True, gc=False):
    """One address family. `cause` is what decided it, with the numbers put in."""

    family: str
    status: HintStatus
    is_active: bool
    reason: Refusal | None
    cause: str
    ready_count: int
    zone_count: int
    least_total: int | None
    threshold: float
    zones: tuple[ZoneExplanation, ...]
    activating: ActivatingCounts | None
    nearest_lower: int | None
    nearest_higher: int | None
    left_out: tuple[LeftOutNode, ...]
    broken: tuple[BrokenNode, ...]
    without_zone: tuple[str, ...]
    unready: tuple[str, ...]
    advice: tuple[HintAdvice, ...]
    document: AssignDocument | None
    notes: tuple[Finding, ...]


class HintsExplanation(msgspec.Struct, frozen=True, gc=False):
    service: str
    choice: ModeChoice
    families: tuple[FamilyExplanation, ...]

    @property
    def exit_code(self) -> int:
        """0: every family has active hints; 1: a family is refused, the mode is none, or there is no endpoint slice."""
        return 0 if self.families and all(family.is_active for family in self.families) else 1


def explain_family(filled: FilledHints) -> FamilyExplanation:
    """Explains what `fill_hints` decided. Where the manifests have hints, the numbers are what computing would give."""
    assignment = filled.assignment
    if assignment is None and filled.choice.mode == "topology":
        assignment = assign_hints(SliceLists(unchanged=filled.given), filled.reading.capacity, filled.threshold)
    endpoints = [endpoint for one in filled.slices for endpoint in one.endpoints]
    ready = [endpoint for endpoint in endpoints if endpoint.is_ready]
    active = bool(ready) and all(endpoint.hints is not None and endpoint.hints.zones for endpoint in ready)
    without_zone = tuple(endpoint.address for endpoint in ready if not endpoint.zone)
    allocation = assignment.allocation if assignment is not None else None
    activating, lower, higher = None, None, None
    if assignment is not None and filled.reading.capacity is not None:
        activating = activating_counts(filled.reading.capacity, filled.threshold)
        lower, higher = activating.nearest(assignment.ready_count)
    cause = _cause(filled, assignment, without_zone, active=active)
    return FamilyExplanation(
        family=filled.family,
        status=filled.status,
        is_active=active,
        reason=assignment.refusal if assignment is not None else None,
        cause=cause,
        ready_count=len(ready),
        zone_count=len(filled.reading.zones),
        least_total=allocation.least_total if allocation is not None else None,
        threshold=filled.threshold,
        zones=_zones(filled, assignment, endpoints),
        activating=activating,
        nearest_lower=lower,
        nearest_higher=higher,
        left_out=filled.reading.left_out,
        broken=filled.reading.broken,
        without_zone=without_zone,
        unready=tuple(endpoint.address for endpoint in endpoints if not endpoint.is_ready),
        advice=tuple(_advice(filled, assignment, activating, (lower, higher), without_zone)),
        document=None if assignment is None else assign_document(assignment, filled.reading.capacity, filled.threshold),
        notes=filled.notes,
    )


def _zones(
    filled: FilledHints, assignment: Assignment | None, endpoints: Sequence[Endpoint]
) -> tuple[ZoneExplanation, ...]:
    ready = [endpoint for endpoint in endpoints if endpoint.is_ready]
    at_home = Counter(endpoint.zone for endpoint in ready if endpoint.zone)
    final = Counter(zone for endpoint in ready if endpoint.hints is not None for zone in endpoint.hints.zones)
    have = assignment.have if assignment is not None and assignment.have is not None else at_home
    names = {*filled.reading.zones, *at_home, *final}
    return tuple(_zone(name, filled, assignment, have, final, endpoints) for name in sorted(names))


def _zone(
    name: str,
    filled: FilledHints,
    assignment: Assignment | None,
    have: Mapping[str, int],
    final: Mapping[str, int],
    endpoints: Sequence[Endpoint],
) -> ZoneExplanation:
    capacity = filled.reading.capacity
    share = None if capacity is None else capacity.ratios.get(name)
    row = None
    if assignment is not None and assignment.allocation is not None:
        row = assignment.allocation.zones.get(name)
    planned = assignment.planned if assignment is not None else None
    held = final.get(name, 0)
    load = share * sum(final.values()) / held if share is not None and held else None
    return ZoneExplanation(
        zone=name,
        milli_cpu=None if capacity is None else capacity.milli.get(name),
        share=share,
        want=row.want if row is not None else None,
        least=row.least if row is not None else None,
        desired=row.desired if row is not None else None,
        most=row.most if row is not None else None,
        have=have.get(name, 0),
        give=planned.give.get(name, 0) if planned is not None else 0,
        receive=planned.receive.get(name, 0) if planned is not None else 0,
        final=held if final else None,
        load=load,
        is_overloaded=load is not None and load - 1 > filled.threshold + NOISE,
        uses_hints=zone_uses_hints(endpoints, name),
    )


def _cause(filled: FilledHints, assignment: Assignment | None, without_zone: Sequence[str], *, active: bool) -> str:
    if filled.status.state == "off":
        return "services.hints.mode is off, so no Service gets hints"
    if filled.status.state == "manifest":
        used = "active" if active else "not on every ready endpoint, which switches them off everywhere"
        return f"hints are taken from the manifests as written; they are {used}"
    if assignment is not None:
        return _assignment_cause(filled, assignment, without_zone)
    if filled.status.state == "distribution":
        if active:
            return f"{filled.choice.why}: every ready endpoint serves its own zone, whatever the CPU shares"
        missing = ", ".join(without_zone) or "no endpoint is ready"
        return f"{filled.choice.why}, but a ready endpoint without a zone gets no zone hint: {missing}"
    return f"the Service does not ask for hints: {filled.choice.why}"


def _assignment_cause(filled: FilledHints, assignment: Assignment, without_zone: Sequence[str]) -> str:
    allocation, ready = assignment.allocation, assignment.ready_count
    match assignment.refusal:
        case "node-info":
            return _node_info_cause(filled.reading)
        case "too-few-endpoints" if allocation is not None:
            return f"{ready} endpoints are ready and there are {len(allocation.zones)} zones; each needs one"
        case "overload" if allocation is not None:
            limits = f"{len(allocation.zones)} zones, {filled.threshold * 100:g} % limit"
            return f"minimums need {allocation.least_total} endpoints, {ready} are ready ({limits})"
        case "endpoint-without-zone":
            return f"ready endpoints without a zone: {', '.join(without_zone)}"
        case _:
            zones = len(allocation.zones) if allocation is not None else 0
            least = allocation.least_total if allocation is not None else 0
            return f"the minimums of {zones} zones need {least} endpoints, {ready} are ready"


def _node_info_cause(reading: CapacityReading) -> str:
    if reading.broken:
        listed = "; ".join(f"{node.name or 'a zone'}: {node.detail}" for node in reading.broken)
        return f"{len(reading.broken)} node(s) that count are incomplete: {listed}"
    zones = ", ".join(reading.zones) or "none"
    return f"two zones with ready worker nodes are needed, there are {len(reading.zones)} ({zones})"


def _advice(
    filled: FilledHints,
    assignment: Assignment | None,
    activating: ActivatingCounts | None,
    nearest: tuple[int | None, int | None],
    without_zone: Sequence[str],
) -> Iterable[HintAdvice]:
    if filled.status.state == "off":
        yield HintAdvice("set services.hints.mode to compute")
    elif filled.choice.mode == "none":
        yield HintAdvice(f"annotate the Service with {MODE_ANNOTATION}: Auto for hints in proportion to CPU")
        yield HintAdvice(f"or set {PREFER_SAME_ZONE} for hints that always name the endpoint's own zone")
    elif filled.status.state == "manifest" and assignment is not None:
        yield HintAdvice("remove the hints from the EndpointSlice manifests to have them computed")
    is_asked_for = filled.choice.mode != "none" and filled.status.state != "off"
    for address in without_zone if is_asked_for else ():
        text = f"give endpoint {address} a zone, or a nodeName whose Node has label {ZONE_LABEL}"
        yield HintAdvice(text)
    if assignment is None or assignment.refusal is None:
        return
    if assignment.refusal == "node-info":
        yield from _node_advice(filled.reading)
    elif assignment.refusal in ("too-few-endpoints", "overload"):
        lower, higher = nearest
        counts = " or ".join(str(count) for count in (lower, higher) if count is not None)
        if counts:
            yield HintAdvice(f"run {counts} ready endpoints; hints activate at {activating}")
    yield HintAdvice(f"or remove the annotation and set {PREFER_SAME_ZONE}, which is never refused")


def _node_advice(reading: CapacityReading) -> Iterable[HintAdvice]:
    for node in reading.broken:
        if node.cause == "zone-missing":
            yield HintAdvice(f"label node {node.name}: {ZONE_LABEL}=<its zone>")
        else:
            yield HintAdvice(f"node {node.name} must report allocatable CPU above zero ({node.detail})")
    if not reading.broken:
        yield HintAdvice("have ready worker nodes with CPU in at least two zones")
    for left in reading.left_out:
        yield HintAdvice(f"node {left.name} does not count: {left.detail}")
