# SPDX-License-Identifier: Apache-2.0
"""What has to be remembered of a Service between two syncs, and the events that follow from it.

Source of behaviour: k8s.io/endpointslice/topologycache (SetHints, RemoveHints, GetOverloadedServices); TOP-5, TOP-20,
TOP-21, TOP-28, TOP-33.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from agent.topology.hints.allocation import OVERLOAD_THRESHOLD, Refusal
from agent.topology.hints.by_cpu import Assignment, is_overloaded
from agent.topology.hints.capacity import ZoneCapacity

MEANINGS: Mapping[Refusal, str] = {
    "node-info": "a node that counts lacks zone or allocatable CPU, or fewer than two zones are usable",
    "single-zone": "all nodes are in one zone",
    "too-few-endpoints": "fewer ready endpoints than zones",
    "overload": "the endpoints every zone needs at least do not fit into those that are ready",
    "endpoint-without-zone": "a ready endpoint has no zone",
    "no-hints": "there are no hints",
}


class HintEvent(msgspec.Struct, frozen=True, gc=False):
    """An event on the Service. The reasons are those of Kubernetes."""

    type: Literal["Normal", "Warning"]
    reason: Literal["TopologyAwareHintsEnabled", "TopologyAwareHintsDisabled"]
    text: str


class HintRecord(msgspec.Struct, frozen=True, gc=False):
    """One Service: hints per zone for each family that has some, and whether it counts as active."""

    per_zone: Mapping[str, Mapping[str, int]] = {}
    is_active: bool = False


def after_sync(record: HintRecord, family: str, assignment: Assignment) -> tuple[HintRecord, HintEvent | None]:
    """Every refusal is an event, a success only one that makes hints active. One refused family ends that (TOP-28)."""
    if assignment.per_zone is None:
        return _forget(record, family), HintEvent(
            "Warning", "TopologyAwareHintsDisabled", event_text(family, assignment)
        )
    event = None
    if not record.is_active:
        event = HintEvent("Normal", "TopologyAwareHintsEnabled", event_text(family, assignment))
    return HintRecord({**record.per_zone, family: assignment.per_zone}, is_active=True), event


def after_drop(record: HintRecord, family: str) -> tuple[HintRecord, HintEvent | None]:
    event = None
    if record.is_active:
        event = HintEvent("Warning", "TopologyAwareHintsDisabled", f"{family}: the Service no longer asks for hints")
    return _forget(record, family), event


def _forget(record: HintRecord, family: str) -> HintRecord:
    return HintRecord({name: counts for name, counts in record.per_zone.items() if name != family}, is_active=False)


def needs_sync(record: HintRecord, capacity: ZoneCapacity | None, threshold: float = OVERLOAD_THRESHOLD) -> bool:
    """After a change of capacity: whether any family of the Service has become overloaded."""
    return any(is_overloaded(counts, capacity, threshold) for counts in record.per_zone.values())


def event_text(family: str, assignment: Assignment) -> str:
    allocation = assignment.allocation
    numbers = f"{assignment.ready_count} ready endpoints"
    if allocation is not None:
        numbers += f", {len(allocation.zones)} zones"
    if assignment.refusal is None:
        return f"{family}: hints are active ({numbers})"
    if assignment.refusal == "overload" and allocation is not None:
        numbers += f", {allocation.least_total} needed"
    return f"{family}: {MEANINGS[assignment.refusal]} ({numbers})"
