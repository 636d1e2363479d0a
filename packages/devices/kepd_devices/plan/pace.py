# SPDX-License-Identifier: Apache-2.0
"""How often slices of a pool may change: a driver that floods has its newest ones in force later. Pure.

What is held back is not queued: the newest that was published comes next, whatever was between.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

import msgspec

from kepd_devices.manifest.objects import Slice
from kepd_devices.plan.pools import PoolName

MOST_CHANGES, WITHIN_S = 10, 60.0
# Pools that are gone and changed a moment ago are remembered, or coming and going would be free.
MOST_POOLS = 1024


class PaceChange(msgspec.Struct, frozen=True):
    pool: PoolName
    is_flood: bool

    def __str__(self) -> str:
        driver, name = self.pool
        often = f"more than {MOST_CHANGES} times in {WITHIN_S:g} s"
        return f"slices of pool {name} of driver {driver} changed {often}; the newest count later"


class _Pool:
    def __init__(self) -> None:
        self.in_force: tuple[Slice, ...] = ()
        self.changes: deque[float] = deque(maxlen=MOST_CHANGES)
        # When a change was held back last; None while the pool is no flood.
        self.delayed_s: float | None = None


class SlicePace:
    def __init__(self) -> None:
        self._pools: dict[PoolName, _Pool] = {}

    def paced(self, published: Iterable[Slice], now_s: float) -> tuple[list[Slice], list[PaceChange]]:
        """What counts now, and which pools began or ceased to flood."""
        given: dict[PoolName, list[Slice]] = defaultdict(list)
        for one in published:
            given[one.spec.driver, one.spec.pool.name].append(one)
        told: list[PaceChange] = []
        for name in [*given, *(self._pools.keys() - given.keys())]:
            pool = self._pools.get(name) or _Pool()
            self._take(pool, tuple(given.get(name, ())), now_s)
            if (change := _flood(pool, given.get(name, ()), now_s)) is not None:
                told.append(PaceChange(name, change))
            self._remember(name, pool, now_s)
        return [one for pool in self._pools.values() for one in pool.in_force], told

    @property
    def is_behind(self) -> bool:
        """A pool floods, or did a moment ago."""
        return any(one.delayed_s is not None for one in self._pools.values())

    def _take(self, pool: _Pool, slices: tuple[Slice, ...], now_s: float) -> None:
        if slices == pool.in_force:
            return
        if not _is_more(pool.in_force, slices):
            if len(pool.changes) == MOST_CHANGES and now_s - pool.changes[0] < WITHIN_S:
                return
            pool.changes.append(now_s)
        pool.in_force = slices

    def _remember(self, name: PoolName, pool: _Pool, now_s: float) -> None:
        is_quiet = not pool.changes or now_s - pool.changes[-1] >= WITHIN_S
        if pool.in_force or not (is_quiet or len(self._pools) > MOST_POOLS):
            self._pools[name] = pool
        else:
            self._pools.pop(name, None)


def _is_more(before: Sequence[Slice], now: Sequence[Slice]) -> bool:
    """Parts of one publication, slice by slice: what was of its generation is as it was, and there are no more than it
    announces."""
    newest = max((one.spec.pool.generation for one in (*before, *now)), default=0)
    was = [one for one in before if one.spec.pool.generation == newest]
    current = [one for one in now if one.spec.pool.generation == newest]
    if not current or (before and not was):
        return False
    return all(one in current for one in was) and len(current) <= current[0].spec.pool.resource_slice_count


def _flood(pool: _Pool, published: Sequence[Slice], now_s: float) -> bool | None:
    """Whether it is one since now, or is one no more; None where nothing changed. Once quiet for a while it is none:
    a driver that goes on is told of once."""
    was = pool.delayed_s is not None
    if tuple(published) != pool.in_force:
        pool.delayed_s = now_s
        return None if was else True
    if pool.delayed_s is None or now_s - pool.delayed_s < WITHIN_S:
        return None
    pool.delayed_s = None
    return False
