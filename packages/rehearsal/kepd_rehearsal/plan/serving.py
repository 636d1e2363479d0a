# SPDX-License-Identifier: Apache-2.0
"""What clients of a Service find in a state of the cluster: endpoints, hints, load, and nodes where nothing answers.

Each node's clients are taken to ask as much as its CPU is of all, which is what hints by CPU assume too. A node asks
the endpoints that its proxy chooses, each alike.
"""

from collections.abc import Iterable, Sequence

import msgspec

from agent.topology.hints.allocation import allocate
from agent.topology.hints.capacity import read_capacity
from agent.topology.hints.routing import zone_uses_hints
from agent.topology.hints.slices import Endpoint
from agent.topology.manifest.facts import SelectingService
from kepd_rehearsal.plan.cluster import Host, Member, Traffic, Written


class ZoneServing(msgspec.Struct, frozen=True, gc=False):
    """`crossing`: the share of its clients' requests that leaves the zone; `share`: that of the CPU. By it the zone
    wants endpoints, and may have from `least` to `most` hints; none of that where hints do not go by CPU."""

    zone: str
    endpoints: int
    hinted: int
    crossing: float
    share: float = 0.0
    want: float | None = None
    least: int | None = None
    most: int | None = None


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
        self.hosts = tuple(hosts)
        self.reading = read_capacity([host.node for host in hosts])

    def is_like(self, other: "Ground") -> bool:
        """For clients, and for hints."""
        if self.hosts is other.hosts:
            return True
        return (self.zone_of, self.weights) == (other.zone_of, other.weights) and self.reading == other.reading


class Crowd:
    """Pods by those of their labels that Services look at, so that no Service walks over all."""

    def __init__(self, members: Iterable[Member], services: Iterable[SelectingService]) -> None:
        self._by_label: dict[tuple[str, str, str], list[Member]] = {
            (one.namespace, *pair): [] for one in services for pair in (one.selector or {}).items()
        }
        names = {name for _, name, _ in self._by_label}
        for one in members:
            for name in names & one.facts.labels.keys():
                found = self._by_label.get((one.facts.namespace, name, one.facts.labels[name]))
                if found is not None:
                    found.append(one)

    def of(self, traffic: Traffic) -> list[Member]:
        wanted = traffic.service.selector
        if not wanted:
            return []
        found = [self._by_label.get((traffic.service.namespace, *pair), []) for pair in wanted.items()]
        return [one for one in min(found, key=len) if wanted.items() <= one.facts.labels.items()]


def serving(traffic: Traffic, written: Written, ground: Ground) -> Serving:
    hinted = written.endpoints
    load = _shared(traffic, hinted, ground)
    mean = ground.total / len(hinted) if hinted else 0.0
    rows = tuple(
        EndpointLoad(
            one.target or one.address, one.node or "", one.zone or "", load.of[place] / ground.total,
            load.of[place] / mean - 1 if mean else 0.0,
        )
        for place, one in enumerate(hinted)
    )  # fmt: skip
    is_local = traffic.is_external_local or traffic.is_internal_local
    with_own = {one.node for one in hinted}
    return Serving(
        service=traffic.key,
        ready=len(hinted),
        hints=str(written.status),
        why=written.why,
        zones=tuple(_zones(hinted, load, ground, written)),
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


def _zones(endpoints: Sequence[Endpoint], load: _Load, ground: Ground, written: Written) -> Iterable[ZoneServing]:
    allocation = None
    if written.status.state in ("active", "refused"):
        allocation = allocate(ground.reading.capacity, len(endpoints))
    for zone in sorted(ground.by_zone.keys() | {one.zone or "" for one in endpoints}):
        row = allocation.zones.get(zone) if allocation is not None else None
        yield ZoneServing(
            zone=zone,
            endpoints=sum((one.zone or "") == zone for one in endpoints),
            hinted=sum(one.hints is not None and zone in one.hints.zones for one in endpoints),
            crossing=load.crossing.get(zone, 0.0) / (ground.by_zone.get(zone) or 1.0),
            share=ground.by_zone.get(zone, 0.0) / ground.total,
            want=row.want if row is not None else None,
            least=row.least if row is not None else None,
            most=row.most if row is not None else None,
        )
