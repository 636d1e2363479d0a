# SPDX-License-Identifier: Apache-2.0
"""Rehearses changes one after the other: what Services find before, at the worst moment between, and after; where pods
go, which wait, what budgets hold.

The worst moment of a drain or a loss is when the pods are gone and no other is ready yet; of a rolling change the step
with the fewest ready pods. Pods count as ready as soon as they have a node in the state after.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.model.selector import compile_selector
from agent.topology.rehearsal.changes import SCALED, Change, Changed, applied, crew_of, made_for
from agent.topology.rehearsal.cluster import Cluster, Crew, Guard, Member
from agent.topology.rehearsal.images import imaged
from agent.topology.rehearsal.scheduling import NOT_LOOKED_AT, Floor, Placed, place
from agent.topology.rehearsal.serving import Crowd, Ground, Serving, serving

EVICTING = ("drain",)


class EndingPod(msgspec.Struct, frozen=True):
    pod: str
    node: str
    grace_s: int
    is_lost: bool = False


class Held(msgspec.Struct, frozen=True):
    """A budget that lets fewer pods end at once than the change ends."""

    budget: str
    allowed: int
    wanted: int
    pods: tuple[str, ...]


class ServiceRehearsal(msgspec.Struct, frozen=True):
    before: Serving
    during: Serving
    after: Serving

    @property
    def is_touched(self) -> bool:
        return not self.before == self.during == self.after


class Rehearsal(msgspec.Struct, frozen=True):
    change: str
    services: tuple[ServiceRehearsal, ...]
    placed: tuple[Placed, ...] = ()
    pending: tuple[Placed, ...] = ()
    ending: tuple[EndingPod, ...] = ()
    held: tuple[Held, ...] = ()
    not_looked_at: tuple[str, ...] = NOT_LOOKED_AT


class Stage(msgspec.Struct, frozen=True):
    """A change carried out: the cluster after, and the members at the worst moment."""

    after: Cluster
    during: tuple[Member, ...]
    placed: tuple[Placed, ...] = ()
    gone: tuple[Member, ...] = ()
    lost: tuple[Member, ...] = ()
    first_wave: int = 0
    """How many pods end at once."""


def rehearse(cluster: Cluster, changes: Sequence[Change]) -> tuple[tuple[Rehearsal, ...], Cluster]:
    """Raises BadChange for one that does not fit."""
    found = []
    known: dict[str, Serving] = {}
    for change in changes:
        stage = carried_out(cluster, change)
        found.append(_compared(cluster, change, stage, known))
        cluster = stage.after
    return tuple(found), cluster


def carried_out(cluster: Cluster, change: Change) -> Stage:
    if change.verb == "roll":
        return _rolled(cluster, imaged(crew_of(cluster, change.what), change.value))
    changed = applied(cluster, change)
    floor, placed = _placed(changed)
    after = replace(changed.cluster, members=tuple(floor.members.values()))
    return Stage(after, changed.cluster.members, placed, changed.gone, changed.lost, len(changed.gone))


def _placed(changed: Changed) -> tuple[Floor, tuple[Placed, ...]]:
    cluster = changed.cluster
    floor, placed = Floor(cluster.hosts, cluster.members), []
    for one in changed.waiting:
        crew = cluster.crews.get(one.workload) if one.workload is not None else None
        member, where = place(cluster, floor, one, crew)
        placed.append(where)
        floor.put(replace(member, is_ready=bool(where.node)))
    return floor, tuple(placed)


def rehearse_files(before: Cluster, wanted: Cluster, sources: Sequence[object]) -> Rehearsal:
    """Edited manifests: workloads come to their numbers, and Services, nodes and budgets are as they are there now."""
    waiting: list[Member] = []
    gone: list[Member] = []
    known = replace(before, crews=wanted.crews)
    for key, crew in wanted.crews.items():
        count = sum(one.workload == key for one in before.members)
        if key[0] not in SCALED or count == crew.replicas:
            continue
        changed = applied(known, Change("scale", f"{key[1]}/{key[2]}", crew.replicas))
        gone += changed.gone
        waiting += changed.waiting
    leaving = {one.key for one in gone}
    left = tuple(one for one in before.members if one.key not in leaving)
    floor, placed = _placed(Changed(replace(wanted, members=left), tuple(waiting)))
    after = replace(wanted, members=tuple(floor.members.values()))
    known_before = replace(before, traffic=wanted.traffic)
    stage = Stage(after, left, placed, tuple(gone))
    text = f"apply {', '.join(map(str, sources))}"
    return _compared(known_before, Change("file", text), stage, _served(before))


def _served(cluster: Cluster) -> dict[str, Serving]:
    ground, crowd = Ground(cluster.hosts), Crowd(cluster.members)
    return {one.key: serving(one, crowd.of(one), ground) for one in cluster.traffic}


def _rolled(cluster: Cluster, crew: Crew) -> Stage:
    """Old pods go as far as `maxUnavailable` lets them, new ones come as far as `maxSurge` does, until none is old."""
    own = [one for one in cluster.members if one.workload == crew.key]
    old, wanted = {one.key: one for one in own}, crew.replicas
    surge, missing = _share(crew.surge, wanted, is_up=True), _share(crew.missing, wanted, is_up=False)
    if not surge and not missing:
        missing = 1
    floor, placed, worst = Floor(cluster.hosts, cluster.members), [], tuple(cluster.members)
    gone, waits, first = [], 0, 0
    for _ in range(2 * len(own) + 2):
        new = [one for one in floor.members.values() if one.workload == crew.key and one.key not in old]
        ready = sum(one.is_ready for one in (*old.values(), *new))
        may_go = max(ready - (wanted - missing), 0)
        leaving = sorted(old.values(), key=lambda one: (one.is_ready, one.key))[:may_go]
        for one in leaving:
            gone.append(floor.take(one.key))
            del old[one.key]
        first = max(first, len(leaving))
        if sum(one.is_ready for one in floor.members.values()) < sum(one.is_ready for one in worst):
            worst = tuple(floor.members.values())
        count = min(wanted - len(new), wanted + surge - len(new) - len(old))
        made = made_for(crew, count, {*floor.members, *(one.key for one in own)}, "rolled") if count > 0 else ()
        for one in made:
            member, where = place(cluster, floor, one, crew)
            placed.append(where)
            floor.put(replace(member, is_ready=bool(where.node)))
        if not leaving and not made:
            waits += 1
        if not old or waits:
            break
    after = replace(cluster, members=tuple(floor.members.values()))
    return Stage(after, worst, tuple(placed), tuple(gone), (), first)


def _share(value: str | int, whole: int, *, is_up: bool) -> int:
    if isinstance(value, int):
        return value
    digits = value.removesuffix("%")
    parts = int(digits) * whole if digits.isdigit() else 0
    return -(-parts // 100) if is_up else parts // 100


def _compared(cluster: Cluster, change: Change, stage: Stage, known: dict[str, Serving]) -> Rehearsal:
    """`known`: what Services found after the change before, so that nothing is computed twice."""
    services = []
    grounds = Ground(cluster.hosts), Ground(stage.after.hosts)
    first, between, last = Crowd(cluster.members), Crowd(stage.during), Crowd(stage.after.members)
    later_by_key = {one.key: one for one in stage.after.traffic}
    for traffic in cluster.traffic:
        later = later_by_key[traffic.key]
        before = known.get(traffic.key) or serving(traffic, first.of(traffic), grounds[0])
        during = serving(later, between.of(later), grounds[1])
        after = serving(later, last.of(later), grounds[1])
        known[traffic.key] = after
        services.append(ServiceRehearsal(before, during, after))
    lost = {one.key for one in stage.lost}
    ending = tuple(EndingPod(one.key, one.node, one.grace_s, one.key in lost) for one in stage.gone)
    held = tuple(_held(cluster, stage.gone)) if change.verb in EVICTING else ()
    pending = tuple(one for one in stage.placed if not one.node)
    return Rehearsal(
        change=change.text,
        services=tuple(services),
        placed=tuple(one for one in stage.placed if one.node),
        pending=pending,
        ending=ending,
        held=held,
    )


def _held(cluster: Cluster, gone: Sequence[Member]) -> list[Held]:
    found = []
    for guard in cluster.guards:
        matcher = compile_selector(guard.selector)
        own = [
            one
            for one in cluster.members
            if one.facts.namespace == guard.namespace and matcher.matches(one.facts.labels)
        ]
        leaving = [one for one in gone if one in own]
        allowed = _allowed(guard, own, cluster.crews)
        if len(leaving) > allowed:
            names = tuple(one.key for one in leaving)
            found.append(Held(f"{guard.namespace}/{guard.name}", allowed, len(leaving), names))
    return found


def _allowed(guard: Guard, own: Sequence[Member], crews: Mapping[tuple[str, str, str], Crew]) -> int:
    owners = {one.workload for one in own if one.workload is not None}
    expected = sum(crews[key].replicas for key in owners if key in crews)
    healthy = sum(one.is_ready for one in own)
    if guard.most_missing is not None:
        desired = max(expected - _share(guard.most_missing, expected, is_up=True), 0)
    elif isinstance(guard.least, int):
        expected, desired = len(own), guard.least
    else:
        desired = _share(guard.least or 0, expected, is_up=True)
    return max(healthy - desired, 0) if expected else 0
