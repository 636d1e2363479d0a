# SPDX-License-Identifier: Apache-2.0
"""What clients of a Service find in a state of the cluster: endpoints, hints, load, and nodes where nothing answers.

Each node's clients are taken to ask as much as its CPU is of all, which is what hints by CPU assume too. A node asks
the endpoints that its proxy chooses, each alike. Hints are those that the control plane would write from scratch; ones
that stood before may last, for Kubernetes keeps what still fits.
"""

from collections.abc import Iterable, Sequence

import msgspec

from agent.topology.hints.capacity import read_capacity
from agent.topology.hints.routing import zone_uses_hints
from agent.topology.hints.slices import Endpoint, Slice
from agent.topology.hints.standalone import FilledHints, fill_hints
from agent.topology.rehearsal.cluster import Host, Member, Traffic

FAMILY = "IPv4"


class ZoneServing(msgspec.Struct, frozen=True, gc=False):
    """`crossing`: the share of its clients' requests that leaves the zone."""

    zone: str
    endpoints: int
    hinted: int
    crossing: float


class EndpointLoad(msgspec.Struct, frozen=True, gc=False):
    """`load`: the share of all requests; `over`: how far it is above the mean, 0.2 for a fifth."""

    pod: str
    node: str
    zone: str
    load: float
    over: float


class Serving(msgspec.Struct, frozen=True, gc=False):
    service: str
    ready: int
    hints: str
    why: str
    zones: tuple[ZoneServing, ...] = ()
    endpoints: tuple[EndpointLoad, ...] = ()
    overload: float = 0.0
    crossing: float = 0.0
    dark_nodes: tuple[str, ...] = ()
    """Where a policy Local finds no endpoint."""
    is_dead: bool = False


class Ground:
    """The nodes, looked at once for all Services: whose clients ask how much, and what hints by CPU make of them."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.zone_of = {host.name: host.node.zone for host in hosts}
        self.weights = {host.name: float(host.room.cpu_milli) for host in hosts if host.node.ready == "True"}
        self.by_zone: dict[str, float] = {}
        for name, weight in self.weights.items():
            self.by_zone[self.zone_of[name]] = self.by_zone.get(self.zone_of[name], 0.0) + weight
        self.total = sum(self.by_zone.values()) or 1.0
        self.reading = read_capacity([host.node for host in hosts])


class Crowd:
    """Pods by their labels, so that no Service walks over all."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._by_label: dict[tuple[str, str, str], list[Member]] = {}
        for one in members:
            for name, value in one.facts.labels.items():
                self._by_label.setdefault((one.facts.namespace, name, value), []).append(one)

    def of(self, traffic: Traffic) -> list[Member]:
        wanted = traffic.service.selector
        if not wanted:
            return []
        found = [self._by_label.get((traffic.service.namespace, *pair), []) for pair in wanted.items()]
        return [one for one in min(found, key=len) if wanted.items() <= one.facts.labels.items()]


def serving(traffic: Traffic, members: Sequence[Member], ground: Ground) -> Serving:
    zone_of = ground.zone_of
    chosen = [one for one in members if one.node in zone_of and (one.is_ready or traffic.publishes_unready)]
    endpoints = tuple(
        Endpoint(
            addresses=(one.key,), zone=zone_of[one.node] or None, node=one.node, ready=True, serving=True,
            terminating=False, target=one.key,
        )
        for one in sorted(chosen, key=lambda each: each.key)
    )  # fmt: skip
    filled = fill_hints(traffic.service, FAMILY, (Slice("all", endpoints),), (), reading=ground.reading)
    hinted = [one for piece in filled.slices for one in piece.endpoints]
    load = _shared(traffic, hinted, ground)
    mean = ground.total / len(hinted) if hinted else 0.0
    rows = tuple(
        EndpointLoad(
            str(one.target), one.node or "", one.zone or "", load.of[place] / ground.total,
            load.of[place] / mean - 1 if mean else 0.0,
        )
        for place, one in enumerate(hinted)
    )  # fmt: skip
    is_local = traffic.is_external_local or traffic.is_internal_local
    with_own = {one.node for one in hinted}
    return Serving(
        service=traffic.key,
        ready=len(hinted),
        hints=str(filled.status),
        why=_why(filled),
        zones=tuple(_zones(hinted, load, ground)),
        endpoints=rows,
        overload=max((one.over for one in rows), default=0.0),
        crossing=sum(load.crossing.values()) / ground.total,
        dark_nodes=tuple(name for name in ground.weights if name not in with_own) if is_local and hinted else (),
        is_dead=not hinted,
    )


class _Load:
    """By endpoint, what it gets; by zone, what its clients ask of others."""

    def __init__(self, count: int) -> None:
        self.of = [0.0] * count
        self.crossing: dict[str, float] = {}

    def give(self, places: Sequence[int], weight: float, zone: str, endpoints: Sequence[Endpoint]) -> None:
        for place in places:
            self.of[place] += weight / len(places)
        away = sum((endpoints[place].zone or "") != zone for place in places)
        if places:
            self.crossing[zone] = self.crossing.get(zone, 0.0) + weight * away / len(places)


def _shared(traffic: Traffic, endpoints: Sequence[Endpoint], ground: Ground) -> _Load:
    """Nodes of a zone choose alike, but for those that have an endpoint of their own where that matters."""
    load, left = _Load(len(endpoints)), dict(ground.by_zone)
    at_node: dict[str, list[int]] = {}
    for place, one in enumerate(endpoints):
        at_node.setdefault(one.node or "", []).append(place)
    for_nodes = _by_node_hints(endpoints)
    own = at_node if traffic.is_internal_local else for_nodes
    for name, places in own.items():
        weight = ground.weights.get(name, 0.0)
        load.give(places, weight, ground.zone_of.get(name, ""), endpoints)
        left[ground.zone_of.get(name, "")] = left.get(ground.zone_of.get(name, ""), 0.0) - weight
    for zone, weight in left.items() if not traffic.is_internal_local else ():
        uses = zone_uses_hints(endpoints, zone)
        places = [
            place
            for place, one in enumerate(endpoints)
            if not uses or (one.hints is not None and zone in one.hints.zones)
        ]
        load.give(places, weight, zone, endpoints)
    return load


def _by_node_hints(endpoints: Sequence[Endpoint]) -> dict[str, list[int]]:
    """Which endpoints are hinted for each node; none count unless all have such a hint."""
    found: dict[str, list[int]] = {}
    for place, one in enumerate(endpoints):
        names = one.hints.nodes if one.hints is not None else ()
        if not names:
            return {}
        for name in names:
            found.setdefault(name, []).append(place)
    return found


def _zones(endpoints: Sequence[Endpoint], load: _Load, ground: Ground) -> Iterable[ZoneServing]:
    for zone in sorted(ground.by_zone.keys() | {one.zone or "" for one in endpoints}):
        yield ZoneServing(
            zone=zone,
            endpoints=sum((one.zone or "") == zone for one in endpoints),
            hinted=sum(one.hints is not None and zone in one.hints.zones for one in endpoints),
            crossing=load.crossing.get(zone, 0.0) / (ground.by_zone.get(zone) or 1.0),
        )


def _why(filled: FilledHints) -> str:
    if filled.status.reason is not None:
        return str(filled.status.reason)
    return filled.choice.why
