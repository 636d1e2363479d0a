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
from agent.topology.rehearsal.changes import SCALED, Change, Changed, applied, crew_of, made_for, share
from agent.topology.rehearsal.cluster import Cluster, Crew, Guard, Member, Traffic, Written, hashed
from agent.topology.rehearsal.images import imaged
from agent.topology.rehearsal.scheduling import NOT_LOOKED_AT, Floor, Placed, place
from agent.topology.rehearsal.serving import Crowd, Ground, Serving, serving
from agent.topology.rehearsal.slices import as_found, endpoints_of, looked_at, written_anew, written_first

EVICTING = ("drain",)
ROLLED = ("Deployment", "StatefulSet")


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
    for change in changes:
        rehearsal, cluster = _compared(cluster, change, carried_out(cluster, change))
        found.append(rehearsal)
    return tuple(found), cluster


def carried_out(cluster: Cluster, change: Change) -> Stage:
    if change.verb == "roll":
        return _rolled(cluster, imaged(crew_of(cluster, change.what), change.value))
    changed = applied(cluster, change)
    after, placed = _placed(changed)
    return Stage(after, changed.cluster.members, placed, changed.gone, changed.lost, len(changed.gone))


def _placed(changed: Changed) -> tuple[Cluster, tuple[Placed, ...]]:
    cluster = changed.cluster
    if not changed.waiting and all(one.node for one in cluster.members):
        return cluster, ()
    floor = Floor(cluster.hosts, cluster.members)
    placed = tuple(_seated(cluster, floor, changed.waiting).values())
    return replace(cluster, members=tuple(floor.members.values())), placed


def _seated(cluster: Cluster, floor: Floor, made: Sequence[Member]) -> dict[str, Placed]:
    """Those that waited before may find room now, and come first; each that gets a node may make one for others."""
    found: dict[str, Placed] = {}
    turn = [*floor.waiting(), *made]
    while turn:
        for one in turn:
            crew = cluster.crews.get(one.workload) if one.workload is not None else None
            member, found[one.key] = place(cluster, floor, one, crew)
            floor.put(replace(member, is_ready=bool(member.node)))
        left = [one for one in turn if not found[one.key].node]
        turn = left if len(left) < len(turn) else []
    return found


def rehearse_files(before: Cluster, wanted: Cluster, sources: Sequence[object]) -> tuple[Rehearsal, Cluster]:
    """Edited manifests: workloads come to their numbers and, where their templates changed, make their pods anew;
    Services, nodes and budgets are as they are there now."""
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
    after, placed = _placed(Changed(replace(wanted, members=left, written={}), tuple(waiting)))
    stage = Stage(after, left, placed, tuple(gone))
    for key, crew in wanted.crews.items():
        old = before.crews.get(key)
        if old is not None and old.made != crew.made and key[0] in ROLLED:
            stage = _then(stage, _rolled(stage.after, crew))
    return _compared(before, Change("file", f"apply {', '.join(map(str, sources))}"), stage)


def _then(first: Stage, second: Stage) -> Stage:
    """Both, one after the other; the worst moment is that with the fewest ready pods."""
    worst = min((first.during, second.during), key=lambda members: sum(one.is_ready for one in members))
    known = {one.key for one in second.after.members}
    placed = {one.pod: one for one in (*first.placed, *second.placed) if one.pod in known}
    return Stage(second.after, worst, tuple(placed.values()), (*first.gone, *second.gone), first.lost)


def _rolled(cluster: Cluster, crew: Crew) -> Stage:
    """Old pods go as far as `maxUnavailable` lets them, new ones come as far as `maxSurge` does, until none is old."""
    own = [one for one in cluster.members if one.workload == crew.key]
    crew = hashed(crew, "rolled") if crew.facts.kind == "Deployment" else crew
    old, wanted = {one.key: one for one in own}, crew.replicas
    surge, missing = share(crew.surge, wanted, is_up=True), share(crew.missing, wanted, is_up=False)
    if not surge and not missing:
        missing = 1
    changing = replace(cluster, crews={**cluster.crews, crew.key: crew})
    floor, worst = Floor(cluster.hosts, cluster.members), tuple(cluster.members)
    placed: dict[str, Placed] = {}
    gone, first = [], 0
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
        placed |= _seated(changing, floor, made)
        if not old or (not leaving and not made):
            break
    left = tuple(one for one in placed.values() if one.pod in floor.members)
    return Stage(replace(changing, members=tuple(floor.members.values())), worst, left, tuple(gone), (), first)


def _compared(cluster: Cluster, change: Change, stage: Stage) -> tuple[Rehearsal, Cluster]:
    """And the cluster after, with what is written for its Services."""
    first_ground = Ground(cluster.hosts)
    grounds = first_ground, first_ground if stage.after.hosts is cluster.hosts else Ground(stage.after.hosts)
    wanted = [one.service for one in stage.after.traffic]
    crowds = Crowd(cluster.members, wanted), Crowd(stage.during, wanted), Crowd(stage.after.members, wanted)
    earlier = {one.key: one for one in cluster.traffic}
    services, written = [], {}
    for later in stage.after.traffic:
        traffic = earlier.get(later.key, later)
        first = written_before(cluster, traffic, crowds[0].of(traffic), grounds[0])
        between = first
        if later != traffic or not (grounds[0].is_like(grounds[1]) and crowds[0].of(traffic) == crowds[1].of(later)):
            between = _written_next(stage, later, crowds[1], grounds[1], first, is_edited=later != traffic)
        last = between
        if crowds[1].of(later) != crowds[2].of(later):
            last = _written_next(stage, later, crowds[2], grounds[1], between)
        before = serving(traffic, first, grounds[0])
        during = _again(before, first, between, grounds) if later == traffic else None
        during = during or serving(later, between, grounds[1])
        after = during if last is between else serving(later, last, grounds[1])
        services.append(ServiceRehearsal(before, during, after))
        written[later.key] = last
    lost = {one.key for one in stage.lost}
    ending = tuple(EndingPod(one.key, one.node, one.grace_s, one.key in lost) for one in stage.gone)
    rehearsal = Rehearsal(
        change=change.text,
        services=tuple(services),
        placed=tuple(one for one in stage.placed if one.node),
        pending=tuple(one for one in stage.placed if not one.node),
        ending=ending,
        held=tuple(_held(cluster, stage.gone)) if change.verb in EVICTING else (),
    )
    return rehearsal, replace(stage.after, written=written)


def _again(before: Serving, first: Written, between: Written, grounds: tuple[Ground, Ground]) -> Serving | None:
    """Most Services do not notice a change, and are not looked at twice."""
    return before if first is between and grounds[0].is_like(grounds[1]) else None


def written_before(cluster: Cluster, traffic: Traffic, members: Sequence[Member], ground: Ground) -> Written:
    known = cluster.written.get(traffic.key)
    if known is not None:
        return known
    slices = cluster.slices.get(traffic.key)
    if slices and (not members or any(one.target for piece in slices for one in piece.endpoints)):
        found = as_found(traffic, slices, ground.reading)
        return looked_at(traffic, found, ground.reading) if traffic.key in cluster.unhinted else found
    return written_first(traffic, endpoints_of(members, traffic, ground.zone_of), ground.reading)


def _written_next(
    stage: Stage, traffic: Traffic, crowd: Crowd, ground: Ground, before: Written, *, is_edited: bool = False
) -> Written:
    endpoints = endpoints_of(crowd.of(traffic), traffic, ground.zone_of)
    if not stage.after.has_memory:
        return written_first(traffic, endpoints, ground.reading)
    return written_anew(traffic, endpoints, ground.zone_of, ground.reading, before, is_edited=is_edited)


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
        desired = max(expected - share(guard.most_missing, expected, is_up=True), 0)
    elif isinstance(guard.least, int):
        expected, desired = len(own), guard.least
    else:
        desired = share(guard.least or 0, expected, is_up=True)
    return max(healthy - desired, 0) if expected else 0
