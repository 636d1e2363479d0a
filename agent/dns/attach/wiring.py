# SPDX-License-Identifier: Apache-2.0
"""The plane for names put together: rules of both backends, what the services plane knows, what the process is told."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import structlog
from prometheus_client.core import Metric

from agent.config.document import Configuration
from agent.dns.attach.settings import addresses, family_of, has_cluster, is_authoritative, process_settings
from agent.dns.handover.state import SOCKET_FILE
from agent.dns.rules.guards import Asking
from agent.dns.rules.nftables import TABLE
from agent.dns.run.client import ProcessClient
from agent.dns.run.kernel_guards import IptablesGuards, KernelGuards, NftGuards
from agent.dns.run.metrics import dns_metrics, figures
from agent.dns.run.metrics_compat import coredns_metrics
from agent.dns.run.plane import DnsPlane
from agent.dns.run.state_writer import StateWriter
from agent.dns.run.view import DnsView
from agent.drivers.clock.driver import SystemClock
from agent.drivers.interfaces.default_route import default_interfaces
from agent.drivers.interfaces.lo_addresses import LoAddresses
from agent.drivers.iptables.family_programs import FamilyPrograms
from agent.drivers.nft.named_table import NamedTable
from agent.host.joints.dns_cluster_names import ClusterNames
from agent.host.joints.dns_services import OwnNames
from agent.host.joints.dns_upstreams import read_key, upstreams_of
from agent.model.component import Report
from agent.model.event import Event
from agent.model.nft_table import Family
from agent.services.attach.files import ManifestServices
from agent.services.attach.wiring import ServiceUnit
from agent.services.objects.addresses import read_address
from agent.services.run.family_sync import SyncReport

log = structlog.get_logger(plane="dns")

# Where these are, another program has the address of the cluster's DNS (DNS-29).
RIVAL_LINKS = {"kube-ipvs0": "a kube-proxy in IPVS mode", "nodelocaldns": "a node-cache"}
LINKS = Path("/sys/class/net")


class DnsUnit(msgspec.Struct, frozen=True, kw_only=True):
    plane: DnsPlane
    view: DnsView
    families: Callable[[], Iterable[Metric]]
    compatible: Callable[[], Iterable[Metric]]
    """Under the names that CoreDNS has."""
    run: Callable[[Report], Awaitable[None]]
    apply: Callable[[Configuration], None]
    close: Callable[[], Awaitable[None]]


class Surroundings:
    """What rules and settings are made of, as of now."""

    def __init__(self, configuration: Configuration, services: ServiceUnit, tell: Callable[[Event], None]) -> None:
        self.configuration = configuration
        self._services, self._tell = services, tell
        self._families: tuple[Family, ...] = tuple(services.plane.families)
        self._is_refusal_told = False

    @property
    def own_addresses(self) -> tuple[str, ...]:
        return addresses(self.configuration, self._families)

    def cluster_addresses(self) -> tuple[str, ...]:
        """Of the cluster's DNS, where its questions are taken over (DNS-29)."""
        if not has_cluster(self.configuration) or not self.configuration.dns.intercept_cluster_dns:
            return ()
        facts = self._services.plane.intake.fold.services.get(read_key(self.configuration.dns.cluster_dns_service))
        if facts is None:
            return ()
        found = tuple(part.cluster_ip.text for part in (facts.v4, facts.v6) if part is not None)
        rival = next((what for link, what in RIVAL_LINKS.items() if (LINKS / link).exists()), "")
        if rival:
            self._refuse(
                f"{', '.join(found)} is not taken over: {rival} has it; expected dns.interceptClusterDNS: false"
            )
            return ()
        return tuple(one for one in found if family_of(one) in self._families)

    def _refuse(self, text: str) -> None:
        if not self._is_refusal_told:
            self._is_refusal_told = True
            log.warning("dns_interception_refused", problem=text)
            self._tell(Event(is_warning=True, reason="DnsConflict", message=text, plane="dns"))

    def all_addresses(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.own_addresses, *self.cluster_addresses())))

    def asking(self, family: Family) -> Asking:
        facts = self._services.plane.intake.facts(family)
        is_cluster = has_cluster(self.configuration)
        return Asking(
            family=family,
            addresses=tuple(one for one in self.all_addresses() if family_of(one) == family),
            falls_back=is_cluster,
            detection=facts.table.detection,
            pods=tuple(one.text for one in facts.node.pod_ranges),
            allowed=tuple(one for one in self.configuration.dns.allow_from if family_of(one) == family),
            outside=default_interfaces() if facts.table.detection.mode == "none" else (),
        )

    def networks(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of pods, and of Services."""
        facts = [self._services.plane.intake.facts(one).node for one in self._families]
        return (
            tuple(one.text for node in facts for one in node.pod_ranges),
            tuple(one.text for node in facts for one in node.service_ranges),
        )


def wire_dns(
    configuration: Configuration, services: ServiceUnit, clock: SystemClock, tell: Callable[[Event], None]
) -> DnsUnit:
    around = Surroundings(configuration, services, tell)
    directory = Path(configuration.dns.directory)
    writer = StateWriter(directory, clock.wall_s)
    guards, tables = _guards(configuration, tuple(services.plane.families))

    plane = DnsPlane(
        guards,
        LoAddresses(),
        writer,
        ProcessClient(directory / SOCKET_FILE),
        clock,
        tell,
        asking=around.asking,
        settings=lambda: process_settings(around.configuration, around.all_addresses(), *around.networks()),
    )
    names = _follow(around, services, plane, writer)

    async def run(report: Report) -> None:
        await asyncio.to_thread(directory.mkdir, mode=0o755, parents=True, exist_ok=True)
        await plane.run(report)

    def apply(changed: Configuration) -> None:
        around.configuration = changed
        plane.apply()
        if names is not None:
            names.follow()

    async def close() -> None:
        for one in tables:
            one.close()

    return DnsUnit(
        plane=plane,
        view=DnsView(plane),
        families=lambda: dns_metrics(figures(plane)),
        compatible=lambda: coredns_metrics(figures(plane)),
        run=run,
        apply=apply,
        close=close,
    )


def _follow(around: Surroundings, services: ServiceUnit, plane: DnsPlane, writer: StateWriter) -> ClusterNames | None:
    """Changes of Services become names and servers, after each sync."""
    configuration = around.configuration
    syncs = services.plane.families
    if isinstance(services.source, ManifestServices) and is_authoritative(configuration):
        names = OwnNames(writer, syncs, plane.state_changed)
        services.source.names = names
        services.plane.followers.append(names.follow)
    if not has_cluster(configuration):
        return None
    of_cluster = ClusterNames(
        OwnNames(writer, syncs, plane.state_changed),
        services.plane.intake.fold,
        tuple(syncs),
        lambda: is_authoritative(around.configuration),
    )
    known = [around.all_addresses(), around.networks()]
    own = [read_address(one) for one in around.own_addresses]
    services.plane.intake.set_aliases(
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

    services.plane.followers.append(follow)
    return of_cluster


def _guards(
    configuration: Configuration, families: Sequence[Family]
) -> tuple[dict[Family, KernelGuards], list[NamedTable | FamilyPrograms]]:
    if configuration.services.backend == "iptables":
        programs = {family: FamilyPrograms(family) for family in families}
        return {family: IptablesGuards(one) for family, one in programs.items()}, list(programs.values())
    tables = {family: NamedTable(family, TABLE) for family in families}
    return {family: NftGuards(family, one) for family, one in tables.items()}, list(tables.values())
