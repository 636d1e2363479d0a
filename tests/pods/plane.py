# SPDX-License-Identifier: Apache-2.0
"""A pods plane over fakes, for tests that look at it while it runs."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.config.sections.pods import Pods
from agent.drivers.clock.driver import SystemClock
from agent.model.component import Board, State
from agent.model.event import Event
from agent.model.nodes.use import Amount, DiskPlace, NodeLook, PodUse
from agent.model.pods.state import PodState
from agent.model.runtime.event import EventKind, RuntimeEvent
from agent.model.runtime.features import RuntimeFeatures
from agent.pods.attach.unit import PlainImages
from agent.pods.manifest.objects import NodeIdentity, pod_reading
from agent.pods.plan.restart import RestartCurve
from agent.pods.run.disk.files import PodFiles
from agent.pods.run.disk.logs import LogDirectories
from agent.pods.run.disk.measured import MeasuredDisks
from agent.pods.run.metrics import PodMetrics
from agent.pods.run.pod_context import NoDevices, NoPolicies, PodDependencies
from agent.pods.run.runner import PodRunner
from agent.pods.settings import PodNodeFacts, PodSettings
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.contract.fake_mounts import FakeMounts
from tests.contract.fake_slices import FakeSlices
from tests.fakes.cgroups import FakeControlGroups
from tests.fakes.cri import FakeCri
from tests.fakes.manifests import FakeManifestDirectory
from tests.fakes.probe_client import FakeProbeClient
from tests.fakes.state_files import FakeStateFiles

WITHIN_S = 30.0


def manifest(name: str = "web", *images: str, more: str = "", grace_s: int | None = None) -> bytes:
    """A pod with one container per image; `more` goes into its metadata."""
    containers = "".join(
        f"  - {{name: {letter}, image: {image}}}\n"
        for letter, image in zip("abcdef", images or ("i", "i"), strict=False)
    )
    grace = f"  terminationGracePeriodSeconds: {grace_s}\n" if grace_s is not None else ""
    head = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}{more}}}\n"
    return f"{head}spec:\n{grace}  containers:\n{containers}".encode()


class Silence:
    """A runtime that tells nothing."""

    async def listen(self) -> AsyncIterator[RuntimeEvent]:
        yield RuntimeEvent(EventKind.LOST)
        await asyncio.Event().wait()


class KnownRuntime:
    """Says what it can do."""

    def __init__(self, **features: Any) -> None:
        self._features = RuntimeFeatures(**features)

    async def features(self) -> RuntimeFeatures:
        return self._features


class News:
    """What the fake runtime tells, and what a test adds."""

    def __init__(self, cri: FakeCri) -> None:
        self._cri = cri

    async def listen(self) -> AsyncIterator[RuntimeEvent]:
        yield RuntimeEvent(EventKind.LOST)
        async for event in self._cri.events():
            yield event


class Slow(FakeCri):
    """A runtime whose stops and pulls take as long as the test says, and that remembers who was stopped how."""

    def __init__(self) -> None:
        super().__init__()
        self.stops: list[tuple[str, int]] = []
        self.stopping: set[str] = set()
        self.may_stop = asyncio.Event()
        self.may_stop.set()
        self.slow_images: set[str] = set()
        self.pulling: Counter[str] = Counter()
        self.may_pull = asyncio.Event()
        self.while_pulling = self._pull
        self.registry.add("i")

    async def stop_container(self, container_id: str, grace_s: int) -> None:
        name = (await self.container_status(container_id)).metadata.name
        self.stops.append((name, grace_s))
        self.stopping.add(name)
        await self.may_stop.wait()
        self.stopping.discard(name)
        await super().stop_container(container_id, grace_s)

    async def _pull(self, image: str, _auth: pb.AuthConfig | None) -> None:
        self.pulling[image] += 1
        try:
            if image in self.slow_images:
                await self.may_pull.wait()
        finally:
            self.pulling[image] -= 1


@dataclass
class Plane:
    """A running plane and its surroundings."""

    cri: Any
    manifests: FakeManifestDirectory
    logs: Path
    runner: PodRunner
    events: list[Event] = field(default_factory=list)
    probe_client: FakeProbeClient = field(default_factory=FakeProbeClient)
    metrics: PodMetrics = field(default_factory=PodMetrics)
    board: Board = field(default_factory=lambda: Board(lambda: 0.0))

    @property
    def state(self) -> State:
        return self.board.line("pods").state

    @property
    def message(self) -> str:
        return self.board.line("pods").message

    @property
    def phases(self) -> dict[str, str]:
        return {pod.name: pod.phase for pod in self.runner.pods.items.values()}

    def pod(self, name: str = "web-n") -> PodState:
        return self.runner.pods.items[f"default/{name}"]

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for something that must come; how soon is not what is tested."""
        for _ in range(int(WITHIN_S / 0.005)):
            if condition():
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"not within {WITHIN_S} s: {what}; {self.state} {self.message}; {self.runner.pods.items}")

    async def until_phases(self, **phases: str) -> None:
        wanted = {f"{name}-n": phase for name, phase in phases.items()}
        await self.until(lambda: self.phases == wanted, f"phases {wanted}")

    async def until_ready(self) -> None:
        await self.until(lambda: self.state is State.READY, "ready")

    async def rounds(self, count: int = 2) -> None:
        """A few more looks at the runtime, to see that nothing comes of them."""
        for _ in range(count):
            before = self.cri.calls.count("ListPodSandbox")
            self.runner.rounds.due.set()
            await self.until(lambda seen=before: self.cri.calls.count("ListPodSandbox") > seen, "a round")


class FakeNode:
    """A node that has `amounts` left by signal, whose pods use `uses` by uid."""

    def __init__(self) -> None:
        self.amounts: dict[str, Amount] = {}
        self.uses: dict[str, PodUse] = {}
        self.layer_bytes: dict[str, int] = {}
        self.layout: Any = "one"
        self.places: dict[str, DiskPlace] = {}
        self.rooms: list[str] = []
        self.looks = 0
        self.now_s: Any = time.monotonic
        self.freed: Any = lambda _signal: None
        self.armed: list[int | None] = []
        self.rings = asyncio.Event()

    async def look(self) -> NodeLook:
        self.looks += 1
        return NodeLook(taken_s=self.now_s(), amounts=dict(self.amounts), layout=self.layout, places=self.places)

    async def use(self) -> dict[str, PodUse]:
        return dict(self.uses)

    async def layers(self) -> dict[str, int]:
        return dict(self.layer_bytes)

    async def make_room(self, signal: str) -> None:
        self.rooms.append(signal)
        self.freed(signal)

    def arm(self, more_bytes: int | None) -> None:
        self.armed.append(more_bytes)

    def disarm(self) -> None:
        self.armed.clear()

    async def rung(self) -> None:
        await self.rings.wait()
        self.rings.clear()


AT_ONCE = RestartCurve(first_s=0.01, longest_s=0.01)
"""For tests that are not about pauses."""
# What a kepd that dies leaves on its disk, by the directory of its logs.
DISKS: dict[Path, FakeStateFiles] = {}


@asynccontextmanager
async def running(
    cri: Any,
    manifests: Any,
    logs: Path,
    /,
    *,
    clock: Any = None,
    events: Any = None,
    groups: Any = None,
    slices: Any = None,
    runtime: Any = None,
    devices: Any = None,
    policies: Any = None,
    node: Any = None,
    cpus: int = 1,
    tracing: Any = None,
    **settings: Any,
) -> AsyncIterator[Plane]:
    """The plane while the block lasts; leaving it is the end of the process. `settings` are keys of the section, or
    fields beside it."""
    clock = clock or SystemClock()
    groups = groups or FakeControlGroups()
    own = {name: settings.pop(name) for name in PodSettings.__struct_fields__ if name in settings}
    given = PodSettings(
        pods=Pods(log_directory=str(logs), **settings), node="n", instance="me",
        facts=PodNodeFacts(boot_id="boot", addresses=("192.0.2.1",), cpus=cpus, groups=groups.shape()), **own,
    )  # fmt: skip
    given_pods = given.pods
    manifests.readings = [
        pod_reading(NodeIdentity("n", given_pods.name_suffix, given.gives_devices, given.gives_plugins))
    ]
    told: list[Event] = []
    client, metrics = FakeProbeClient(), PodMetrics()
    directory = logs.with_name(f"{logs.name}-pods")
    files = PodFiles(directory, LogDirectories(logs), FakeMounts())
    context = PodDependencies(
        network_results=logs.parent / "cni/results",
        sandboxes=cri, containers=cri, images=PlainImages(cri), maintenance=cri, probe_client=client,
        records=DISKS.setdefault(logs, FakeStateFiles()), clock=clock,
        files=files, disks=MeasuredDisks(files, clock), settings=lambda: given, tell=told.append,
        metrics=metrics, started_s=clock.now_s(), groups=groups,
        slices=slices or FakeSlices(),
        runtime=runtime or KnownRuntime(),
        devices=devices or NoDevices(),
        policies=policies or NoPolicies(),
        tracing=tracing,
    )  # fmt: skip
    runner = PodRunner(
        context, manifests, events or Silence(), lambda path, _: manifests.put(path, None), node or FakeNode()
    )
    plane = Plane(cri, manifests, logs, runner, told, client, metrics)
    report = plane.board.add("pods", State.STARTING, is_plane=True)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(runner.run(report))
        try:
            yield plane
        finally:
            task.cancel()


class Killed(BaseException):
    """The process ends between two steps."""


class Dying:
    """A runtime that lets so many of these steps through."""

    def __init__(self, runtime: Any, steps: tuple[str, ...], survived: int) -> None:
        self._runtime, self._steps, self._left = runtime, steps, survived

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._runtime, name)
        if name not in self._steps:
            return method

        async def counted(*args: Any, **kwargs: Any) -> Any:
            result = await method(*args, **kwargs)
            self._left -= 1
            if self._left == 0:
                raise Killed
            return result

        return counted
