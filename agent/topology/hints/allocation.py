# SPDX-License-Identifier: Apache-2.0
"""How many endpoints each zone should get, and whether hints may be active at all.

The answer depends on the number of ready endpoints and the CPU shares only, never on where endpoints are. Two things
KEP-2433 describes are absent because the code of Kubernetes lacks them: a second threshold for removing hints, and
counting nodes when CPU is unknown.
Source of behaviour: k8s.io/endpointslice/topologycache (getAllocations).
"""

import math
from typing import Literal

import msgspec

from agent.topology.hints.capacity import ZoneCapacity

OVERLOAD_THRESHOLD = 0.2

Refusal = Literal["node-info", "single-zone", "too-few-endpoints", "overload", "endpoint-without-zone", "no-hints"]


class ZoneAllocation(msgspec.Struct, frozen=True, gc=False):
    """The numbers of one zone. `most` is None when the minimums do not fit, since nothing is left to share then."""

    want: float
    least: int
    desired: float
    most: int | None


class Allocation(msgspec.Struct, frozen=True, gc=False):
    """The numbers of all zones, in zone order. `refusal` is None when hints may be active."""

    refusal: Refusal | None
    ready_count: int
    least_total: int
    zones: dict[str, ZoneAllocation]


def overload_factor(threshold: float = OVERLOAD_THRESHOLD) -> float:
    """K. Multiplying by it is not the same as dividing by 1 + threshold once doubles round."""
    return 1 / (1 + threshold)


def allocate(
    capacity: ZoneCapacity | None, ready_count: int, threshold: float = OVERLOAD_THRESHOLD
) -> Allocation | None:
    """The allocation for `ready_count` endpoints, refused or not; None without node information."""
    if capacity is None:
        return None
    factor = overload_factor(threshold)
    wants = {zone: ratio * float(ready_count) for zone, ratio in capacity.ratios.items()}
    leasts = {zone: math.ceil(want * factor) for zone, want in wants.items()}
    least_total = sum(leasts.values())
    spare = ready_count - least_total
    refusal: Refusal | None = None
    if len(capacity.ratios) > ready_count:
        refusal = "too-few-endpoints"
    elif spare < 0:
        refusal = "overload"
    zones = {
        zone: ZoneAllocation(
            want=want,
            least=leasts[zone],
            desired=max(want, float(leasts[zone])),
            most=leasts[zone] + spare if refusal is None else None,
        )
        for zone, want in wants.items()
    }
    return Allocation(refusal, ready_count, least_total, zones)
