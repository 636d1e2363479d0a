# SPDX-License-Identifier: Apache-2.0
"""The pods plane put together on the drivers of this node."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace
from prometheus_client.core import Metric

from agent.config.document import Configuration
from agent.drivers.cgroups.driver import ControlGroups
from agent.drivers.cri.driver import CriRuntime
from agent.drivers.exec_processes.driver import ExecProcesses
from agent.drivers.logind.driver import Logind
from agent.drivers.mounts.driver import Mounts
from agent.drivers.probe_client.driver import NetworkProbeClient
from agent.drivers.slices.driver import SystemdSlices
from agent.drivers.state_files.driver import StateFiles
from agent.kit.configuration import instance_id
from agent.kit.kubelet_arrival import follow_kubelet, kubelet_beside
from agent.kit.plane import Attached, LastWork, PlaneInputs, PlaneUnit
from agent.kit.plane_lock import LOCK_DIRECTORY, held_plane_lock
from agent.model.component import Board, Report
from agent.model.feed import FeedLagged
from agent.model.finding import Advice
from agent.model.images.pull import PullRequest
from agent.model.pods.pod import PodSpec
from agent.model.pods.state import PodState
from agent.objects.run.writer import take_out
from agent.pods.attach.kubelet_names import kubelet_families
from agent.pods.attach.pod_service import PodService
from agent.pods.attach.settings import CurrentSettings, NameServers, node_facts, pod_settings
from agent.pods.manifest.objects import identity_of, pod_reading
from agent.pods.ports import NodeFigures, NodeImages, PodDevices, PodPolicies
from agent.pods.run.commands import PodCommands
from agent.pods.run.disk.files import PodFiles
from agent.pods.run.disk.logs import LogDirectories
from agent.pods.run.disk.lost_networks import RESULTS, unreadable_results
from agent.pods.run.disk.measured import MeasuredDisks
from agent.pods.run.draining import Drainer, NodeShutdown
from agent.pods.run.metrics import PodMetrics
from agent.pods.run.one_pod.pod_trace import PodTracing
from agent.pods.run.pod_context import NoDevices, NoPolicies, PodDependencies
from agent.pods.run.runner import PodRunner
from agent.pods.run.stream_urls import StreamUrls
from agent.wire.cri import runtime_v1_pb2 as pb


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
            with suppress(FeedLagged):
                async for change in self.runner.pods.follow():
                    yield change

    async def looked(self) -> None:
        while not self.board.line("pods").has_settled:
            with suppress(FeedLagged):
                async for _ in self.board.feed.follow():
                    if self.board.line("pods").has_settled:
                        return


class PlainImages:
    """Straight from the runtime, one pull beside the other, with no credentials but its own."""

    tells_pulls = False

    def __init__(self, cri: CriRuntime) -> None:
        self._cri = cri

    async def image_status(self, image: str) -> pb.Image | None:
        return await self._cri.image_status(image)

    async def may_use(self, request: PullRequest, image_id: str) -> bool:
        """Nobody keeps records of who pulled what."""
        del request, image_id
        return True

    async def pull_image(self, request: PullRequest, sandbox_config: pb.PodSandboxConfig) -> str:
        return await self._cri.pull_image(request.image, sandbox_config=sandbox_config)

    def why_waits(self, image: str) -> str:
        """There is no queue."""
        del image
        return ""

    def retry(self, namespace: str, name: str) -> None:
        """There are no pauses here."""


class PodNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What others give this plane. Without `images` the runtime pulls; without `devices` no pod has any, and
    `with_devices` adds them to a pod that is shown. `name_servers` are those of pods with ClusterFirst. `policies` are
    in force before a container starts."""

    node: NodeFigures
    name_servers: NameServers
    images: NodeImages | None = None
    devices: PodDevices | None = None
    with_devices: Callable[[PodState], PodState] | None = None
    policies: PodPolicies | None = None


class PodOffers(msgspec.Struct, frozen=True):
    here: LocalPods
    runner: PodRunner
    commands: PodCommands
    families_of_probes: Callable[[], Iterable[Metric]]


def attach(inputs: PlaneInputs, needs: PodNeeds) -> Attached[PodOffers]:
    configuration = inputs.configuration()
    groups, slices = ControlGroups(), SystemdSlices()
    shape = groups.shape()
    look = partial(kubelet_beside, configuration, inputs.environment)
    facts = replace(node_facts(configuration, shape), has_kubelet=bool(look()))
    instance = instance_id(Path(configuration.node.state_directory))
    settings = CurrentSettings(
        inputs.configuration,
        facts,
        lambda now, known: pod_settings(now, known, instance, needs.name_servers),
        inputs.clock.now_s,
    )
    records = StateFiles(Path(configuration.pods.directory))
    context = _context(inputs, needs, settings, records, groups, slices)
    metrics, cri = context.metrics, inputs.runtime.cri
    runner = PodRunner(
        context,
        inputs.find_manifests(lambda: pod_reading(identity_of(inputs.configuration()))),
        inputs.runtime.events,
        take_out,
        needs.node,
    )
    drainer = Drainer(runner, context)
    commands = PodCommands(runner, drainer, context, take_out)
    shutdown = NodeShutdown(runner, drainer, Logind(), inputs.clock, lambda: context.settings().shutdown)

    async def run(report: Report) -> None:
        with held_plane_lock("pods", configuration.runtime.endpoint, configuration.node.run_directory):
            async with asyncio.TaskGroup() as group:
                group.create_task(commands.resume_drain(), name="pods-drain-resumed")
                follow = follow_kubelet(look, inputs.clock, settings.kubelet_changed, inputs.tell)
                arrival = asyncio.ensure_future(follow)
                try:
                    await runner.run(report)
                finally:
                    arrival.cancel()

    async def close() -> None:
        await slices.close()
        await asyncio.to_thread(records.close)

    last = LastWork(shutdown.before_end, shutdown.longest_s)
    return Attached(
        offers=PodOffers(LocalPods(runner, inputs.board), runner, commands, metrics.probes.named_families),
        service=PodService(commands, StreamUrls(commands, cri, ExecProcesses()), needs.with_devices),
        units=(PlaneUnit("pods", run, is_plane=True), PlaneUnit("node-shutdown", shutdown.run, last=last)),
        families=(metrics.families,),
        named_alike={"kubelet": lambda: kubelet_families(metrics, runner.pods.items.values(), shape.version)},
        advice=(shutdown.advice, _unreadable),
        apply=lambda _configuration: shutdown.settings_changed(),
        shed=(runner.shown.past.clear,),
        close=close,
    )


def _context(
    inputs: PlaneInputs,
    needs: PodNeeds,
    settings: CurrentSettings,
    records: StateFiles,
    groups: ControlGroups,
    slices: SystemdSlices,
) -> PodDependencies:
    configuration = inputs.configuration()
    files = _pod_files(configuration, Path(configuration.pods.directory))
    cri = inputs.runtime.cri
    return PodDependencies(
        sandboxes=cri,
        containers=cri,
        images=needs.images or PlainImages(cri),
        maintenance=cri,
        probe_client=NetworkProbeClient(resets=configuration.pods.probe_linger == "reset"),
        records=records,
        clock=inputs.clock,
        files=files,
        disks=MeasuredDisks(files, inputs.clock),
        settings=settings,
        tell=inputs.tell,
        metrics=PodMetrics(lambda: inputs.configuration().telemetry.per_namespace),
        started_s=inputs.clock.now_s(),
        groups=groups,
        slices=slices,
        runtime=inputs.runtime.watch,
        devices=needs.devices or NoDevices(),
        policies=needs.policies or NoPolicies(),
        tracing=PodTracing(inputs.traces, inputs.clock) if inputs.traces is not None else None,
    )


def _pod_files(configuration: Configuration, directory: Path) -> PodFiles:
    links = configuration.pods.log_link_directory
    logs = LogDirectories(Path(configuration.pods.log_directory), Path(links) if links else None)
    node, manifests = configuration.node, configuration.manifests.directory
    own = (node.state_directory, node.run_directory, manifests, LOCK_DIRECTORY)
    return PodFiles(directory, logs, Mounts(), [Path(one) for one in own])


async def _unreadable() -> Sequence[Advice]:
    """Results of network plugins that nobody can read, for `kepctl doctor`."""
    spoiled = await asyncio.to_thread(unreadable_results, RESULTS)
    text = "a pod of this sandbox ends once kepd has set the file aside; one of others keeps its owner from ending"
    return [Advice(subject=str(path), found="unreadable", wanted="JSON", text=text) for path in spoiled]
