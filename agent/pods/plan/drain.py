# SPDX-License-Identifier: Apache-2.0
"""Which pods end when the node is drained or goes down, and when the next of them.

Without groups, pods of one priority end together and take the time they need; if the node goes down, at most so long
that all of them have had their turn within the longest delay. A pod that is kept, by a budget or until its replacement
is there, does not delay the others. Where the node goes down it ends too, by force: when the others of its wave have
ended, or when no more than its grace is left of the wave's time.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec
from msgspec.structs import replace

TINY_S = 1e-9
# For the kill of what has not ended when its time is over, and for what has to be cleared away then.
KILL_S = 2.0


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Pods from this priority on, up to the next group, have so many seconds."""

    priority: int
    period_s: float


class ShutdownRules(msgspec.Struct, frozen=True, kw_only=True):
    """How long a shutdown of the node may be delayed, by groups or in all. Without both it is not."""

    groups: tuple[Group, ...] = ()
    longest_s: float = 0.0

    @property
    def delay_s(self) -> float:
        return sum(one.period_s + KILL_S for one in self.groups) if self.groups else self.longest_s


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that has to end. `key` is for people."""

    uid: str
    key: str
    priority: int = 0
    grace_s: float = 0.0


class EndPod(msgspec.Struct, frozen=True, kw_only=True):
    """`is_forced`: although something keeps it back."""

    uid: str
    key: str
    grace_s: float
    is_forced: bool = False

    def __str__(self) -> str:
        return f"end {self.key} within {self.grace_s:g} s{' by force' if self.is_forced else ''}"


class Wave(msgspec.Struct, frozen=True, kw_only=True):
    """Pods that end together; `limit_s` None waits for them however long they take."""

    pods: tuple[Candidate, ...]
    limit_s: float | None = None
    began_s: float | None = None
    begun: frozenset[str] = frozenset()
    """Whose end has been asked for."""


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """All waves, in their order. A group without pods is none, so it costs no time."""

    waves: tuple[Wave, ...] = ()

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return tuple(one for wave in self.waves for one in wave.pods)


class DrainPlan(msgspec.Struct, frozen=True, kw_only=True):
    steps: tuple[EndPod, ...] = ()
    then: Drain = Drain()
    wake_s: float | None = None
    is_over: bool = False

    def __str__(self) -> str:
        return "; ".join(str(step) for step in self.steps) or ("all are down" if self.is_over else "nothing to do")


def begin_drain(pods: Iterable[Candidate], groups: Sequence[Group], most_s: float = 0.0) -> Drain:
    """Put pods into waves, lowest priority first. `most_s` bounds the grace of each pod; 0 does not."""
    ordered = sorted(pods, key=lambda one: (one.priority, one.key))
    if most_s:
        ordered = [replace(one, grace_s=min(one.grace_s, most_s)) for one in ordered]
    if not groups:
        levels = sorted({one.priority for one in ordered})
        return Drain(waves=tuple(Wave(pods=tuple(p for p in ordered if p.priority == level)) for level in levels))
    waves = []
    for group in sorted(groups, key=lambda one: one.priority):
        members = [one for one in ordered if _group_of(one, groups) == group]
        shares = tuple(replace(one, grace_s=min(one.grace_s, group.period_s)) for one in members)
        if shares:
            waves.append(Wave(pods=shares, limit_s=group.period_s + KILL_S))
    return Drain(waves=tuple(waves))


def groups_for(pods: Iterable[Candidate], rules: ShutdownRules) -> Sequence[Group]:
    """Those of the rules, else one for each priority with the longest grace in it. Where all together would take too
    long, each gets its share; where even the kills would, all pods end together."""
    if rules.groups:
        return rules.groups
    graces_s: dict[int, float] = {}
    for one in pods:
        graces_s[one.priority] = max(graces_s.get(one.priority, 0.0), one.grace_s)
    kills_s = KILL_S * len(graces_s)
    if kills_s > rules.longest_s / 2:
        graces_s, kills_s = {min(graces_s): max(graces_s.values())}, KILL_S
    share = min(1.0, max(0.0, rules.longest_s - kills_s) / (sum(graces_s.values()) or 1.0))
    return [Group(priority=priority, period_s=grace_s * share) for priority, grace_s in sorted(graces_s.items())]


def _group_of(pod: Candidate, groups: Sequence[Group]) -> Group:
    """The highest that is not above the pod, else the lowest of all."""
    below = [one for one in groups if one.priority <= pod.priority]
    if below:
        return max(below, key=lambda one: one.priority)
    return min(groups, key=lambda one: one.priority)


def plan_drain(
    drain: Drain, ended: Collection[str], now_s: float, kept: Collection[str] = (), *, forces: bool = False
) -> DrainPlan:
    """`ended` are the uids of pods of which nothing is left to be ended, `kept` of those that are kept back."""
    steps: list[EndPod] = []
    waves = list(drain.waves)
    for place, wave in enumerate(drain.waves):
        left = [one for one in wave.pods if one.uid not in ended]
        if not left:
            continue
        began_s = now_s if wave.began_s is None else wave.began_s
        due_s = None if wave.limit_s is None else began_s + wave.limit_s
        fresh = [one for one in left if one.uid not in wave.begun]
        willing = [one for one in fresh if one.uid not in kept]
        has_others = bool(willing) or any(one.uid in wave.begun for one in left)
        forced = [
            one for one in fresh if one.uid in kept and forces and (not has_others or _is_late(one, due_s, now_s))
        ]
        steps += [EndPod(uid=one.uid, key=one.key, grace_s=one.grace_s, is_forced=one in forced) for one in fresh
                  if one in willing or one in forced]  # fmt: skip
        begun = wave.begun | {one.uid for one in (*willing, *forced)}
        waves[place] = replace(wave, began_s=began_s, begun=begun)
        is_at_work = forces or any(one.uid in begun for one in left)
        if is_at_work and (due_s is None or now_s + TINY_S < due_s):
            return DrainPlan(steps=tuple(steps), then=Drain(waves=tuple(waves)), wake_s=due_s)
    return DrainPlan(steps=tuple(steps), then=Drain(waves=tuple(waves)), is_over=True)


def _is_late(pod: Candidate, due_s: float | None, now_s: float) -> bool:
    return due_s is not None and now_s + TINY_S >= due_s - KILL_S - pod.grace_s
