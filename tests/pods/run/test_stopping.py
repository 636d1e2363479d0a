# SPDX-License-Identifier: Apache-2.0
"""What the end of a pod looks for before it takes the pod for ended, and what it asks the runtime."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from agent.model.runtime.event import EventKind
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import News, Slow, manifest, running


class Leaving(Slow):
    """A runtime that stops sandboxes and leaves running what is in them."""

    async def stop_sandbox(self, sandbox_id: str) -> None:
        left = {one.id for one in self._containers.values() if one.state == pb.CONTAINER_RUNNING}
        await super().stop_sandbox(sandbox_id)
        for container_id in left:
            self._containers[container_id].state = pb.CONTAINER_RUNNING


async def test_what_still_runs_after_its_sandbox_was_stopped_is_killed_before_the_pod_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FP-19, TRM-19: also a container that kepd never knew of."""
    monkeypatch.setattr("agent.pods.run.one_pod.stopping.RETRY_S", 0.01)
    cri, given = Leaving(), FakeManifestDirectory({"/m/f.yaml": manifest("web", "i")})
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running")
        (sandbox,) = await cri.list_sandboxes()
        config = pb.ContainerConfig(metadata=pb.ContainerMetadata(name="stray"), image=pb.ImageSpec(image="i"))
        stray = await cri.create_container(sandbox.id, config, pb.PodSandboxConfig())
        await cri.start_container(stray)
        given.put("/m/f.yaml", None)
        await plane.until(lambda: not plane.phases, "the pod is gone")

    assert ("stray", 0) in cri.stops
    assert [one.message for one in plane.events if one.reason == "FailedKillPod"] == [
        "error killing pod: 1 of its containers still ran after the sandbox was stopped; kepd kills them"
    ]


class Early(Slow):
    """A runtime that says that a container has ended before its own books have it, as containerd does."""

    async def stop_container(self, container_id: str, grace_s: int) -> None:
        self._tell(EventKind.STOPPED, container_id, 0)
        await asyncio.sleep(0.3)
        await super().stop_container(container_id, grace_s)


@pytest.mark.parametrize("kind", [Slow, Early])
async def test_the_end_of_a_pod_asks_the_runtime_for_little(kind: type[Slow], tmp_path: Path) -> None:
    """FP-23: while the call that ends a container is under way, looks at that container say nothing yet."""
    cri, given = kind(), FakeManifestDirectory({"/m/f.yaml": manifest("web", "i", "i")})
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await plane.until_phases(web="Running")
        await plane.rounds()
        cri.calls.clear()
        given.put("/m/f.yaml", None)
        await plane.until(lambda: not plane.phases, "the pod is gone")
        asked = Counter(cri.calls)

    # Two of them are the runtime of the test asking itself.
    assert asked["ContainerStatus"] <= 4, asked
    assert asked["StopContainer"] == 2
    assert asked["ListContainers"] + asked["ListPodSandbox"] <= 2, asked


class Leisurely(Slow):
    """A runtime that takes its time to take a sandbox down, and remembers how many were under way at once."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = self.most = 0

    async def stop_sandbox(self, sandbox_id: str) -> None:
        if self._sandboxes[sandbox_id].state == pb.SANDBOX_READY:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            await asyncio.sleep(0.05)
            self.under_way -= 1
        await super().stop_sandbox(sandbox_id)


async def test_containers_end_before_the_networks_of_others_are_taken_down(tmp_path: Path) -> None:
    """FP-23: no more sandboxes at once than there are processors; no container waits for them."""
    names = [f"p{number}" for number in range(6)]
    cri = Leisurely()
    given = FakeManifestDirectory({f"/m/{name}.yaml": manifest(name, "i") for name in names})
    async with running(cri, given, tmp_path, cpus=2) as plane:
        await plane.until_phases(**dict.fromkeys(names, "Running"))
        for name in names:
            given.put(f"/m/{name}.yaml", None)
        await plane.until(lambda: len(cri.stops) == 6, "all containers are asked to end")
        ended_first = cri.calls.count("StopPodSandbox")
        await plane.until(lambda: not plane.phases, "all pods are gone")

    assert cri.most <= 2
    assert ended_first < 6
