# SPDX-License-Identifier: Apache-2.0
"""The watcher with a hundred pulls at once: what it asks for, and that others get their turn between two of them."""

import asyncio
import json
from contextlib import suppress

from agent.images.run.pulling.watcher import SOURCE_LABEL, ProgressWatcher
from agent.model.images.reference import parse_reference
from agent.model.images.store import BlobInfo, Ingest
from agent.model.runtime.error import Unavailable
from tests.fakes.clock import FakeClock
from tests.fakes.containerd import FakeContainerd

PULLS, LAYERS = 100, 20
REGISTRY = "r.example.org"


def digest(kind: str, pull: int, layer: int = 0) -> str:
    return f"sha256:{kind}{pull:031d}{layer:032d}"


class Store(FakeContainerd):
    """With a manifest and an ingest for each layer of each pull."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.lists = 0
        for pull in range(PULLS):
            layers = [{"digest": digest("a", pull, layer), "size": 1000} for layer in range(LAYERS)]
            content = json.dumps({"config": {"digest": digest("c", pull), "size": 1}, "layers": layers}).encode()
            labels = {SOURCE_LABEL + REGISTRY: f"image{pull}"}
            self.put_blob(BlobInfo(digest("d", pull), len(content), clock.wall_s(), labels), content)
            self.ingests += [Ingest(f"layer-{one['digest']}", 500, 1000) for one in layers]

    async def list_blobs(self, label: str) -> list[BlobInfo]:
        self.lists += 1
        return await super().list_blobs(label)


async def test_a_hundred_pulls_are_listed_once_and_leave_the_loop_to_others() -> None:
    """FI-23: the proxy's calls run in the same loop."""
    clock = FakeClock()
    store = Store(clock)
    watcher = ProgressWatcher(store, clock=clock)
    for number in range(PULLS):
        watcher.follow(number, parse_reference(f"{REGISTRY}/image{number}:1"))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(watcher.run()), group.create_task(others())]
        while watcher.progress(PULLS - 1).percent is None:
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()

    assert store.lists == 1
    assert turns >= PULLS
    assert {watcher.progress(number).percent for number in range(PULLS)} == {54}


async def test_a_runtime_that_does_not_name_its_snapshotter_is_followed_all_the_same() -> None:
    """IMG-T08."""

    async def unknown() -> frozenset[str]:
        raise Unavailable("Status", "connection refused")

    clock = FakeClock()
    watcher = ProgressWatcher(Store(clock), clock=clock, snapshotters=unknown)
    watcher.follow(0, parse_reference(f"{REGISTRY}/image0:1"))
    running = asyncio.ensure_future(watcher.run())
    async with asyncio.timeout(30):
        while not watcher.is_visible:
            await asyncio.sleep(0.001)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
