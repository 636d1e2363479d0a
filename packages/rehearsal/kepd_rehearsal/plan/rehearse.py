# SPDX-License-Identifier: Apache-2.0
"""Rehearses changes one after the other: what Services find before, at the worst moment between, and after; where pods
go, which wait, what budgets hold.

The worst moment of a drain or a loss is when the pods are gone and no other is ready yet; of a rolling change the step
with the fewest ready pods. Pods count as ready as soon as they have a node in the state after.
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from kepd_rehearsal.plan.budgets import Held, held, in_later_waves
from kepd_rehearsal.plan.changes import ROLLED, Change, Changed, applied, crew_of, is_of_the_node
from kepd_rehearsal.plan.cluster import Cluster, Member, Traffic, Written
from kepd_rehearsal.plan.images import imaged
from kepd_rehearsal.plan.rolling import Stage, rolled, seated
from kepd_rehearsal.plan.scheduling import NOT_LOOKED_AT, Floor, Placed
from kepd_rehearsal.plan.serving import Crowd, Ground, Serving, serving
from kepd_rehearsal.plan.slices import as_found, endpoints_of, looked_at, written_anew, written_first

EVICTING = ("drain",)


class EndingPod(msgspec.Struct, frozen=True):
    pod: str
    node: str
    grace_s: int
    is_lost: bool = False


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


def rehearse(cluster: Cluster, changes: Sequence[Change]) -> tuple[tuple[Rehearsal, ...], Cluster]:
    """Raises BadChange for one that does not fit."""
    found = []
    for change in changes:
        rehearsal, cluster = compared(cluster, change, carried_out(cluster, change))
        found.append(rehearsal)
    return tuple(found), cluster


def carried_out(cluster: Cluster, change: Change) -> Stage:
    if change.verb == "roll":
        return rolled(cluster, imaged(crew_of(cluster, change.what, ROLLED), change.value))
    changed = applied(cluster, change)
    after, placed = put(changed)
    during = changed.cluster.members
    if change.verb in EVICTING:
        later = in_later_waves(cluster, changed.gone)
        during = (*during, *(one for one in changed.gone if one.key in later))
    return Stage(after, during, (), placed, changed.gone, changed.lost)


def put(changed: Changed) -> tuple[Cluster, tuple[Placed, ...]]:
    cluster = changed.cluster
    if not changed.waiting and all(one.node for one in cluster.members):
        return cluster, ()
    floor = Floor(cluster.hosts, cluster.members)
    placed = tuple(seated(cluster, floor, changed.waiting).values())
    return replace(cluster, members=tuple(floor.members.values())), placed


def then(first: Stage, second: Stage) -> Stage:
    """Both, one after the other."""
    known = {one.key for one in second.after.members}
    placed = {one.pod: one for one in (*first.placed, *second.placed) if one.pod in known}
    also = (*first.also, second.during, *second.also)
    gone = (*first.gone, *second.gone)
    return Stage(second.after, first.during, also, tuple(placed.values()), gone, first.lost)


def compared(cluster: Cluster, change: Change, stage: Stage) -> tuple[Rehearsal, Cluster]:
    """And the cluster after, with what is written for its Services."""
    first_ground = Ground(cluster.hosts)
    grounds = first_ground, first_ground if stage.after.hosts is cluster.hosts else Ground(stage.after.hosts)
    wanted = [one.service for one in stage.after.traffic]
    now = [one.service for one in cluster.traffic] + wanted
    moments = [Crowd(members, wanted) for members in (stage.during, *stage.also)]
    crowds = Crowd(cluster.members, now), Crowd(stage.after.members, wanted)
    earlier = {one.key: one for one in cluster.traffic}
    services, written = [], {}
    for later in stage.after.traffic:
        traffic = earlier.get(later.key, later)
        first = written_before(cluster, traffic, crowds[0].of(traffic), grounds[0])
        worst = min((one.of(later) for one in moments), key=lambda own: sum(one.is_ready for one in own))
        between = first
        if later != traffic or not (grounds[0].is_like(grounds[1]) and crowds[0].of(traffic) == worst):
            between = _written_next(stage, later, worst, grounds[1], first, is_edited=later != traffic)
        last = between
        if worst != crowds[1].of(later):
            last = _written_next(stage, later, crowds[1].of(later), grounds[1], between)
        before = serving(traffic, first, grounds[0])
        during = _again(before, first, between, grounds) if later == traffic else None
        during = during or serving(later, between, grounds[1])
        after = during if last is between else serving(later, last, grounds[1])
        services.append(ServiceRehearsal(before, during, after))
        written[later.key] = last
    lost = {one.key for one in stage.lost}
    waited = {one.key for one in cluster.members if not one.node}
    kept = {one.key for one in stage.after.members if one.node == change.what}
    wanted_gone = (*stage.gone, *(one for one in cluster.members if one.key in kept and not is_of_the_node(one)))
    ending = tuple(EndingPod(one.key, one.node, one.grace_s, one.key in lost) for one in stage.gone)
    rehearsal = Rehearsal(
        change=change.text,
        services=tuple(services),
        placed=tuple(one for one in stage.placed if one.node),
        pending=tuple(replace(one, has_waited=one.pod in waited) for one in stage.placed if not one.node),
        ending=ending,
        held=tuple(held(cluster, wanted_gone)) if change.verb in EVICTING else (),
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
    stage: Stage, traffic: Traffic, own: Sequence[Member], ground: Ground, before: Written, *, is_edited: bool = False
) -> Written:
    endpoints = endpoints_of(own, traffic, ground.zone_of)
    if not stage.after.has_memory:
        return written_first(traffic, endpoints, ground.reading)
    return written_anew(traffic, endpoints, ground.zone_of, ground.reading, before, is_edited=is_edited)
