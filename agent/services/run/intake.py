# SPDX-License-Identifier: Apache-2.0
"""Takes in what sources report: Services, slices, this node, the networks of Services.

A source that falls silent leaves everything as it was. Lives as long as the plane.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Protocol

import msgspec

from agent.model.event import Event
from agent.model.finding import Finding
from agent.model.kube_objects import EndpointSlice, NodeObject, Service
from agent.model.refused import Refused
from agent.model.services.nft_table import Family
from agent.model.services.service import Address, ServiceKey
from agent.services.objects.addresses import FAMILIES
from agent.services.objects.bounds import KUBERNETES, ServiceRoom, most_entries, service_entries, slice_entries
from agent.services.objects.fold import ServiceIndex, SliceKey
from agent.services.objects.node_state import FamilyFacts, NodeSettings, NodeSight, family_facts, node_sight
from agent.services.objects.reading_service import ReadService
from agent.services.objects.reading_slice import ReadSlice, read_slice
from agent.services.objects.snapshot import ServiceSnapshot

MANIFEST = "Manifest"
LIST = "List"
API_SERVER = "the API server's address"
REASONS = {"EndpointSlice": "InvalidEndpointSlice", LIST: "ListDoubted"}
# A Service that changes faster than it can be programmed has no use for more.
MOST_TRIGGERS = 100
# Objects beyond these that find no room are not told one by one.
MOST_FINDINGS = 1000
NO_SERVICE = ReadService(ServiceKey("", ""), None, ())
NO_SLICE = ReadSlice("", "", None, ())


class IntakeFollower(Protocol):
    """Who has to act on what sources hand in. Called after each change that may matter to the kernel."""

    def objects_changed(self) -> None: ...

    def node_changed(self) -> None: ...


class ServiceInputs:
    """Sources call the methods; followers hear of it."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        tell: Callable[[Event], None],
        started_s: float,
        waits_for: Collection[str] = ("services", "slices"),
    ) -> None:
        self.fold = ServiceIndex()
        self.ledger = ServiceRoom()
        self.asks_again = asyncio.Event()
        """Everything is to be listed again: objects that were not kept may have room, or a list is doubted."""
        self.sight = NodeSight()
        self.findings: dict[tuple[str, str, str], tuple[Finding, ...]] = {}
        """Kind, namespace, name → what is wrong with it."""
        self._followers: list[IntakeFollower] = []
        self._families: frozenset[Family] = frozenset()
        """Those that followers program."""
        self.arrived = asyncio.Event()
        """Everything that was waited for is there."""
        self.unconfirmed: set[str] = set()
        """Of what a snapshot said, the kinds that no source has listed yet."""
        self.remembered: dict[str, frozenset[SliceKey]] = {}
        """Kind → what an earlier process had of it, where its rules stand: what first lists are compared with."""
        self.asks_labels = asyncio.Event()
        """Other labels of nodes may be wanted than before."""
        self._node_labels: Mapping[str, Mapping[str, str]] = {}
        self._settings = settings
        self._set_room()
        self._tell = tell
        self._started_s = started_s
        self._missing = set(waits_for)
        self.interfaces: tuple[Address, ...] = ()
        self._default: tuple[Address, ...] = ()
        self._reserved: Mapping[bytes, str] = {}
        self._api_servers: Mapping[bytes, str] = {}
        """By the slices of default/kubernetes."""
        self._service_ranges: tuple[str, ...] = ()
        self._triggers: dict[tuple[Family, ServiceKey], list[float]] = {}
        self._aliases: tuple[ServiceKey, tuple[Address, ...]] | None = None

    def follow(self, follower: IntakeFollower, families: Iterable[Family]) -> None:
        self._followers.append(follower)
        self._families |= frozenset(families)

    def _changed(self) -> None:
        for one in self._followers:
            one.objects_changed()

    def _node_changed(self) -> None:
        for one in self._followers:
            one.node_changed()

    def facts(self, family: Family) -> FamilyFacts:
        return family_facts(
            family,
            self._settings,
            self.sight,
            self.interfaces,
            self._service_ranges,
            node_labels=self._node_labels,
            default=self._default,
            reserved={**self._reserved, **self._api_servers},
        )

    def apply(self, settings: NodeSettings) -> None:
        if settings != self._settings:
            self._settings = settings
            self._set_room()
            self._node_changed()

    def _set_room(self) -> None:
        most = most_entries(self._settings.elements)
        if self.ledger.most < most and self.ledger.is_short:
            self.asks_again.set()
        self.ledger.most = most

    def complete(self, what: str) -> None:
        self._missing.discard(what)
        self.unconfirmed.discard(what)
        if not self._missing:
            self.arrived.set()

    def must_have_arrived(self) -> None:
        """Raises Refused until it is known what should be in the kernel."""
        if self._missing:
            awaited = ", ".join(self.missing)
            effect = "the rules that an earlier kepd left work on meanwhile; see `kepctl status`"
            raise Refused("awaits", f"what should be there is not known yet: kepd waits for {awaited}; {effect}")

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(sorted(self._missing))

    @property
    def service_ranges(self) -> tuple[str, ...]:
        """As they were reported."""
        return self._service_ranges

    def restore(self, snapshot: ServiceSnapshot) -> None:
        """What an earlier process was told, until sources say what is true. What they list replaces it; of a kind that
        they have listed by now nothing is taken."""
        fresh = self._missing.intersection(("services", "slices"))
        for facts in snapshot.services if "services" in fresh else ():
            if facts.key not in self.fold.services:
                self.fold.put_service(ReadService(facts.key, facts, (), facts.uid))
        for one in snapshot.slices if "slices" in fresh else ():
            if self.fold.slice_of(one.service.namespace, one.name) is None:
                self.fold.put_slice(ReadSlice(one.service.namespace, one.name, one, ()))
        if not self.sight.is_known:
            self.sight = snapshot.head.sight
        self._service_ranges = self._service_ranges or snapshot.head.service_ranges
        self._follow_api_servers(KUBERNETES[0])
        self._changed()
        self._node_changed()
        for what in ("services", "slices", "node"):
            self.complete(what)
        self.unconfirmed = fresh

    def set_aliases(self, key: ServiceKey, addresses: Iterable[Address]) -> None:
        """Addresses that also lead to the DNS of that Service; before any source runs."""
        self._aliases = key, tuple(addresses)

    def _with_aliases(self, item: ReadService) -> ReadService:
        if self._aliases is None or item.facts is None or item.key != self._aliases[0]:
            return item
        facts, addresses = item.facts, self._aliases[1]
        v4, v6 = (
            part and msgspec.structs.replace(part, aliases=tuple(one for one in addresses if one.family == family))
            for part, family in ((facts.v4, "IPv4"), (facts.v6, "IPv6"))
        )
        return item._replace(facts=msgspec.structs.replace(facts, v4=v4, v6=v6))

    def taken_service(self, item: Service, read: Callable[[Service], ReadService]) -> ReadService:
        """As it is kept: read, or refused for want of room. Whoever lists asks this of one object after the other."""
        key = ServiceKey(item.metadata.namespace, item.metadata.name)
        if not self.ledger.takes("Service", key, service_entries(item)):
            findings = self._no_room("Service", key)
            is_told = bool(findings) or key in self.fold.services
            return ReadService(key, None, findings, item.metadata.uid) if is_told else NO_SERVICE
        made = self._with_aliases(read(item))
        had = self.fold.services.get(made.key)
        return made._replace(facts=had) if had is not None and had == made.facts else made

    def taken_slice(self, item: EndpointSlice) -> ReadSlice:
        """The same of a slice."""
        key = ServiceKey(item.metadata.namespace, item.metadata.name)
        if not self.ledger.takes("EndpointSlice", key, slice_entries(item)):
            findings = self._no_room("EndpointSlice", key)
            is_told = bool(findings) or self.fold.slice_of(*key) is not None
            return ReadSlice(*key, None, findings, item.metadata.uid) if is_told else NO_SLICE
        made = read_slice(item)
        had = self.fold.slice_of(*key)
        return made._replace(facts=had) if had is not None and had == made.facts else made

    def _no_room(self, kind: str, key: ServiceKey) -> tuple[Finding, ...]:
        """Said of so many objects that those without room take little."""
        if len(self.findings) >= MOST_FINDINGS and (kind, *key) not in self.findings:
            return ()
        return (self.ledger.refusal(kind, key),)

    def put_service(self, item: ReadService) -> None:
        item = self._with_aliases(item)
        self.fold.put_service(item)
        self.asks_labels.set()
        self._complain("Service", *item.key, item.findings, item.uid)
        self._changed()

    def drop_service(self, namespace: str, name: str) -> None:
        self.fold.drop_service(ServiceKey(namespace, name))
        self._drop("Service", namespace, name)
        self.asks_labels.set()
        for family in ("IPv4", "IPv6"):
            self._triggers.pop((family, ServiceKey(namespace, name)), None)
        self._changed()

    def replace_services(self, items: Iterable[ReadService], kept: Collection[tuple[str, str]] = ()) -> None:
        """These and no others; `kept` exist but cannot be read."""
        present = set(kept)
        for item in items:
            present.add(item.key)
            self.put_service(item)
        for key in [key for key in (*self.fold.services, *self.fold.refused, *self.fold.others) if key not in present]:
            self.drop_service(*key)
        self.ledger.keep_only("Service", present)
        self.complete("services")

    def doubted(self, kind: str, text: str) -> None:
        """A list that is not believed yet, so that everything stays; "" once it is, or another one is."""
        self._complain(LIST, "", kind, (Finding(f"{LIST} {kind}", "", text),) if text else ())
        if text:
            self.asks_again.set()

    def put_slice(self, item: ReadSlice) -> None:
        self.fold.put_slice(item)
        self._complain("EndpointSlice", item.namespace, item.name, item.findings, item.uid)
        self._note_trigger(item)
        self._follow_api_servers(item.namespace)
        self._changed()

    def drop_slice(self, namespace: str, name: str) -> None:
        self.fold.drop_slice(namespace, name)
        self._drop("EndpointSlice", namespace, name)
        self._follow_api_servers(namespace)
        self._changed()

    def _drop(self, kind: str, namespace: str, name: str) -> None:
        self.findings.pop((kind, namespace, name), None)
        self.ledger.drop(kind, ServiceKey(namespace, name))
        if self.ledger.is_short:
            self.asks_again.set()

    def replace_slices(self, items: Iterable[ReadSlice], kept: Collection[tuple[str, str]] = ()) -> None:
        present = set(kept)
        for item in items:
            present.add((item.namespace, item.name))
            self.put_slice(item)
        for key in self.fold.slice_keys:
            if key not in present:
                self.drop_slice(*key)
        self.ledger.keep_only("EndpointSlice", present)
        self.complete("slices")

    def unreadable(self, kind: str, namespace: str, name: str, text: str) -> None:
        """An object that is not even of its kind; what was known of it stays."""
        self._complain(kind, namespace, name, (Finding(f"{kind} {namespace}/{name}", "", text),))

    def complain(self, findings: Iterable[Finding]) -> None:
        """All there is to say about files, or about objects that are not taken from them."""
        by_place: dict[str, tuple[Finding, ...]] = {}
        for one in findings:
            by_place[one.where] = (*by_place.get(one.where, ()), one)
        for key in [key for key in self.findings if key[0] == MANIFEST and key[2] not in by_place]:
            del self.findings[key]
        for where, found in by_place.items():
            self._complain(MANIFEST, "", where, found)

    def set_node(self, node: NodeObject | None) -> None:
        """This node's object; None: there is none among the manifests."""
        sight = node_sight(node) if node is not None else NodeSight()
        self.complete("node")
        if sight != self.sight:
            self.sight = sight
            self._node_changed()

    def lose_node(self) -> None:
        """This node's object is gone; what it said stays, only load balancers look elsewhere."""
        self.complete("node")
        self.sight = msgspec.structs.replace(self.sight, is_known=False)

    def gone(self, kind: str, namespace: str, name: str) -> None:
        if kind == "Service":
            self.drop_service(namespace, name)
        elif kind == "EndpointSlice":
            self.drop_slice(namespace, name)
        self.findings.pop((kind, namespace, name), None)

    def set_node_labels(self, labels: Mapping[str, Mapping[str, str]]) -> None:
        if labels != self._node_labels:
            self._node_labels = labels
            self._node_changed()

    def set_service_ranges(self, ranges: Iterable[str]) -> None:
        new = tuple(sorted(set(ranges)))
        if new != self._service_ranges:
            self._service_ranges = new
            self._node_changed()

    def set_interfaces(self, addresses: Iterable[Address]) -> None:
        new = tuple(sorted(set(addresses)))
        self.complete("interfaces")
        if new != self.interfaces:
            self.interfaces = new
            self._node_changed()

    def set_default_addresses(self, addresses: Iterable[Address]) -> None:
        """Those by which this host reaches others, where no Node object names any."""
        new = tuple(addresses)
        if new != self._default:
            self._default = new
            self._node_changed()

    def _follow_api_servers(self, namespace: str) -> None:
        if namespace != KUBERNETES[0]:
            return
        slices = (one for family in FAMILIES for one in self.fold.slices(ServiceKey(*KUBERNETES), family))
        new = {end.data[:-4]: API_SERVER for one in slices for end in one.endpoints}
        if new != self._api_servers:
            self._api_servers = new
            self._node_changed()

    def set_reserved(self, reserved: Mapping[bytes, str]) -> None:
        """Addresses that no Service may take, and whose they are."""
        if reserved != self._reserved:
            self._reserved = reserved
            self._node_changed()

    def take_triggers(self, family: Family, keys: Iterable[ServiceKey]) -> list[float]:
        """When the changes began that have just come into the kernel."""
        return [when for key in keys for when in self._triggers.pop((family, key), ())]

    def _note_trigger(self, item: ReadSlice) -> None:
        if item.facts is None or not item.facts.triggered or item.facts.family not in self._families:
            return
        try:
            when_s = datetime.fromisoformat(item.facts.triggered).timestamp()
        except ValueError:
            return
        if when_s > self._started_s:
            times = self._triggers.setdefault((item.facts.family, item.facts.service), [])
            if len(times) < MOST_TRIGGERS and when_s not in times:
                times.append(when_s)

    def _complain(self, kind: str, namespace: str, name: str, findings: tuple[Finding, ...], uid: str = "") -> None:
        """One event for an object, again only when something else is wrong with it."""
        key = (kind, namespace, name)
        if not findings:
            self.findings.pop(key, None)
            return
        if self.findings.get(key) == findings:
            return
        self.findings[key] = findings
        reason = REASONS.get(kind, "InvalidService")
        text = "; ".join(": ".join(filter(None, (one.path, one.text))) for one in findings)
        self._tell(
            Event(
                is_warning=True,
                reason=reason,
                message=text,
                plane="services",
                namespace=namespace,
                object_name=name,
                object_uid=uid,
            )
        )
