# SPDX-License-Identifier: Apache-2.0
"""Where everything meets: drivers, planes, API. The only module that knows them all.

Units end in reverse order, so the API, which comes last, finishes its calls while the planes still run.
"""

import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from grpc_health.v1 import health_pb2

from agent import __version__
from agent.api.access import AccessRule, find_gid
from agent.api.health import HealthService
from agent.api.http import Handler, Headers, HttpServer, Page, Query, health_page
from agent.api.metrics import FamilyPage, Metrics
from agent.api.node_service import NodeService
from agent.api.object_service import ObjectService
from agent.api.server import ApiServer
from agent.api.socket_path import admit, listen_at, make_directory
from agent.api.topology_service import TopologyService
from agent.config.diff import ReloadPlan
from agent.config.document import PLANES, Configuration
from agent.config.effective import enabled_planes
from agent.devices.attach.device_service import DeviceService
from agent.dns.attach.dns_service import DnsService
from agent.drivers.clock.driver import SystemClock
from agent.drivers.systemd.driver import ServiceManager, activated_socket
from agent.host.checkup.surroundings import Scope, Surroundings
from agent.host.http_tls import tls_of
from agent.host.joints.topology import TopologyOfManifests
from agent.host.lifecycle import DaemonLifecycle
from agent.host.memory_relief import GroupMemory, MemoryRelief
from agent.host.node_features import node_features
from agent.host.node_view import NodeAnswers
from agent.host.objects.object_wiring import CreatedOf, EndPod, StatusOf, wire_objects
from agent.host.traces.tracing import wire_tracing
from agent.host.tree import LastWork, Unit
from agent.images.attach.image_service import ImageService
from agent.kit.compatible import Families, asks_for, compatible
from agent.kit.configuration import RunningConfiguration
from agent.kit.event_ring import EventRing
from agent.kit.logs import Levels
from agent.kit.memory import give_back_pages, settle_memory
from agent.kit.outside import CollectImages, Outside, new_kube
from agent.model.component import Board, Report, State
from agent.model.ending_pods import EndingPods
from agent.model.file_system import ImagesOnDisk
from agent.model.finding import Advice
from agent.model.runtime_features import RuntimeFacts
from agent.model.span import SpanRef
from agent.observe.attach.node_logs import wire_node_logs
from agent.pods.attach.pod_service import PodService
from agent.proxy.attach.cri_proxy_service import CriProxyService
from agent.services.attach.service_proxy_service import ServiceProxyService
from agent.topology.manifest.objects import Manifests
from agent.wire.kepd.v1 import (
    cri_proxy_pb2,
    device_pb2,
    dns_pb2,
    image_pb2,
    node_pb2,
    object_pb2,
    pod_pb2,
    service_proxy_pb2,
    topology_pb2,
)

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from agent.devices.run.plane import DevicePlane
    from agent.devices.run.plugins import PluginDevices
    from agent.devices.run.view import DeviceView
    from agent.drivers.kube.client import KubeClient
    from agent.host.joints.pods_observe import NodeLooks
    from agent.images.run.puller import Puller
    from agent.kit.runtime import Runtime
    from agent.observe.run.usage import UsageAnswers
    from agent.pods.run.runner import PodRunner
    from agent.services.attach.files import PodsHere
    from agent.services.attach.wiring import ServiceUnit

log = structlog.get_logger(plane="daemon")

RUN_DIRECTORY_MODE = 0o750
SOCKET_MODE = 0o660
STATE_DIRECTORY_MODE = 0o700
# The log level that shows every call to the runtime, as klog has it.
CALLS_LEVEL = 6
# Few nodes have devices.
UNTOLD_WHEN_OFF = ("devices", "dns")
NOT_NEEDED = "no plane here needs it"
# A process that has these planes alone needs no container runtime.
WITHOUT_RUNTIME = frozenset({"services", "dns"})


class Daemon:
    def __init__(self, running: RunningConfiguration, levels: Levels, environment: Mapping[str, str]) -> None:
        configuration = running.configuration
        self.running = running
        self.configuration = configuration
        self.levels = levels
        self.environment = environment
        self.clock = SystemClock()
        self.board = Board(time.time)
        self.tracing = wire_tracing(lambda: running.configuration)
        self.metrics = Metrics(__version__, self.board.lines)
        self.metrics.watch_collector(time.monotonic)
        self.metrics.config_reloaded_at_s = time.time()
        self.manager = ServiceManager(environment)
        self.access = _access_rule(configuration)
        self.ring = EventRing(
            Path(configuration.node.state_directory), configuration.telemetry.events.ring, self.clock.wall_s
        )
        self.runtime: Runtime | None = None
        self.puller: Puller | None = None
        self.endings = EndingPods()
        self.kube: KubeClient | None = None
        self.here: PodsHere | None = None
        self.runner: PodRunner | None = None
        self.node_looks: NodeLooks | None = None
        self.collect_images: CollectImages | None = None
        self.images_on_disks: Callable[[], Awaitable[Sequence[ImagesOnDisk]]] | None = None
        self.devices: DevicePlane | None = None
        self.device_view: DeviceView | None = None
        self.plugins: PluginDevices | None = None
        self.usage: UsageAnswers | None = None
        self.probe_families: Callable[[], Iterable[Metric]] = tuple
        self.end_pod: EndPod | None = None
        self.status_of: StatusOf | None = None
        self.created_of: CreatedOf | None = None
        self.programmed: Callable[[], Manifests] | None = None
        self.services: ServiceUnit | None = None
        self.sheds: list[Callable[[], None]] = [self.ring.shed]
        self.relief = MemoryRelief(GroupMemory().look, self.sheds, self.ring.tell, self.clock, give_back_pages)
        self.advisers: list[Callable[[], Awaitable[Sequence[Advice]]]] = []
        self.resources = ExitStack()
        self.closers: list[Callable[[], Awaitable[None]]] = []
        self.units: list[Unit] = []
        self.lifecycle = DaemonLifecycle(self.board, self.manager, self.clock, self._note_lag)

    def say_stopping(self) -> None:
        allowed_s = sum(unit.end_s for unit in self.units)
        log.info("daemon_stopping", allowed_s=allowed_s, v=0)
        self.manager.stopping()
        self.manager.extend_timeout(allowed_s)

    async def close(self) -> None:
        for close in self.closers:
            await close()
        self.resources.close()

    def _note_lag(self, lag_s: float) -> None:
        self.metrics.loop_lag_s = lag_s

    def cri_called(self, method: str, code: str, duration_s: float) -> None:
        span = self.tracing.called(method, code, duration_s) if self.tracing is not None else None
        self.called(method, code, duration_s, span)

    def called(self, method: str, code: str, duration_s: float, span: SpanRef | None = None) -> None:
        self.metrics.cri_called(method, code, duration_s, span)
        if self.levels.of("daemon") >= CALLS_LEVEL:
            log.info("cri_call_finished", method=method, code=code, duration_s=round(duration_s, 4), v=CALLS_LEVEL)

    def add_compatible(self, program: str, families: Families) -> None:
        self.metrics.sources.append(compatible(lambda: self.running.configuration, program, families))

    def add_unit(
        self,
        name: str,
        run: Callable[[Report], Awaitable[None]],
        *,
        is_plane: bool = False,
        stop_s: float = 5.0,
        last: LastWork | None = None,
    ) -> None:
        report = self.board.add(name, State.STARTING, "starting", is_plane=is_plane)
        self.units.append(Unit(name, run, report, stop_s, last))


def wire(running: RunningConfiguration, levels: Levels, environment: Mapping[str, str]) -> Daemon:
    """Make everything. Raises PathTaken or OSError where this node cannot run us at all."""
    parts = Daemon(running, levels, environment)
    configuration = parts.configuration
    make_directory(Path(configuration.node.run_directory), RUN_DIRECTORY_MODE)
    make_directory(Path(configuration.node.state_directory), STATE_DIRECTORY_MODE)
    parts.ring.load()
    if parts.tracing is not None:
        parts.closers.append(parts.tracing.close)
        parts.metrics.sources.append(parts.tracing.families)
    parts.add_unit("event-ring", lambda report: parts.ring.run(report, parts.clock))
    enabled = frozenset(enabled_planes(configuration))
    if enabled and enabled <= WITHOUT_RUNTIME:
        for name in ("runtime", "events"):
            parts.board.add(name, State.OFF, NOT_NEEDED)
    else:
        _runtime(parts)
    services = _planes(parts)
    pages = _observation(parts)
    parts.add_unit("lifecycle", parts.lifecycle.run)
    parts.advisers += [parts.running.advice, _surroundings(parts).advice]
    parts.sheds.append(settle_memory)
    parts.advisers.append(parts.relief.advice)
    parts.add_unit("memory", parts.relief.run)
    if configuration.api.http_address:
        parts.add_unit("http", _http(parts, pages).run)
    _api(parts, services)
    _share(configuration, parts.access)
    _follow_reloads(parts)
    return parts


def _surroundings(parts: Daemon) -> Surroundings:
    configuration = parts.configuration
    enabled = enabled_planes(configuration)
    pods = configuration.pods
    folders = (Path(pods.directory), Path(pods.log_directory)) if "pods" in enabled else ()
    scope = Scope(
        has_pods="pods" in enabled,
        has_services="services" in enabled,
        folders=(*folders, Path(configuration.node.state_directory)),
    )
    return Surroundings(_runtime(parts).cri if scope.has_pods else None, scope)


def _runtime(parts: Daemon) -> "Runtime":
    """For all planes but one: a process that only programs Services has none, and is ready without one."""
    if parts.runtime is None:
        from agent.kit.runtime import Runtime

        runtime = parts.runtime = Runtime(parts.configuration.runtime, parts.clock, parts.cri_called, parts.called)
        parts.closers.append(runtime.close)
        parts.add_unit("runtime", runtime.watch.run)
        parts.add_unit("events", runtime.events.run)
    return parts.runtime


def _planes(parts: Daemon) -> dict[str, object]:
    """What the API serves of each plane; those that do not run answer that they do not."""
    services: dict[str, object] = {
        "images": ImageService(None, None),
        "devices": DeviceService(None),
        "pods": PodService(None),
        "proxy": CriProxyService(None),
        "services": ServiceProxyService(None),
        "dns": DnsService(None),
    }
    wirings = {
        "images": _images, "devices": _devices, "pods": _pods, "proxy": _proxy, "services": _services, "dns": _dns,
    }  # fmt: skip
    for plane in PLANES:
        if plane in enabled_planes(parts.configuration):
            services[plane] = wirings[plane](parts)
        elif plane not in UNTOLD_WHEN_OFF:
            parts.board.add(plane, State.OFF, "switched off", is_plane=True)
    return services


def _outside(parts: Daemon) -> Outside:
    return Outside(
        runtime=_runtime(parts),
        clock=parts.clock,
        configuration=lambda: parts.running.configuration,
        environment=parts.environment,
        tell=parts.ring.tell,
        kube=lambda: _kube(parts),
        puller=parts.puller,
        collect_images=parts.collect_images,
        images_on_disks=parts.images_on_disks,
        devices=parts.devices.pod_devices if parts.devices is not None else None,
        endings=parts.endings,
        traces=parts.tracing,
    )


def _images(parts: Daemon) -> ImageService:
    from agent.images.attach.wiring import wire_images

    plane = wire_images(_outside(parts))
    parts.puller = plane.puller
    parts.collect_images, parts.images_on_disks = plane.collect, plane.on_disks
    collection = parts.board.add("image-collection", State.STARTING, "starting")
    prefetch = parts.board.add("image-prefetch", State.STARTING, "starting")
    parts.metrics.sources.append(plane.families)
    parts.add_compatible("kubelet", plane.kubelet_families)
    parts.closers.append(plane.close)
    parts.advisers.append(plane.advice)
    parts.running.listeners.append(lambda configuration, _plan: plane.apply(configuration))

    async def run(report: Report) -> None:
        await plane.run(report, collection, prefetch)

    parts.add_unit("images", run, is_plane=True, stop_s=parts.configuration.images.drain + 5.0)
    return ImageService(plane.puller, plane.images)


def _devices(parts: Daemon) -> DeviceService:
    from agent.devices.attach.advice import cdi_advice
    from agent.devices.attach.wiring import pod_resources, wire_devices

    devices = parts.configuration.devices
    if not (devices.manager.enabled or devices.plugins.enabled):
        return _devices_beside_kubelet(parts)
    wired = wire_devices(_outside(parts))
    parts.devices = wired.plane
    parts.closers.append(wired.close)
    parts.metrics.sources.append(wired.metrics.families)
    parts.device_view = wired.view
    wired.view.runtime = _runtime(parts).watch.features
    directories = tuple(dict.fromkeys((*devices.cdi.directories, devices.cdi.output)))
    parts.advisers += [wired.plane.advice, partial(cdi_advice, _runtime(parts).watch, directories)]
    parts.add_unit("devices", wired.plane.run, is_plane=True)
    if devices.api.enabled:
        from agent.devices.attach.driver_api import wire_driver_api

        parts.add_unit("device-api", wire_driver_api(_outside(parts), wired.plane.manager, wired.records))
    if wired.registry is not None:
        parts.add_unit("device-drivers", wired.registry.run)
    if wired.plugins is not None:
        parts.plugins = wired.plugins
        parts.add_unit("device-plugins", wired.plugins.run)
    if (run := pod_resources(_outside(parts), wired.view)) is not None:
        parts.add_unit("pod-resources", run)
    return DeviceService(wired.view)


def _devices_beside_kubelet(parts: Daemon) -> DeviceService:
    """As a driver, in front of plugins, or both."""
    from agent.devices.attach.wiring import device_commands

    devices = parts.configuration.devices
    commands = device_commands(parts.configuration)
    if devices.driver.enabled:
        from agent.devices.attach.beside_kubelet import wire_kubelet_drivers

        drivers, records = wire_kubelet_drivers(_outside(parts), commands)
        parts.resources.callback(records.close)
        for name, one in zip(("devices", "devices-fake"), drivers, strict=False):
            parts.add_unit(name, one.run, is_plane=name == "devices")
    if not devices.front.enabled:
        return DeviceService(None)
    from agent.devices.attach.front import wire_front
    from agent.devices.run.metrics import DeviceMetrics

    metrics = DeviceMetrics()
    front, view, files = wire_front(_outside(parts), metrics, commands)
    metrics.devices, metrics.drivers = view.count_devices, view.count_drivers
    parts.resources.callback(files.close)
    parts.metrics.sources.append(metrics.families)
    has_driver = devices.driver.enabled
    parts.add_unit("device-front" if has_driver else "devices", front.run, is_plane=not has_driver)
    return DeviceService(view)


def _services(parts: Daemon) -> ServiceProxyService:
    from agent.services.attach.advice import service_advice
    from agent.services.attach.configz import configz_page
    from agent.services.attach.files import NoPods
    from agent.services.attach.wiring import ServiceParts, wire_services

    source = parts.configuration.services.source
    outside = ServiceParts(
        clock=parts.clock,
        tell=parts.ring.tell,
        kube=(lambda: _kube(parts)) if source == "kubernetes" else None,
        here=parts.here or NoPods(),
    )
    plane = wire_services(parts.configuration, outside)
    parts.programmed = plane.programmed
    parts.services = plane
    parts.closers.append(plane.close)
    parts.advisers.append(partial(service_advice, plane.view))
    parts.running.listeners.append(lambda configuration, _plan: plane.apply(configuration))
    parts.metrics.sources.append(plane.families)
    configured = parts.configuration
    parts.add_compatible("kube-proxy", plane.compatible)
    # Units end in reverse: health is answered until the plane has drained.
    if configured.services.healthz_address:
        server = HttpServer(configured.services.healthz_address, plane.pages, key="services.healthzAddress")
        parts.add_unit("services-health", server.run)
    is_compatible = asks_for(configured, "kube-proxy")
    metrics_address = configured.services.metrics_address or ("127.0.0.1:10249" if is_compatible else "")
    if metrics_address:
        pages: dict[str, Handler] = {
            "/metrics": parts.metrics.page,
            "/healthz": lambda _query, _headers: Page(200, b"ok"),
            "/proxyMode": lambda _query, _headers: Page(200, configured.services.backend.encode()),
            "/configz": lambda _query, _headers: configz_page(parts.running.configuration),
        }
        parts.add_unit("services-metrics", HttpServer(metrics_address, pages, key="services.metricsAddress").run)
    parts.add_unit("services", plane.run, is_plane=True, stop_s=configured.services.drain_seconds + 5.0)
    return ServiceProxyService(plane.view)


def _dns(parts: Daemon) -> DnsService:
    from agent.dns.attach.wiring import wire_dns
    from agent.host.joints.dns_pods import search_of_pod

    if parts.services is None:
        raise ValueError("the plane for names needs the services plane in its process")
    plane = wire_dns(parts.configuration, parts.services, parts.clock, parts.ring.tell)
    if parts.here is not None:
        plane.view.pods = parts.here.names
        plane.view.search = partial(search_of_pod, lambda: parts.running.configuration, parts.here)
    parts.closers.append(plane.close)
    parts.running.listeners.append(lambda configuration, _plan: plane.apply(configuration))
    parts.metrics.sources.append(plane.families)
    parts.add_compatible("coredns", plane.compatible)
    if parts.configuration.dns.metrics_address:
        pages: dict[str, Handler] = {"/metrics": parts.metrics.page}
        address = parts.configuration.dns.metrics_address
        parts.add_unit("dns-metrics", HttpServer(address, pages, key="dns.metricsAddress").run)
    parts.add_unit("dns", plane.run, is_plane=True)
    return DnsService(plane.view)


def _kube(parts: Daemon) -> "KubeClient | None":
    """The client of the API server, if this node has one; planes share it. One that cannot work is told, not used."""
    if parts.kube is None:
        parts.kube = new_kube(parts.running.configuration, parts.environment, parts.clock)
        if parts.kube is not None:
            parts.closers.append(parts.kube.close)
    return parts.kube


def _pods(parts: Daemon) -> PodService:
    from agent.host.joints.pods_devices import PodsWithDevices
    from agent.pods.attach.wiring import LocalPods, wire_pods

    plane = wire_pods(_outside(parts))
    parts.here = LocalPods(plane.runner, parts.board)
    parts.runner = plane.runner
    parts.node_looks = plane.node
    if parts.devices is not None:
        parts.devices.meet(PodsWithDevices(plane.runner))
        parts.devices.manager.changed = plane.runner.devices_changed
        if parts.plugins is not None:
            parts.plugins.changed = plane.runner.devices_changed
    if parts.device_view is not None:
        parts.device_view.pod = lambda namespace, name: plane.runner.wanted(f"{namespace}/{name}")
    parts.end_pod = plane.commands.delete
    parts.status_of = plane.runner.workloads.status
    parts.created_of = plane.runner.workloads.created_s
    parts.sheds.append(plane.runner.past.clear)
    parts.metrics.sources.append(plane.metrics.families)
    parts.add_compatible("kubelet", plane.kubelet_families)
    parts.probe_families = plane.metrics.probes.named_families
    parts.closers.append(plane.close)
    parts.advisers.append(plane.advice)
    parts.running.listeners.append(lambda _configuration, _plan: plane.shutdown.settings_changed())
    parts.add_unit("pods", plane.run, is_plane=True)
    last = LastWork(plane.shutdown.before_end, plane.shutdown.longest_s)
    parts.add_unit("node-shutdown", plane.shutdown.run, last=last)
    with_devices = parts.device_view.with_devices if parts.device_view is not None else None
    return PodService(plane.commands, plane.commands, plane.streams, with_devices)


def _proxy(parts: Daemon) -> CriProxyService:
    from agent.proxy.attach.wiring import wire_proxy

    plane = wire_proxy(_outside(parts))
    parts.metrics.sources.append(plane.families)
    parts.closers.append(plane.close)
    parts.advisers.append(plane.view.advice)
    parts.add_unit("proxy", plane.run, is_plane=True, stop_s=plane.stop_s)
    return CriProxyService(plane.view)


def _observation(parts: Daemon) -> Mapping[str, Handler]:
    """Pages with figures of containers, where there is a runtime that has some."""
    if parts.runtime is None:
        return {}
    from agent.observe.attach.wiring import OwnPods, serves_pages, wire_observation

    runner = parts.runner
    pods = (
        OwnPods(runner.pods, runner.may_be_wanted, runner.evictor.spaces, runner.evictor.short_paths)
        if runner is not None
        else None
    )
    observed = wire_observation(_outside(parts), pods)
    parts.closers.append(observed.close)
    parts.metrics.sources.append(observed.families)
    parts.usage = observed.usage
    if parts.node_looks is not None:
        parts.node_looks.collector = observed.collector
    parts.add_unit("observe", observed.run)
    parts.running.listeners.append(lambda _configuration, _plan: observed.changed())
    if not serves_pages(parts.configuration):
        return {}
    return {**observed.pages, "/metrics/probes": FamilyPage(parts.probe_families).page}


def _http(parts: Daemon, further: Mapping[str, Handler]) -> HttpServer:
    def livez(query: Query, _headers: Headers) -> Page:
        overdue = parts.lifecycle.overdue()
        return health_page(query, parts.board.lines(), lambda line: line.name not in overdue)

    def readyz(query: Query, _headers: Headers) -> Page:
        return health_page(query, parts.board.lines(), lambda line: line.is_ready)

    pages: dict[str, Handler] = {"/metrics": parts.metrics.page, "/livez": livez, "/readyz": readyz}
    pages.update(further)
    return HttpServer(parts.configuration.api.http_address, pages, tls=tls_of(parts.configuration, parts.clock))


def _api(parts: Daemon, planes: Mapping[str, object]) -> None:
    configuration = parts.configuration
    listener = activated_socket(parts.environment, "api")
    if listener is None:
        listener = listen_at(Path(configuration.api.socket), SOCKET_MODE)
        parts.resources.callback(Path(configuration.api.socket).unlink, missing_ok=True)
    parts.resources.callback(listener.close)
    runner = parts.runner
    drained, conditions = (
        (lambda: runner.drained, lambda: runner.evictor.conditions) if runner else (lambda: None, tuple)
    )
    without = RuntimeFacts(configuration.runtime.endpoint, message=NOT_NEEDED)
    runtime = parts.runtime
    facts = NodeAnswers(
        parts.running,
        lambda: runtime.watch.facts if runtime else without,
        parts.levels,
        time.time(),
        drained,
        conditions,
    )
    topology = TopologyOfManifests(lambda: parts.running.configuration, parts.programmed)
    services = {
        node_pb2: NodeService(
            facts,
            parts.board,
            parts.running,
            parts.ring.events,
            parts.advisers,
            parts.usage,
            eviction=runner.evictor.report if runner else None,
            features=partial(node_features, parts.running, runtime, parts.environment),
            logs=wire_node_logs(lambda: parts.running.configuration),
        ),
        pod_pb2: planes["pods"],
        device_pb2: planes["devices"],
        image_pb2: planes["images"],
        service_proxy_pb2: planes["services"],
        cri_proxy_pb2: planes["proxy"],
        dns_pb2: planes["dns"],
        topology_pb2: TopologyService(topology),
        object_pb2: ObjectService(
            wire_objects(lambda: parts.running.configuration, parts.end_pod, parts.status_of, parts.created_of)
        ),
        health_pb2: HealthService(parts.board),
    }
    server = ApiServer(
        {one: service for file, service in services.items() for one in file.DESCRIPTOR.services_by_name.values()},
        listener,
        Path(configuration.node.run_directory) / "private",
        lambda: parts.access,
        parts.metrics.api_called,
        is_short=lambda: parts.relief.is_short,
    )
    parts.add_unit("api", server.run, stop_s=server.stop_grace_s + 2.0)


def _access_rule(configuration: Configuration) -> AccessRule:
    """The rule with its groups looked up; done once per configuration, because looking up may take long."""
    api = configuration.api
    return AccessRule(find_gid(api.read_group), find_gid(api.operate_group), api.read_group, os.geteuid())


def _share(configuration: Configuration, rule: AccessRule) -> None:
    """Let in who has a level; others could not even ask why they have none."""
    for path in (configuration.node.run_directory, configuration.api.socket):
        try:
            admit(path, rule.gids)
        except OSError as error:
            log.warning("api_groups_not_changed", path=path, gids=rule.gids, error=error.strerror)


def _follow_reloads(parts: Daemon) -> None:
    def take_over(configuration: Configuration, _plan: ReloadPlan) -> None:
        rule = _access_rule(configuration)
        if rule.gids != parts.access.gids:
            _share(configuration, rule)
        parts.access = rule
        parts.levels.verbosity = configuration.telemetry.verbosity
        parts.levels.planes = dict(configuration.telemetry.vmodule)
        if parts.runtime is not None:
            parts.runtime.cri.request_timeout_s = configuration.runtime.request_timeout
        if parts.kube is not None:
            parts.kube.set_rate(configuration.kubernetes.qps, configuration.kubernetes.burst)
        parts.metrics.config_reloaded_at_s = time.time()

    parts.running.listeners.append(take_over)
