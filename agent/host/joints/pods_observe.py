# SPDX-License-Identifier: Apache-2.0
"""Pods and observation: whose containers are observed, and what the node has left, for the planner of evictions.

Where a runtime keeps images is asked now and then alone; a look is a few reads.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from agent.drivers.containerd.driver import Containerd
from agent.drivers.cri.driver import CriRuntime
from agent.drivers.file_systems.driver import FileSystems
from agent.drivers.pressure.alarm import MemoryAlarm
from agent.host.planes import Planes
from agent.kit.plane import PlaneInputs
from agent.model.clock import Clock
from agent.model.nodes.file_system import LookedAt
from agent.model.nodes.use import Amount, ContainerUse, DiskPlace, Layout, NodeLook, PodUse
from agent.model.runtime.error import RuntimeCallFailed
from agent.observe.attach.unit import OwnPods
from agent.pods.attach.unit import PodOffers

if TYPE_CHECKING:
    from agent.observe.run.collector import Collector
    from agent.observe.sample.node_sample import PodSample


class CollectImages(Protocol):
    """Remove images that nothing needs; of some file systems `only`, by their devices."""

    async def __call__(self, *, only: Collection[int] = ()) -> object: ...


PLACES_S, LAYERS_S = 300.0, 60.0
LOADS, MOST_PROCESSES = Path("/proc/loadavg"), Path("/proc/sys/kernel/pid_max")


class NodeLooks:
    """`pods` is the directory of pods, which may not be there before the first of them is. `collector` finds the
    collector of figures once there is one: observation is attached after the pods."""

    def __init__(
        self,
        runtime: CriRuntime,
        store: Containerd,
        disks: FileSystems,
        clock: Clock,
        pods: Path,
        *,
        logs: Callable[[], str],
        collect: CollectImages | None,
        collector: "Callable[[], Collector | None]" = lambda: None,
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._disks = disks
        self._clock = clock
        self._above = (pods, *pods.parents)
        self._logs = logs
        self._collect = collect
        self._content = ""
        self._places: Mapping[str, DiskPlace] = {}
        self._folders: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._folders_s = self._layers_s = float("-inf")
        self._layers: Mapping[str, tuple[int, int]] = {}
        self._alarm = MemoryAlarm()
        self._collector = collector

    @classmethod
    def of(cls, inputs: PlaneInputs, planes: Planes) -> Self:
        """For the pods plane, which is attached before observation."""
        images, runtime = planes.images, inputs.runtime
        return cls(
            runtime.cri,
            runtime.containerd,
            FileSystems(),
            inputs.clock,
            Path(inputs.configuration().pods.directory),
            logs=lambda: inputs.configuration().pods.log_directory,
            collect=images.collector.collect if images is not None else None,
            collector=lambda: planes.observe.collector if planes.observe is not None else None,
        )

    async def look(self) -> NodeLook:
        now_s = self._clock.now_s()
        if now_s - self._folders_s >= PLACES_S:
            self._folders, self._folders_s = await self._runtime.file_systems(), now_s
            self._content = await self._content_root()
        amounts, layout = await asyncio.to_thread(self._of_disks)
        processes = await asyncio.to_thread(_processes)
        if processes is not None:
            amounts["pid.available"] = processes
        if (collector := self._collector()) is not None:
            node = await collector.look_at_node()
            if node.memory.total is not None and node.working_set is not None:
                available = max(node.memory.total - node.working_set, 0)
                amounts["memory.available"] = Amount(available, node.memory.total)
        return NodeLook(taken_s=now_s, amounts=amounts, layout=layout, places=self._places)

    async def _content_root(self) -> str:
        """Where containerd keeps what it downloaded; other runtimes do not say."""
        try:
            return (await self._store.store_roots()).content
        except RuntimeCallFailed:
            return ""

    def _of_disks(self) -> tuple[dict[str, Amount], Layout]:
        """What cannot be seen from here decides nothing."""
        images, containers = self._folders
        directory = str(next(one for one in self._above if one.exists()))
        node = self._one(directory)
        image = self._one(images[0]) if images else None
        layer = self._one(containers[0]) if containers else image
        found: dict[str, Amount] = {}
        for name, one in (("nodefs", node), ("imagefs", image), ("containerfs", layer)):
            if one is None or one.is_read_only or one.size_bytes <= 0:
                continue
            found[f"{name}.available"] = Amount(one.available_bytes, one.size_bytes)
            if one.inodes:
                found[f"{name}.inodesFree"] = Amount(one.inodes_free, one.inodes)
        self._places = self._kept_at(directory, {"nodefs": node, "imagefs": image, "containerfs": layer})
        return found, _layout(node, image, layer)

    def _kept_at(self, directory: str, looked: Mapping[str, LookedAt | None]) -> dict[str, DiskPlace]:
        """What is kept on the file system of each signal: as many roles as places lie on its device."""
        images, containers = self._folders
        kept = [
            ("node", directory),
            ("logs", self._logs()),
            *(("image", path) for path in images),
            *(("container", path) for path in containers or images),
            *([("content", self._content)] if self._content else []),
        ]
        devices = [(role, found.device_number) for role, path in kept if (found := self._one(path)) is not None]
        paths = {"nodefs": directory, "imagefs": images[0] if images else ""}
        paths["containerfs"] = containers[0] if containers else paths["imagefs"]
        return {
            name: DiskPlace(
                path=paths[name],
                device=one.device_number,
                roles=tuple(dict.fromkeys(role for role, device in devices if device == one.device_number)),
            )
            for name, one in looked.items()
            if one is not None
        }

    def _one(self, path: str) -> LookedAt | None:
        try:
            return self._disks.look(path)
        except OSError:
            return None

    async def use(self) -> Mapping[str, PodUse]:
        if (collector := self._collector()) is None:
            return {}
        await self.layers()
        sample = await collector.sample()
        return {pod.uid: self._use(pod) for pod in sample.pods if pod.is_ours}

    def _use(self, pod: "PodSample") -> PodUse:
        """Of the pod's own group where it has one."""
        living = [one for one in pod.containers if one.ended_s is None]
        sizes = [one.figures.working_set for one in living]
        whole = pod.figures.working_set if pod.figures is not None else None
        memory = whole if whole is not None else sum(one or 0 for one in sizes) if any(sizes) else None
        counts = [one.figures.processes for one in (*living, pod.sandbox) if one.figures.processes is not None]
        containers = []
        for one, size in zip(living, sizes, strict=True):
            layer, inodes = self._layers.get(one.id, (None, None))
            containers.append(ContainerUse(name=one.name, memory=size, layer_bytes=layer, layer_inodes=inodes))
        return PodUse(memory=memory, processes=sum(counts) if counts else None, containers=tuple(containers))

    async def layers(self) -> Mapping[str, int]:
        if self._clock.now_s() - self._layers_s >= LAYERS_S:
            self._layers, self._layers_s = await self._runtime.writable_layers(), self._clock.now_s()
        return {name: size for name, (size, _) in self._layers.items()}

    async def make_room(self, signal: str) -> None:
        """Images that nothing needs, of the file system that is short."""
        place = self._places.get(signal.partition(".")[0])
        if self._collect is not None and place is not None:
            await self._collect(only=(place.device,))

    def arm(self, more_bytes: int | None) -> None:
        collector = self._collector()
        root = collector.memory_root if collector is not None else None
        self._alarm.arm(Path(root) if root is not None else None, more_bytes)

    def disarm(self) -> None:
        self._alarm.disarm()

    async def rung(self) -> None:
        await self._alarm.rung()


def _layout(node: LookedAt | None, image: LookedAt | None, layer: LookedAt | None) -> Layout:
    if node is None or image is None or layer is None or image.device_number == node.device_number:
        return "one"
    return "split" if layer.device_number == node.device_number else "apart"


def _processes() -> Amount | None:
    """Tasks of the node: the kernel tells those that run of all there are."""
    try:
        most = int(MOST_PROCESSES.read_text("ascii"))
        there = int(LOADS.read_text("ascii").split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return None
    return Amount(max(most - there, 0), most)


def own_pods(pods: PodOffers) -> OwnPods:
    runner = pods.runner
    return OwnPods(
        runner.pods, runner.may_be_wanted, runner.evictor.spaces, runner.evictor.short_paths, pods.families_of_probes
    )
