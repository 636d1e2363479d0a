# SPDX-License-Identifier: Apache-2.0
"""For which numbers of replicas hints switch on, and what each zone gets then: the table of `kepctl plan zones`.

Never: needs endpoints; whether hints are active depends on their number alone. Placement is taken to be even.
Source of behaviour: the same functions that compute hints (`allocation.py`, `donation.py`).
"""

import math
from collections.abc import Sequence

import msgspec

from agent.model.quantity import Quantity, QuantityError, parse_quantity
from agent.topology.hints.allocation import OVERLOAD_THRESHOLD, Refusal, allocate, overload_factor
from agent.topology.hints.capacity import CapacityReading, ZoneCapacity
from agent.topology.hints.donation import plan_donations

MOST_REPLICAS = 5000
# Beyond this many allocations the search for `always_from` is given up; only tiny thresholds get there.
LONGEST_SEARCH = 100_000


class PlanRow(msgspec.Struct, frozen=True, gc=False):
    """One number of replicas. `least` is None without node information, `per_zone` whenever hints are off."""

    n: int
    refusal: Refusal | None
    least: dict[str, int] | None
    least_total: int | None
    placed: dict[str, int]
    per_zone: dict[str, int] | None
    donated: int


class ActivatingCounts(msgspec.Struct, frozen=True, gc=False):
    """All numbers of ready endpoints that activate hints: those listed, and every one from `always_from` on."""

    listed: tuple[int, ...]
    always_from: int | None

    def nearest(self, n: int) -> tuple[int | None, int | None]:
        """The closest activating number below n and the closest above it."""
        lower = [count for count in self.listed if count < n]
        higher = [count for count in self.listed if count > n]
        if self.always_from is not None:
            if n > self.always_from:
                lower.append(n - 1)
            higher.append(max(self.always_from, n + 1))
        return max(lower, default=None), min(higher, default=None)

    def __str__(self) -> str:
        parts = [", ".join(map(str, self.listed))] if self.listed else []
        if self.always_from is not None:
            parts.append(f"from {self.always_from} on")
        return " and ".join(parts) or "no number"


class ZonePlan(msgspec.Struct, frozen=True, gc=False):
    """The rows in order, with the node reading they rest on and remarks a reader should see first."""

    rows: tuple[PlanRow, ...]
    always_from: int | None
    activating: ActivatingCounts
    reading: CapacityReading
    placement: tuple[str, ...]
    remarks: tuple[str, ...] = ()


def plan_zones(
    reading: CapacityReading,
    first: int,
    last: int,
    placement: Sequence[str],
    threshold: float = OVERLOAD_THRESHOLD,
    remarks: tuple[str, ...] = (),
) -> ZonePlan:
    """The plan for `first` to `last` replicas, spread evenly over the zones in `placement`."""
    zones = tuple(sorted(placement))
    rows = tuple(_row(reading.capacity, n, zones, threshold) for n in range(first, last + 1))
    activating = activating_counts(reading.capacity, threshold)
    return ZonePlan(rows, activating.always_from, activating, reading, zones, remarks)


def _row(capacity: ZoneCapacity | None, n: int, zones: Sequence[str], threshold: float) -> PlanRow:
    placed = place_evenly(n, zones)
    allocation = allocate(capacity, n, threshold)
    if allocation is None:
        return PlanRow(n, "node-info", None, None, placed, None, 0)
    least = {zone: row.least for zone, row in allocation.zones.items()}
    if allocation.refusal is not None:
        return PlanRow(n, allocation.refusal, least, allocation.least_total, placed, None, 0)
    moves = plan_donations({zone: row.desired for zone, row in allocation.zones.items()}, placed)
    # All endpoints are new here, so whatever is planned is also carried out.
    per_zone = {
        zone: placed.get(zone, 0) - moves.give.get(zone, 0) + moves.receive.get(zone, 0)
        for zone in sorted({*placed, *moves.receive})
    }
    return PlanRow(n, None, least, allocation.least_total, placed, per_zone, sum(moves.give.values()))


def place_evenly(n: int, zones: Sequence[str]) -> dict[str, int]:
    """What zone spread with maxSkew 1 leads to: the first zones in order get one more."""
    if not zones:
        return {}
    each, more = divmod(n, len(zones))
    return {zone: each + (position < more) for position, zone in enumerate(sorted(zones))}


def activating_counts(capacity: ZoneCapacity | None, threshold: float = OVERLOAD_THRESHOLD) -> ActivatingCounts:
    """Every number that activates hints. Beyond a bound all do; below it each is tried."""
    if capacity is None:
        return ActivatingCounts((), None)
    bound = _search_bound(capacity, threshold)
    if bound is None:
        tried = range(1, 10 * len(capacity.ratios) + 1)
        return ActivatingCounts(tuple(n for n in tried if _activates(capacity, n, threshold)), None)
    always_from = bound
    while always_from > 1 and _activates(capacity, always_from - 1, threshold):
        always_from -= 1
    listed = tuple(n for n in range(1, always_from) if _activates(capacity, n, threshold))
    return ActivatingCounts(listed, always_from)


def _activates(capacity: ZoneCapacity, n: int, threshold: float) -> bool:
    allocation = allocate(capacity, n, threshold)
    return allocation is not None and allocation.refusal is None


def _search_bound(capacity: ZoneCapacity, threshold: float) -> int | None:
    """A number from which on hints are active for certain, None if there is none. Rounding up adds less than one per
    zone, so the minimums stay below n x K x (sum of the shares) + k. One more per zone covers the noise of doubles. The
    shares sum to more than 1 when zones are smaller than a milli-CPU."""
    zones = len(capacity.ratios)
    unused = 1 - overload_factor(threshold) * math.fsum(capacity.ratios.values())
    if unused <= 0 or 2 * zones / unused > LONGEST_SEARCH:
        return None
    return math.ceil(2 * zones / unused)


def parse_zones(text: str) -> dict[str, Quantity]:
    """Reads `a=2,b=500m`; raises ValueError with what it expected."""
    zones: dict[str, Quantity] = {}
    for part in text.split(","):
        name, equals, cpu = part.strip().partition("=")
        if not name or not equals:
            raise ValueError(f"{part!r} is not ZONE=CPU; expected, for example, a=2,b=2,c=4")
        if name in zones:
            raise ValueError(f"zone {name!r} is given twice; expected one CPU amount per zone")
        try:
            zones[name] = parse_quantity(cpu)
        except QuantityError as error:
            raise ValueError(f"zone {name}: {error}") from error
        if zones[name].nanos <= 0:
            raise ValueError(f"zone {name}: {cpu!r} is not above zero; expected the CPU that the zone's nodes offer")
    return zones


def parse_replicas(text: str) -> range:
    """Reads `1..30` or `5`; raises ValueError with what it expected."""
    low, dots, high = text.strip().partition("..")
    bounds = (low, high if dots else low)
    right = f"expected FIRST..LAST with 1 <= FIRST <= LAST <= {MOST_REPLICAS}, for example 1..30"
    if not all(bound.isascii() and bound.isdigit() and len(bound) <= 9 for bound in bounds):
        raise ValueError(f"{text!r} is not a range of replicas; {right}")
    first, last = map(int, bounds)
    if not 1 <= first <= last <= MOST_REPLICAS:
        raise ValueError(f"{text!r} is out of range; {right}")
    return range(first, last + 1)
