# SPDX-License-Identifier: Apache-2.0
"""Which pods a StatefulSet makes and ends next.

The invariant. A name, that is an ordinal, is made only while no pod of that name is there, one that ends included. In
order (OrderedReady) at most one step is taken at a time, upwards when pods are made and downwards when they end, and
only while all below are available. A change ends available pods from the highest ordinal down to the partition, only
as far as at most `most_unavailable` of those wanted are not available then.

One rule is kinder than Kubernetes': a pod that serves nobody and has a template that its ordinal should not have is
ended, where others would wait without end for it to become ready. One that runs and is not ready may be about to (after
a restart of kepd none is ready until its probe has run), so it counts as far as `most_unavailable` goes.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from agent.pods.workloads.job import OVER
from agent.pods.workloads.rollout import ROLLING, OwnedPod


class StatefulRules(msgspec.Struct, frozen=True, kw_only=True):
    """`start` is the first ordinal; those below `start + partition` keep the template that was in force before."""

    replicas: int = 1
    start: int = 0
    is_ordered: bool = True
    strategy: str = ROLLING
    partition: int = 0
    most_unavailable: int = 1
    min_ready_s: int = 0
    history_limit: int = 10
    ends_claims_of_scaled: bool = False
    ends_claims_of_deleted: bool = False

    @property
    def most_pods(self) -> int:
        return self.replicas

    @property
    def ordinals(self) -> range:
        return range(self.start, self.start + self.replicas)

    def revision_for(self, ordinal: int, current: str, update: str) -> str:
        keeps = self.strategy == ROLLING and ordinal < self.start + self.partition
        return current if keeps else update


class Place(msgspec.Struct, frozen=True, kw_only=True):
    ordinal: int
    revision: str


class StatefulSteps(msgspec.Struct, frozen=True, kw_only=True):
    make: tuple[Place, ...] = ()
    end: tuple[str, ...] = ()


def plan_stateful(rules: StatefulRules, current: str, update: str, pods: Sequence[OwnedPod]) -> StatefulSteps:
    """`current` is the template that was in force before `update`, or the same."""
    # Of two with one name the one that ends keeps it until it is gone.
    found = {one.ordinal: one for one in sorted(pods, key=lambda one: one.is_ending)}
    over = tuple(one.uid for one in pods if one.phase in OVER and not one.is_ending)
    broken = _broken(rules, current, update, found)
    if over or broken:
        return StatefulSteps(end=over + broken)
    spare = sorted((one for one in pods if one.ordinal not in rules.ordinals), key=lambda one: -one.ordinal)
    make = [
        Place(ordinal=ordinal, revision=rules.revision_for(ordinal, current, update))
        for ordinal in rules.ordinals
        if ordinal not in found
    ]
    if rules.is_ordered:
        return _in_order(rules, update, found, spare, make)
    end = tuple(one.uid for one in spare if not one.is_ending)
    return StatefulSteps(make=tuple(make), end=end + tuple(_replaced(rules, update, found)))


def is_rolled_out(rules: StatefulRules, update: str, pods: Sequence[OwnedPod]) -> bool:
    """Whether the template of `update` is the one in force: all pods have it and are ready."""
    new = [one for one in pods if one.revision == update and one.is_ready and not one.is_ending]
    return len(new) == len(pods) == rules.replicas


def _broken(rules: StatefulRules, current: str, update: str, found: Mapping[int, OwnedPod]) -> tuple[str, ...]:
    """Pods that serve nobody and whose ordinal wants another template."""
    wanted = [found.get(ordinal) for ordinal in rules.ordinals]
    has_room = sum(_is_missing(one) for one in wanted) <= rules.most_unavailable
    gone = []
    for one in wanted:
        if one is None or one.is_ending or one.is_ready or one.phase in OVER:
            continue
        is_former = rules.strategy == ROLLING and one.revision != rules.revision_for(one.ordinal, current, update)
        if is_former and (has_room or not one.is_up):
            gone.append(one.uid)
    return tuple(gone)


def _is_missing(one: OwnedPod | None) -> bool:
    return one is None or one.is_ending or not one.is_available


def _in_order(
    rules: StatefulRules,
    update: str,
    found: Mapping[int, OwnedPod],
    spare: Sequence[OwnedPod],
    make: Sequence[Place],
) -> StatefulSteps:
    for ordinal in rules.ordinals:
        one = found.get(ordinal)
        if one is None:
            return StatefulSteps(make=tuple(make[:1]))
        if _is_missing(one):
            return StatefulSteps()
    if not spare:
        return StatefulSteps(end=tuple(_replaced(rules, update, found)))
    highest, lowest_broken = spare[0], next((one for one in reversed(spare) if not one.is_available), None)
    # The others of a quorum that shrinks have to be there.
    waits = highest.is_ending or (not highest.is_available and highest is not lowest_broken)
    return StatefulSteps(end=() if waits else (highest.uid,))


def _replaced(rules: StatefulRules, update: str, found: Mapping[int, OwnedPod]) -> Iterator[str]:
    if rules.strategy != ROLLING:
        return
    wanted = [found.get(ordinal) for ordinal in rules.ordinals]
    room = rules.most_unavailable - sum(map(_is_missing, wanted))
    for one in reversed(wanted[rules.partition :]):
        if room <= 0:
            return
        if one is not None and not _is_missing(one) and one.revision != update:
            room -= 1
            yield one.uid
