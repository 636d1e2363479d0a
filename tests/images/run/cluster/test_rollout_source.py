# SPDX-License-Identifier: Apache-2.0
"""Images of the next pods of workloads that have one on this node."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

from agent.images.run.cluster.rollout_source import SPREAD_S, KubeRollouts
from tests.drivers.kube.fake import FakeKube
from tests.fakes.clock import FakeClock


def workload(name: str, image: str) -> dict[str, Any]:
    template = {
        "spec": {"containers": [{"name": "c", "image": image}], "initContainers": [{"name": "i", "image": "i:1"}]}
    }
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"template": template}}


def pod(name: str, owner: dict[str, Any], node: str = "n1") -> dict[str, Any]:
    labels = {"pod-template-hash": "abc12"}
    meta = {"name": name, "namespace": "default", "labels": labels, "ownerReferences": [owner | {"controller": True}]}
    return {"metadata": meta, "spec": {"nodeName": node}, "status": {"phase": "Running"}}


WEB = {"kind": "ReplicaSet", "name": "web-abc12"}
AGENT = {"kind": "DaemonSet", "name": "agent"}


class World:
    """A cluster, and what was told of it last."""

    def __init__(self) -> None:
        self.kube, self.clock = FakeKube(), FakeClock()
        self.told: list[str] = []
        self.times = 0

    def tell(self, images: Any) -> None:
        self.told = [one.image for one in images]
        self.times += 1

    @asynccontextmanager
    async def up(self) -> Any:
        source = KubeRollouts(self.kube, "n1", clock=self.clock)  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as group:
            task = group.create_task(source.follow(self.tell))
            await self.settle()
            yield self
            task.cancel()

    async def settle(self, pass_s: float = 0.0) -> None:
        await asyncio.sleep(0.02)
        if pass_s:
            await self.clock.advance(pass_s)
            await asyncio.sleep(0.02)


async def test_new_images_of_workloads_with_a_pod_here_come_within_a_minute() -> None:
    """IMG-F07: of Deployments by the name of their ReplicaSet, of DaemonSets by their own."""
    world = World()
    world.kube.put("pods", pod("web-abc12-x", WEB))
    world.kube.put("pods", pod("agent-x", AGENT))
    world.kube.put("pods", pod("other-x", {"kind": "ReplicaSet", "name": "other-abc12"}, node="n2"))
    world.kube.put("deployments", workload("web", "web:2"))
    world.kube.put("deployments", workload("other", "other:2"))
    world.kube.put("daemonsets", workload("agent", "agent:2"))
    async with world.up():
        at_first = list(world.told)
        await world.settle(SPREAD_S)
        after = sorted(set(world.told))
        world.kube.put("daemonsets", workload("agent", "agent:3"))
        await world.settle(SPREAD_S)

        assert len(at_first) < 4
        assert after == ["agent:2", "i:1", "web:2"]
        assert sorted(set(world.told)) == ["agent:3", "i:1", "web:2"]

        world.kube.delete("pods", "agent-x", "default")
        await world.settle()

        assert sorted(set(world.told)) == ["i:1", "web:2"]


async def test_what_does_not_change_an_image_wakes_nobody() -> None:
    """IMG-F07: a rollout is mostly changes of status."""
    world = World()
    world.kube.put("pods", pod("web-abc12-x", WEB))
    world.kube.put("deployments", workload("web", "web:2"))
    async with world.up():
        await world.settle(SPREAD_S)
        times = world.times
        for number in range(5):
            world.kube.put("deployments", workload("web", "web:2") | {"status": {"replicas": number}})
            world.kube.put("deployments", workload("unknown", f"unknown:{number}"))
        await world.settle()

        assert world.times == times


async def test_nodes_do_not_fetch_all_at_once() -> None:
    """IMG-F07: spread over a minute, the same for a node each time."""
    rollouts = [KubeRollouts(None, f"n{number}", clock=None) for number in range(50)]  # type: ignore[arg-type]
    delays = [one._delay_s("web:2") for one in rollouts]

    assert delays == [one._delay_s("web:2") for one in rollouts]
    assert min(delays) >= 0
    assert max(delays) < SPREAD_S
    assert max(delays) - min(delays) > SPREAD_S / 2
