# SPDX-License-Identifier: Apache-2.0
"""The plane for names put together: rules of both backends, what the services plane knows, what the process is told."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from agent.api.http import HttpServer
from agent.api.messages import to_message
from agent.api.offers import own
from agent.config.document import Configuration
from agent.drivers.interfaces.default_route import default_interfaces
from agent.drivers.interfaces.lo_addresses import LoAddresses
from agent.drivers.iptables.family_programs import FamilyPrograms
from agent.drivers.nft.named_table import NamedTable
from agent.kinds.shown import How
from agent.kit.plane import Attached, PlaneInputs, PlaneUnit
from agent.model.component import Report
from agent.model.event import Event
from agent.model.services.dns_report import DnsLine
from agent.model.services.nft_table import Detection, Family
from agent.wire.kepd.v1 import dns_pb2 as pb
from kepd_dns.attach.settings import addresses, family_of, has_cluster, process_settings
from kepd_dns.handover.state import SOCKET_FILE
from kepd_dns.rules.guards import Asking
from kepd_dns.rules.nftables import TABLE
from kepd_dns.run.client import ProcessClient
from kepd_dns.run.kernel_guards import IptablesGuards, KernelGuards, NftGuards
from kepd_dns.run.metrics import dns_metrics, figures
from kepd_dns.run.metrics_compat import coredns_metrics
from kepd_dns.run.plane import DnsPlane
from kepd_dns.run.state_writer import StateWriter
from kepd_dns.run.view import DnsView
from kepd_dns.view.searching import Search

log = structlog.get_logger(plane="dns")

# Where these are, another program has the address of the cluster's DNS.
RIVAL_LINKS = {"kube-ipvs0": "a kube-proxy in IPVS mode", "nodelocaldns": "a node-cache"}
LINKS = Path("/sys/class/net")


class DnsService:
    def __init__(self, view: DnsView) -> None:
        self._view = view

        self._problem = ""
        self.offers = {"dns": own("Dns", self._lines, lambda line: line.name, self._notes)}

    async def _lines(self, _how: How) -> Iterable[DnsLine]:
        report = await self._view.report()
        self._problem = report.problem
        return report.lines

    def _notes(self) -> list[str]:
        return [self._problem] if self._problem else []

    async def explain_name(self, request: pb.ExplainNameRequest) -> pb.ExplainNameResponse:
        pod = f"default/{request.pod}" if request.pod and "/" not in request.pod else request.pod
        view = self._view
        found = await view.explain(request.name, request.type or "A", pod, is_traced=request.is_traced)
        return to_message(pb.ExplainNameResponse, found)

    async def flush_names(self, request: pb.FlushNamesRequest) -> pb.FlushNamesResponse:
        return pb.FlushNamesResponse(entries=await self._view.flush(request.name, request.zone))


class ServicesHere(Protocol):
    """What the services plane of the same process knows. Services are named NAMESPACE/NAME."""

    @property
    def families(self) -> tuple[Family, ...]: ...

    def addresses_of(self, service: str) -> tuple[str, ...]:
        """None while it is not known."""

    def detection(self, family: Family) -> Detection: ...

    def pod_networks(self, family: Family) -> tuple[str, ...]: ...

    def service_networks(self, family: Family) -> tuple[str, ...]: ...

    def follow(self, around: "Surroundings", plane: DnsPlane, writer: StateWriter) -> Callable[[], None]:
        """Writes names and servers from now on. What is returned is called after a reload."""


class PodsHere(msgspec.Struct, frozen=True):
    """Pods of this node, where a plane runs any: `names` by their addresses, and what the resolver of one looks
    through, by namespace and name."""

    names: Callable[[], dict[str, str]] = dict
    search: Callable[[str, str], Search | None] = lambda _namespace, _name: None


class DnsOffers(msgspec.Struct, frozen=True):
    plane: DnsPlane


class Surroundings:
    """What rules and settings are made of, as of now."""

    def __init__(self, configuration: Configuration, services: ServicesHere, tell: Callable[[Event], None]) -> None:
        self.configuration = configuration
        self.is_alone = False
        """No API server answers, and `services.outage` says that names go on."""
        self._services, self._tell = services, tell
        self._families = services.families
        self._is_refusal_told = False

    @property
    def own_addresses(self) -> tuple[str, ...]:
        return addresses(self.configuration, self._families)

    def cluster_addresses(self) -> tuple[str, ...]:
        """Of the cluster's DNS, where its questions are taken over."""
        if not has_cluster(self.configuration) or not self.configuration.dns.intercept_cluster_dns:
            return ()
        found = self._services.addresses_of(self.configuration.dns.cluster_dns_service)
        if not found:
            return ()
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
        detection = self._services.detection(family)
        return Asking(
            family=family,
            addresses=tuple(one for one in self.all_addresses() if family_of(one) == family),
            falls_back=has_cluster(self.configuration),
            detection=detection,
            pods=self._services.pod_networks(family),
            allowed=tuple(one for one in self.configuration.dns.allow_from if family_of(one) == family),
            outside=default_interfaces() if detection.mode == "none" else (),
        )

    def networks(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of pods, and of Services."""
        return (
            tuple(one for family in self._families for one in self._services.pod_networks(family)),
            tuple(one for family in self._families for one in self._services.service_networks(family)),
        )


def attach(inputs: PlaneInputs, services: ServicesHere, pods: PodsHere) -> Attached[DnsOffers]:
    configuration = inputs.configuration()
    around = Surroundings(configuration, services, inputs.tell)
    directory = Path(configuration.dns.directory)
    writer = StateWriter(directory, inputs.clock.wall_s)
    guards, tables = _guards(configuration, services.families)
    plane = DnsPlane(
        guards,
        LoAddresses(),
        writer,
        ProcessClient(directory / SOCKET_FILE),
        inputs.clock,
        inputs.tell,
        asking=around.asking,
        settings=lambda: process_settings(
            around.configuration, around.all_addresses(), *around.networks(), is_alone=around.is_alone
        ),
    )
    reloaded = services.follow(around, plane, writer)

    async def run(report: Report) -> None:
        await asyncio.to_thread(directory.mkdir, mode=0o755, parents=True, exist_ok=True)
        await plane.run(report)

    def apply(changed: Configuration) -> None:
        around.configuration = changed
        plane.apply()
        reloaded()

    async def close() -> None:
        for one in tables:
            one.close()

    units = [PlaneUnit("dns", run, is_plane=True)]
    if address := configuration.dns.metrics_address:
        server = HttpServer(address, {"/metrics": inputs.metrics_page}, key="dns.metricsAddress")
        units.insert(0, PlaneUnit("dns-metrics", server.run))
    return Attached(
        offers=DnsOffers(plane),
        service=DnsService(DnsView(plane, pods.names, pods.search)),
        units=tuple(units),
        families=(lambda: dns_metrics(figures(plane)),),
        advice=(plane.advice,),
        named_alike={"coredns": lambda: coredns_metrics(figures(plane))},
        apply=apply,
        close=close,
    )


def _guards(
    configuration: Configuration, families: Sequence[Family]
) -> tuple[dict[Family, KernelGuards], list[NamedTable | FamilyPrograms]]:
    if configuration.services.backend == "iptables":
        programs = {family: FamilyPrograms(family) for family in families}
        return {family: IptablesGuards(one) for family, one in programs.items()}, list(programs.values())
    tables = {family: NamedTable(family, TABLE) for family in families}
    return {family: NftGuards(family, one) for family, one in tables.items()}, list(tables.values())
