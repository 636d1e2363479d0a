# SPDX-License-Identifier: Apache-2.0
"""A container that is being started when kepd ends: nothing of it is lost, and nothing runs twice."""

import asyncio
from pathlib import Path

import pytest

from agent.model.runtime.error import RuntimeCallFailed, Unavailable
from agent.pods.run.handlers import interrupts
from agent.pods.run.handlers.interrupts import unbroken
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import News, Plane, Slow, running

POD = """apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  restartPolicy: POLICY
  containers: [{name: app, image: i}]
"""
JOB = b"""apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  backoffLimit: 0
  template: {spec: {restartPolicy: Never, containers: [{name: app, image: i}]}}
"""


class Starting(Slow):
    """Starts take as long as the test says. `breaks` is what becomes of the next one: containerd marks a container
    whose start is abandoned, or fails, as one that ended."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_start = asyncio.Event(), asyncio.Event()
        self.breaks: RuntimeCallFailed | None = None
        self.ran: list[str] = []

    async def start_container(self, container_id: str) -> None:
        self.asked.set()
        await self.may_start.wait()
        if self.breaks is not None:
            broken, self.breaks = self.breaks, None
            status = self._containers[container_id]
            status.state, status.exit_code, status.reason = pb.CONTAINER_EXITED, 128, "StartError"
            status.finished_at = self._now_ns()
            raise broken
        await super().start_container(container_id)
        self.ran.append(container_id)


def manifests_of(policy: str) -> FakeManifestDirectory:
    content = JOB if policy == "Job" else POD.replace("POLICY", policy).encode()
    return FakeManifestDirectory({"web.yaml": content})


def only(plane: Plane) -> str:
    return next(iter(plane.phases.values()), "")


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always", "Job"])
async def test_a_start_ends_before_kepd_does(tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NP-9: on SIGTERM."""
    monkeypatch.setattr(interrupts, "LONGEST_END_S", 30.0)
    cri, manifests = Starting(), manifests_of(policy)
    async with running(cri, manifests, tmp_path / "logs"):
        await asyncio.wait_for(cri.asked.wait(), 30)
        asyncio.get_running_loop().call_later(0.05, cri.may_start.set)

    assert len(cri.ran) == 1
    async with running(cri, manifests, tmp_path / "logs", events=News(cri)) as plane:
        await plane.until(lambda: only(plane) == "Running", "it goes on")
        cri.exit(cri.ran[0], 0)
        if policy not in ("Always", "Job"):
            await plane.until(lambda: only(plane) == "Succeeded", "it is done")
    assert len(cri.ran) == 1 or policy == "Always"


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always", "Job"])
async def test_a_start_that_broke_off_counts_as_not_begun(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NP-9: on kill -9, and where the runtime itself starts anew."""
    monkeypatch.setattr(interrupts, "LONGEST_END_S", 30.0)
    cri, manifests = Starting(), manifests_of(policy)
    async with running(cri, manifests, tmp_path / "logs"):
        await asyncio.wait_for(cri.asked.wait(), 30)
        cri.breaks = Unavailable("StartContainer", "context canceled")
        asyncio.get_running_loop().call_later(0.05, cri.may_start.set)

    assert cri.ran == []
    async with running(cri, manifests, tmp_path / "logs", events=News(cri)) as plane:
        await plane.until(lambda: cri.ran, "it begins again")
        await plane.until(lambda: only(plane) == "Running", "it runs")
        state = next(iter(plane.runner.pods.items.values()))
    assert state.containers[0].restart_count == 0


async def test_a_start_that_the_runtime_refused_is_one_that_failed(tmp_path: Path) -> None:
    """NP-9: a program that is not there is not tried for ever, also by a later kepd."""
    cri, manifests = Starting(), manifests_of("Never")
    cri.breaks = RuntimeCallFailed("StartContainer", "exec: nothing: not found")
    cri.may_start.set()
    async with running(cri, manifests, tmp_path / "logs") as plane:
        await plane.until(lambda: only(plane) == "Failed", "it has failed")
    async with running(cri, manifests, tmp_path / "logs") as plane:
        await plane.until(lambda: only(plane) == "Failed", "it is still so")
        await plane.rounds()

    assert cri.ran == []
    assert cri.calls.count("CreateContainer") == 1


async def test_an_end_does_not_wait_for_ever() -> None:
    is_broken = []

    async def call() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            is_broken.append(True)
            raise

    task = asyncio.create_task(unbroken(call()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)

    assert is_broken == [True]
