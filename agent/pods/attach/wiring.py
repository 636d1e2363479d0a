# SPDX-License-Identifier: Apache-2.0
"""Where the pods plane meets its drivers."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace
from prometheus_client.core import Metric

from agent.config.document import Configuration
from agent.dns.attach.settings import pod_servers
from agent.drivers.cgroups.driver import ControlGroups
from agent.drivers.exec_processes.driver import ExecProcesses
from agent.drivers.file_systems.driver import FileSystems
from agent.drivers.kubelet.signs import kubelet_sign
from agent.drivers.logind.driver import Logind
from agent.drivers.manifests.changing import take_out
from agent.drivers.manifests.driver import ManifestDirectory
from agent.drivers.manifests.trust import Trust
from agent.drivers.mounts.driver import Mounts
from agent.drivers.probe_client.driver import NetworkProbeClient
from agent.drivers.slices.driver import SystemdSlices
from agent.drivers.state_files.driver import StateFiles
from agent.host.joints.pods_images import PlainImages, QueuedImages
from agent.host.joints.pods_observe import NodeLooks
from agent.kit.configuration import instance_id
from agent.kit.kubelet_arrival import follow_kubelet
from agent.kit.outside import Outside
from agent.kit.plane_lock import LOCK_DIRECTORY, held_plane_lock
from agent.model.component import Board, Report
from agent.model.control_group import GroupShape
from agent.model.feed import Overtaken
from agent.model.finding import Advice
from agent.model.pod import PodSpec
from agent.model.pod_state import PodState
from agent.pods.attach.current_settings import CurrentSettings, own_addresses
from agent.pods.attach.eviction_rules import eviction_rules
from agent.pods.attach.kubelet_names import kubelet_families
from agent.pods.plan.drain import Group, ShutdownRules
from agent.pods.plan.node_match import labels_of_node
from agent.pods.plan.restart import RestartCurve
from agent.pods.plan.scarcity.checkpoints import CheckpointRules
from agent.pods.run.commands import PodCommands
from agent.pods.run.disk.files import PodFiles
from agent.pods.run.disk.logs import LogDirectories
from agent.pods.run.disk.measured import MeasuredDisks
from agent.pods.run.disk.network_results import RESULTS, unreadable_results
from agent.pods.run.draining import Drainer
from agent.pods.run.metrics import PodMetrics
from agent.pods.run.node_shutdown import NodeShutdown
from agent.pods.run.pod_context import NoDevices, PodContext, PodNodeFacts, PodSettings
from agent.pods.run.runner import PodRunner
from agent.pods.run.stream_urls import StreamUrls
from agent.pods.run.traces.pod_trace import PodTracing

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MEMORY = Path("/proc/meminfo")
CPUS, THROTTLES = Path("/sys/devices/system/cpu"), "cpu[0-9]*/thermal_throttle"
REDUCED_FIRST_S, REDUCED_LONGEST_S = 1.0, 60.0


class LocalPods(msgspec.Struct, frozen=True):
    runner: PodRunner
    board: Board

    def pods(self) -> Iterable[tuple[PodSpec, PodState]]:
        states = self.runner.pods.items
        return [
            (one.run.pod, states[one.run.pod.key]) for one in self.runner.keepers.values() if one.run.pod.key in states
        ]

    def names(self) -> dict[str, str]:
        """By address."""
        return {state.ip: pod.key for pod, state in self.pods() if state.ip and not pod.spec.host_network}

    async def changes(self) -> AsyncIterator[object]:
        """Something changed; who cannot keep up looks at everything anyway."""
        while True:
            with suppress(Overtaken):
                async for change in self.runner.pods.follow():
                    yield change

    async def looked(self) -> None:
        while not self.board.line("pods").has_settled:
            with suppress(Overtaken):
                async for _ in self.board.feed.follow():
                    if self.board.line("pods").has_settled:
                        return


class PodPlane(msgspec.Struct, kw_only=True):
    runner: PodRunner
    commands: PodCommands
    streams: StreamUrls
    shutdown: NodeShutdown
    node: NodeLooks
    cgroup_version: int
    metrics: PodMetrics
    records: StateFiles
    slices: SystemdSlices
    arrival: Callable[[], Awaitable[None]]
    endpoint: str
    run_directory: str

    async def run(self, report: Report) -> None:
        """Under the lock that keeps a second daemon away."""
        with held_plane_lock("pods", self.endpoint, self.run_directory):
            async with asyncio.TaskGroup() as group:
                group.create_task(self.commands.resume_drain(), name="pods-drain-resumed")
                arrival = asyncio.ensure_future(self.arrival())
                try:
                    await self.runner.run(report)
                finally:
                    arrival.cancel()

    def kubelet_families(self) -> Iterator[Metric]:
        return kubelet_families(self.metrics, self.runner.pods.items.values(), self.cgroup_version)

    async def advice(self) -> Sequence[Advice]:
        """For `kepctl doctor`."""
        spoiled = await asyncio.to_thread(unreadable_results, RESULTS)
        text = "a pod of this sandbox ends once kepd has set the file aside; one of others keeps its owner from ending"
        found = [Advice(subject=str(path), found="unreadable", wanted="JSON", text=text) for path in spoiled]
        return [*await self.shutdown.advice(), *found]

    async def close(self) -> None:
        await self.slices.close()
        await asyncio.to_thread(self.records.close)


def _node_looks(outside: Outside, directory: Path) -> NodeLooks:
    cri, containerd = outside.runtime.cri, outside.runtime.containerd
    return NodeLooks(
        cri, containerd, FileSystems(), outside.clock, directory,
        logs=lambda: outside.configuration().pods.log_directory, collect=outside.collect_images,
    )  # fmt: skip


def wire_pods(outside: Outside) -> PodPlane:
    configuration = outside.configuration()
    groups, slices = ControlGroups(), SystemdSlices()
    look = partial(kubelet_sign, outside.environment)
    facts = replace(node_facts(configuration, groups.shape()), has_kubelet=bool(look()))
    directory = Path(configuration.pods.directory)
    records = StateFiles(directory)
    metrics = PodMetrics(lambda: outside.configuration().telemetry.per_namespace)
    cri, instance = outside.runtime.cri, instance_id(Path(configuration.node.state_directory))
    settings = CurrentSettings(
        outside.configuration, facts, lambda now, known: pod_settings(now, known, instance), outside.clock.now_s
    )
    files = _pod_files(configuration, directory)
    context = PodContext(
        sandboxes=cri,
        containers=cri,
        images=PlainImages(cri) if outside.puller is None else QueuedImages(cri, outside.puller),
        maintenance=cri,
        probe_client=NetworkProbeClient(resets=configuration.pods.probe_linger == "reset"),
        records=records,
        clock=outside.clock,
        files=files,
        disks=MeasuredDisks(files, outside.clock),
        settings=settings,
        tell=outside.tell,
        metrics=metrics,
        started_s=outside.clock.now_s(),
        groups=groups,
        slices=slices,
        runtime=outside.runtime.watch,
        devices=outside.devices or NoDevices(),
        tracing=PodTracing(outside.traces, outside.clock) if outside.traces is not None else None,
    )

    def timing() -> tuple[float, float]:
        now = outside.configuration().manifests
        return now.rescan, now.debounce

    def trust() -> Trust:
        return Trust(outside.configuration().manifests.group_writable)

    manifests = ManifestDirectory(Path(configuration.manifests.directory), timing, trust, has_sources=True)
    node = _node_looks(outside, directory)
    runner = PodRunner(context, manifests, outside.runtime.events, take_out, node)
    drainer = Drainer(runner, context)
    commands = PodCommands(runner, drainer, context, Path(configuration.manifests.directory), take_out)
    shutdown = NodeShutdown(runner, drainer, Logind(), outside.clock, lambda: context.settings().shutdown)
    return PodPlane(
        runner=runner,
        commands=commands,
        streams=StreamUrls(commands, cri, ExecProcesses()),
        shutdown=shutdown,
        node=node,
        cgroup_version=groups.shape().version,
        metrics=metrics,
        records=records,
        slices=slices,
        arrival=lambda: follow_kubelet(look, outside.clock, settings.kubelet_changed, outside.tell),
        endpoint=configuration.runtime.endpoint,
        run_directory=configuration.node.run_directory,
    )


def pod_settings(configuration: Configuration, facts: PodNodeFacts, instance: str) -> PodSettings:
    pods = configuration.pods
    first_s = REDUCED_FIRST_S if pods.reduced_backoff else RestartCurve().first_s
    longest_s = min(pods.max_restart_period, REDUCED_LONGEST_S if pods.reduced_backoff else pods.max_restart_period)
    return PodSettings(
        node=configuration.node.name,
        instance=instance,
        name_suffix=pods.name_suffix,
        labels=labels_of_node(configuration.node.name, configuration.node.labels),
        directory=Path(configuration.pods.directory),
        log_directory=Path(pods.log_directory),
        log_link_directory=Path(pods.log_link_directory) if pods.log_link_directory else None,
        cgroup_root=pods.cgroup_root,
        copies_kubelet=pods.profile == "kubelet",
        curve=RestartCurve(first_s=first_s, longest_s=longest_s),
        post_start_limit_s=pods.post_start_timeout,
        exec_probes_at_once=pods.exec_probe_concurrency,
        default_seccomp=pods.default_seccomp,
        seccomp_root=Path(configuration.node.state_directory) / "seccomp",
        cluster_dns=pod_servers(configuration),
        cluster_domain=pods.cluster_domain,
        resolv_conf=pods.resolv_conf,
        relist_s=pods.relist,
        keep_dead=pods.gc.keep_dead,
        collect_s=pods.gc.period,
        log_max_bytes=int(pods.logs.max_size),
        log_files=pods.logs.max_files,
        log_check_s=pods.logs.interval,
        most_pids=pods.pod_pids_limit,
        most_pods=pods.max_pods,
        reserved_milli_cpus=round(pods.reserved.cpu * 1000),
        reserved_memory_bytes=pods.reserved.memory,
        may_swap=pods.swap == "LimitedSwap",
        memory_qos=pods.memory_qos,
        kills_single_process=pods.single_process_oom_kill,
        gives_devices=configuration.devices.manager.enabled,
        gives_plugins=configuration.devices.plugins.enabled,
        shutdown=shutdown_rules(configuration),
        eviction=eviction_rules(pods.eviction, has_kubelet=facts is not None and facts.has_kubelet),
        checkpoints=CheckpointRules(
            keep=pods.checkpoints.keep, most_age_s=pods.checkpoints.max_age, most_bytes=pods.checkpoints.max_bytes
        ),
        facts=facts,
    )


def shutdown_rules(configuration: Configuration) -> ShutdownRules:
    """A kubelet delays no shutdown unless it is configured to (NSD-01)."""
    shutdown = configuration.pods.shutdown
    groups = [dict(one) for one in shutdown.groups]
    return ShutdownRules(
        groups=tuple(Group(priority=int(str(one["priority"])), period_s=float(str(one["period"]))) for one in groups),
        longest_s=shutdown.longest if configuration.pods.profile != "kubelet" else 0.0,
    )


def node_facts(configuration: Configuration, groups: GroupShape) -> PodNodeFacts:
    total_kib = next(
        (int(line.split()[1]) for line in MEMORY.read_text().splitlines() if line.startswith("MemTotal:")), 1 << 20
    )
    return PodNodeFacts(
        addresses=own_addresses(configuration),
        cpus=os.cpu_count() or 1,
        memory_bytes=total_kib << 10,
        boot_id=BOOT_ID.read_text().strip(),
        disk_bytes=disk_bytes(Path(configuration.pods.directory)),
        masked=tuple(sorted(map(str, CPUS.glob(THROTTLES)))),
        groups=groups,
    )


def _pod_files(configuration: Configuration, directory: Path) -> PodFiles:
    links = configuration.pods.log_link_directory
    logs = LogDirectories(Path(configuration.pods.log_directory), Path(links) if links else None)
    node, manifests = configuration.node, configuration.manifests.directory
    own = (node.state_directory, node.run_directory, manifests, LOCK_DIRECTORY)
    return PodFiles(directory, logs, Mounts(), [Path(one) for one in own])


def disk_bytes(directory: Path) -> int:
    """The size of the file system that pods write to; 0 if nobody can tell."""
    for place in (directory, *directory.parents):
        with suppress(OSError):
            told = os.statvfs(place)
            return told.f_blocks * told.f_frsize
    return 0
