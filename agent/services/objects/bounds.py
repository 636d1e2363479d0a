# SPDX-License-Identifier: Apache-2.0
"""Plans the room that a node has for Services, and which stay out where all together are too much.

What is programmed stays, and others come by age, so that no newcomer takes a way in away; no namespace gets more than
three quarters, so that none leaves nothing for the others. Maps of their own for clients go to the oldest first; so
do tables of slots. Of each object of an API server it is decided by the same shares whether there is memory for it,
before it is kept: where there is none, it leaves nothing but a finding.

Whether a complete list is believed is decided here as well. A server that was restored from an empty or an old store
lists what it has, and that is no proof that the rest was deleted: deletions are told one by one, unless kepd was away
meanwhile. So what would take most of a node's Services away is looked at again, and believed when it stays so.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import msgspec

from agent.model.finding import Finding
from agent.model.kube_objects import EndpointSlice, Service
from agent.model.services.service import FamilyPart, ServiceFacts, ServiceKey
from agent.services.nftables.elements import MOST_SLOTS
from agent.services.routes.maglev import slot_count

MOST_OF_SERVICE = 131_072
"""Elements of one Service in a family: the most of one transaction, as no Service is divided."""
MOST_ELEMENTS = 500_000
"""Of all Services in a family, unless the node says otherwise: 0.1 to 0.4 KiB each."""
WAY_ELEMENTS = 8
"""A way in costs as much memory as so many endpoints of it."""
SHARE = 0.75
"""Of a namespace, in all there is."""
RESERVE = 4
"""One divided by what there is beyond the most for those that are there already, so that no newcomer stops them."""
NEAR = 0.8
"""Part of the room from which on there is a warning."""
NO_HASHING = -1
"""In place of the most Services: the backend cannot."""
ENTRIES = 1.5
"""For each of the elements that there may be."""
OBJECT_ENTRIES, ADDRESS_ENTRIES, WEIGHT_LENGTH = 6, 4, 16
KUBERNETES = ("default", "kubernetes")


def share_of(most: int) -> int:
    return int(SHARE * most)


def demand(service: ServiceFacts, part: FamilyPart, endpoints: Iterable[int]) -> int:
    """About how many elements the Service becomes. `endpoints`: how many each of its ports has."""
    outside, options = len(part.external_ips) + len(part.balancer_ips), service.options
    ranges = len(part.source_ranges) + outside if part.source_ranges else 0
    elements = 0
    for port, count in zip(service.ports, endpoints, strict=True):
        slots = max(count, slot_count(count)) if options.hashing else count
        slots = max(count, MOST_SLOTS) if options.weights and count else slots
        entries = outside + bool(port.node_port)
        elements += (1 + len(part.aliases)) * (slots + WAY_ELEMENTS)
        elements += entries * (slots * (1 + service.is_external_local) + WAY_ELEMENTS + ranges)
    return elements


class WantedPlaces(NamedTuple):
    created: str
    elements: int


class EndpointBudget:
    """Of one family: whose elements fit. The most a Service may have is asked of each alone, the rest of all."""

    def __init__(self) -> None:
        self._wanted: dict[ServiceKey, WantedPlaces] = {}
        self._of_namespace: Counter[str] = Counter()
        """What is wanted, by namespace."""
        self._granted: dict[ServiceKey, int] = {}
        self._used: Counter[str] = Counter()
        """What is granted, by namespace."""
        self.used = 0
        """By all that are programmed."""
        self._waiting: set[ServiceKey] = set()
        self._fresh: set[ServiceKey] = set()
        """Those that came or grew since the last decision."""
        self._too_large: dict[ServiceKey, int] = {}
        self._has_more = False
        """Whether some of the room was given back since then."""
        self.most = 0

    def put(self, service: ServiceFacts, elements: int) -> None:
        key = service.key
        had = self._granted.get(key, 0)
        if elements > MOST_OF_SERVICE:
            self.drop(key)
            self._too_large[key] = elements
            return
        self._forget(key)
        self._wanted[key] = WantedPlaces(service.created, elements)
        self._of_namespace[key.namespace] += elements
        if elements > had:
            self._fresh.add(key)
        elif elements < had:
            self._give_back(key)
            self._grant(key)

    def drop(self, key: ServiceKey) -> None:
        self._forget(key)
        self._give_back(key)
        self._waiting.discard(key)
        self._fresh.discard(key)

    def _forget(self, key: ServiceKey) -> None:
        self._too_large.pop(key, None)
        subtract(self._of_namespace, key, self._wanted.pop(key, WantedPlaces("", 0)).elements)

    def _give_back(self, key: ServiceKey) -> None:
        elements = self._granted.pop(key, 0)
        subtract(self._used, key, elements)
        self.used -= elements
        self._has_more = self._has_more or elements > 0

    def _grant(self, key: ServiceKey) -> None:
        self._granted[key] = elements = self.elements(key)
        self._used[key.namespace] += elements
        self.used += elements

    def elements(self, key: ServiceKey) -> int:
        return self._wanted[key].elements if key in self._wanted else 0

    @property
    def refused(self) -> int:
        return len(self._waiting) + len(self._too_large)

    def settle(self, most: int) -> frozenset[ServiceKey]:
        """After any number of changes: whom they let in or keep out."""
        before, grown = self._waiting, self._fresh & self._granted.keys()
        is_open = self._has_more or grown or most != self.most
        candidates = self._fresh | self._waiting if is_open else set(self._fresh)
        if most < self.most:
            candidates.update(self._wanted)
        self.most = most
        for key in candidates & self._granted.keys():
            self._give_back(key)
        candidates = self._let_grow(sorted(grown, key=self._age), candidates)
        out = self._waiting - candidates
        for key in sorted(candidates, key=self._age):
            if self._fits(key, most):
                self._grant(key)
            else:
                out.add(key)
        self._waiting, self._fresh, self._has_more = out, set(), False
        return frozenset(before ^ out)

    def _age(self, key: ServiceKey) -> tuple[str, ServiceKey]:
        return self._wanted[key].created, key

    def _let_grow(self, grown: Iterable[ServiceKey], candidates: set[ServiceKey]) -> set[ServiceKey]:
        """Those that were programmed: for them there is more than for newcomers, and younger ones of their namespace
        go first. Returns who is left to decide about."""
        by_age: dict[str, list[ServiceKey]] = {}
        for key in grown:
            fits = self._fits(key, most := self.most + self.most // RESERVE)
            if not fits and key.namespace not in by_age:
                mine = [one for one in self._granted if one.namespace == key.namespace]
                by_age[key.namespace] = sorted(mine, key=self._age)
            others = by_age.get(key.namespace, [])
            while not fits and others and self._age(others[-1]) > self._age(key):
                candidates.add(others[-1])
                self._give_back(others.pop())
                fits = self._fits(key, most)
            if fits:
                self._grant(key)
                candidates.discard(key)
        return candidates

    def _fits(self, key: ServiceKey, most: int) -> bool:
        left = min(most - self.used, share_of(self.most) - self._used[key.namespace])
        return self._wanted[key].elements <= left

    def shortage(self) -> str:
        """A half-sentence for a warning, before anything stays out; "" while there is enough."""
        namespace, most_used = max(self._of_namespace.items(), key=lambda one: one[1], default=("", 0))
        if most_used > NEAR * (share_of(self.most)):
            return f"namespace {namespace} wants {most_used} of the {share_of(self.most)} elements of its share"
        total = self._of_namespace.total()
        return f"Services want {total} of {self.most} elements" if total > NEAR * self.most else ""

    def refusal(self, key: ServiceKey) -> Finding | None:
        if key in self._too_large:
            had, most = self._too_large[key], MOST_OF_SERVICE
            text = f"{had} elements, which are endpoints and ways in for each port and address of the Service; expected"
            return Finding(f"Service {key}", "", f"{text} at most {most}; divide the Service; it is not programmed")
        if key not in self._waiting:
            return None
        text = (
            f"{self.elements(key)} elements find no room: all Services of this node want {self._of_namespace.total()} "
            f"of the {self.most} of services.elementsMax, those of namespace {key.namespace} "
            f"{self._of_namespace[key.namespace]} of at most {share_of(self.most)}; what is programmed stays; this "
            "Service is not programmed until there is room"
        )
        return Finding(f"Service {key}", "", text)


def subtract(counts: Counter[str], key: ServiceKey, elements: int) -> None:
    counts[key.namespace] -= elements
    if not counts[key.namespace]:
        del counts[key.namespace]


class ServicePlaces:
    """Who gets something of which there is little: the oldest Services of one family, each for all of its ports."""

    def __init__(self, annotation: str, told: Callable[[int, int], str]) -> None:
        """`told` says of how many that are wanted and how many there are why there is no place."""
        self.granted: frozenset[ServiceKey] = frozenset()
        self._path = f"metadata.annotations[kepd.dev/{annotation}]"
        self._told = told
        self._wanted: dict[ServiceKey, WantedPlaces] = {}
        self._settled: tuple[int, dict[ServiceKey, WantedPlaces]] = (0, {})

    def put(self, service: ServiceFacts, places: int) -> None:
        """None of them: it wants none."""
        if places:
            self._wanted[service.key] = WantedPlaces(service.created, places)
        else:
            self.drop(service.key)

    def drop(self, key: ServiceKey) -> None:
        self._wanted.pop(key, None)

    def settle(self, most: int) -> frozenset[ServiceKey]:
        """After any number of changes: who got places by them, or lost them."""
        if self._settled == (most, self._wanted):
            return frozenset()
        before, left, granted = self.granted, most, set()
        for key, one in sorted(self._wanted.items(), key=lambda item: (item[1].created, item[0])):
            if one.elements <= left:
                left -= one.elements
                granted.add(key)
        self.granted, self._settled = frozenset(granted), (most, dict(self._wanted))
        return before ^ self.granted

    def refusals(self, key: ServiceKey) -> tuple[Finding, ...]:
        """Why it has none; empty: it has, or wants none."""
        if key not in self._wanted or key in self.granted:
            return ()
        return (Finding(f"Service {key}", self._path, self._told(self._wanted[key].elements, self._settled[0])),)


def told_own_maps(ports: int, most: int) -> str:
    return f"{ports} maps for clients do not fit into the {most} of services.ownAffinityMaps; Services share one"


def told_tables(_: int, most: int) -> str:
    if most == NO_HASHING:
        return "needs the backend nftables: rules of iptables cannot hash; endpoints are drawn at random"
    return f"the {most} Services of services.maglevMax are others, which are older; endpoints are drawn at random"


class ServiceRoom:
    """What is kept of each object that an API server has, in entries of some 200 bytes. Who asks first gets room, as no
    more than one object is in memory before it is asked for."""

    def __init__(self) -> None:
        self.most = most_entries(MOST_ELEMENTS)
        self.is_short = False
        """Whether there was an object that is not kept."""
        self._kept: dict[tuple[str, ServiceKey], int] = {}
        self._of_namespace: Counter[str] = Counter()
        self.total = 0

    def takes(self, kind: str, key: ServiceKey, entries: int) -> bool:
        most = self.most + (self.most // RESERVE if (kind, key) in self._kept else 0)
        self.drop(kind, key)
        if entries > min(most - self.total, share_of(self.most) - self._of_namespace[key.namespace]):
            self.is_short = True
            return False
        self._kept[kind, key] = entries
        self._of_namespace[key.namespace] += entries
        self.total += entries
        return True

    def drop(self, kind: str, key: ServiceKey) -> None:
        entries = self._kept.pop((kind, key), 0)
        self.total -= entries
        subtract(self._of_namespace, key, entries)

    def keep_only(self, kind: str, present: Collection[tuple[str, str]]) -> None:
        for gone in [key for of, key in self._kept if of == kind and key not in present]:
            self.drop(kind, gone)

    def refusal(self, kind: str, key: ServiceKey) -> Finding:
        text = (
            f"finds no room: objects of namespace {key.namespace} have {self._of_namespace[key.namespace]} of at most "
            f"{share_of(self.most)} entries, all together {self.total} of {self.most} (services.elementsMax); what "
            "is kept stays; it is looked at again when there is room"
        )
        return Finding(f"{kind} {key}", "", text)


def most_entries(elements: int) -> int:
    return int(ENTRIES * elements)


def service_entries(item: Service) -> int:
    spec, ingress, notes = item.spec, item.status.load_balancer.ingress or (), item.metadata.annotations
    addresses = len(spec.external_ips or ()) + len(ingress) + len(spec.load_balancer_source_ranges or ())
    weights = len(notes.endpoint_weights or "") if notes is not None else 0
    return OBJECT_ENTRIES + len(spec.ports or ()) + ADDRESS_ENTRIES * addresses + weights // WEIGHT_LENGTH


def slice_entries(item: EndpointSlice) -> int:
    return OBJECT_ENTRIES + len(item.endpoints or ()) + len(item.ports or ())


class Doubts(msgspec.Struct, frozen=True):
    """Of lists: the share that may be missing, and how long a doubted one has to stay so."""

    shrink: float = 0.5
    time_s: float = 300.0


def doubt(
    known: Collection[tuple[str, str]], listed: Collection[tuple[str, str]], *, has_rules: bool, shrink: float = 0.5
) -> str:
    """Why a list is doubted; "" if it is not. `has_rules`: an earlier process left rules of Services."""
    if not known:
        return "nothing is listed, and there are rules of Services" if has_rules and not listed else ""
    if KUBERNETES in known and KUBERNETES not in listed:
        return "default/kubernetes is not listed, which each cluster has"
    left = len(set(known).intersection(listed))
    return f"of {len(known)} that were known {left} are listed" if left < (1 - shrink) * len(known) else ""
