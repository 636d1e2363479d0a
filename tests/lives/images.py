# SPDX-License-Identifier: Apache-2.0
"""Images on a node: one is pulled while others wait, a pull fails, a disk fills and is emptied."""

from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace
from prometheus_client.core import Metric

from agent.model.images.store import BlobInfo, Filesystem, Ingest
from agent.model.runtime.error import RuntimeCallFailed
from tests.images.run.test_node import LAYERS, label, manifest
from tests.images.run.test_providers import plugin, provider
from tests.images.run.test_puller import A, B, Node
from tests.lives.figures import Watched, until

GIB = 2**30


class LivingNode(Node):
    """With a credential plugin that fails, and figures as the daemon shows them."""

    def __init__(self, folder: Path) -> None:
        plugin(folder, "import sys; sys.exit(3)")
        super().__init__(max_parallel_pulls=1)
        self.extra = {"providers": (provider(patterns=("r.io",)),), "plugin_folder": folder}
        self.start()

    def families(self) -> Iterable[Metric]:
        collector = self.plane.collector
        gauges = replace(
            self.puller.gauges(),
            disk=collector.disk,
            images=collector.counts(),
            collected_at_s=collector.collected_at_s,
        )
        return [*self.plane.metrics.families(gauges), *self.plane.metrics.kubelet_families()]


async def images_life(folder: Path) -> set[str]:
    """What moved."""
    node = LivingNode(folder)
    async with node.up():
        watched = Watched(node.families)
        await a_pull_that_others_wait_for(node, watched)
        await a_pull_that_fails(node, watched)
        await a_collection(node, watched)
    return watched.moved


async def a_pull_that_others_wait_for(node: LivingNode, watched: Watched) -> None:
    """Its layers come one by one; the runtime unpacks the last one after it has all bytes."""
    gate = node.hold(A)
    first = node.ask(A)
    await node.until(lambda: A in node.running)
    second = node.ask(B, "p2")
    await node.until(lambda: B in node.states())
    content = manifest(*LAYERS)
    node.containerd.put_blob(BlobInfo(LAYERS[0], 100, 0.0, label("b")))
    node.containerd.put_blob(BlobInfo("sha256:m", len(content), node.clock.wall_s(), label("a")), content)
    node.containerd.ingests = [Ingest(f"layer-{LAYERS[1]}", 40, 100)]
    await node.clock.advance(5)
    watched.look()
    node.containerd.ingests = []
    node.containerd.put_blob(BlobInfo(LAYERS[1], 100, node.clock.wall_s()))
    await node.clock.advance(5)
    gate.set()
    assert (await first).is_ok
    assert (await second).is_ok
    node.puller.set_limit("", 2)
    watched.look()


async def a_pull_that_fails(node: LivingNode, watched: Watched) -> None:
    """Its key is in back-off then."""
    missing = "r.io/missing:1"
    node.failures[missing] = [RuntimeCallFailed("PullImage", "connection refused")]
    assert not (await node.ask(missing, "p3")).is_ok
    await until(lambda: node.puller.gauges().backoff_entries)
    watched.look()


async def a_collection(node: LivingNode, watched: Watched) -> None:
    """Each removal makes room that is measured."""
    remove = node.cri.remove_image

    async def removing(image: str) -> None:
        await remove(image)
        node.files.disk = replace(node.files.disk, available_bytes=node.files.disk.available_bytes + GIB)

    node.cri.remove_image = removing  # type: ignore[method-assign]
    await node.plane.collector.refresh()
    watched.look()
    await node.clock.advance(200)
    node.files.disk = Filesystem(capacity_bytes=100 * GIB, available_bytes=5 * GIB, inodes=1000, free_inodes=800)
    await node.plane.collector.collect()
    watched.look()
