# SPDX-License-Identifier: Apache-2.0
"""Pulls on a slow link: how soon a pod's images are all there, in kepd's order and first come first served.

A batch of 20 images of 2 to 120 MB for 15 pods, one of which has 6, arrives at once at a real containerd whose
registry is limited to 40 MB/s in total. Sizes are known from an earlier pull, as on any node that has pulled the
repositories before. Further rows: what the plane itself costs per pull, per decision, and per queued pull.
"""

import asyncio
import gc
import logging
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent.config.document import Configuration, Images, Node
from agent.daemon.image_wiring import ImagePlane, Outside, wire_images
from agent.drivers.clock.driver import SystemClock
from agent.drivers.containerd.driver import Containerd
from agent.drivers.cri.driver import CriRuntime
from agent.images.flights import FlightKey, Member
from agent.images.queue import PullQueue
from agent.images.settings import image_settings
from agent.model.component import Board, State
from agent.model.image_pull import PodIdentity, PullPolicy, PullRequest
from tests.lab import Image, Lab

Row = tuple[str, float, str, str]
LINK_BYTES_S = 40_000_000
LIMIT = 3
ROUNDS = 3
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

    def __init__(self, lab: Lab, folder: Path, profile: str) -> None:
        images = Images(max_parallel_pulls=LIMIT, profile=profile, size_probe="off", critical_reserve=0)
        configuration = Configuration(node=Node(name="bench", state_directory=str(folder)), images=images)
        self.cri, self.containerd = CriRuntime(lab.endpoint), Containerd(lab.endpoint)
        outside = Outside(cri=self.cri, containerd=self.containerd, clock=SystemClock(), environment={})
        self.plane: ImagePlane = wire_images(configuration, outside)
        board = Board(time.time)
        self.reports = [board.add(name, State.STARTING) for name in ("pulls", "collection", "prefetch")]

    async def close(self) -> None:
        await self.cri.close()
        await self.containerd.close()


async def batch_s(lab: Lab, folder: Path, profile: str, batch: list[Wish]) -> dict[str, float]:
    """Seconds until all images of each pod are there."""
    for wish in batch:
        lab.cri.remove_image(wish.image)
    plane = Plane(lab, folder, profile)
    done: dict[str, float] = {}
    async with asyncio.TaskGroup() as group:
        runner = group.create_task(plane.plane.run(*plane.reports))
        began_s = time.monotonic()

        async def pull(wish: Wish) -> None:
            request = PullRequest(
                image=wish.image,
                policy=PullPolicy.IF_NOT_PRESENT,
                pod=PodIdentity(uid=wish.pod, namespace="bench", name=wish.pod),
            )
            outcome = await plane.plane.puller.request(request)
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


async def overhead_ms(lab: Lab, folder: Path, runs: int = 30) -> float:
    """What the plane adds to a pull of a small image: through it, less the same pull by CRI alone, medians."""
    image = Image.sized("bench/small", 1000)
    lab.push(image)
    reference = image.reference(lab.registry.address)
    plane = Plane(lab, folder, "kepd")
    through, bare = [], []
    async with asyncio.TaskGroup() as group:
        runner = group.create_task(plane.plane.run(*plane.reports))
        for _ in range(runs):
            for times, pull in ((bare, bare_pull), (through, plane_pull)):
                lab.cri.remove_image(reference)
                began_s = time.perf_counter()
                await pull(plane, reference)
                times.append((time.perf_counter() - began_s) * 1000)
        runner.cancel()
    await plane.close()
    return statistics.median(through) - statistics.median(bare)


async def bare_pull(plane: Plane, reference: str) -> None:
    await plane.cri.pull_image(reference)


async def plane_pull(plane: Plane, reference: str) -> None:
    outcome = await plane.plane.puller.request(PullRequest(image=reference, policy=PullPolicy.IF_NOT_PRESENT))
    assert outcome.image_id, outcome


def queue_rows() -> list[Row]:
    """A thousand pulls that wait: memory, and one decision over them."""
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    queue = PullQueue(image_settings(Images()).queue)
    for number in range(1000):
        member = Member(f"r{number}", number, 0.0, f"pod{number % 200}", 0, PullPolicy.IF_NOT_PRESENT, False)
        key = FlightKey(f"registry.example/image{number}:1", "", "public")
        queue.arrive(member, key, f"registry{number % 5}.example", number * 1000)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    times = []
    for _ in range(20):
        began_s = time.perf_counter()
        queue.plan(100.0)
        times.append((time.perf_counter() - began_s) * 1000)
    return [
        ("1 000 queued pulls: memory of the queue", (after - before) / 2**20, "MiB", "≤ 30"),
        ("1 000 queued pulls: one scheduling decision", statistics.median(times), "ms", "≤ 5"),
    ]


def middle(values: Iterable[float]) -> float:
    """Median."""
    return statistics.median(list(values))


def measure() -> list[Row]:
    """All rows."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with Lab.start() as lab, tempfile.TemporaryDirectory(prefix="kb") as name:
        batch = wishes(lab)
        lab.throttle.limit(total_bytes_s=None)
        learned = Path(name) / "kepd"
        asyncio.run(batch_s(lab, learned, "kepd", batch))
        lab.throttle.limit(total_bytes_s=LINK_BYTES_S)
        ordered, arrival = [], []
        for _ in range(ROUNDS):
            arrival.append(asyncio.run(batch_s(lab, Path(name) / "kubelet", "kubelet", batch)))
            ordered.append(asyncio.run(batch_s(lab, learned, "kepd", batch)))
        lab.throttle.limit(total_bytes_s=None)
        added_ms = asyncio.run(overhead_ms(lab, Path(name) / "overhead"))
    mean, mean_arrival = (middle(statistics.mean(one.values()) for one in runs) for runs in (ordered, arrival))
    last, last_arrival = (middle(max(one.values()) for one in runs) for runs in (ordered, arrival))
    return [
        ("mean time until a pod's images are there, first come first served", mean_arrival, "s", ""),
        ("mean time until a pod's images are there, kepd", mean, "s", ""),
        ("kepd is earlier by", (1 - mean / mean_arrival) * 100, "%", "≥ 30"),
        ("last image there, first come first served", last_arrival, "s", ""),
        ("last image there, kepd against that", (last / last_arrival - 1) * 100, "%", "≤ 5"),
        ("the plane's share of one pull", added_ms, "ms", "≤ 10"),
        *queue_rows(),
    ]
