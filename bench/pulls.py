# SPDX-License-Identifier: Apache-2.0
"""Pulls on a slow link: how soon a pod's images are all there, in kepd's order and first come first served.

A batch of 20 images of 2 to 120 MB for 15 pods, one of which has 6, arrives at once at a real containerd whose
registry is limited to 40 MB/s in total. kepd's order is that of its defaults, twice: with sizes known from an earlier
pull of the repositories, and on a node that never saw them, with `images.sizeProbe: auto`. Further rows: what the plane
itself costs per pull, per decision, and per queued pull (IMG-N05).
"""

import asyncio
import gc
import logging
import statistics
import tempfile
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent.config.document import Configuration, NodeSection, RuntimeSection
from agent.config.sections.images import Images
from agent.drivers.clock.driver import SystemClock
from agent.images.attach.unit import attach
from agent.images.queue.flights import FlightKey, FlightMember
from agent.images.queue.queue import PullQueue
from agent.images.settings import image_settings
from agent.kit.runtime import Runtime
from agent.model.component import Board, State
from agent.model.images.pull import CallerPullEnd, PodIdentity, PullPolicy, PullRequest
from tests.fakes.clock import FakeClock
from tests.fakes.containerd import FakeContainerd
from tests.fakes.cri import FakeCri
from tests.fakes.state_files import FakeStateFiles
from tests.images.harness import build_plane
from tests.kit.inputs import inputs_of
from tests.lab import Image, Lab

Row = tuple[str, float, str, str]
LINK_BYTES_S = 40_000_000
SLOW_BYTES_S = 4_000_000
FOLLOWED_S = 10.0
LIMIT = 3
ROUNDS = 5
ARRIVAL_GAP_S = 0.02
SIZES_MB = (2, 60, 5, 120, 12, 80, 3, 30, 8, 50, 20, 4, 100, 6, 15, 10, 40, 25, 7, 9)
POD_OF_SIX = (1, 4, 7, 10, 13, 16)


@dataclass(frozen=True)
class Wish:
    """One image of one pod."""

    pod: str
    image: str


def wishes(lab: Lab) -> list[Wish]:
    """The batch, in the order of arrival."""
    batch = []
    for number, size_mb in enumerate(SIZES_MB):
        image = Image.sized(f"bench/image{number}", size_mb * 1_000_000)
        lab.push(image)
        pod = "six" if number in POD_OF_SIX else f"pod{number}"
        batch.append(Wish(pod, lab.throttled(image)))
    return batch


class Plane:
    """An images plane of its own on the lab's containerd, with its state in a directory that lives across runs."""

    def __init__(self, lab: Lab, folder: Path, profile: str, probe: str = "off", limit: int = LIMIT) -> None:
        images = Images(max_parallel_pulls=limit, profile=profile, size_probe=probe)
        configuration = Configuration(node=NodeSection(name="bench", state_directory=str(folder)), images=images)
        clock = SystemClock()
        settings = RuntimeSection(endpoint=lab.endpoint)
        self.runtime = Runtime(settings, clock, *[lambda _method, _code, _seconds: None] * 2)
        self.plane = attach(inputs_of(configuration, runtime=self.runtime))
        self.puller = self.plane.offers.puller
        self.report = Board(time.time).add("images", State.STARTING)

    async def run(self) -> None:
        await self.plane.units[0].run(self.report)

    async def close(self) -> None:
        await self.plane.close()
        await self.runtime.close()


def batch_s(lab: Lab, folder: Path, profile: str, batch: list[Wish], probe: str = "off") -> dict[str, float]:
    """Seconds until all images of each pod are there."""
    for wish in batch:
        lab.cri.remove_image(wish.image)
    # Where the registry is: the probe asks it as the runtime does.
    return lab.netns.call(lambda: asyncio.run(pulled_s(lab, folder, profile, batch, probe)))


async def pulled_s(lab: Lab, folder: Path, profile: str, batch: list[Wish], probe: str) -> dict[str, float]:
    """The same for a batch whose images are not there."""
    plane = Plane(lab, folder, profile, probe)
    done: dict[str, float] = {}
    async with asyncio.TaskGroup() as group:
        runner = group.create_task(plane.run())
        began_s = time.monotonic()

        async def pull(wish: Wish) -> None:
            request = PullRequest(
                image=wish.image,
                policy=PullPolicy.IF_NOT_PRESENT,
                pod=PodIdentity(uid=wish.pod, namespace="bench", name=wish.pod),
            )
            outcome = await plane.puller.request(request)
            assert outcome.image_id, outcome
            done[wish.pod] = max(done.get(wish.pod, 0.0), time.monotonic() - began_s)

        async with asyncio.TaskGroup() as pulls:
            for wish in batch:
                pulls.create_task(pull(wish))
                # Arrival order is what first come first served means, so it must be the same each time.
                await asyncio.sleep(ARRIVAL_GAP_S)
        runner.cancel()
    await plane.close()
    return done


class Rounds:
    """The same batch several times in one way."""

    def __init__(self) -> None:
        self._rounds: list[dict[str, float]] = []

    def add(self, done: dict[str, float]) -> None:
        self._rounds.append(done)

    @property
    def mean_s(self) -> float:
        return statistics.median(statistics.mean(one.values()) for one in self._rounds)

    @property
    def last_s(self) -> float:
        return statistics.median(max(one.values()) for one in self._rounds)

    def against(self, base: "Rounds", how: str) -> list[Row]:
        """How this order compares to another."""
        return [
            (f"mean time until a pod's images are there, kepd, {how}", self.mean_s, "s", ""),
            (f"kepd is earlier by, {how}", (1 - self.mean_s / base.mean_s) * 100, "%", "≥ 30"),
            (f"last image there, kepd against that, {how}", (self.last_s / base.last_s - 1) * 100, "%", "≤ 5"),
        ]


async def overhead_ms(lab: Lab, folder: Path, runs: int = 30) -> float:
    """What the plane adds to a pull of a small image: through it, less the same pull by CRI alone, medians."""
    image = Image.sized("bench/small", 1000)
    lab.push(image)
    reference = image.reference(lab.registry.address)
    plane = Plane(lab, folder, "kepd")
    through: list[float] = []
    bare: list[float] = []
    async with asyncio.TaskGroup() as group:
        runner = group.create_task(plane.run())
        for _ in range(runs):
            for times, pull in ((bare, bare_pull), (through, plane_pull)):
                lab.cri.remove_image(reference)
                began_s = time.perf_counter()
                await pull(plane, reference)
                times.append((time.perf_counter() - began_s) * 1000)
        runner.cancel()
    await plane.close()
    return float(statistics.median(through) - statistics.median(bare))


async def bare_pull(plane: Plane, reference: str) -> None:
    await plane.runtime.cri.pull_image(reference)


async def plane_pull(plane: Plane, reference: str) -> None:
    outcome = await plane.puller.request(PullRequest(image=reference, policy=PullPolicy.IF_NOT_PRESENT))
    assert outcome.image_id, outcome


async def present_ms(lab: Lab, folder: Path, runs: int = 300) -> float:
    """What a kubelet's pull of an image that is there takes longer by: p99 in a slot, less p99 of the bare call."""
    image = Image.sized("bench/present", 1000)
    lab.push(image)
    reference = image.reference(lab.registry.address)
    plane = Plane(lab, folder, "kepd")
    through: list[float] = []
    bare: list[float] = []

    async def carry() -> CallerPullEnd:
        return CallerPullEnd(image_id=await plane.runtime.cri.pull_image(reference))

    async with asyncio.TaskGroup() as group:
        runner = group.create_task(plane.run())
        await bare_pull(plane, reference)
        for number in range(runs):
            began_s = time.perf_counter()
            await bare_pull(plane, reference)
            between_s = time.perf_counter()
            pod = PodIdentity(uid=f"u{number}", namespace="bench", name="p")
            await plane.puller.run_caller_pull(
                PullRequest(image=reference, policy=PullPolicy.ALWAYS, pod=pod), "public", carry
            )
            bare.append((between_s - began_s) * 1000)
            through.append((time.perf_counter() - between_s) * 1000)
        runner.cancel()
    await plane.close()
    last = int(runs * 0.99)
    return sorted(through)[last] - sorted(bare)[last]


async def following_percent(lab: Lab, folder: Path) -> float:
    """The share of one core that ten pulls take while their bytes trickle in: progress, limits, showing."""
    plane = Plane(lab, folder, "kepd", limit=10)
    references = []
    for number in range(10):
        image = Image.sized(f"bench/slow{number}", 30_000_000)
        lab.push(image)
        references.append(lab.throttled(image))
    async with asyncio.TaskGroup() as group:
        runner = group.create_task(plane.run())
        pulls = [group.create_task(plane_pull(plane, reference)) for reference in references]
        await asyncio.sleep(2.0)
        began_s, used_s = time.perf_counter(), time.process_time()
        await asyncio.sleep(FOLLOWED_S)
        used_s, took_s = time.process_time() - used_s, time.perf_counter() - began_s
        assert not any(pull.done() for pull in pulls)
        for pull in pulls:
            pull.cancel()
        await asyncio.wait(pulls)
        runner.cancel()
    await plane.close()
    return used_s / took_s * 100


async def one_for_many(lab: Lab, folder: Path) -> float:
    """A hundred pods want one image: requests for its layers, against one pull's."""
    image = Image.sized("bench/shared", 2_000_000)
    lab.push(image)
    reference = lab.throttled(image)
    plane = Plane(lab, folder, "kepd")
    lab.throttle.forget()
    async with asyncio.TaskGroup() as group:
        runner = group.create_task(plane.run())
        await asyncio.gather(*(plane_pull(plane, reference) for _ in range(100)))
        runner.cancel()
    await plane.close()
    asked = [one.path for one in lab.throttle.requests("bench/shared/blobs") if one.method == "GET"]
    return len(asked) / len(set(asked))


def queue_rows() -> list[Row]:
    """A thousand pulls that wait: memory, and one decision over them."""
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    queue = PullQueue(image_settings(Images()).queue)
    for number in range(1000):
        member = FlightMember(f"r{number}", number, 0.0, f"pod{number % 200}", 0, PullPolicy.IF_NOT_PRESENT, False)
        key = FlightKey(f"registry.example/image{number}:1", "", "public")
        queue.arrive(member, key, f"registry{number % 5}.example", number * 1000)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    times = []
    for _ in range(50):
        began_s = time.perf_counter()
        queue.plan(100.0)
        times.append((time.perf_counter() - began_s) * 1000)
    return [
        ("1 000 queued pulls: memory of the queue", (after - before) / 2**20, "MiB", "≤ 30"),
        ("1 000 queued pulls: one scheduling decision", statistics.median(times), "ms", "≤ 5"),
    ]


async def plane_mib() -> float:
    """What a thousand requests that wait cost in the whole plane: futures, tasks, feed; the runtime is a fake."""
    cri, clock = FakeCri(), FakeClock()

    async def stuck(_image: str, _auth: object) -> None:
        await asyncio.Event().wait()

    cri.while_pulling = stuck
    plane = build_plane(cri, FakeContainerd(), FakeStateFiles(), clock, settings=image_settings(Images(drain=0.0)))
    async with asyncio.TaskGroup() as group:
        runner = group.create_task(plane.puller.run(plane.report))
        await asyncio.sleep(0.1)
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1000):
            pod = PodIdentity(uid=f"u{number % 200}", namespace="bench", name=f"pod{number % 200}")
            image = f"registry{number % 5}.example/image{number}:1"
            group.create_task(plane.puller.request(PullRequest(image=image, policy=PullPolicy.IF_NOT_PRESENT, pod=pod)))
        while len(plane.puller.pulls.items) < 1000:
            await asyncio.sleep(0.01)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        runner.cancel()
    return (after - before) / 2**20


def measure() -> list[Row]:
    """All rows."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    arrival, learnt, probed = Rounds(), Rounds(), Rounds()
    with Lab.start() as lab, tempfile.TemporaryDirectory(prefix="kb") as name:
        batch = wishes(lab)
        lab.throttle.limit(total_bytes_s=None)
        batch_s(lab, Path(name) / "kepd", "kepd", batch)
        lab.throttle.limit(total_bytes_s=LINK_BYTES_S)
        for number in range(ROUNDS):
            arrival.add(batch_s(lab, Path(name) / "kubelet", "kubelet", batch))
            learnt.add(batch_s(lab, Path(name) / "kepd", "kepd", batch))
            probed.add(batch_s(lab, Path(name) / f"new{number}", "kepd", batch, "auto"))
        lab.throttle.limit(total_bytes_s=None)
        added_ms = asyncio.run(overhead_ms(lab, Path(name) / "overhead"))
        present = asyncio.run(present_ms(lab, Path(name) / "present"))
        shared = asyncio.run(one_for_many(lab, Path(name) / "shared"))
        lab.throttle.limit(total_bytes_s=SLOW_BYTES_S)
        following = asyncio.run(following_percent(lab, Path(name) / "slow"))
        lab.throttle.limit(total_bytes_s=None)
    return [
        ("mean time until a pod's images are there, first come first served", arrival.mean_s, "s", ""),
        ("last image there, first come first served", arrival.last_s, "s", ""),
        *learnt.against(arrival, "sizes known"),
        *probed.against(arrival, "sizes asked for"),
        ("the plane's share of one pull", added_ms, "ms", "≤ 10"),
        ("the same of a kubelet's pull of an image that is there", present, "ms p99", "≤ 5"),
        ("100 pods want one image: its layers are fetched", shared, "×", "1"),
        ("ten pulls on their way: following them", following, "% of a core", "≤ 1"),
        *queue_rows(),
        ("1 000 queued pulls: memory of the whole plane", asyncio.run(plane_mib()), "MiB", "≤ 30"),
    ]
