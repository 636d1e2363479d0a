# SPDX-License-Identifier: Apache-2.0
"""What all pods share: the ports, what they wait for in turn, and where news go. Made once by the runner."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import structlog

from agent.model.clock import Clock
from agent.model.devices.container_devices import NO_DEVICES, ContainerDevices
from agent.model.devices.problem import DevicesNotReady
from agent.model.event import Event
from agent.model.finding import printable
from agent.model.nodes.file_system import Room
from agent.model.pods.pod import ContainerSpec, PodSpec
from agent.model.runtime.error import RuntimeCallFailed
from agent.model.runtime.features import RuntimeFeatures
from agent.model.text.records import RecordFiles
from agent.pods.admission.rules import AdmissionRules
from agent.pods.plan.admit import AdmissionRefusal, PodPlaces, is_critical
from agent.pods.plan.scarcity.victims import refused_by
from agent.pods.ports import (
    Containers,
    Features,
    Groups,
    Maintenance,
    NodeImages,
    PodClaims,
    PodDevices,
    PodPolicies,
    ProbeClient,
    Sandboxes,
    Slices,
)
from agent.pods.run.disk.files import PodFiles
from agent.pods.run.disk.lost_networks import RESULTS, set_aside
from agent.pods.run.disk.measured import MeasuredDisks
from agent.pods.run.metrics import PodMetrics
from agent.pods.run.one_pod.pod_trace import PodTracing
from agent.pods.runtime.environment import ClaimPlace, EnvironmentSource
from agent.pods.runtime.qos import PodRequests, qos_class
from agent.pods.settings import PodSettings

log = structlog.get_logger(plane="pods")


class NoDevices:
    """Of a node that gives none: its manifests claim none either."""

    async def hold(self, pod: PodSpec) -> None:
        if pod.spec.resource_claims:
            raise DevicesNotReady("ClaimUnallocatable", "this node gives no devices; see devices.manager.enabled")

    async def edits(self, pod: PodSpec, container: ContainerSpec, runtime: RuntimeFeatures) -> ContainerDevices:
        del pod, container, runtime
        return NO_DEVICES

    async def release(self, uid: str) -> None:
        del uid


class NoClaims:
    """Of a node where nobody looks after claims: none is bound."""

    paths: frozenset[str] = frozenset()

    async def hold(self, pod: PodSpec) -> None:
        del pod

    def places(self, pod: PodSpec) -> Mapping[str, ClaimPlace]:
        del pod
        return {}


class NoPolicies:
    """Of a node that enforces none."""

    async def hold(self, uid: str) -> None:
        del uid


LONGEST_IN_LANE_S = 2.0
"""A sandbox that takes longer waits for something, and leaves the processors to the next one."""


class SandboxLane:
    """How many sandboxes are made, or taken down, at once. If all are made, no pod is ready much sooner than the
    last; if all are taken down, the containers of other pods that have to end wait for the network."""

    def __init__(self) -> None:
        self._places: asyncio.Semaphore | None = None

    @asynccontextmanager
    async def place(self, most: int, clock: Clock) -> AsyncIterator[None]:
        """One of so many, in the order in which they were asked for."""
        places = self._places = self._places or asyncio.Semaphore(most)
        await places.acquire()
        limit = asyncio.ensure_future(clock.sleep(LONGEST_IN_LANE_S))
        limit.add_done_callback(lambda _: places.release())
        try:
            yield
        finally:
            limit.cancel()
            # The place is free when this is left, not a turn of the loop later.
            await asyncio.wait([limit])


class NodePressure:
    """What the node is short of now, by the names of its conditions, and what makes room where a disk is short. Written
    by the evictor alone."""

    def __init__(self) -> None:
        self.conditions: frozenset[str] = frozenset()
        self.rooms: frozenset[Room] = frozenset()

    def why_refused(self, pod: PodSpec) -> AdmissionRefusal | None:
        """A pod that would add to what is short waits until it is over."""
        return refused_by(self.conditions, pod, qos_class(pod), is_critical=is_critical(pod))


class Pauses:
    """Containers that stand still, by their ids, because a checkpoint of them is made."""

    def __init__(self) -> None:
        self._now: set[str] = set()
        self._begun: Counter[str] = Counter()

    @contextmanager
    def of(self, instance_id: str) -> Iterator[None]:
        self._begun[instance_id] += 1
        self._now.add(instance_id)
        try:
            yield
        finally:
            self._now.discard(instance_id)

    def is_paused(self, instance_id: str) -> bool:
        return instance_id in self._now

    def begun(self, instance_id: str) -> int:
        """A number that changes each time that it is held."""
        return self._begun[instance_id]


class PodDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a pod reaches for. `sources` gives ConfigMaps and Secrets as they are now."""

    sandboxes: Sandboxes
    containers: Containers
    images: NodeImages
    maintenance: Maintenance
    probe_client: ProbeClient
    records: RecordFiles
    clock: Clock
    files: PodFiles
    disks: MeasuredDisks
    settings: Callable[[], PodSettings]
    tell: Callable[[Event], None]
    metrics: PodMetrics
    started_s: float
    groups: Groups
    slices: Slices
    runtime: Features
    devices: PodDevices = msgspec.field(default_factory=NoDevices)
    policies: PodPolicies = msgspec.field(default_factory=NoPolicies)
    claims: PodClaims = msgspec.field(default_factory=NoClaims)
    requests: PodRequests = msgspec.field(default_factory=PodRequests)
    lane: SandboxLane = msgspec.field(default_factory=SandboxLane)
    leaving: SandboxLane = msgspec.field(default_factory=SandboxLane)
    sources: Callable[[], Mapping[tuple[str, str, str], EnvironmentSource]] = msgspec.field(default=dict)
    handler_of: Callable[[str], str] = str
    """The runtime's handler for the name of a RuntimeClass."""
    rules: Callable[[], AdmissionRules] = AdmissionRules
    places: PodPlaces = msgspec.field(default_factory=PodPlaces)
    pressure: NodePressure = msgspec.field(default_factory=NodePressure)
    pauses: Pauses = msgspec.field(default_factory=Pauses)
    network_results: Path = RESULTS
    tracing: PodTracing | None = None

    @property
    def written(self) -> frozenset[str]:
        """Paths of the node that containers may change."""
        return self.places.written | self.claims.paths

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Also where a power cut spoiled what CNI wrote down of its network."""
        try:
            await self.sandboxes.stop_sandbox(sandbox_id)
        except RuntimeCallFailed as error:
            moved = await asyncio.to_thread(set_aside, self.network_results, sandbox_id)
            if not moved:
                raise
            log.warning("network_results_set_aside", files=[str(path) for path in moved], error=str(error))
            await self.sandboxes.stop_sandbox(sandbox_id)

    def tell_of(
        self, pod: PodSpec, reason: str, message: str, container: str = "", *, is_warning: bool = False
    ) -> None:
        self.tell(
            Event(
                is_warning=is_warning,
                reason=reason,
                message=printable(message.rstrip("\n")),
                plane="pods",
                namespace=pod.namespace,
                object_name=pod.name,
                container=container,
            )
        )

    @property
    def wall_minus_now_s(self) -> float:
        return self.clock.wall_s() - self.clock.now_s()
