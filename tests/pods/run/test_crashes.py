# SPDX-License-Identifier: Apache-2.0
"""kepd dies after every single step of a start and of an end, and another one goes on.

Every call that changes the runtime is a step; the process ends right after it, before anything can be noted.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.model.runtime.error import Unavailable
from agent.pods.plan.remembered import PodOutcome
from agent.pods.run.one_pod.keeper import PodWorker
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import DISKS, Dying, News, Plane, Slow, running
from tests.pods.run.test_runner import log_directories

POD = b"""
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 7
  initContainers:
  - {name: setup, image: "i:1"}
  - {name: net, image: "i:1", restartPolicy: Always, lifecycle: {preStop: {exec: {command: [flush]}}}}
  - {name: log, image: "i:1", restartPolicy: Always}
  containers:
  - {name: app, image: "i:1", lifecycle: {postStart: {exec: {command: [begin]}}, preStop: {exec: {command: [drain]}}}}
  - {name: web, image: "i:1"}
"""
START = ("run_sandbox", "pull_image", "create_container", "start_container", "exec_sync")
END = ("exec_sync", "stop_container", "stop_sandbox", "remove_sandbox")
# One sandbox, one pull, five containers made and started, one postStart.
START_STEPS = 13
# Two hooks, four containers, the sandbox stopped and removed.
END_STEPS = 8


class Runtime(Slow):
    """Init containers end well as soon as they run; commands and starts are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.registry.add("i:1")
        self.commands: Counter[str] = Counter()
        self.started: Counter[str] = Counter()

    async def start_container(self, container_id: str) -> None:
        await super().start_container(container_id)
        name = self._containers[container_id].metadata.name
        self.started[name] += 1
        if name == "setup":
            self.exit(container_id, 0)

    async def exec_sync(self, container_id: str, command: list[str], timeout_s: int) -> pb.ExecSyncResponse:
        answer = await super().exec_sync(container_id, command, timeout_s)
        self.commands[command[0]] += 1
        return answer

    def running(self) -> dict[str, str]:
        return {one.id: one.metadata.name for one in self._containers.values() if one.state == pb.CONTAINER_RUNNING}


ALL = ["app", "log", "net", "web"]


@pytest.mark.parametrize("survived", range(1, START_STEPS + 1))
async def test_a_start_goes_on_after_any_step(survived: int, tmp_path: Path) -> None:
    """ADO-01, STA-09, HOK-12: all run, none twice, nothing that ran is started anew, and hooks come at most once."""
    runtime, given = Runtime(), FakeManifestDirectory({"/m/f.yaml": POD})
    with pytest.raises(BaseExceptionGroup):
        async with running(Dying(runtime, START, survived), given, tmp_path) as plane:
            await plane.until(lambda: False, "the kill")
    before = runtime.running()
    async with running(runtime, given, tmp_path) as plane:
        await plane.until_phases(web="Running")
        await plane.until(lambda: sorted(runtime.running().values()) == ALL, "all run")
        await plane.until_ready()

    assert before.items() <= runtime.running().items()
    assert runtime.started == Counter([*ALL, "setup"])
    assert runtime.commands == Counter(["begin"])
    assert len(runtime._sandboxes) == 1


class StillStarting(Runtime):
    """Shows a container as made, and right after carries out the start that was asked for before the kill."""

    def __init__(self) -> None:
        super().__init__()
        self.is_late = False

    async def container_status(self, container_id: str) -> pb.ContainerStatus:
        shown = await super().container_status(container_id)
        if self.is_late and shown.state == pb.CONTAINER_CREATED:
            self.is_late = False
            # Not by `start_container`: its event would tell what has to be found out by looking.
            self._containers[container_id].state = pb.CONTAINER_RUNNING
            self.started[shown.metadata.name] += 1
        return shown


async def test_a_start_under_way_at_the_kill_is_not_done_twice(tmp_path: Path) -> None:
    """ADO-01, STA-09: what was shown as made runs by the time it would be taken away; it stays."""
    runtime, given = StillStarting(), FakeManifestDirectory({"/m/f.yaml": POD})
    with pytest.raises(BaseExceptionGroup):
        async with running(Dying(runtime, ("create_container",), 2), given, tmp_path) as plane:
            await plane.until(lambda: False, "the kill")
    runtime.is_late = True
    async with running(runtime, given, tmp_path) as plane:
        await plane.until(lambda: sorted(runtime.running().values()) == ALL, "all run")
        await plane.until_ready()

    assert runtime.started == Counter([*ALL, "setup"])


@pytest.mark.parametrize("survived", range(1, END_STEPS + 1))
async def test_an_end_goes_on_after_any_step(survived: int, tmp_path: Path) -> None:
    """TRM-23, TRM-31: order kept, no hook twice, nothing left."""
    runtime, given = Runtime(), FakeManifestDirectory({"/m/f.yaml": POD})
    async with running(runtime, given, tmp_path) as plane:
        await plane.until_phases(web="Running")
        await plane.until(lambda: sorted(runtime.running().values()) == ALL, "all run")
        await plane.until_ready()
    given.put("/m/f.yaml", None)
    with pytest.raises(BaseExceptionGroup):
        async with running(Dying(runtime, END, survived), given, tmp_path) as plane:
            await plane.until(lambda: False, "the kill")
    async with running(runtime, given, tmp_path) as plane:
        await plane.until(lambda: not runtime._sandboxes and not DISKS[tmp_path].files, "all is gone")
        await plane.until(lambda: not plane.phases, "nothing is shown")

    asked = list(dict.fromkeys(name for name, _ in runtime.stops))
    assert sorted(asked[:2]) == ["app", "web"]
    assert asked[2:] == ["log", "net"]
    assert runtime.commands == Counter(["begin", "drain", "flush"])
    assert all(grace_s <= 7 for _, grace_s in runtime.stops)
    assert log_directories(tmp_path) == []


class Forgetful(Runtime):
    """Cannot be asked about containers right after one was started, and not about its end either."""

    def __init__(self) -> None:
        super().__init__()
        self.lost_looks = 0

    async def start_container(self, container_id: str) -> None:
        await super().start_container(container_id)
        if self.started == Counter(["setup"]):
            self.lost_looks = 2

    async def container_status(self, container_id: str) -> pb.ContainerStatus:
        if self.lost_looks:
            self.lost_looks -= 1
            raise Unavailable("ContainerStatus", "Connection refused")
        return await super().container_status(container_id)


async def test_what_ran_while_nobody_could_look_is_no_problem_any_more(tmp_path: Path) -> None:
    """An init container that was started, and ended well, when the runtime had gone for a moment."""
    runtime, given = Forgetful(), FakeManifestDirectory({"/m/f.yaml": POD})
    async with running(runtime, given, tmp_path) as plane:
        await plane.until(lambda: sorted(runtime.running().values()) == ALL, "all run")
        await plane.until_ready()
        setup = plane.pod().containers[0]

    assert (setup.state, setup.reason) == ("Terminated", "Completed")
    assert runtime.started == Counter([*ALL, "setup"])


class Breaking(Runtime):
    """Loses every question about a container while a preStop hook is told to have failed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = False

    async def exec_sync(self, container_id: str, command: list[str], timeout_s: int) -> pb.ExecSyncResponse:
        await super().exec_sync(container_id, command, timeout_s)
        self.is_broken = command == ["drain"]
        return pb.ExecSyncResponse(exit_code=int(self.is_broken))

    async def container_status(self, container_id: str) -> pb.ContainerStatus:
        if self.is_broken:
            self.is_broken = False
            raise Unavailable("ContainerStatus", "Connection refused")
        return await super().container_status(container_id)


async def test_a_runtime_that_goes_away_during_a_hook_does_not_hold_the_end_up(tmp_path: Path) -> None:
    """TRM-08, TRM-19: the signal follows at once, not at the deadline."""
    runtime, given = Breaking(), FakeManifestDirectory({"/m/f.yaml": POD.replace(b"Seconds: 7", b"Seconds: 1000")})
    async with running(runtime, given, tmp_path) as plane:
        await plane.until(lambda: sorted(runtime.running().values()) == ALL, "all run")
        await plane.until_ready()
        given.put("/m/f.yaml", None)
        await plane.until(lambda: not plane.phases, "it has ended")

    assert runtime.commands == Counter(["begin", "drain", "flush"])


async def test_a_keeper_that_fails_in_the_middle_of_an_end_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRM-31: as after a crash of the whole process; the hooks that died with it are not waited for."""
    monkeypatch.setattr("agent.pods.plan.restart.FIRST_PAUSE_S", 0.02)
    runtime, given = Runtime(), FakeManifestDirectory({"/m/f.yaml": POD.replace(b"Seconds: 7", b"Seconds: 1000")})
    failed = []

    async def hang(_container_id: str, command: list[str], _timeout_s: int) -> pb.ExecSyncResponse:
        runtime.commands[command[0]] += 1
        failed.append(command[0])
        if len(failed) == 2:
            raise AssertionError("a bug")
        await asyncio.Event().wait()
        raise AssertionError("never")

    async with running(runtime, given, tmp_path) as plane:
        await plane.until(lambda: sorted(runtime.running().values()) == ALL, "all run")
        await plane.until_ready()
        runtime.exec_sync = hang  # type: ignore[method-assign]
        given.put("/m/f.yaml", None)
        await plane.until(lambda: not plane.phases, "it has ended")

    asked = list(dict.fromkeys(name for name, _ in runtime.stops))
    assert (sorted(asked[:2]), asked[2:]) == (["app", "web"], ["log", "net"])
    assert runtime.commands == Counter(["begin", "drain", "flush"])


TWO = b"""
apiVersion: v1
kind: Pod
metadata: {name: bad, uid: u-bad}
spec:
  volumes: [{name: conf, configMap: {name: conf}}]
  containers: [{name: app, image: "i:1"}]
---
apiVersion: v1
kind: Pod
metadata: {name: good, uid: u-good}
spec:
  containers: [{name: app, image: "i:1"}]
"""
SOURCE = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {a: %s}\n"


class TestPause:
    """FP-10: what comes from outside while the keeper of one pod pauses after a failure ends nothing else."""

    @pytest.fixture
    def given(self) -> FakeManifestDirectory:
        return FakeManifestDirectory({"/m/pods.yaml": TWO, "/m/conf.yaml": SOURCE % b"one"})

    @asynccontextmanager
    async def pausing(
        self, given: FakeManifestDirectory, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[tuple[Plane, PodWorker]]:
        """A plane with a keeper that has failed once."""
        monkeypatch.setattr("agent.pods.plan.restart.FIRST_PAUSE_S", 0.5)
        runtime = Runtime()
        async with running(runtime, given, place, events=News(runtime)) as plane:
            await plane.until_phases(bad="Running", good="Running")
            keeper = plane.runner.keepers["u-bad"]
            advance = keeper._advance

            def fail() -> None:
                keeper._advance = advance  # type: ignore[method-assign]
                raise KeyError("a bug")

            keeper._advance = fail  # type: ignore[method-assign]
            keeper.run.ring()
            await plane.until(lambda: keeper.run.problem, "it pauses")
            yield plane, keeper

    async def test_its_container_exits(
        self, given: FakeManifestDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with self.pausing(given, tmp_path / "logs", monkeypatch) as (plane, keeper):
            plane.cri.exit(keeper.run.seen.instances[0].id, 1)
            await plane.until(lambda: not keeper.run.seen.running, "the exit is known, although it pauses")
            assert keeper.run.problem
            await plane.until(lambda: plane.pod("bad-n").containers[0].restart_count == 1, "it goes on")

            assert plane.pod("good-n").containers[0].restart_count == 0

    async def test_one_of_its_sources_changes(
        self, given: FakeManifestDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with self.pausing(given, tmp_path / "logs", monkeypatch) as (plane, keeper):
            given.put("/m/conf.yaml", SOURCE % b"two")
            files = keeper.run.context.files
            (file,) = files.of("u-bad").glob("volumes/*/conf/a")
            await plane.until(lambda: file.read_text() == "two", "it follows when it is kept again")

            assert plane.phases == {"bad-n": "Running", "good-n": "Running"}

    async def test_it_has_to_end(
        self, given: FakeManifestDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with self.pausing(given, tmp_path / "logs", monkeypatch) as (plane, keeper):
            keeper.end("evicted", 1.0, PodOutcome(phase="Failed", reason="Evicted"))
            await plane.until_phases(bad="Failed", good="Running")

            assert plane.pod("bad-n").reason == "Evicted"


class Vanishing(Runtime):
    """Goes away in the middle of every stop; what was signalled ends meanwhile, and nobody tells of it."""

    async def stop_container(self, container_id: str, grace_s: int) -> None:
        self.stops.append((self._containers[container_id].metadata.name, grace_s))
        self.exit(container_id, 0)
        raise Unavailable("StopContainer", "Socket closed")


async def test_an_exit_while_the_runtime_was_away_is_found_without_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRM-19, TRM-23: no second signal, and no wait for the next look at everything."""
    monkeypatch.setattr("agent.pods.run.one_pod.stopping.RETRY_S", 0.05)
    runtime, given = Vanishing(), FakeManifestDirectory({"/m/f.yaml": POD.replace(b"Seconds: 7", b"Seconds: 1000")})
    async with running(runtime, given, tmp_path) as plane:
        await plane.until(lambda: sorted(runtime.running().values()) == ALL, "all run")
        await plane.until_ready()
        given.put("/m/f.yaml", None)
        await plane.until(lambda: not plane.phases, "it has ended")

    assert sorted(name for name, _ in runtime.stops) == ALL
