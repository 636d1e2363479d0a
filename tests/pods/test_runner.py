# SPDX-License-Identifier: Apache-2.0
import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from agent.drivers.clock.driver import SystemClock
from agent.drivers.cri.fake import FakeCri
from agent.drivers.manifests.fake import FakeManifestDirectory
from agent.model.component import Board, State
from agent.model.runtime_error import RuntimeCallFailed
from agent.model.runtime_event import EventKind, RuntimeEvent
from agent.pods.runner import PodRunner, PodSettings
from agent.wire.cri import runtime_v1_pb2 as pb

MANIFEST = b"""
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - {name: a, image: i}
  - {name: b, image: i}
"""


class NoEvents:
    """A runtime that tells nothing."""

    async def listen(self) -> AsyncIterator[RuntimeEvent]:
        yield RuntimeEvent(EventKind.LOST)
        await asyncio.Event().wait()


class Killed(BaseException):
    """The process ends between two steps."""


@pytest.fixture
def cri() -> FakeCri:
    fake = FakeCri()
    fake.registry.add("i")
    return fake


def runner(cri: Any, manifests: FakeManifestDirectory, logs: Path) -> PodRunner:
    settings = PodSettings(node="n", instance="me", name_suffix=True, log_directory=logs, cgroup_root="kepd")
    return PodRunner(cri, cri, manifests, NoEvents(), settings, clock=SystemClock())


async def settle(
    cri: Any, manifests: FakeManifestDirectory, logs: Path, seconds: float = 0.1
) -> tuple[PodRunner, Board]:
    board = Board(lambda: 0.0)
    pods = runner(cri, manifests, logs)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(pods.run(board.add("pods", State.STARTING, is_plane=True)))
        await asyncio.sleep(seconds)
        task.cancel()
    return pods, board


async def state(cri: FakeCri) -> list[tuple[str, int]]:
    return sorted((one.metadata.name, one.state) for one in await cri.list_containers())


async def test_a_pod_from_a_file_runs_and_is_shown(cri: FakeCri, tmp_path: Path) -> None:
    pods, board = await settle(cri, FakeManifestDirectory({"f": MANIFEST}), tmp_path)
    (shown,) = pods.pods.items.values()

    assert await state(cri) == [("a", pb.CONTAINER_RUNNING), ("b", pb.CONTAINER_RUNNING)]
    assert (shown.name, shown.phase, shown.ip) == ("web-n", "Running", "10.0.0.2")
    assert board.line("pods").message == "1 pods"
    assert cri.calls.count("PullImage") == 1


async def test_a_kill_after_any_step_and_a_restart_reach_the_same_end_and_restart_nothing(tmp_path: Path) -> None:
    """ADO-01: tried for every single call that changes the runtime."""
    for survived in range(1, 8):
        fake = FakeCri()
        fake.registry.add("i")
        changing = ("run_sandbox", "create_container", "start_container", "pull_image")
        dying = DyingRuntime(fake, changing, survived)
        with pytest.raises(BaseExceptionGroup) if survived < 7 else nullcontext():
            await settle(dying, FakeManifestDirectory({"f": MANIFEST}), tmp_path)
        started = {one.id for one in await fake.list_containers() if one.state == pb.CONTAINER_RUNNING}
        await settle(fake, FakeManifestDirectory({"f": MANIFEST}), tmp_path)
        running = {one.id for one in await fake.list_containers() if one.state == pb.CONTAINER_RUNNING}

        assert await state(fake) == [("a", pb.CONTAINER_RUNNING), ("b", pb.CONTAINER_RUNNING)], survived
        assert started <= running
        assert len(await fake.list_sandboxes()) == 1


class DyingRuntime:
    """Dies after some changes have been made."""

    def __init__(self, fake: FakeCri, changing: tuple[str, ...], survived: int) -> None:
        self._fake, self._changing, self._left = fake, changing, survived

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._fake, name)
        if name not in self._changing:
            return method

        async def counted(*args: Any, **kwargs: Any) -> Any:
            result = await method(*args, **kwargs)
            self._left -= 1
            if self._left == 0:
                raise Killed
            return result

        return counted


async def test_a_removed_file_ends_its_pod_and_no_other(cri: FakeCri, tmp_path: Path) -> None:
    manifests = FakeManifestDirectory({"f": MANIFEST, "g": MANIFEST.replace(b"web", b"db")})
    foreign = await cri.run_sandbox(pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(name="kubelet's")))
    await settle(cri, manifests, tmp_path)
    manifests.put("f", None)
    pods, _ = await settle(cri, manifests, tmp_path)

    assert [one.name for one in pods.pods.items.values()] == ["db-n"]
    assert foreign in [one.id for one in await cri.list_sandboxes()], "LBL-05: not ours, not touched"
    assert len(await cri.list_sandboxes()) == 2


async def test_a_broken_pod_says_why_and_the_others_run(cri: FakeCri, tmp_path: Path) -> None:
    broken = MANIFEST.replace(b"web", b"bad").replace(b"image: i", b"image: none")
    pods, board = await settle(cri, FakeManifestDirectory({"a": broken, "f": MANIFEST}), tmp_path)

    assert board.line("pods").state is State.DEGRADED
    assert "default/bad-n: create a of bad-n" in board.line("pods").message
    assert {one.name: one.phase for one in pods.pods.items.values()} == {"bad-n": "Pending", "web-n": "Running"}


async def test_without_a_runtime_the_plane_waits(cri: FakeCri, tmp_path: Path) -> None:
    cri.reachable = False
    _, board = await settle(cri, FakeManifestDirectory({"f": MANIFEST}), tmp_path)

    assert board.line("pods").state is State.DEGRADED
    assert "does not answer" in board.line("pods").message


async def test_a_step_that_fails_is_tried_again(cri: FakeCri, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.pods.runner.RETRY_S", 0.02)
    cri.failures["StartContainer"] = RuntimeCallFailed("StartContainer", "no more memory")
    _, board = await settle(cri, FakeManifestDirectory({"f": MANIFEST}), tmp_path, 0.3)

    assert board.line("pods").state is State.READY
    assert await state(cri) == [("a", pb.CONTAINER_RUNNING), ("b", pb.CONTAINER_RUNNING)]
