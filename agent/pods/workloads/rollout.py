# SPDX-License-Identifier: Apache-2.0
"""Which pods a Deployment or DaemonSet makes and ends next.

The invariant. Pods that end already count for nothing. Of the others at most `replicas + most_surge` are there after a
step that makes pods, and a step that ends pods ends an available one only while more than `replicas - most_unavailable`
are available. Old pods that are not available may become so at any moment (after a restart of kepd none is ready until
its probe has run), so they are ended only as far as the rest would do without them: as many of the other old pods, all
taken for available, and the new ones that are. It converges because pods of the current template are never ended but
beyond `replicas`, and each that becomes available lets an old one go.

Everything is decided from the pods that are there. A kepd that dies between two steps decides the same again.
"""

from collections.abc import Sequence

import msgspec

ROLLING, RECREATE, ON_DELETE = "RollingUpdate", "Recreate", "OnDelete"


class RolloutRules(msgspec.Struct, frozen=True, kw_only=True):
    replicas: int = 1
    strategy: str = ROLLING
    most_unavailable: int = 0
    most_surge: int = 1
    min_ready_s: int = 0
    progress_deadline_s: int = 600
    history_limit: int = 10
    is_paused: bool = False
    """No template takes the place of another; the number of pods is kept to."""

    @property
    def most_pods(self) -> int:
        return self.replicas


class OwnedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of a workload; `age` grows with each that is made. `phase` is Succeeded or Failed once it is over.
    `ordinal` is of a StatefulSet's, or the index of a Job's; `is_up`: all its containers run, be they ready or not.
    `ends` are containers with the codes that they ended with, `conditions` those that are true."""

    uid: str
    revision: str
    ordinal: int = -1
    age: int = 0
    is_up: bool = True
    is_ready: bool = False
    is_available: bool = False
    is_ending: bool = False
    phase: str = ""
    restarts: int = 0
    ends: tuple[tuple[str, int], ...] = ()
    conditions: tuple[str, ...] = ()


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    make: int = 0
    end: tuple[str, ...] = ()


def plan_rollout(rules: RolloutRules, revision: str, pods: Sequence[OwnedPod]) -> Steps:
    alive = [one for one in pods if not one.is_ending]
    new = [one for one in alive if one.revision == revision]
    old = [one for one in alive if one.revision != revision]
    if rules.is_paused:
        return _paused(rules, new, old)
    if rules.strategy == RECREATE:
        return _recreated(rules, new, old, [one for one in pods if one.revision != revision])
    if rules.strategy == ON_DELETE:
        # What is there stays, whatever template it has, until somebody deletes it.
        spare = worst_first(alive)[: max(len(alive) - rules.replicas, 0)]
        return Steps(make=max(rules.replicas - len(alive), 0), end=_uids(spare))
    spare = worst_first(new)[: max(len(new) - rules.replicas, 0)]
    room = rules.replicas + rules.most_surge - len(alive)
    make = max(min(rules.replicas - len(new), room), 0)
    kept = [one for one in new if one not in spare]
    return Steps(make=make, end=(*_uids(spare), *_uids(_dispensable(rules, kept, old))))


def _paused(rules: RolloutRules, new: Sequence[OwnedPod], old: Sequence[OwnedPod]) -> Steps:
    """A change that was paused half-way keeps the pods that it had in surplus."""
    most = rules.replicas + (rules.most_surge if new and old and rules.strategy == ROLLING else 0)
    alive = [*worst_first(old), *worst_first(new)]
    return Steps(make=max(rules.replicas - len(alive), 0), end=_uids(alive[: max(len(alive) - most, 0)]))


def _recreated(
    rules: RolloutRules, new: Sequence[OwnedPod], old: Sequence[OwnedPod], former: Sequence[OwnedPod]
) -> Steps:
    """Nothing begins before all of the former template is gone."""
    spare = worst_first(new)[: max(len(new) - rules.replicas, 0)]
    make = 0 if former else max(rules.replicas - len(new), 0)
    return Steps(make=make, end=_uids([*old, *spare]))


def _dispensable(rules: RolloutRules, new: Sequence[OwnedPod], old: Sequence[OwnedPod]) -> list[OwnedPod]:
    """Old pods that may go now: broken ones before those that serve."""
    least = rules.replicas - rules.most_unavailable
    serving = [one for one in new if one.is_available]
    most = min(len(serving) + len(old) - least, len(old))
    if most <= 0:
        return []
    broken = [one for one in old if not one.is_available][:most]
    available = [one for one in old if one.is_available]
    spare = max(min(most - len(broken), len(serving) + len(available) - least), 0)
    return broken + worst_first(available)[:spare]


def worst_first(pods: Sequence[OwnedPod]) -> list[OwnedPod]:
    """In the order in which they are given up: not available, not ready, then the newest."""
    return sorted(pods, key=lambda one: (one.is_available, one.is_ready, -one.age, one.uid))


def _uids(pods: Sequence[OwnedPod]) -> tuple[str, ...]:
    return tuple(one.uid for one in pods)
