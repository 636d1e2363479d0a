# SPDX-License-Identifier: Apache-2.0
"""The result of a sync in the form in which it is printed as JSON and compared with test vectors.

The field names are an interface: scripts read them. Numbers absent because a step was never reached are null.
"""

import msgspec

from agent.topology.hints.allocation import OVERLOAD_THRESHOLD, Refusal
from agent.topology.hints.by_cpu import Assignment, is_overloaded
from agent.topology.hints.capacity import ZoneCapacity


class EventDocument(msgspec.Struct, frozen=True, gc=False):
    type: str
    reason: str


ENABLED = EventDocument("Normal", "TopologyAwareHintsEnabled")
DISABLED = EventDocument("Warning", "TopologyAwareHintsDisabled")


class ZoneDocument(msgspec.Struct, frozen=True, gc=False):
    min: int
    max: int | None
    desired: float


class PlannedDocument(msgspec.Struct, frozen=True, gc=False):
    """Hints before donation, and what donation is to move."""

    have: dict[str, int]
    give: dict[str, int]
    receive: dict[str, int]


class AssignDocument(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The fields of an `assign` vector."""

    active: bool
    reason: Refusal | None
    event: EventDocument
    ready_endpoints: int
    milli_cpu: dict[str, int] | None = msgspec.field(name="milliCPU")
    ratios: dict[str, float] | None
    min_total: int | None
    zones: dict[str, ZoneDocument] | None
    planned: PlannedDocument | None
    kept: tuple[str, ...]
    rewritten: tuple[str, ...]
    hints: dict[str, tuple[str, ...] | None]
    per_zone: dict[str, int] | None
    donated: dict[str, int]
    received: dict[str, int]
    overloaded_after: bool | msgspec.UnsetType = msgspec.UNSET


def assign_document(
    assignment: Assignment, capacity: ZoneCapacity | None, threshold: float = OVERLOAD_THRESHOLD
) -> AssignDocument:
    allocation = assignment.allocation
    zones = None
    if allocation is not None and allocation.refusal is None:
        zones = {name: ZoneDocument(row.least, row.most, row.desired) for name, row in allocation.zones.items()}
    planned = None
    if assignment.planned is not None and assignment.have is not None:
        planned = PlannedDocument(assignment.have, assignment.planned.give, assignment.planned.receive)
    per_zone = assignment.per_zone
    return AssignDocument(
        active=assignment.is_active,
        reason=assignment.refusal,
        event=ENABLED if assignment.is_active else DISABLED,
        ready_endpoints=assignment.ready_count,
        milli_cpu=None if capacity is None else dict(capacity.milli),
        ratios=None if capacity is None else dict(capacity.ratios),
        min_total=None if allocation is None else allocation.least_total,
        zones=zones,
        planned=planned,
        kept=tuple(one.name for one in assignment.slices.unchanged),
        rewritten=tuple(one.name for one in assignment.slices.to_update),
        hints={
            endpoint.address: None if endpoint.hints is None else endpoint.hints.zones
            for one in assignment.slices.all
            for endpoint in one.endpoints
        },
        per_zone=per_zone,
        donated=assignment.donated,
        received=assignment.received,
        overloaded_after=msgspec.UNSET if per_zone is None else is_overloaded(per_zone, capacity, threshold),
    )
