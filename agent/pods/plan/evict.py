# SPDX-License-Identifier: Apache-2.0
"""What happens when the node runs out of memory, space, inodes or processes, as a kubelet does it.

First what belongs to no pod makes room, then one pod at a time ends; `victims` says which. A threshold that was met is
met until there is `reclaim` more than it asks for. Memory comes first, then processes, inodes, and space; of each the
hard threshold first. Figures that are old decide nothing. Pure: what was seen before comes in and goes out as `Seen`.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from agent.model.nodes.use import Amount, NodeLook
from agent.pods.plan.scarcity.victims import PossibleVictim, Victim, choose_victim

SIGNALS = (
    "memory.available",
    "pid.available",
    "nodefs.inodesFree",
    "imagefs.inodesFree",
    "containerfs.inodesFree",
    "nodefs.available",
    "imagefs.available",
    "containerfs.available",
)
"""In the order in which they are acted on."""
CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure")
CLEANED_UP_S, NEVER_S = 30.0, float("-inf")
PERIODS_FRESH = 2


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """Met below `quantity`, or below this `share` of the capacity. Without a grace it is hard."""

    signal: str
    quantity: int = 0
    share: float = 0.0
    grace_s: float = 0.0
    reclaim: int = 0
    reclaim_share: float = 0.0

    @property
    def kind(self) -> str:
        return "soft" if self.grace_s else "hard"

    @property
    def key(self) -> str:
        return f"{self.signal}/{self.kind}"

    def line(self, capacity: int) -> int:
        return self.quantity or int(capacity * self.share)

    def solved_line(self, capacity: int) -> int:
        return self.line(capacity) + (self.reclaim or int(capacity * self.reclaim_share))


class EvictionRules(msgspec.Struct, frozen=True, kw_only=True):
    thresholds: tuple[Threshold, ...] = ()
    most_grace_s: float = 30.0
    transition_s: float = 300.0
    period_s: float = 10.0
    readmits: bool = True

    def in_order(self) -> list[Threshold]:
        return sorted(self.thresholds, key=lambda one: (SIGNALS.index(one.signal), one.grace_s > 0))


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """`met_s`: since when each threshold is met without a gap; `held_s`: when a condition was last true; `collected_s`:
    when room was last made on each file system; `ended_s`: when a pod was last chosen."""

    met_s: Mapping[str, float] = msgspec.field(default_factory=dict)
    held_s: Mapping[str, float] = msgspec.field(default_factory=dict)
    collected_s: Mapping[str, float] = msgspec.field(default_factory=dict)
    ended_s: float = float("-inf")


class WaitingPod(msgspec.Struct, frozen=True):
    """A threshold that is met and not acted on yet."""

    threshold: Threshold
    until_s: float


class EvictionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`collect` is the signal to make room for; `begun` are thresholds that are met now and were not before; with
    `needs_pods` only the pods can tell what is next."""

    seen: Seen
    conditions: frozenset[str] = frozenset()
    begun: tuple[Threshold, ...] = ()
    collect: str = ""
    victim: Victim | None = None
    needs_pods: bool = False
    waits: tuple[WaitingPod, ...] = ()


def condition_of(signal: str) -> str:
    kind = signal.partition(".")[0]
    return {"memory": "MemoryPressure", "pid": "PIDPressure"}.get(kind, "DiskPressure")


def can_collect(signal: str) -> bool:
    """Whether something that belongs to no pod can make room."""
    return condition_of(signal) == "DiskPressure"


def plan_eviction(
    look: NodeLook | None, pods: Sequence[PossibleVictim] | None, rules: EvictionRules, seen: Seen, now_s: float
) -> EvictionPlan:
    """`pods` are looked at only where one has to end, for that costs; None: not yet."""
    if look is None or now_s - look.taken_s > PERIODS_FRESH * rules.period_s:
        return EvictionPlan(seen=seen, conditions=_conditions(seen, rules, now_s))
    met = [one for one in rules.in_order() if _is_met(one, look, seen)]
    begun = tuple(one for one in met if one.key not in seen.met_s)
    seen = msgspec.structs.replace(
        seen,
        met_s={one.key: seen.met_s.get(one.key, now_s) for one in met},
        held_s={**seen.held_s, **{condition_of(one.signal): now_s for one in met}},
    )
    waits = tuple(
        WaitingPod(one, until_s)
        for one in met
        if now_s < (until_s := seen.met_s[one.key] + one.grace_s) and one.grace_s
    )
    plan = EvictionPlan(seen=seen, conditions=_conditions(seen, rules, now_s), begun=begun, waits=waits)
    waiting = {one.threshold.key for one in waits}
    return _act(plan, [one for one in met if one.key not in waiting], look, pods, rules, now_s)


def _is_met(threshold: Threshold, look: NodeLook, seen: Seen) -> bool:
    amount = look.amounts.get(threshold.signal)
    if amount is None:
        return False
    was_met = threshold.key in seen.met_s
    return amount.available < (threshold.solved_line if was_met else threshold.line)(amount.capacity)


def _conditions(seen: Seen, rules: EvictionRules, now_s: float) -> frozenset[str]:
    return frozenset(name for name, last_s in seen.held_s.items() if now_s - last_s < rules.transition_s)


def _act(
    plan: EvictionPlan,
    due: Sequence[Threshold],
    look: NodeLook,
    pods: Sequence[PossibleVictim] | None,
    rules: EvictionRules,
    now_s: float,
) -> EvictionPlan:
    seen = plan.seen
    for threshold in due:
        # The end of a pod may have left images and containers without use.
        since_s = max(seen.met_s[threshold.key], seen.ended_s)
        disk = _disk_of(threshold.signal, look)
        if can_collect(threshold.signal) and seen.collected_s.get(disk, NEVER_S) < since_s:
            collected = {**seen.collected_s, disk: now_s}
            return msgspec.structs.replace(
                plan, collect=threshold.signal, seen=msgspec.structs.replace(seen, collected_s=collected)
            )
        if pods is None:
            return msgspec.structs.replace(plan, needs_pods=True)
        if any(one.leaving_s is not None and now_s - one.leaving_s < CLEANED_UP_S for one in pods):
            return plan
        amount = look.amounts[threshold.signal]
        grace_s = rules.most_grace_s if threshold.grace_s else None
        line = threshold.line(amount.capacity)
        victim = choose_victim(threshold.signal, threshold.kind, pods, line, amount.available, grace_s)
        if victim is not None:
            return msgspec.structs.replace(plan, victim=victim, seen=msgspec.structs.replace(seen, ended_s=now_s))
    return plan


def is_short(signal: str, look: NodeLook, rules: EvictionRules) -> bool:
    """Whether a threshold that was met for it is met still."""
    amount = look.amounts.get(signal)
    lines = [one.solved_line(amount.capacity) for one in rules.thresholds if one.signal == signal] if amount else []
    return amount is not None and any(amount.available < line for line in lines)


def _disk_of(signal: str, look: NodeLook) -> str:
    """Signals about one file system share what was collected there."""
    name = signal.partition(".")[0]
    place = look.places.get(name)
    return str(place.device) if place is not None else name


class SignalLine(msgspec.Struct, frozen=True, kw_only=True):
    """For people: how far a signal is from one of its thresholds; `amount` is None where it is unknown."""

    threshold: Threshold
    amount: Amount | None
    line: int
    met_since_s: float | None = None


def signal_lines(look: NodeLook | None, rules: EvictionRules, seen: Seen) -> Iterator[SignalLine]:
    for one in rules.in_order():
        amount = look.amounts.get(one.signal) if look is not None else None
        line = one.line(amount.capacity) if amount is not None else one.quantity
        yield SignalLine(threshold=one, amount=amount, line=line, met_since_s=seen.met_s.get(one.key))
