# SPDX-License-Identifier: Apache-2.0
"""The services plane put together: source, intake, tables, and what follows a sync."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog
from msgspec.structs import replace
from prometheus_client.core import Metric

from agent.api.http import Handler
from agent.config.document import Configuration
from agent.drivers.clock.driver import SystemClock
from agent.drivers.conntrack.driver import Conntrack
from agent.drivers.host_sockets.driver import HostSockets
from agent.drivers.interfaces.default_route import default_addresses
from agent.drivers.interfaces.families import host_families
from agent.kit.memory import large_work, settle_memory
from agent.kit.plane_lock import held_plane_lock
from agent.model.component import Report
from agent.model.event import Event
from agent.model.refused import Refused
from agent.model.services.nft_table import Family
from agent.model.services.service import ServiceKey
from agent.objects.wanted import WantedSource
from agent.services.attach.addresses import addresses_now, follow_addresses, follow_interfaces
from agent.services.attach.files import ManifestServices, NamesFollower, NoPods, PodsHere
from agent.services.attach.health import ServiceHealth
from agent.services.attach.outage import doubts, outage, outage_settings, snapshot_of
from agent.services.attach.settings import (
    chooses_services_by,
    ending_settings,
    exports_counts,
    flow_protocols,
    needs_interfaces,
    node_settings,
    periods,
    services_scope,
)
from agent.services.objects.addresses import address_of
from agent.services.ports import LocalEnds
from agent.services.ruleset import SyncReport
from agent.services.run.affinity_keeper import AffinityKeeper
from agent.services.run.cluster.event_writer import EventWriter
from agent.services.run.cluster.outage import OutageKeeper
from agent.services.run.cluster.source import KubeServices
from agent.services.run.cluster.startup_taint import TAINT, StartupTaint, TaintWork
from agent.services.run.connection_ender import ConnectionEnder
from agent.services.run.flow_cleaner import FlowCleaner
from agent.services.run.intake import ServiceInputs
from agent.services.run.kernel.backend import RulesBackend, make_backend, may_share
from agent.services.run.kernel.boot_guard import GUARD_FILE, BootGuard
from agent.services.run.kernel.flow_offload import FlowOffload
from agent.services.run.kernel.missing_rules import BOOT_FILE, MissingRules
from agent.services.run.kernel.takeover import Takeover
from agent.services.run.kernel_counts import KernelCounts
from agent.services.run.localhost_relay import LocalhostRelay
from agent.services.run.metrics import compatible_metrics, outage_metrics, service_metrics
from agent.services.run.plane import Follower, ServicesPlane
from agent.services.run.view import ServicesView
from agent.topology.manifest.objects import Manifests

if TYPE_CHECKING:
    from agent.drivers.kube.client import KubeClient

log = structlog.get_logger(plane="services")

# A first sync that takes longer than this has met an obstacle.
LONGEST_REST_S = 10.0
Work = Callable[[], Coroutine[None, None, None]]


class ServiceParts(msgspec.Struct, frozen=True, kw_only=True):
    clock: SystemClock
    tell: Callable[[Event], None]
    kube: "Callable[[], KubeClient | None] | None" = None
    """Finds the API server, or not yet; None: Services come from files."""
    manifests: WantedSource | None = None
    here: PodsHere = msgspec.field(default_factory=NoPods)
    ends: LocalEnds | None = None
    """What the runtime says of pods of this node."""


class ServiceUnit(msgspec.Struct, frozen=True, kw_only=True):
    plane: ServicesPlane
    view: ServicesView
    source: ManifestServices | KubeServices
    keeper: OutageKeeper
    programmed: Callable[[], Manifests]
    """The objects as topology reads them; raises Refused where an API server has them."""
    follow_names: Callable[[NamesFollower], None] | None
    """Tells Services of manifests by their names, before their rules change; None where an API server has them."""
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
    backend = make_backend(configuration, _families_here(), parts.clock, lambda: periods(current[0]).retry_s, takeover)
    plane = _plane(current, parts, intake, backend, takeover)
    health = ServiceHealth(plane, lambda: current[0], parts.tell, has_node_object=parts.kube is not None)
    cleaner = FlowCleaner(plane, conntrack := Conntrack(), flow_protocols(configuration))
    ender = _ender(current, plane, conntrack, parts.clock)
    programmed, needed = asyncio.Event(), _event(is_set=needs_interfaces(configuration))
    guard, relay, offload = beside = _beside(configuration, plane, backend, parts)
    plane.gives_way = guard.lift
    plane.followers += [one.follow for one in (guard, health, cleaner, ender, relay, offload, backend.cleanup)]
    plane.followers += [_set_once(plane, programmed)]
    counts = KernelCounts(plane, backend.views, parts.clock, lambda: exports_counts(current[0]))
    keeper = outage(current, parts.clock, parts.tell, plane, parts.ends)
    source, taint = _source(current, parts, intake, plane, keeper)
    snapshot = snapshot_of(current, parts.clock, parts.tell, keeper, parts.kube, source)
    work = (
        lambda: _in_order(guard.begin, taint.begin, snapshot.begin, source.run),
        lambda: follow_interfaces(intake, needed),
        lambda: follow_addresses(intake, parts.kube, parts.clock),
        health.listeners.run,
        *(cleaner.run, ender.run, AffinityKeeper(plane, parts.clock).run, taint.run),
        *(counts.run, guard.run, relay.run, offload.run, backend.cleanup.run, snapshot.run, keeper.run),
        *((writer.run,) if writer is not None else ()),
        lambda: _undisturbed(intake.arrived, programmed),
    )

    async def run(report: Report) -> None:
        with held_plane_lock("services", services_scope(), configuration.node.run_directory):
            await conntrack.apply_limits(current[0].services.conntrack)
            together = _together(*work, lambda: plane.run(report))
            await _drained(together, lambda: _in_order(snapshot.end, taint.end, lambda: health.drain(parts.clock)))

    def apply(changed: Configuration) -> None:
        before, current[0] = current[0], changed
        if needs_interfaces(changed):
            needed.set()
        intake.apply(node_settings(changed, is_alone=parts.kube is None))
        ender.reloaded()
        keeper.reloaded()
        if isinstance(source, ManifestServices) and chooses_services_by(before) != chooses_services_by(changed):
            source.reloaded()

    chosen, shown = source.chosen_by if isinstance(source, ManifestServices) else _nobody, (*beside, snapshot)
    return ServiceUnit(
        plane=plane,
        view=ServicesView(plane, backend.views, addresses_now, ender, shown, chosen=chosen, why_dead=keeper.why_dead),
        source=source,
        keeper=keeper,
        programmed=lambda: _programmed(source, current[0]),
        follow_names=source.follow_names if isinstance(source, ManifestServices) else None,
        pages=health.pages(),
        families=lambda: _families(plane, relay, counts, _told_by(source, keeper, writer, current[0])),
        compatible=lambda: compatible_metrics(plane),
        run=run,
        apply=apply,
        close=lambda: _close(backend, conntrack),
    )


def _ender(
    current: list[Configuration], plane: ServicesPlane, conntrack: Conntrack, clock: SystemClock
) -> ConnectionEnder:
    return ConnectionEnder(
        plane, conntrack, HostSockets(), clock,
        settings=lambda: ending_settings(current[0]), addresses=addresses_now,
    )  # fmt: skip


def _nobody(_key: ServiceKey) -> None:
    """An endpoint controller chooses, elsewhere."""


def _families_here() -> tuple[Family, ...]:
    found = host_families()
    if "IPv6" not in found:
        log.info("ipv6_disabled", effect="only IPv4 Services are programmed", v=0)
    return found


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
    current: list[Configuration], parts: ServiceParts, intake: ServiceInputs, backend: RulesBackend, takeover: Takeover
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
    return BootGuard(plane, backend.tables, file, clock, life_s=life_s, addresses=addresses_now)


def _intake(configuration: Configuration, parts: ServiceParts) -> ServiceInputs:
    waits_for = {"services", "slices"}
    if any("/" in text for text in configuration.services.node_port_addresses):
        waits_for.add("interfaces")
    if parts.kube is not None:
        waits_for.add("node")
        if configuration.services.taint_when_down != "never":
            waits_for.add(TAINT)
    settings = node_settings(configuration, is_alone=parts.kube is None)
    intake = ServiceInputs(settings, tell=parts.tell, started_s=parts.clock.wall_s(), waits_for=waits_for)
    if parts.kube is None:
        intake.set_default_addresses(map(address_of, default_addresses()))
    return intake


def _source(
    current: list[Configuration],
    parts: ServiceParts,
    intake: ServiceInputs,
    plane: ServicesPlane,
    keeper: OutageKeeper,
) -> tuple[ManifestServices | KubeServices, TaintWork]:
    configuration = current[0]
    node, services = configuration.node.name, configuration.services
    if parts.kube is None:
        assert parts.manifests is not None  # noqa: S101 - one of the two is given
        return ManifestServices(lambda: current[0], intake, parts.here, parts.manifests, parts.clock), TaintWork()
    make = partial(
        KubeServices, parts.kube, intake, node, services.proxy_name,
        is_strict=services.strict_source_ranges, has_rules=lambda: plane.stands, doubts=lambda: doubts(current[0]),
        follower=keeper if outage_settings(configuration).mode != "off" else None,
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


def _told_by(
    source: ManifestServices | KubeServices,
    keeper: OutageKeeper,
    writer: EventWriter | None,
    configuration: Configuration,
) -> Iterable[Metric]:
    """Beside an API server hints are computed there, and here it counts when it last said anything."""
    if isinstance(source, ManifestServices):
        return source.hints.families(has_services=configuration.telemetry.per_service)
    absent = outage_metrics(keeper) if outage_settings(configuration).mode != "off" else ()
    return (*source.families(), *absent, *(writer.families() if writer is not None else ()))


def _programmed(source: ManifestServices | KubeServices, configuration: Configuration) -> Manifests:
    if isinstance(source, ManifestServices):
        return source.as_topology_reads(configuration.node.name, configuration.node.labels)
    text = "Services come from the API server, where hints are computed and kept in EndpointSlices"
    raise Refused("precondition", f"{text}; `--from-files` explains them from manifests")


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


def _event(*, is_set: bool) -> asyncio.Event:
    event = asyncio.Event()
    if is_set:
        event.set()
    return event
