# SPDX-License-Identifier: Apache-2.0
"""Rolling changes: which pods end and come in which order, and the moment with the fewest ready pods.

Source of behaviour: the controllers of Deployments, StatefulSets and DaemonSets.
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from kepd_rehearsal.plan.budgets import share
from kepd_rehearsal.plan.changes import active, made_for, member_of
from kepd_rehearsal.plan.cluster import Cluster, Crew, Member, hashed
from kepd_rehearsal.plan.scheduling import Floor, Placed, place


class Stage(msgspec.Struct, frozen=True):
    """A change carried out: the cluster after, and the members at the worst moment; `also` at those of its other parts,
    for what is worst for one Service need not be so for another."""

    after: Cluster
    during: tuple[Member, ...]
    also: tuple[tuple[Member, ...], ...] = ()
    placed: tuple[Placed, ...] = ()
    gone: tuple[Member, ...] = ()
    lost: tuple[Member, ...] = ()


def rolled(cluster: Cluster, crew: Crew) -> Stage:
    match crew.facts.kind:
        case "StatefulSet" | "DaemonSet":
            return _one_by_one(cluster, crew)
    return _rolled(cluster, crew)


def seated(cluster: Cluster, floor: Floor, made: Sequence[Member]) -> dict[str, Placed]:
    """Those that waited before may find room now, and come first; each that gets a node may make one for others. Of a
    StatefulSet that keeps its order none is made while one waits."""
    found: dict[str, Placed] = {}
    turn = [*floor.waiting(), *made]
    while turn:
        stuck = set()
        for one in turn:
            if one.workload in stuck and one.key not in floor.members:
                continue
            crew = cluster.crews.get(one.workload) if one.workload is not None else None
            member, found[one.key] = place(cluster, floor, one, crew)
            floor.put(replace(member, is_ready=bool(member.node)))
            if crew is not None and crew.keeps_order and not member.node:
                stuck.add(crew.key)
        left = [one for one in turn if one.key not in found or not found[one.key].node]
        turn = left if len(left) < len(turn) else []
    return found


def _rolled(cluster: Cluster, crew: Crew) -> Stage:
    """Old pods go as far as `maxUnavailable` lets them, new ones come as far as `maxSurge` does, until none is old.
    Those that are not ready go first, and nobody counts on them."""
    own = active(cluster, crew)
    crew = hashed(crew, "rolled") if crew.facts.kind == "Deployment" else crew
    old, wanted = {one.key: one for one in own}, crew.replicas
    surge, missing = share(crew.surge, wanted, is_up=True), share(crew.missing, wanted, is_up=False)
    if not surge and not missing:
        missing = 1
    least = wanted - missing
    changing = replace(cluster, crews={**cluster.crews, crew.key: crew})
    floor, worst = Floor(cluster.hosts, cluster.members), tuple(cluster.members)
    placed: dict[str, Placed] = {}
    gone = []
    for _ in range(2 * len(own) + 2):
        new = [one for one in floor.members.values() if one.workload == crew.key and one.key not in old]
        new = [one for one in new if not one.facts.is_terminating]
        spare = len(old) + len(new) - least - sum(not one.is_ready for one in new)
        broken = sorted((one for one in old.values() if not one.is_ready), key=lambda one: one.key)[: max(spare, 0)]
        spare = sum(one.is_ready for one in (*old.values(), *new)) - least
        sound = sorted((one for one in old.values() if one.is_ready), key=lambda one: one.key)[: max(spare, 0)]
        for one in (*broken, *sound):
            gone.append(floor.take(one.key))
            del old[one.key]
        worst = _worse(worst, floor)
        count = min(wanted - len(new), wanted + surge - len(new) - len(old))
        made = made_for(crew, count, {*floor.members, *(one.key for one in own)}, "rolled") if count > 0 else ()
        placed |= seated(changing, floor, made)
        if not old or not (broken or sound or made):
            break
    return _stage(changing, floor, worst, placed, gone)


def _one_by_one(cluster: Cluster, crew: Crew) -> Stage:
    """Each pod comes back by its name, of a StatefulSet the highest ordinal first; one that waits stops the others."""
    own = sorted(active(cluster, crew), key=lambda one: (_ordinal(one), one.key), reverse=True)
    own = [one for one in own if _ordinal(one) >= crew.partition] if not crew.is_on_delete else []
    at_once = max(share(crew.missing, max(len(own), 1), is_up=crew.facts.kind == "DaemonSet"), 1)
    changing = replace(cluster, crews={**cluster.crews, crew.key: crew})
    floor, worst = Floor(cluster.hosts, cluster.members), tuple(cluster.members)
    placed: dict[str, Placed] = {}
    gone = []
    for start in range(0, len(own), at_once):
        wave = own[start : start + at_once]
        gone += [floor.take(one.key) for one in wave]
        worst = _worse(worst, floor)
        for one in wave:
            stays = one.node if crew.facts.kind == "DaemonSet" else None
            facts = replace(crew.facts.template, name=one.facts.name, node_name=stays, owner=crew.key[::2])
            placed |= seated(changing, floor, [member_of(crew, facts)])
        if any(not placed[one.key].node for one in wave):
            break
    return _stage(changing, floor, worst, placed, gone)


def _ordinal(one: Member) -> int:
    digits = one.facts.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() and len(digits) < 10 else 0


def _worse(worst: tuple[Member, ...], floor: Floor) -> tuple[Member, ...]:
    is_worse = sum(one.is_ready for one in floor.members.values()) < sum(one.is_ready for one in worst)
    return tuple(floor.members.values()) if is_worse else worst


def _stage(
    cluster: Cluster, floor: Floor, worst: tuple[Member, ...], placed: dict[str, Placed], gone: Sequence[Member]
) -> Stage:
    left = tuple(one for one in placed.values() if one.pod in floor.members)
    return Stage(replace(cluster, members=tuple(floor.members.values())), worst, (), left, tuple(gone))
