# SPDX-License-Identifier: Apache-2.0
"""The services plane put together: source, intake, tables, and what follows a sync."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog
from msgspec.structs import replace
from prometheus_client.core import Metric

from agent import __version__
from agent.api.http import Handler
from agent.config.document import Configuration
from agent.drivers.clock.driver import SystemClock
from agent.drivers.conntrack.driver import Conntrack
from agent.drivers.interfaces.default_route import default_addresses
from agent.kit.memory import large_work, settle_memory
from agent.kit.plane_lock import held_plane_lock
from agent.model.component import Report
from agent.model.event import Event
from agent.model.flow import TrackingLimits
from agent.model.nft_table import Family
from agent.model.refused import Refused
from agent.model.service import Protocol
from agent.services.attach.backend import RulesBackend, make_backend, may_share
from agent.services.attach.boot_guard import GUARD_FILE, BootGuard
from agent.services.attach.endings import make_ender
from agent.services.attach.event_writer import EventWriter
from agent.services.attach.files import ManifestServices, NoPods, PodsHere
from agent.services.attach.flow_offload import FlowOffload
from agent.services.attach.health import ServiceHealth
from agent.services.attach.missing_rules import BOOT_FILE, MissingRules
from agent.services.attach.reserved import follow_reserved
from agent.services.attach.snapshot_file import SNAPSHOT_FILE, SnapshotFile
from agent.services.attach.source import KubeServices
from agent.services.attach.startup_taint import StartupTaint
from agent.services.attach.taint_work import TAINT, TaintWork
from agent.services.attach.takeover import Takeover
from agent.services.objects.addresses import address_of
from agent.services.objects.bounds import NO_HASHING
from agent.services.objects.node_state import PRIMARY, NodeSettings
from agent.services.routes.relays import LOCALHOST
from agent.services.run.affinity_keeper import AffinityKeeper
from agent.services.run.family_sync import SyncReport
from agent.services.run.flow_cleaner import FlowCleaner
from agent.services.run.intake import Intake
from agent.services.run.kernel_counts import KernelCounts
from agent.services.run.localhost_relay import LocalhostRelay
from agent.services.run.metrics import compatible_metrics, service_metrics
from agent.services.run.pace import LONGEST_IPTABLES_PAUSE_S, LONGEST_PAUSE_S, Periods
from agent.services.run.plane import Follower, ServicesPlane
from agent.services.run.view import ServicesView
from agent.topology.manifest.objects import Manifests

if TYPE_CHECKING:
    from agent.drivers.kube.client import KubeClient

log = structlog.get_logger(plane="services")

# A first sync that takes longer than this has met an obstacle.
LONGEST_REST_S = 10.0
ADDRESSES_S = 10.0
Work = Callable[[], Coroutine[None, None, None]]
KUBE_PROXY_PERIODS = Periods(1.0, 30.0, 3600.0)


class ServiceParts(msgspec.Struct, frozen=True, kw_only=True):
    clock: SystemClock
    tell: Callable[[Event], None]
    kube: "Callable[[], KubeClient | None] | None" = None
    """Finds the API server, or not yet; None: Services come from manifests."""
    here: PodsHere = msgspec.field(default_factory=NoPods)


class ServiceUnit(msgspec.Struct, frozen=True, kw_only=True):
    plane: ServicesPlane
    view: ServicesView
    source: ManifestServices | KubeServices
    programmed: Callable[[], Manifests]
    """The objects as topology reads them; raises Refused where an API server has them."""
    pages: Mapping[str, Handler]
    """`/healthz` and `/livez` with kube-proxy's contract."""
    families: Callable[[], Iterable[Metric]]
    compatible: Callable[[], Iterable[Metric]]
    run: Callable[[Report], Awaitable[None]]
    apply: Callable[[Configuration], None]
    close: Callable[[], Awaitable[None]]


def wire_services(configuration: Configuration, parts: ServiceParts) -> ServiceUnit:
    writer = _event_writer(configuration, parts)
    parts = replace(parts, tell=writer.tell) if writer is not None else parts
    current, intake = [configuration], _intake(configuration, parts)
    takeover = Takeover(Path(configuration.node.state_directory))
    backend = make_backend(configuration, families(), parts.clock, lambda: periods(current[0]).retry_s, takeover)
    plane = _plane(current, parts, intake, backend, takeover)
    health = ServiceHealth(plane, lambda: current[0], parts.tell, has_node_object=parts.kube is not None)
    cleaner = FlowCleaner(plane, conntrack := Conntrack(), _flow_protocols(configuration))
    ender = make_ender(plane, conntrack, parts.clock, lambda: current[0], _addresses_now)
    programmed, needed = asyncio.Event(), _event(is_set=needs_interfaces(configuration))
    guard, relay, offload = beside = _beside(configuration, plane, backend, parts)
    plane.gives_way = guard.lift
    plane.followers += [one.follow for one in (guard, health, cleaner, ender, relay, offload, backend.cleanup)]
    plane.followers += [_set_once(plane, programmed)]
    counts = KernelCounts(plane, backend.views, parts.clock, lambda: _exports(current[0]))
    source, taint = _source(current, parts, intake, plane)
    snapshot = _snapshot(configuration, parts, plane, source)
    work = (
        lambda: _in_order(guard.begin, taint.begin, snapshot.begin, source.run),
        lambda: _follow_interfaces(intake, needed),
        lambda: _follow_addresses(intake, parts),
        health.listeners.run,
        *(cleaner.run, ender.run, AffinityKeeper(plane, parts.clock).run, taint.run),
        *(counts.run, guard.run, relay.run, offload.run, backend.cleanup.run, snapshot.run),
        *((writer.run,) if writer is not None else ()),
        lambda: _undisturbed(intake.arrived, programmed),
    )

    async def run(report: Report) -> None:
        with held_plane_lock("services", services_scope(), configuration.node.run_directory):
            await conntrack.apply_limits(tracking_limits(current[0]))
            together = _together(*work, lambda: plane.run(report))
            await _drained(together, lambda: _in_order(snapshot.end, taint.end, lambda: health.drain(parts.clock)))

    def apply(changed: Configuration) -> None:
        before, current[0] = current[0], changed
        if needs_interfaces(changed):
            needed.set()
        intake.apply(_node_settings(changed, is_alone=parts.kube is None))
        ender.reloaded()
        if isinstance(source, ManifestServices) and _meaning(before) != _meaning(changed):
            source.reloaded()

    return ServiceUnit(
        plane=plane,
        view=ServicesView(plane, backend.views, _addresses_now, ender, (*beside, snapshot)),
        source=source,
        programmed=lambda: _programmed(source),
        pages=health.pages(),
        families=lambda: _families(plane, relay, counts, _told_by(source, writer, current[0])),
        compatible=lambda: compatible_metrics(plane),
        run=run,
        apply=apply,
        close=lambda: _close(backend, conntrack),
    )


def _beside(
    configuration: Configuration, plane: ServicesPlane, backend: RulesBackend, parts: ServiceParts
) -> tuple[BootGuard, LocalhostRelay, FlowOffload]:
    devices = configuration.services.flowtable.devices
    return (
        _boot_guard(configuration, plane, backend, parts.clock),
        LocalhostRelay(plane, parts.clock, parts.tell),
        FlowOffload(plane, backend.tables, devices, parts.clock, parts.tell),
    )


def _families(
    plane: ServicesPlane, relay: LocalhostRelay, counts: KernelCounts, others: Iterable[Metric]
) -> Iterable[Metric]:
    return (*service_metrics(plane, relay.counts), *counts.families(), *others)


def _plane(
    current: list[Configuration], parts: ServiceParts, intake: Intake, backend: RulesBackend, takeover: Takeover
) -> ServicesPlane:
    configuration = current[0]
    return ServicesPlane(
        intake,
        backend.rulesets,
        clock=parts.clock,
        tell=parts.tell,
        periods=lambda: periods(current[0]),
        repairs=lambda: current[0].services.tamper_repair,
        may_share=lambda: may_share(configuration, takeover),
    )


def _event_writer(configuration: Configuration, parts: ServiceParts) -> EventWriter | None:
    """None where faults are reported on this node alone."""
    if parts.kube is None or not configuration.services.write_events:
        return None
    return EventWriter(parts.kube, configuration.node.name, parts.clock, parts.tell)


async def _close(backend: RulesBackend, conntrack: Conntrack) -> None:
    await backend.close()
    await conntrack.close()


def _boot_guard(
    configuration: Configuration, plane: ServicesPlane, backend: RulesBackend, clock: SystemClock
) -> BootGuard:
    services = configuration.services
    longest_s = int(services.boot_guard_max)
    life_s = longest_s if services.boot_guard else 0
    file = Path(configuration.node.state_directory) / GUARD_FILE
    return BootGuard(plane, backend.tables, file, clock, life_s=life_s, addresses=_addresses_now)


def _meaning(configuration: Configuration) -> object:
    """What decides, beside the files, which Services there are."""
    return configuration.services.hints, configuration.services.service_cidrs


def _intake(configuration: Configuration, parts: ServiceParts) -> Intake:
    waits_for = {"services", "slices"}
    if any("/" in text for text in configuration.services.node_port_addresses):
        waits_for.add("interfaces")
    if parts.kube is not None:
        waits_for.add("node")
        if configuration.services.taint_when_down != "never":
            waits_for.add(TAINT)
    settings = _node_settings(configuration, is_alone=parts.kube is None)
    intake = Intake(settings, tell=parts.tell, started_s=parts.clock.wall_s(), waits_for=waits_for)
    if parts.kube is None:
        intake.set_default_addresses(map(address_of, default_addresses()))
    return intake


def _source(
    current: list[Configuration], parts: ServiceParts, intake: Intake, plane: ServicesPlane
) -> tuple[ManifestServices | KubeServices, TaintWork]:
    configuration = current[0]
    node, services = configuration.node.name, configuration.services
    if parts.kube is None:
        return ManifestServices(lambda: current[0], intake, parts.here, parts.clock), TaintWork()
    make = partial(
        KubeServices, parts.kube, intake, node, services.proxy_name,
        is_strict=services.strict_source_ranges, has_rules=lambda: plane.stands,
    )  # fmt: skip
    when_down = services.taint_when_down
    if not services.startup_taint and when_down == "never":
        return make(), TaintWork()
    missing = None if when_down == "never" else _missing_rules(configuration, parts.clock, plane)
    taint = StartupTaint(parts.kube, node, parts.clock, lambda: plane.is_answering, missing)
    plane.followers.append(taint.follow)
    return make(saw_node=taint.saw), TaintWork(taint, missing, intake)


def _missing_rules(configuration: Configuration, clock: SystemClock, plane: ServicesPlane) -> MissingRules:
    from agent.drivers.logind.driver import Logind

    logind = Logind()
    missing = MissingRules(
        plane,
        Path(configuration.node.state_directory) / BOOT_FILE,
        clock,
        sees_losses=configuration.services.taint_when_down == "stop",
        is_going_down=logind.is_going_down if logind.is_expected() else None,
    )
    plane.followers.append(missing.follow)
    return missing


def _snapshot(
    configuration: Configuration, parts: ServiceParts, plane: ServicesPlane, source: ManifestServices | KubeServices
) -> SnapshotFile:
    """Files are there before kepd is, so their Services need none."""
    services, node = configuration.services, configuration.node
    is_on = services.snapshot and isinstance(source, KubeServices)
    return SnapshotFile(
        plane,
        Path(node.state_directory) / SNAPSHOT_FILE,
        parts.clock,
        (__version__, node.name, services.proxy_name, str(services.strict_source_ranges)),
        silent_s=source.silent_s if isinstance(source, KubeServices) else lambda: 0.0,
        is_on=is_on,
    )


def _told_by(
    source: ManifestServices | KubeServices, writer: EventWriter | None, configuration: Configuration
) -> Iterable[Metric]:
    """Beside an API server hints are computed there (TOP-46), and here it counts when it last said anything."""
    if isinstance(source, ManifestServices):
        return source.hints.families(has_services=configuration.telemetry.per_service)
    return (*source.families(), *(writer.families() if writer is not None else ()))


def _programmed(source: ManifestServices | KubeServices) -> Manifests:
    if isinstance(source, ManifestServices):
        return source.objects.known
    text = "Services come from the API server, where hints are computed and kept in EndpointSlices"
    raise Refused("precondition", f"{text}; `--from-files` explains them from manifests")


def _exports(configuration: Configuration) -> bool:
    return configuration.telemetry.per_service and configuration.services.counters.export


def _set_once(plane: ServicesPlane, programmed: asyncio.Event) -> Follower:
    todo = set(plane.families)

    def follow(family: Family, _report: SyncReport) -> None:
        if family in todo:
            todo.discard(family)
            if not todo:
                programmed.set()

    return follow


async def _undisturbed(arrived: asyncio.Event, programmed: asyncio.Event) -> None:
    """The first sync of all families is the largest piece of work that a process like this has."""
    await arrived.wait()
    with large_work(), suppress(TimeoutError):
        async with asyncio.timeout(LONGEST_REST_S):
            await programmed.wait()
    await programmed.wait()
    settle_memory()


async def _drained(work: Coroutine[None, None, None], drain: Callable[[], Coroutine[None, None, None]]) -> None:
    """Rules follow what happens until load balancers have had their time to look elsewhere."""
    async with asyncio.TaskGroup() as group:
        working = group.create_task(work, name="services-work")
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            await drain()
            working.cancel()
            raise


async def _in_order(*works: Work) -> None:
    for work in works:
        await work()


async def _together(*works: Callable[[], Coroutine[None, None, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work())


def services_scope() -> str:
    return f"network namespace {os.stat('/proc/self/ns/net').st_ino}"  # noqa: PTH116


def families() -> tuple[Family, ...]:
    """Those this host has (IN-20)."""
    disabled = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
    if not Path("/proc/net/if_inet6").exists() or (disabled.exists() and disabled.read_text().strip() == "1"):
        log.info("ipv6_disabled", effect="only IPv4 Services are programmed", v=0)
        return ("IPv4",)
    return ("IPv4", "IPv6")


def _node_settings(configuration: Configuration, *, is_alone: bool) -> NodeSettings:
    services, node = configuration.services, configuration.node
    detect = services.detect_local
    is_iptables = services.backend == "iptables"
    return NodeSettings(
        node=node.name,
        is_alone=is_alone,
        addresses=tuple(node.addresses),
        labels=dict(node.labels),
        detect_mode=detect.mode,
        cluster_ranges=tuple(detect.cluster_cidrs),
        interface=detect.interface,
        interface_prefix=detect.interface_prefix,
        node_port_addresses=node_port_addresses(configuration),
        service_ranges=tuple(services.service_cidrs),
        masquerades_all=services.masquerade_all,
        mark=1 << services.masquerade_bit,
        rejects_with_reset=services.reject_with == "auto",
        drops_invalid=services.drop_invalid or (is_iptables and not services.conntrack.tcp_be_liberal),
        counts_endpoints=services.counters.endpoints,
        own_maps=services.own_affinity_maps,
        maglevs=NO_HASHING if is_iptables else services.maglev_max,
        elements=services.elements_max,
        external_ips=_networks(services.external_ips),
        balancer_ips=_networks(services.balancer_ips),
        only_warns_of_ips=services.profile == "kube-proxy",
    )


def _networks(given: str | Iterable[str]) -> tuple[str, ...] | None:
    return None if given == "allow" else () if given == "deny" else tuple(given)


def node_port_addresses(configuration: Configuration) -> tuple[str, ...]:
    """TY-2: nothing set means the node's own address with nftables, and every address with iptables."""
    services = configuration.services
    return tuple(services.node_port_addresses) or ((PRIMARY,) if services.backend == "nftables" else ())


def periods(configuration: Configuration) -> Periods:
    services = configuration.services
    if services.profile == "kube-proxy":
        return KUBE_PROXY_PERIODS
    # Each restore of iptables reads and writes whole tables, so a burst becomes a few (FS-27).
    rest, longest_s = (20.0, LONGEST_IPTABLES_PAUSE_S) if services.backend == "iptables" else (2.0, LONGEST_PAUSE_S)
    return Periods(services.min_sync_period, services.sync_period, services.full_sync_period, rest, longest_s)


def _flow_protocols(configuration: Configuration) -> tuple[Protocol, ...]:
    return ("UDP", "SCTP") if configuration.services.conntrack.sctp_cleanup else ("UDP",)


def tracking_limits(configuration: Configuration) -> TrackingLimits:
    given = configuration.services.conntrack
    return TrackingLimits(
        max_per_core=given.max_per_core,
        min=given.min,
        tcp_established_s=int(given.tcp_established_timeout),
        tcp_close_wait_s=int(given.tcp_close_wait_timeout),
        is_tcp_liberal=given.tcp_be_liberal,
        udp_s=int(given.udp_timeout),
        udp_stream_s=int(given.udp_stream_timeout),
    )


def needs_interfaces(configuration: Configuration) -> bool:
    """Whether addresses count that the Node object does not name (TY-2, TY-4)."""
    words = node_port_addresses(configuration)
    return words != (LOCALHOST,) and {*words} - {LOCALHOST} != {PRIMARY}


def _event(*, is_set: bool) -> asyncio.Event:
    event = asyncio.Event()
    if is_set:
        event.set()
    return event


async def _addresses_now() -> tuple[bytes, ...]:
    from agent.drivers.interfaces.driver import Interfaces

    return await Interfaces().now()


async def _follow_addresses(intake: Intake, parts: ServiceParts) -> None:
    await _together(
        lambda: _follow_default_addresses(intake, parts), lambda: follow_reserved(intake, parts.kube, parts.clock)
    )


async def _follow_default_addresses(intake: Intake, parts: ServiceParts) -> None:
    """FS-22: a node without a cluster has no Node object that names its addresses."""
    while parts.kube is None:
        intake.set_default_addresses(map(address_of, default_addresses()))
        await parts.clock.sleep(ADDRESSES_S)


async def _follow_interfaces(intake: Intake, needed: asyncio.Event) -> None:
    await needed.wait()
    from agent.drivers.interfaces.driver import Interfaces

    async for packed in Interfaces().snapshots():
        intake.set_interfaces(address_of(one) for one in packed)
