# SPDX-License-Identifier: Apache-2.0
"""Hints for Services that come from manifests, where no control plane writes any.

Every node must come to the same answer: the result depends on the manifests alone and is recomputed from scratch, so
that history cannot leak in. Source of behaviour: ours.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from agent.model.finding import Finding, shown
from agent.model.nodes.node import Node
from agent.model.quantity import Quantity
from agent.topology.hints.allocation import OVERLOAD_THRESHOLD, Refusal
from agent.topology.hints.by_cpu import Assignment, assign_hints
from agent.topology.hints.capacity import EVERY_NODE, CapacityReading, read_capacity, read_zone_quantities
from agent.topology.hints.distribution import distribute_hints
from agent.topology.hints.mode import ModeChoice, choose_mode
from agent.topology.hints.slices import Endpoint, Slice, SliceLists, strip_hints
from agent.topology.manifest.facts import SelectingService

THRESHOLD_ANNOTATION = "kepd.dev/hints-overload-threshold"

HintState = Literal["active", "refused", "distribution", "manifest", "off", "none"]


class HintOptions(msgspec.Struct, frozen=True, gc=False):
    """`services.hints` of the configuration. A table of zones replaces all Node manifests for capacity."""

    mode: Literal["compute", "manifest", "off"] = "compute"
    zones: Mapping[str, Quantity] = msgspec.field(default_factory=dict)
    overload_threshold: float = OVERLOAD_THRESHOLD
    node_selector: Mapping[str, str] = EVERY_NODE


DEFAULT_OPTIONS = HintOptions()


class HintStatus(msgspec.Struct, frozen=True, gc=False):
    """What is logged and counted: the state, and the reason if it is a refusal."""

    state: HintState
    reason: Refusal | None = None

    def __str__(self) -> str:
        return self.state if self.reason is None else f"{self.state} ({self.reason})"


class FilledHints(msgspec.Struct, frozen=True, gc=False):
    """One Service and family: its slices with the hints to use, and how they came about. `given` are the completed
    endpoints before hints; `assignment` is there in mode topology only."""

    family: str
    choice: ModeChoice
    status: HintStatus
    given: tuple[Slice, ...]
    slices: tuple[Slice, ...]
    reading: CapacityReading
    threshold: float
    assignment: Assignment | None
    notes: tuple[Finding, ...]


def fill_hints(
    service: SelectingService,
    family: str,
    slices: Iterable[Slice],
    nodes: Sequence[Node],
    options: HintOptions = DEFAULT_OPTIONS,
    reading: CapacityReading | None = None,
) -> FilledHints:
    """`reading`: what the nodes come to, where the caller knows it already."""
    given, notes = complete_endpoints(service.key, slices, nodes)
    threshold, complaint = _threshold(service, options)
    if reading is None:
        reading = read_zone_quantities(options.zones) if options.zones else read_capacity(nodes, options.node_selector)
    choice = choose_mode(service.annotations, service.traffic_distribution)
    status = HintStatus("none")
    filled, assignment = strip_hints(SliceLists(to_create=given)), None
    if options.mode == "off":
        status = HintStatus("off")
    elif options.mode == "manifest" or any(endpoint.hints is not None for one in given for endpoint in one.endpoints):
        status, filled = HintStatus("manifest"), SliceLists(to_create=given)
    elif choice.mode == "distribution":
        status, filled = HintStatus("distribution"), distribute_hints(filled, choice.value)
    elif choice.mode == "topology":
        assignment = assign_hints(filled, reading.capacity, threshold)
        filled = assignment.slices
        status = HintStatus("refused", assignment.refusal) if assignment.refusal else HintStatus("active")
    return FilledHints(
        family=family,
        choice=choice,
        status=status,
        given=given,
        slices=tuple(sorted(filled.all, key=lambda one: one.name)),
        reading=reading,
        threshold=threshold,
        assignment=assignment,
        notes=notes + complaint,
    )


def complete_endpoints(
    where: str, slices: Iterable[Slice], nodes: Iterable[Node]
) -> tuple[tuple[Slice, ...], tuple[Finding, ...]]:
    """The slices in name order with conditions and zones filled in, and a note about what was filled in. A
    missing `ready` means ready to a proxy and unready to the computation, so it would block hints if it stayed."""
    zones = {node.name: node.zone for node in nodes}
    notes: list[Finding] = []

    def completed(endpoint: Endpoint) -> Endpoint:
        ready = True if endpoint.ready is None else endpoint.ready
        zone = endpoint.zone
        if zone is None and endpoint.node is not None and zones.get(endpoint.node):
            zone = zones[endpoint.node]
        if (ready, zone) == (endpoint.ready, endpoint.zone):
            return endpoint
        filled = [] if endpoint.ready is not None else ["conditions.ready taken as true"]
        if zone != endpoint.zone:
            filled.append(f"zone {zone} taken from node {endpoint.node}")
        notes.append(Finding(where, f"endpoint {endpoint.address}", ", ".join(filled)))
        return msgspec.structs.replace(endpoint, ready=ready, zone=zone)

    ordered = sorted(slices, key=lambda one: one.name)
    done = tuple(Slice(one.name, tuple(map(completed, one.endpoints))) for one in ordered)
    return done, tuple(notes)


def _threshold(service: SelectingService, options: HintOptions) -> tuple[float, tuple[Finding, ...]]:
    written = service.annotations.get(THRESHOLD_ANNOTATION)
    if written is None:
        return options.overload_threshold, ()
    value = _share(written)
    if value is not None:
        return value, ()
    text = f"{shown(written)} is not used; expected a number from 0 to 1, for example 0.3"
    return options.overload_threshold, (Finding(service.key, f"metadata.annotations[{THRESHOLD_ANNOTATION}]", text),)


def _share(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= 1 else None


def told_transition(before: HintStatus | None, after: HintStatus) -> str | None:
    """The line to log when the status is not what it was; None as long as it is, so that each change is told once."""
    if before == after:
        return None
    return str(after) if before is None else f"{before} -> {after}"
