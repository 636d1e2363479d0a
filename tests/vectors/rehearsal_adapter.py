# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of rehearsal.json: a cluster, a change, and what a real control plane made of it.

Pods that the scheduler placed have to be among those nodes that rank best at that moment, each pod in the order in
which it was placed; pods that wait have to wait; and what proxies find after it has to be equal. Where nodes rank
alike, or pods of several workloads compete, nobody can foretell how many wait in the end.

A document has the objects of each cluster once, each step what it adds; `shared` are specs that many have.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

from msgspec.structs import replace

from agent.model.services.service import Backend
from agent.services.routes.selection import Place, Use, select
from agent.topology.hints.slices import Endpoint, Hints
from agent.topology.manifest.objects import Document
from kepd_rehearsal.plan.changes import Change, applied, crew_of
from kepd_rehearsal.plan.cluster import HASH_LABEL, Cluster, Crew, Member, Traffic, hashed
from kepd_rehearsal.plan.reading import read_cluster
from kepd_rehearsal.plan.rehearse import Rehearsal, rehearse
from kepd_rehearsal.plan.scheduling import Floor, ranked
from kepd_rehearsal.plan.serving import Crowd, Ground
from kepd_rehearsal.plan.slices import as_found, endpoints_of, written_anew
from kepd_rehearsal.run.what_if import PARSERS

KINDS = frozenset({"change"})
MOST_LATE = 6


def cases(document: dict) -> Iterator[tuple[str, str, dict, dict]]:
    for world in document["clusters"]:
        objects = expanded(world["objects"], document["shared"])
        for number, written in enumerate(world["steps"]):
            step = expanded(written, document["shared"])
            yield f"{world['id']}-{number}", "change", {**step, "objects": objects}, {"objects": step["after"]}
            objects = step["left"] + step["after"]


def expanded(value: Any, shared: list[Any]) -> Any:
    if isinstance(value, list):
        return [expanded(one, shared) for one in value]
    if not isinstance(value, dict):
        return value
    if "$" in value:
        return expanded(shared[value["$"]], shared)
    return {name: expanded(one, shared) for name, one in value.items()}


def check(kind: str, given: dict, expect: dict) -> None:
    """Raises AssertionError with a line per difference."""
    differences = list(differing(given, expect))

    assert not differences, "\n".join(differences)


def differing(given: dict, expect: dict) -> Iterator[str]:
    before = cluster_of(given["objects"])
    way, value = given["change"]
    change = PARSERS[way](value)
    around = before if change.verb == "roll" else applied(before, change).cluster
    # Some are gone before anybody saw them.
    made = [one[1] for one in given["events"] if one[0] == "made"]
    kept = [one for one in given["objects"] if one["kind"] not in ("Pod", "Node", "EndpointSlice", "ReplicaSet")]
    kept += [one for one in expect["objects"] if one["kind"] == "ReplicaSet"]
    known = {one.key: one for one in cluster_of([*kept, *made]).members}
    after = cluster_of([*kept, *(one for one in expect["objects"] if one["kind"] != "ReplicaSet")])
    yield from misplaced(before, around, known, given["events"])
    yield from _waiting(before, around, after, change)
    yield from _served(before, around, after)


def cluster_of(objects: list[dict]) -> Cluster:
    reading = read_cluster([Document("case", {"apiVersion": "v1", "kind": "List", "items": objects})])
    assert not reading.errors, reading.errors
    return reading.cluster


def misplaced(before: Cluster, around: Cluster, known: dict[str, Member], events: list) -> Iterator[str]:
    """The scheduler may have decided before the last pods went, or began to go, so that either will do."""
    members = {one.key: one for one in before.members}
    went: list[Member] = []
    for event in events:
        key = event[1] if isinstance(event[1], str) else f"default/{event[1]['metadata']['name']}"
        if event[0] in ("gone", "ends") and key in members:
            went.append(members.pop(key))
            if event[0] == "ends":
                members[key] = replace(went[-1], facts=replace(went[-1].facts, is_terminating=True))
        elif event[0] == "bound":
            member = known.get(key) or members[key]
            member = replace(member, facts=replace(member.facts, node_name=None))
            found = []
            for late in range(min(len(went), MOST_LATE) + 1):
                state = {**members, **{one.key: one for one in went[len(went) - late :]}}
                others = [one for one in state.values() if one.key != key]
                found.append(ranked(around, Floor(around.hosts, others), member, _crew(around, member))[0])
            if event[2] not in chain(*found):
                yield f"{key} went to {event[2]}; foretold {found}"
            members[key] = replace(member, facts=replace(member.facts, node_name=event[2]), is_ready=True)


def _crew(around: Cluster, member: Member) -> Crew | None:
    """None for those of a DaemonSet: its pods name their node, and are placed like any other."""
    crew = around.crews.get(member.workload) if member.workload is not None else None
    if crew is None or crew.facts.kind == "DaemonSet":
        return None
    return hashed(crew, member.facts.labels[HASH_LABEL]) if HASH_LABEL in member.facts.labels else crew


def _waiting(before: Cluster, around: Cluster, after: Cluster, change: Change) -> Iterator[str]:
    gone = [one.key for one in before.members if one.key not in {each.key for each in after.members}]
    waiting = [one for one in after.members if not one.node]
    for one in waiting:
        others = [each for each in after.members if each.key != one.key]
        nodes, _ = ranked(around, Floor(around.hosts, others), one, _crew(around, one))
        if nodes:
            yield f"{one.key} waits; foretold {nodes}"
    told = rehearse(before, [change])[0][0]
    is_open = any(one.is_tied for one in told.placed) or len({one.split("-")[0] for one in _names(told)}) > 1
    is_open = is_open or _by_node(before, [one.pod for one in told.ending]) != _by_node(before, gone)
    is_rolling = change.verb == "scale" and _is_rolling(before, change)
    is_open = is_open or is_rolling
    ending = _together(before, [one.pod for one in told.ending])
    if change.verb == "scale" and not is_rolling and ending != _together(before, gone):
        yield f"{sorted(gone)} went; foretold {sorted(one.pod for one in told.ending)}"
    if len(waiting) != len(told.pending) and not is_open:
        yield f"{sorted(one.key for one in waiting)} wait; foretold {sorted(one.pod for one in told.pending)}"


def _is_rolling(before: Cluster, change: Change) -> bool:
    """In the middle of a rolling change its controller shares numbers out between old and new."""
    own = [one for one in before.members if one.workload == crew_of(before, change.what).key]
    return len({one.facts.labels.get(HASH_LABEL) for one in own}) > 1


def _by_node(before: Cluster, names: list[str]) -> Counter[str]:
    known = {one.key: one.node for one in before.members}
    return Counter(known[name] for name in names if name in known)


def _together(before: Cluster, names: list[str]) -> Counter[int]:
    """How many of their like were on the nodes of these pods, which is what says who goes first."""
    together = Counter((one.workload, one.node) for one in before.members)
    known = {one.key: together[one.workload, one.node] if one.node else 0 for one in before.members}
    return Counter(known[name] for name in names if name in known)


def _names(told: Rehearsal) -> list[str]:
    return [one.pod for one in (*told.placed, *told.pending)]


def _served(before: Cluster, around: Cluster, after: Cluster) -> Iterator[str]:
    ground, crowd = Ground(around.hosts), Crowd(after.members, [one.service for one in around.traffic])
    earlier = {one.key: one for one in before.traffic}
    for traffic in around.traffic:
        found = as_found(earlier[traffic.key], before.slices.get(traffic.key, ()), Ground(before.hosts).reading)
        endpoints = endpoints_of(crowd.of(traffic), traffic, ground.zone_of)
        is_edited = traffic != earlier[traffic.key]
        foretold = written_anew(traffic, endpoints, ground.zone_of, ground.reading, found, is_edited=is_edited)
        actual = as_found(traffic, after.slices.get(traffic.key, ()), ground.reading)
        if foretold.status.state != actual.status.state:
            yield f"{traffic.key}: hints {actual.status}; foretold {foretold.status}"
        by_zone = [
            Counter(chain(*(one.hints.zones for one in each.endpoints if one.hints))) for each in (actual, foretold)
        ]
        if sorted(by_zone[0].values()) != sorted(by_zone[1].values()):
            yield f"{traffic.key}: hints by zone {dict(by_zone[0])}; foretold {dict(by_zone[1])}"
        at_home = Counter(one.zone or "" for one in foretold.endpoints)
        for host in around.hosts:
            place = Place(host.name, host.node.zone)
            chosen = [_chosen(traffic, each.endpoints, place) for each in (actual, foretold)]
            # Which of several zones that lack endpoints gets which of them is anybody's guess.
            is_open = len([zone for zone, count in by_zone[1].items() if count > at_home[zone]]) > 1
            if is_open:
                chosen = [Counter({"": sum(one.values())}) for one in chosen]
            if by_zone[0] == by_zone[1] and chosen[0] != chosen[1]:
                yield f"{traffic.key} on {host.name}: {dict(chosen[0])}; foretold {dict(chosen[1])}"


def _chosen(traffic: Traffic, endpoints: list[Endpoint], place: Place) -> Counter[str]:
    """Zones of the endpoints that the proxy of a node chooses. Which of a zone is nobody's promise."""
    backends = [_backend(one) for one in endpoints]
    is_local = traffic.is_internal_local
    chosen = select(backends, Use(cluster=not is_local, local=is_local), place)
    zones = {one.target: one.zone or "" for one in endpoints}
    return Counter(zones[one.key] for one in (chosen.local if is_local else chosen.cluster) or ())


def _backend(one: Endpoint) -> Backend:
    hints = one.hints or Hints()
    return Backend(key=str(one.target), data=b"", node=one.node or "", zones=hints.zones, nodes=hints.nodes)
