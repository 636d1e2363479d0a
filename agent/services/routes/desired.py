# SPDX-License-Identifier: Apache-2.0
"""Keeps what one family should have: a plan for every Service, updated by what changed.

A change concerns the Services that changed, and those that win or lose an address by that: work grows with the change,
never with the number of Services. Its owner is the sync of that family.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import islice

import msgspec

from agent.model.finding import Finding
from agent.model.services.nft_table import Family
from agent.model.services.service import Address, PortKey, Range, ServiceKey
from agent.services.objects.bounds import (
    MOST_ELEMENTS,
    EndpointBudget,
    ServicePlaces,
    demand,
    told_own_maps,
    told_tables,
)
from agent.services.objects.fold import ServiceIndex
from agent.services.objects.merged import Endpoints
from agent.services.outage.judged import Dead, judged
from agent.services.routes.frontends import (
    Claim,
    Claims,
    Frontend,
    HealthPort,
    ServicePlan,
    claim_of,
    health_port,
    plan_service,
)
from agent.services.routes.outside_addresses import NO_LIMITS, Limits, OutsideAddresses
from agent.services.routes.selection import Place

# Planning so many elements takes some milliseconds.
MOST_AT_ONCE = 10_000
# A Service with so many comes after all others, however long it waits, so that no other waits for it.
LARGE = 500
NO_OTHERS: frozenset[ServiceKey] = frozenset()


class NodeFacts(msgspec.Struct, frozen=True, gc=False):
    """This node, as one family sees it. `addresses` are its own, `node_port_addresses` those that node ports
    are served on; with `is_open_everywhere` that is every address and the list is empty."""

    place: Place
    addresses: tuple[Address, ...] = ()
    node_port_addresses: tuple[Address, ...] = ()
    is_open_everywhere: bool = False
    has_localhost: bool = False
    """Node ports are also served on loopback addresses, by a relay."""
    pod_ranges: tuple[Range, ...] = ()
    service_ranges: tuple[Range, ...] = ()
    own_maps: int = 0
    """Ports that may have their clients in a map of their own."""
    maglevs: int = 0
    """Services that may have tables of slots."""
    elements: int = MOST_ELEMENTS
    """That all Services may have together."""
    limits: Limits = NO_LIMITS


class Desired:
    def __init__(self, family: Family, node: NodeFacts, fold: ServiceIndex | None = None) -> None:
        self.family = family
        self.node = node
        self.fold = fold or ServiceIndex()
        self.changed = self.fold.follow()
        """Services to look at in the next update."""
        self._ready: dict[ServiceKey, None] = {}
        """Those of them that are measured already."""
        self.large: dict[ServiceKey, None] = {}
        """Services that updates in parts come to when nothing else changed, in this order."""
        self.looked: set[ServiceKey] = set()
        """Services that updates looked at; whoever reports on them empties it."""
        self.lost: dict[ServiceKey, tuple[Frontend, ...]] = {}
        """Ways in that a Service wants and another one has."""
        self._plans: dict[ServiceKey, ServicePlan] = {}
        self._wanted: dict[ServiceKey, tuple[Frontend, ...]] = {}
        self._claims = Claims()
        self.health_ports: dict[ServiceKey, HealthPort] = {}
        self.refused: dict[ServiceKey, tuple[Finding, ...]] = {}
        """Services that are too large to be programmed."""
        self.broken: dict[ServiceKey, str] = {}
        """Services that kepd failed to plan: what they had stays. Whoever sets them aside empties it."""
        self.own_maps = ServicePlaces("affinity-clients", told_own_maps)
        self.hash_tables = ServicePlaces("balance", told_tables)
        self.dead: Dead = ()
        """Endpoints that are judged dead while the API server is away."""
        self.outside = OutsideAddresses(family)
        self.room = EndpointBudget()

    def set_node(self, node: NodeFacts) -> None:
        """All Services are looked at again if it matters to them."""
        before, self.node = self.node, node
        if _whereabouts(before) != _whereabouts(node):
            self.changed.update(self.fold.services)
            return
        if before.place.labels != node.place.labels:
            self.changed.update(self.fold.by_labels)
        if before.limits != node.limits:
            self.changed.update(self.outside.services)

    def update(self, most: int = 0) -> dict[ServiceKey, ServicePlan | None]:
        """Plans that are new or different, None for those that are gone. `most` 0: looks at all that changed; else at
        so many, and at the large ones when no others are left."""
        fresh: dict[ServiceKey, ServicePlan | None] = {}
        if self.changed:
            self._measure(most)
            if self.changed:
                return fresh
            self._make_room()
        todo = self._next(most, self._ready or self.large)
        todo += self._put_outside(todo)
        try:
            return self._update(todo, fresh)
        except BaseException:
            self.changed.update(todo)
            raise

    @property
    def is_due(self) -> bool:
        """Whether there is more to look at than large ones."""
        return bool(self.changed or self._ready)

    def is_waiting(self, key: ServiceKey) -> bool:
        return key in self.changed or key in self._ready or key in self.large

    def _measure(self, most: int) -> None:
        """What changed, before any of it is planned: who gets room does not hang on who comes first."""
        for key in tuple(islice(self.changed, most or None)):
            self.changed.discard(key)
            self.large.pop(key, None)
            self._ready[key] = None
            service = self.fold.services.get(key)
            part = service.part(self.family) if service is not None else None
            if service is None or part is None:
                self.room.drop(key)
                self.own_maps.drop(key)
                self.hash_tables.drop(key)
                continue
            size = demand(service, part, self.fold.pairs(service, self.family))
            self.room.put(service, size)
            has_own = service.affinity_s and service.options.affinity_clients
            self.own_maps.put(service, len(service.ports) if has_own else 0)
            self.hash_tables.put(service, bool(service.options.hashing))
            if most and size >= LARGE:
                del self._ready[key]
                self.large[key] = None

    def _make_room(self) -> None:
        """Others that have to go, or may come, because of these. Who may come and is large has its turn."""
        moved = self.room.settle(self.node.elements) | self.own_maps.settle(self.node.own_maps)
        moved |= self.hash_tables.settle(self.node.maglevs)
        self._ready.update(dict.fromkeys(key for key in moved if key not in self.large or self.room.refusal(key)))

    def _next(self, most: int, waiting: dict[ServiceKey, None]) -> list[ServiceKey]:
        """So many, or fewer where they have many elements."""
        todo: list[ServiceKey] = []
        elements = 0
        while waiting and (not most or (len(todo) < most and elements < MOST_AT_ONCE)):
            todo.append(next(iter(waiting)))
            del waiting[todo[-1]]
            elements += self.room.elements(todo[-1])
        return todo

    def _put_outside(self, todo: Collection[ServiceKey]) -> list[ServiceKey]:
        """Others that get or lose an address by the cluster IPs of these."""
        others = {one for key in todo for one in self.outside.put(key, self.fold.services.get(key))}
        return [key for key in others.difference(todo) if key in self.fold.services]

    def _update(
        self, todo: Iterable[ServiceKey], fresh: dict[ServiceKey, ServicePlan | None]
    ) -> dict[ServiceKey, ServicePlan | None]:
        self.looked.update(todo)
        again: set[ServiceKey] = set()
        for key in todo:
            try:
                plan = self._plan(key)
            except Exception as error:  # noqa: BLE001  # one Service's fault is not the others'
                self.broken[key] = f"kepd failed to plan it: {error!r}"
                continue
            again.update(self._claim(key, plan))
            fresh[key] = plan
        for key in again - fresh.keys():
            fresh[key] = self._plan(key)
        different: dict[ServiceKey, ServicePlan | None] = {}
        for key, plan in fresh.items():
            kept = self._own_share(plan) if plan is not None else None
            self._note_health(key, kept)
            if kept != self._plans.get(key):
                different[key] = kept
                self._store(key, kept)
        return different

    def _plan(self, key: ServiceKey) -> ServicePlan | None:
        service = self.fold.services.get(key)
        refusal = self.room.refusal(key) if service is not None else None
        if refusal is not None:
            self.refused[key] = (refusal,)
        else:
            self.refused.pop(key, None)
        if service is None or refusal is not None:
            return None

        def endpoints(port: PortKey) -> Endpoints:
            return judged(self.fold.endpoints(key, self.family, port), port.protocol, self.dead)

        own_clients = service.options.affinity_clients if key in self.own_maps.granted else 0
        place, addresses = self.node.place, self.node.addresses
        service = self.outside.permitted(service, self.node.limits)
        may_hash = key in self.hash_tables.granted
        return plan_service(service, self.family, endpoints, place, addresses, own_clients, may_hash=may_hash)

    def owner_of(self, claim: Claim) -> ServiceKey | None:
        """Whose that way in is."""
        return self._claims.owner(claim)

    def _claim(self, key: ServiceKey, plan: ServicePlan | None) -> Collection[ServiceKey]:
        before = self._wanted.get(key, ())
        if plan is None:
            if not before:
                return NO_OTHERS
            del self._wanted[key]
            return self._claims.drop(key, before)
        wanted = tuple([one for port in plan.ports for one in port.frontends])
        self._wanted[key] = wanted
        return self._claims.put(self.fold.services[key], wanted, before)

    def _own_share(self, plan: ServicePlan) -> ServicePlan:
        lost: tuple[Frontend, ...] = ()
        if self._claims.are_contested:
            lost = tuple([one for port in plan.ports for one in port.frontends if not self._is_ours(plan.key, one)])
        if lost:
            self.lost[plan.key] = lost
            ports = [
                msgspec.structs.replace(
                    port, frontends=tuple(one for one in port.frontends if self._is_ours(plan.key, one))
                )
                for port in plan.ports
            ]
            return msgspec.structs.replace(plan, ports=tuple(ports))
        self.lost.pop(plan.key, None)
        return plan

    def _is_ours(self, key: ServiceKey, frontend: Frontend) -> bool:
        return self._claims.owner(claim_of(frontend)) == key

    def conflicts(self, key: ServiceKey, *, hides_others: bool = False) -> Iterator[Finding]:
        """Who has what the Service lost, as of now. `hides_others`: without names of other namespaces."""
        for one in self.lost.get(key, ()):
            what = f"{one.kind} {one.ip.text if one.ip is not None else '*'}:{one.port}/{one.protocol}"
            owner = self._claims.owner(claim_of(one))
            is_hidden = hides_others and owner is not None and owner.namespace != key.namespace
            whose = "a Service of another namespace" if is_hidden else owner
            text = f"belongs to {whose}, which is older or has it as its cluster IP; it is left out here"
            yield Finding(f"Service {key}", what, text)

    def _note_health(self, key: ServiceKey, plan: ServicePlan | None) -> None:
        """The port of a health check may change where no plan does."""
        one = health_port(plan, self.dead) if plan is not None else None
        if one is not None:
            self.health_ports[key] = one
        else:
            self.health_ports.pop(key, None)

    def _store(self, key: ServiceKey, plan: ServicePlan | None) -> None:
        if plan is None:
            self._plans.pop(key, None)
            self.lost.pop(key, None)
        else:
            self._plans[key] = plan

    def unhashed(self, key: ServiceKey) -> int | None:
        """How many endpoints are too many for the table that a Service has room for; None: it has one, or wants
        none."""
        plan = self._plans.get(key)
        if plan is None or key not in self.hash_tables.granted:
            return None
        counts = [len(port.selection.everyone) for port in plan.ports if not port.hashing]
        return max(counts) if counts else None

    def plans(self) -> Iterable[ServicePlan]:
        return self._plans.values()

    def plan_of(self, key: ServiceKey) -> ServicePlan | None:
        return self._plans.get(key)


def _whereabouts(node: NodeFacts) -> tuple[object, ...]:
    """What every plan depends on."""
    return node.place.node, node.place.zone, node.addresses, node.own_maps, node.maglevs, node.elements
