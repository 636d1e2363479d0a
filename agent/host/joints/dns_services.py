# SPDX-License-Identifier: Apache-2.0
"""Names and the Services that they are of: what rules of names need to know, names that follow syncs, servers.

A name is told once the rules are in, and taken back before these go. One without rules behind it, that of a headless
Service or of an ExternalName, is told at once.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import structlog
from msgspec.structs import replace

from agent.model.kube_objects import EndpointSlice, Service
from agent.model.services.nft_table import Detection, Family
from agent.model.services.service import Backend, ServiceFacts, ServiceKey
from agent.services.attach.assembly import ServiceUnit
from agent.services.objects.addresses import read_address
from agent.services.objects.fold import ServiceIndex
from agent.services.routes.frontends import PortPlan, ServicePlan
from agent.services.routes.selection import Selection
from agent.services.ruleset import SyncReport
from agent.services.run.family_sync import FamilySync
from kepd_dns.attach.settings import has_cluster, is_authoritative
from kepd_dns.attach.unit import Surroundings
from kepd_dns.handover.state import Port, ServiceName, Upstream
from kepd_dns.run.plane import DnsPlane
from kepd_dns.run.state_writer import StateWriter
from kepd_dns.zones.manifests import service_names
from kepd_dns.zones.own import faults

log = structlog.get_logger(plane="dns")

TCP_NAME = "dns-tcp"
MOST = 16


class ServicesForNames:
    """The services plane as that for names asks it."""

    def __init__(self, services: ServiceUnit) -> None:
        self._services = services
        self._intake = services.plane.intake
        self.families: tuple[Family, ...] = tuple(services.plane.families)

    def addresses_of(self, service: str) -> tuple[str, ...]:
        facts = self._intake.fold.services.get(read_key(service))
        parts = (facts.v4, facts.v6) if facts is not None else ()
        return tuple(part.cluster_ip.text for part in parts if part is not None)

    def detection(self, family: Family) -> Detection:
        return self._intake.facts(family).table.detection

    def pod_networks(self, family: Family) -> tuple[str, ...]:
        return tuple(one.text for one in self._intake.facts(family).node.pod_ranges)

    def service_networks(self, family: Family) -> tuple[str, ...]:
        return tuple(one.text for one in self._intake.facts(family).node.service_ranges)

    def follow(self, around: Surroundings, plane: DnsPlane, writer: StateWriter) -> Callable[[], None]:
        """Changes of Services become names and servers, after each sync. What is returned is called after a reload."""
        configuration = around.configuration
        services = self._services.plane
        syncs = services.families
        if self._services.follow_names is not None and is_authoritative(configuration):
            names = OwnNames(writer, syncs, plane.state_changed)
            self._services.follow_names(names)
            services.followers.append(names.follow)
        if not has_cluster(configuration):
            return lambda: None
        of_cluster = ClusterNames(
            OwnNames(writer, syncs, plane.state_changed),
            self._intake.fold,
            tuple(syncs),
            lambda: is_authoritative(around.configuration, is_alone=around.is_alone),
        )
        known = [around.all_addresses(), around.networks()]
        own = [read_address(one) for one in around.own_addresses]
        self._intake.set_aliases(
            read_key(configuration.dns.cluster_dns_service), [one for one in own if one is not None]
        )

        def follow(_family: Family, _report: SyncReport) -> None:
            of_cluster.follow()
            dns = around.configuration.dns
            key = read_key(dns.upstream_service or dns.cluster_dns_service)
            if writer.set_upstreams(upstreams_of(syncs, key, is_intercepted=bool(around.cluster_addresses()))):
                plane.state_changed()
            now = [around.all_addresses(), around.networks()]
            if now != known:
                known[:] = now
                plane.apply()

        def phase_changed() -> None:
            """Alone, this node answers names of Services itself; the cluster's DNS may be away as well."""
            around.is_alone = self._services.keeper.is_alone
            of_cluster.follow()
            plane.apply()

        services.followers.append(follow)
        self._services.keeper.followers.append(phase_changed)
        return of_cluster.follow


class OwnNames:
    """Follows the source of manifests and the syncs of both families, and writes what may be told."""

    def __init__(self, writer: StateWriter, syncs: Mapping[Family, FamilySync], changed: Callable[[], None]) -> None:
        self._writer, self._syncs, self._changed = writer, syncs, changed
        self._wanted: dict[str, ServiceName] = {}
        self._pending: set[str] = set()
        self.findings: dict[str, tuple[str, ...]] = {}

    def offer(
        self, services: Iterable[Service], slices: Iterable[EndpointSlice], pods: Iterable[tuple[str, str]]
    ) -> None:
        wanted: dict[str, ServiceName | None] = {one.key: one for one in service_names(services, slices)}
        if self._writer.set_pods(tuple(sorted(pods))):
            self._changed()
        gone = [*self._writer.services, *self._wanted]
        self.change(dict.fromkeys((one for one in gone if one not in wanted), None) | wanted)
        self._complain()

    def change(self, services: Mapping[str, ServiceName | None]) -> None:
        """Some are as they are given, or gone."""
        has_changed = False
        for key, one in services.items():
            before = self._writer.services.get(key)
            if one is None:
                self._wanted.pop(key, None)
                self._pending.discard(key)
                has_changed |= self._writer.drop(key)
                continue
            self._wanted[key] = one
            if not one.addresses:
                self._pending.discard(key)
                has_changed |= self._writer.put(one)
            elif before != one:
                self._pending.add(key)
                if before is not None:
                    left = tuple(address for address in before.addresses if address in one.addresses)
                    has_changed |= self._writer.put(replace(one, addresses=left))
        if has_changed:
            self._changed()
        self._settle()

    def _complain(self) -> None:
        """Once for each name that is none."""
        for key, one in self._wanted.items():
            found = tuple(faults(one))
            if found != self.findings.get(key, ()):
                for text in found:
                    log.warning("dns_name_refused", service=key, problem=text)
                self.findings[key] = found
        self.findings = {key: found for key, found in self.findings.items() if found and key in self._wanted}

    def follow(self, _family: Family, _report: SyncReport) -> None:
        """After every sync that worked."""
        self._settle()

    def _settle(self) -> None:
        told = []
        for key in tuple(self._pending):
            one = self._wanted[key]
            works = tuple(address for address in one.addresses if self._works(key, address))
            if works:
                told.append(replace(one, addresses=works))
            if works == one.addresses:
                self._pending.discard(key)
        if self._writer.put_all(told):
            self._changed()

    def _works(self, key: str, address: str) -> bool:
        """Whether the kernel has rules for that address of the Service."""
        family: Family = "IPv6" if ":" in address else "IPv4"
        sync = self._syncs.get(family)
        service = ServiceKey(*key.split("/", 1))
        if sync is None or not sync.is_written(service):
            return False
        plan = sync.desired.plan_of(service)
        return plan is not None and any(
            way.ip is not None and way.ip.text == address for port in plan.ports for way in port.frontends
        )


class ClusterNames:
    """Names of Services beside a cluster, where kepd is to answer those that it knows; `is_wanted` says whether the
    configuration wants it now. It watches Services for their rules anyway. Those without an address of the cluster stay
    with the cluster's DNS, since kepd does not watch the pods behind them. Each change costs what changed."""

    def __init__(
        self, names: OwnNames, fold: ServiceIndex, families: Collection[Family], is_wanted: Callable[[], bool]
    ) -> None:
        self._names, self._fold, self._families, self._is_wanted = names, fold, families, is_wanted
        self._changed: set[ServiceKey] | None = None

    def follow(self) -> None:
        """After every sync, and when the configuration is another one."""
        if not self._is_wanted():
            return
        if self._changed is None:
            self._changed = self._fold.follow()
        keys = tuple(self._changed)
        self._changed.clear()
        self._names.change({f"{key.namespace}/{key.name}": self._name_of(key) for key in keys})

    def _name_of(self, key: ServiceKey) -> ServiceName | None:
        facts: ServiceFacts | None = self._fold.services.get(key)
        if facts is None:
            return None
        parts = [facts.part(family) for family in self._families]
        addresses = tuple(part.cluster_ip.text for part in parts if part is not None)
        ports = tuple(Port(one.port, one.name, one.protocol.lower()) for one in facts.ports)
        return ServiceName(key.namespace, key.name, addresses, ports) if addresses else None


def read_key(text: str) -> ServiceKey:
    namespace, _, name = text.partition("/")
    return ServiceKey(namespace, name)


def upstreams_of(syncs: Mapping[Family, FamilySync], key: ServiceKey, *, is_intercepted: bool) -> tuple[Upstream, ...]:
    """The servers of the cluster zone: endpoints of its DNS Service as this node chooses them.

    Near ones first, then any; the address of the Service where there are none and it does not lead back here.
    """
    found: list[Upstream] = []
    for sync in syncs.values():
        plan = sync.desired.plan_of(key)
        port = _tcp_port(plan) if plan is not None else None
        if plan is None or port is None:
            continue
        found += _chosen(port.selection)
        if not found and not is_intercepted:
            found.append(Upstream(plan.cluster_ip.text, port.port.port, "by the Service's address"))
    return tuple(found[:MOST])


def _tcp_port(plan: ServicePlan) -> PortPlan | None:
    ports = [one for one in plan.ports if one.port.protocol == "TCP"]
    named = [one for one in ports if one.port.name == TCP_NAME]
    ordinary = [one for one in ports if one.port.port == 53]
    return next(iter((*named, *ordinary)), None)


def _chosen(selection: Selection) -> Iterator[Upstream]:
    last = {"": selection.mode or "any ready one", "terminating": "serving, on its way out", "unready": "none is ready"}
    why = last[selection.last_resort]
    listed: tuple[Backend, ...] = selection.cluster or selection.local or selection.everyone
    for one in listed:
        yield Upstream(one.address, one.port, why)
