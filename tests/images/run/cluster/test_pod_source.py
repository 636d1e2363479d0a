# SPDX-License-Identifier: Apache-2.0
import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from agent.images.prefetch.plan import PodImage
from agent.images.run.cluster.pod_source import KubePods, pod_images
from agent.model.kube_objects import Pod
from agent.model.pods.ending import EndingPods
from tests.drivers.kube.fake import FakeKube


def pod(name: str, node: str = "n1", phase: str = "Pending", **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", **more},
        "spec": {
            "nodeName": node,
            "priority": 7,
            "initContainers": [{"name": "i", "image": "first:1"}],
            "containers": [{"name": "c", "image": "then:latest"}],
            "volumes": [{"name": "v", "image": {"reference": "volume:1"}}],
        },
        "status": {"phase": phase},
    }


async def followed(kube: FakeKube, change: Any) -> tuple[list[list[str]], list[str]]:
    gone: list[str] = []
    seen: list[list[str]] = []

    async def follow() -> None:
        source = KubePods(kube, "n1", gone.append)  # type: ignore[arg-type]
        async for images in source.snapshots():
            seen.append(named(images))

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        await asyncio.sleep(0.02)
        await change()
        await asyncio.sleep(0.02)
        task.cancel()
    return seen, gone


def named(images: Sequence[PodImage]) -> list[str]:
    return [f"{one.pod.name}:{one.image}:{one.policy}:{one.priority}" for one in images if not one.is_started]


async def test_images_of_waiting_pods_of_this_node_come_in_the_order_of_need() -> None:
    """IMG-F01, IMG-S21."""
    kube = FakeKube()
    kube.put("pods", pod("web"))
    kube.put("pods", pod("other", node="n2"))
    kube.put("pods", pod("running", phase="Running"))

    async def nothing() -> None:
        return None

    seen, gone = await followed(kube, nothing)

    assert seen[-1] == ["web:volume:1:IfNotPresent:7", "web:first:1:IfNotPresent:7", "web:then:latest:Always:7"]
    assert gone == []


def test_pods_that_run_and_static_ones_keep_their_priority_and_policy() -> None:
    """FI-14: a kubelet's pull of either went by priority 0; what is over needs nothing any more."""
    mirror = {"kubernetes.io/config.hash": "uid-of-the-file", "kubernetes.io/config.mirror": "x"}
    decode = partial(msgspec.convert, type=Pod)
    running, static, over = (
        list(pod_images(decode(pod("p", phase=phase, **more))))
        for phase, more in (("Running", {}), ("Running", {"annotations": mirror}), ("Succeeded", {}))
    )

    assert {(one.pod.uid, one.priority, one.is_started) for one in running} == {("uid-p", 7, True)}
    assert {(one.pod.uid, one.priority) for one in static} == {("uid-of-the-file", 7)}
    assert over == []


async def test_a_pod_that_goes_is_told_and_an_outage_changes_nothing() -> None:
    """IMG-S17."""
    kube = FakeKube()
    kube.put("pods", pod("web"))
    kube.put("pods", pod("db"))

    async def change() -> None:
        kube.put("pods", pod("web", deletionTimestamp="2026-01-01T00:00:00Z"))
        await asyncio.sleep(0.02)
        kube.break_off()

    seen, gone = await followed(kube, change)

    assert gone == ["uid-web"]
    assert {line.partition(":")[0] for line in seen[-1]} == {"db"}


async def test_whoever_is_evicted_ends_too_and_keeps_its_pulls_until_it_is_deleted() -> None:
    """STO-3 (d)."""
    kube, gone, ending = FakeKube(), list[str](), EndingPods()
    for name in ("stays", "evicted", "deleted", "removed"):
        kube.put("pods", pod(name, phase="Running"))

    async def follow() -> None:
        async for _ in KubePods(kube, "n1", gone.append, ending.note).snapshots():  # type: ignore[arg-type]
            pass

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        await asyncio.sleep(0.02)
        kube.put("pods", pod("evicted", phase="Failed"))
        kube.put("pods", pod("deleted", phase="Running", deletionTimestamp="2026-01-01T00:00:00Z"))
        kube.delete("pods", "removed", "default")
        await asyncio.sleep(0.02)
        task.cancel()

    assert [name for name in ("stays", "evicted", "deleted", "removed") if f"uid-{name}" in ending] == [
        "evicted", "deleted", "removed",
    ]  # fmt: skip
    assert gone == ["uid-deleted", "uid-removed"]


def test_only_so_many_are_remembered() -> None:
    ending, heard = EndingPods(), list[str]()
    ending._listeners.append(heard.append)
    for number in range(1500):
        ending.note(f"u{number}")
        ending.note(f"u{number}")

    assert len(heard) == 1500
    assert ("u0" in ending, "u1499" in ending) == (False, True)


async def test_why_there_is_no_news_is_known_as_long_as_it_lasts() -> None:
    """DS-02: a right that is missing shows in /readyz, not only in the log."""
    kube = FakeKube()
    kube.put("pods", pod("web"))
    source = KubePods(kube, "n1", lambda _: None)  # type: ignore[arg-type]
    told: list[str] = []

    async def follow() -> None:
        async for images in source.snapshots():
            assert len(images) == 3
            told.append(source.trouble)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        await asyncio.sleep(0.02)
        kube.break_off()
        await asyncio.sleep(0.02)
        kube.restore()
        await asyncio.sleep(0.02)
        task.cancel()

    assert [bool(one) for one in told] == [False, True, False]
