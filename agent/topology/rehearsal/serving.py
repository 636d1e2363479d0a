# SPDX-License-Identifier: Apache-2.0
"""What clients of a Service find in a state of the cluster: endpoints, hints, load, and nodes where nothing answers.

Each node's clients are taken to ask as much as its CPU is of all, which is what hints by CPU assume too. A node asks
the endpoints that its proxy chooses, each alike. Hints are those that the control plane would write from scratch; ones
that stood before may last, for Kubernetes keeps what still fits.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agent.model.selector import equality_matcher
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


def serving(traffic: Traffic, members: Sequence[Member], hosts: Sequence[Host]) -> Serving:
    nodes = [host.node for host in hosts]
    zone_of = {node.name: node.zone for node in nodes}
    chosen = [one for one in members if one.node in zone_of and (one.is_ready or traffic.publishes_unready)]
    endpoints = tuple(
        Endpoint(
            addresses=(one.key,), zone=zone_of[one.node] or None, node=one.node, ready=True, serving=True,
            terminating=False, target=one.key,
        )
        for one in sorted(chosen, key=lambda each: each.key)
    )  # fmt: skip
    filled = fill_hints(traffic.service, FAMILY, (Slice("all", endpoints),), nodes)
    hinted = [one for piece in filled.slices for one in piece.endpoints]
    weights = {host.name: float(host.room.cpu_milli) for host in hosts if host.node.ready == "True"}
    loads, crossing_of, dark = _loads(traffic, hinted, weights, zone_of)
    total = sum(weights.values()) or 1.0
    mean = total / len(hinted) if hinted else 0.0
    rows = tuple(
        EndpointLoad(
            str(one.target),
            one.node or "",
            one.zone or "",
            loads[place] / total,
            loads[place] / mean - 1 if mean else 0.0,
        )
        for place, one in enumerate(hinted)
    )
    return Serving(
        service=traffic.key,
        ready=len(hinted),
        hints=str(filled.status),
        why=_why(filled),
        zones=tuple(_zones(hinted, weights, crossing_of, zone_of)),
        endpoints=rows,
        overload=max((one.over for one in rows), default=0.0),
        crossing=sum(crossing_of[name] * weight for name, weight in weights.items()) / total,
        dark_nodes=tuple(dark),
        is_dead=not hinted,
    )


def members_of(traffic: Traffic, members: Iterable[Member]) -> list[Member]:
    if not traffic.service.selector:
        return []
    matcher = equality_matcher(traffic.service.selector)
    return [
        one for one in members if one.facts.namespace == traffic.service.namespace and matcher.matches(one.facts.labels)
    ]


def _loads(
    traffic: Traffic, endpoints: Sequence[Endpoint], weights: Mapping[str, float], zone_of: Mapping[str, str]
) -> tuple[list[float], dict[str, float], list[str]]:
    """By endpoint; by node the share that leaves its zone; nodes where a policy finds none."""
    loads = [0.0] * len(endpoints)
    crossing: dict[str, float] = {}
    dark = []
    by_zone: dict[str, list[int]] = {}
    for name, weight in weights.items():
        here = [place for place, one in enumerate(endpoints) if one.node == name]
        if (traffic.is_external_local or traffic.is_internal_local) and not here and endpoints:
            dark.append(name)
        places = here if traffic.is_internal_local else _for_node(endpoints, name, zone_of[name], by_zone)
        for place in places:
            loads[place] += weight / len(places)
        away = sum((endpoints[place].zone or "") != zone_of[name] for place in places)
        crossing[name] = away / len(places) if places else 0.0
    return loads, crossing, dark


def _for_node(endpoints: Sequence[Endpoint], node: str, zone: str, by_zone: dict[str, list[int]]) -> list[int]:
    for_nodes = [one.hints.nodes if one.hints else () for one in endpoints]
    if endpoints and all(for_nodes) and any(node in names for names in for_nodes):
        return [place for place, names in enumerate(for_nodes) if node in names]
    if zone not in by_zone:
        uses = zone_uses_hints(endpoints, zone)
        by_zone[zone] = [
            place
            for place, one in enumerate(endpoints)
            if not uses or (one.hints is not None and zone in one.hints.zones)
        ]
    return by_zone[zone]


def _zones(
    endpoints: Sequence[Endpoint],
    weights: Mapping[str, float],
    crossing: Mapping[str, float],
    zone_of: Mapping[str, str],
) -> Iterable[ZoneServing]:
    for zone in sorted({zone_of[name] for name in weights} | {one.zone or "" for one in endpoints}):
        own = {name: weight for name, weight in weights.items() if zone_of[name] == zone}
        total = sum(own.values()) or 1.0
        yield ZoneServing(
            zone=zone,
            endpoints=sum((one.zone or "") == zone for one in endpoints),
            hinted=sum(one.hints is not None and zone in one.hints.zones for one in endpoints),
            crossing=sum(crossing[name] * weight for name, weight in own.items()) / total,
        )


def _why(filled: FilledHints) -> str:
    if filled.status.reason is not None:
        return str(filled.status.reason)
    return filled.choice.why
