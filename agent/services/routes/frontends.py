# SPDX-License-Identifier: Apache-2.0
"""Describes what a Service offers to which clients: each address and port with its endpoints, as one value.

Of several Services that claim an address and port, cluster IPs come first, then the older Service, then namespace and
name; the loser keeps its other frontends.
Never: knows nftables or iptables; both renderers, the tracer and `kepctl explain route` read these values.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

import msgspec

from agent.model.services.check import Asked
from agent.model.services.nft_table import Family, Hashing
from agent.model.services.service import (
    DEFAULT_OPTIONS,
    Address,
    Backend,
    FamilyPart,
    PortFacts,
    PortKey,
    Protocol,
    Range,
    ServiceFacts,
    ServiceKey,
    ServiceOptions,
)
from agent.services.objects.addresses import whole
from agent.services.objects.merged import Endpoints, Step
from agent.services.routes.maglev import MOST_ENDPOINTS
from agent.services.routes.selection import Place, Selection, is_local, living_of, select, use_of

DNS_PORT = 53
Kind = Literal["clusterIP", "externalIP", "loadBalancer", "nodePort"]
Snat = Literal["off-cluster", "always", "local-host"]
Verdict = Literal["", "reject", "drop", "pass"]
Claim = tuple[bytes, str, int]
Rank = tuple[bool, str, ServiceKey]


class Frontend(msgspec.Struct, frozen=True, gc=False):
    """One way in. `ip` None: a node port, on the node's addresses. `verdict` says what happens where `is_local_policy`
    decides which list is used and that list is empty."""

    kind: Kind
    ip: Address | None
    protocol: Protocol
    port: int
    is_local_policy: bool
    snat: Snat
    verdict: Verdict
    ranges: tuple[Range, ...] = ()
    is_restricted: bool = False


class PortPlan(msgspec.Struct, frozen=True, gc=False):
    port: PortFacts
    selection: Selection
    frontends: tuple[Frontend, ...]
    affinity_s: int
    local: tuple[Backend, ...] = ()
    """Endpoints on this node that are in use: who may meet itself."""
    own_clients: int = 0
    """How many clients its own map holds; 0: they are in the map that ports share."""
    step: Step | None = None
    """How the list of all came about, where they are many."""
    hashing: Hashing = ""
    """By what its endpoint is chosen."""


class ServicePlan(msgspec.Struct, frozen=True, gc=False):
    key: ServiceKey
    cluster_ip: Address
    ports: tuple[PortPlan, ...]
    options: ServiceOptions = DEFAULT_OPTIONS
    """Weights are not in the lists above, but in what is written of them."""
    health_port: int = 0


class HealthPort(msgspec.Struct, frozen=True, gc=False):
    """The port, and how many local endpoints its answer names."""

    port: int
    local_endpoints: int


class Openness(msgspec.Struct, frozen=True, gc=False):
    """Who may come where the Service's ranges do not count: everybody."""

    source_ranges: tuple[Range, ...] = ()
    is_closed: bool = False


OPEN = Openness()


def port_name(key: ServiceKey, port: str) -> str:
    """`ns/name:port`; without the colon for a port without name."""
    return f"{key}:{port}" if port else str(key)


def plan_service(
    service: ServiceFacts,
    family: Family,
    endpoints: Callable[[PortKey], Endpoints],
    place: Place,
    node_addresses: Sequence[Address] = (),
    own_clients: int = 0,
    *,
    may_hash: bool = False,
) -> ServicePlan | None:
    """None: the Service does not exist in this family. `endpoints` gives those of a port. `may_hash`: there is room for
    its tables, if it wants any."""
    part = service.part(family)
    if part is None:
        return None
    ports = []
    for port in service.ports:
        use = use_of(service, bool(port.node_port or part.balancer_ips or part.external_ips))
        found, step = endpoints(port.key), None
        many = found.many
        are_plain = many is not None and many.is_plain
        selection = select(found.whole, use, place, service.options, are_plain=are_plain)
        if found.unjudged and not selection.cluster and use.cluster:
            selection = living_of(select(found.unjudged, use, place, service.options), found.whole)
        if many is not None and selection.everyone is many.whole and not place.is_alone:
            step, local = many.step, many.here(place.node) if place.node else ()
        else:
            local = tuple([one for one in selection.everyone if is_local(one, place)])
        frontends = _frontends(service, part, port, selection, node_addresses)
        hashing = service.options.hashing if may_hash and len(selection.everyone) <= MOST_ENDPOINTS else ""
        ports.append(PortPlan(port, selection, frontends, service.affinity_s, local, own_clients, step, hashing))
    return ServicePlan(service.key, part.cluster_ip, tuple(ports), service.options, service.health_port)


def _frontends(
    service: ServiceFacts, part: FamilyPart, port: PortFacts, selection: Selection, node_addresses: Sequence[Address]
) -> tuple[Frontend, ...]:
    def make(
        kind: Kind, ip: Address | None, number: int, ranges: tuple[Range, ...] = (), *, is_closed: bool = False
    ) -> Frontend:
        is_local_policy = service.is_internal_local if kind == "clusterIP" else service.is_external_local
        snat: Snat = "off-cluster" if kind == "clusterIP" else "local-host" if is_local_policy else "always"
        verdict = _verdict(service, selection, is_local_policy=is_local_policy)
        return Frontend(
            kind, ip, port.protocol, number, is_local_policy, snat, verdict, ranges, bool(ranges) or is_closed
        )

    everywhere: FamilyPart | Openness = part if service.options.has_ranges_everywhere else OPEN
    closed = everywhere.is_closed
    found = [make("clusterIP", part.cluster_ip, port.port)]
    if port.port == DNS_PORT:
        found += [make("clusterIP", ip, port.port) for ip in part.aliases]
    ranges = _ranges(everywhere.source_ranges, part.external_ips, node_addresses)
    found += [make("externalIP", ip, port.port, ranges, is_closed=closed) for ip in part.external_ips]
    ranges = _ranges(part.source_ranges, part.balancer_ips, node_addresses)
    found += [make("loadBalancer", ip, port.port, ranges, is_closed=part.is_closed) for ip in part.balancer_ips]
    if port.node_port:
        found.append(make("nodePort", None, port.node_port, everywhere.source_ranges, is_closed=closed))
    return tuple(found)


def _verdict(service: ServiceFacts, selection: Selection, *, is_local_policy: bool) -> Verdict:
    """What is done without endpoints, with our two options."""
    if not selection.has_any:
        return "pass" if service.options.passes_when_empty else "reject"
    if selection.local if is_local_policy else selection.cluster:
        return ""
    return "reject" if service.options.no_local_rejects else "drop"


def _ranges(
    ranges: tuple[Range, ...], targets: Sequence[Address], node_addresses: Sequence[Address]
) -> tuple[Range, ...]:
    """Whoever may come from this node may also come with the address that it asks, if the node has that too."""
    if targets and any(one.first <= node.packed <= one.last for one in ranges for node in node_addresses):
        return (*ranges, *map(whole, targets))
    return ranges


def health_port(plan: ServicePlan, dead: Collection[Asked] = ()) -> HealthPort | None:
    """None: this Service has no health check of its own. Where all endpoints are dead the verdict is in doubt, so they
    count as alive: else a balancer would leave out every node in turn."""
    if not plan.health_port:
        return None
    ready = set()
    for port in plan.ports:
        doubtful = dead if port.selection.last_resort else ()
        ready |= {one.address for one in port.local if one.is_ready or (port.port.protocol, one.data) in doubtful}
    return HealthPort(plan.health_port, len(ready))


def claim_of(frontend: Frontend) -> Claim:
    """Node ports have no address of their own."""
    return (frontend.ip.packed if frontend.ip is not None else b"", frontend.protocol, frontend.port)


class Claims:
    """Changed by desired.py alone. Almost all claims have one claimant, so only the others cost a table."""

    def __init__(self) -> None:
        self._sole: dict[Claim, Rank] = {}
        self._contested: dict[Claim, list[Rank]] = {}
        """In order: the first has it."""
        self._ranks: dict[Claim, dict[ServiceKey, Rank]] = {}
        """Of the contested ones."""

    @property
    def are_contested(self) -> bool:
        """Whether any way in has two claimants; if not, everybody has what it wants."""
        return bool(self._contested)

    def put(
        self, service: ServiceFacts, frontends: Iterable[Frontend], before: Collection[Frontend]
    ) -> set[ServiceKey]:
        """The Service wants these now. Returns the others that win or lose one by that, however many want it too."""
        key = service.key
        wanted: dict[Claim, Rank] = {}
        for one in frontends:
            wanted.setdefault(claim_of(one), (one.kind != "clusterIP", service.created, key))
        others: set[ServiceKey] = set()
        if before:
            others = self.drop(key, [one for one in before if claim_of(one) not in wanted])
        for claim, rank in wanted.items():
            sole = self._sole.get(claim)
            if claim not in self._contested and (sole is None or sole[2] == key):
                self._sole[claim] = rank
                continue
            had = self.owner(claim)
            self._contend(claim, sole)
            self._leave(claim, key)
            self._contend(claim, rank)
            has = self.owner(claim)
            if had != has:
                others |= {one for one in (had, has) if one is not None}
        others.discard(key)
        return others

    def _contend(self, claim: Claim, rank: Rank | None) -> None:
        if rank is not None:
            insort(self._contested.setdefault(claim, []), rank)
            self._ranks.setdefault(claim, {})[rank[2]] = rank
            self._sole.pop(claim, None)

    def _leave(self, claim: Claim, key: ServiceKey) -> None:
        rank = self._ranks[claim].pop(key, None)
        if rank is not None:
            ranks = self._contested[claim]
            del ranks[bisect_left(ranks, rank)]

    def drop(self, key: ServiceKey, frontends: Iterable[Frontend]) -> set[ServiceKey]:
        """The Service wants these no longer. Returns those that get them."""
        others: set[ServiceKey] = set()
        for claim in map(claim_of, frontends):
            if claim not in self._contested:
                if claim in self._sole and self._sole[claim][2] == key:
                    del self._sole[claim]
                continue
            had = self.owner(claim)
            self._leave(claim, key)
            has = self.owner(claim)
            if had != has and has is not None:
                others.add(has)
            if len(self._contested[claim]) == 1:
                (self._sole[claim],) = self._contested.pop(claim)
                del self._ranks[claim]
        return others

    def owner(self, claim: Claim) -> ServiceKey | None:
        ranks = self._contested.get(claim)
        sole = ranks[0] if ranks else self._sole.get(claim)
        return sole[2] if sole is not None else None
