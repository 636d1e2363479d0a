# SPDX-License-Identifier: Apache-2.0
"""What PodDisruptionBudgets let a drain do: how many pods end at once, and which never do.

Source of behaviour: the eviction API and the disruption controller.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from agent.model.selector import compile_selector
from kepd_rehearsal.plan.cluster import Cluster, Crew, Guard, Key, Member


class Held(msgspec.Struct, frozen=True):
    """A budget that lets fewer pods end at once than the drain ends; none ever, where `allowed` is 0. A pod that
    several guard is never evicted either: `budget` names them all then."""

    budget: str
    allowed: int
    wanted: int
    pods: tuple[str, ...]


def held(cluster: Cluster, gone: Sequence[Member]) -> list[Held]:
    found: list[Held] = []
    guards_of: dict[str, list[str]] = {}
    for guard in cluster.guards:
        matcher = compile_selector(guard.selector)
        own = [
            one
            for one in cluster.members
            if one.facts.namespace == guard.namespace and matcher.matches(one.facts.labels)
        ]
        known = {one.key for one in own}
        allowed, is_enough = _allowed(guard, own, cluster.crews)
        leaving = [one for one in gone if one.key in known and one.node]
        for one in leaving:
            guards_of.setdefault(one.key, []).append(f"{guard.namespace}/{guard.name}")
        counted = [one for one in leaving if one.is_ready or not (guard.lets_unready_go or is_enough)]
        counted = [one for one in counted if one.facts.phase != "Pending" and not one.facts.is_terminating]
        if len(counted) > allowed:
            names = tuple(one.key for one in counted)
            found.append(Held(f"{guard.namespace}/{guard.name}", allowed, len(counted), names))
    several = Counter(", ".join(names) for names in guards_of.values() if len(names) > 1)
    for budgets, count in several.items():
        names = tuple(key for key, names in guards_of.items() if ", ".join(names) == budgets)
        found.append(Held(budgets, 0, count, names))
    return found


def in_later_waves(cluster: Cluster, gone: Sequence[Member]) -> set[str]:
    """Pods that end only when others have taken the place of the first."""
    return {name for one in held(cluster, gone) for name in one.pods[one.allowed :]}


def _allowed(guard: Guard, own: Sequence[Member], crews: Mapping[Key, Crew]) -> tuple[int, bool]:
    """And whether as many are healthy as shall be, so that unready ones may go."""
    owners = {one.workload for one in own if one.workload is not None}
    expected = sum(crews[key].replicas for key in owners if key in crews)
    healthy = sum(one.is_ready for one in own)
    if guard.most_missing is not None:
        desired = max(expected - share(guard.most_missing, expected, is_up=True), 0)
    elif isinstance(guard.least, int):
        expected, desired = len(own), guard.least
    else:
        desired = share(guard.least or 0, expected, is_up=True)
    return (max(healthy - desired, 0) if expected else 0), healthy >= desired > 0


def share(value: str | int, whole: int, *, is_up: bool) -> int:
    if isinstance(value, int):
        return value
    digits = value.removesuffix("%")
    parts = int(digits) * whole if digits.isdigit() else 0
    return -(-parts // 100) if is_up else parts // 100
