# SPDX-License-Identifier: Apache-2.0
"""Walks through what pods wrote: their pace, their end, and who shares them."""

import asyncio
import threading
from pathlib import Path

import pytest

from agent.model.pods.fields import EmptyDir, PodFields, Volume
from agent.model.pods.pod import PodSpec
from agent.pods.plan.scarcity.storage_use import DiskUse, TreeUse
from agent.pods.run.disk.files import PodFiles
from agent.pods.run.disk.logs import LogDirectories
from agent.pods.run.disk.measured import MeasuredDisks, volume_spaces
from agent.pods.run.disk.trees import LONGEST_S, DiskPace, tree_use
from tests.contract.fake_mounts import FakeMounts
from tests.fakes.clock import FakeClock

WALK = "agent.pods.run.disk.measured.disk_use"


def pod(uid: str = "u1") -> PodSpec:
    volumes = (
        Volume(name="cache", empty_dir=EmptyDir(size_limit="1Mi")),
        Volume(name="memory", empty_dir=EmptyDir(medium="Memory")),
    )
    return PodSpec(namespace="default", name=f"web-{uid}", uid=uid, spec=PodFields(volumes=volumes))


class Passing:
    """Time that passes by waiting alone."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture(autouse=True)
def work_is_done_at_once() -> None:
    """Threads are what is tested here."""


@pytest.fixture
def files(tmp_path: Path) -> PodFiles:
    return PodFiles(tmp_path / "pods", LogDirectories(tmp_path / "logs"), FakeMounts())


@pytest.fixture
def disks(files: PodFiles) -> MeasuredDisks:
    return MeasuredDisks(files, FakeClock())


def test_a_walk_keeps_its_pace_and_ends() -> None:
    """VSU-03."""
    time = Passing()
    pace = DiskPace(lambda: time.now_s, time.wait)
    for _ in range(200):
        pace.went(500)
    spent_s, was_over = time.now_s, pace.is_over
    time.now_s = LONGEST_S + 1

    assert spent_s == pytest.approx(5.0, abs=0.05)
    assert (was_over, pace.is_over) == (False, True)


def test_a_walk_that_is_over_tells_what_it_counted(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "v" / f"d{number}").mkdir(parents=True)
    pace = DiskPace()
    pace.stop()

    assert tree_use(tmp_path / "v").inodes == 4
    assert tree_use(tmp_path / "v", pace) == TreeUse()


async def test_who_asks_at_the_same_time_or_soon_after_shares_a_walk(
    disks: MeasuredDisks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks: list[str] = []
    monkeypatch.setattr(WALK, lambda _files, pod, _logs, _pace: walks.append(pod.uid) or DiskUse())
    await asyncio.gather(*(disks.of(pod(), tmp_path) for _ in range(5)))
    await disks.of(pod(), tmp_path)
    shared = list(walks)
    await disks.of(pod(), tmp_path, newest_s=0.0)

    assert shared == ["u1"]
    assert walks == ["u1", "u1"]


async def test_of_pods_that_are_gone_nothing_is_kept(
    disks: MeasuredDisks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks: list[str] = []
    monkeypatch.setattr(WALK, lambda _files, pod, _logs, _pace: walks.append(pod.uid) or DiskUse())
    for uid in ("u1", "u2"):
        await disks.of(pod(uid), tmp_path)
    disks.keep({"u2"})
    for uid in ("u1", "u2"):
        await disks.of(pod(uid), tmp_path)

    assert walks == ["u1", "u2", "u1"]


async def test_a_walk_that_fails_leaves_other_pods_their_figures(
    disks: MeasuredDisks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FP-3."""

    def walk(_files: PodFiles, one: PodSpec, _logs: Path, _pace: DiskPace) -> DiskUse:
        if one.uid == "u1":
            raise RecursionError("maximum recursion depth exceeded")
        return DiskUse(logs={"main": TreeUse(5, 1)})

    monkeypatch.setattr(WALK, walk)
    found = await disks.spaces([(pod("u1"), tmp_path), (pod("u2"), tmp_path)])

    assert [(one.uid, one.is_whole, one.logs) for one in found] == [("u1", False, {}), ("u2", True, {"main": 5})]


async def test_few_walks_run_at_a_time_and_one_that_takes_long_has_its_last_figures(
    disks: MeasuredDisks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VSU-03: pages do not wait for it, and it goes on."""
    may_end, now, most = threading.Event(), [0], [0]

    def walk(_files: PodFiles, one: PodSpec, _logs: Path, _pace: DiskPace) -> DiskUse:
        now[0] += 1
        most[0] = max(most[0], now[0])
        may_end.wait(20)
        now[0] -= 1
        return DiskUse(logs={"main": TreeUse(len(one.uid), 1)})

    monkeypatch.setattr(WALK, walk)
    monkeypatch.setattr("agent.pods.run.disk.measured.PAGES_WAIT_S", 0.05)
    pods = [(pod(f"u{number}"), tmp_path) for number in range(5)]
    before = await disks.spaces(pods)
    may_end.set()
    monkeypatch.setattr("agent.pods.run.disk.measured.PAGES_WAIT_S", 20.0)
    after = await disks.spaces(pods)

    assert most == [2]
    assert [(one.is_whole, one.logs) for one in before] == [(False, {})] * 5
    assert [(one.is_whole, one.logs) for one in after] == [(True, {"main": 2})] * 5


async def test_the_end_of_the_plane_ends_a_walk(
    disks: MeasuredDisks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, has_ended = threading.Event(), threading.Event()

    def walk(_files: PodFiles, _pod: PodSpec, _logs: Path, pace: DiskPace) -> DiskUse:
        has_begun.set()
        while not pace.is_over:
            pace.went(500)
        has_ended.set()
        return DiskUse()

    monkeypatch.setattr(WALK, walk)
    asking = asyncio.create_task(disks.of(pod(), tmp_path))
    await asyncio.to_thread(has_begun.wait, 10)
    asking.cancel()
    (walking,) = [task for task in asyncio.all_tasks() if task.get_name() == "pods-disk-use"]
    walking.cancel()

    assert await asyncio.to_thread(has_ended.wait, 10)


def test_volumes_have_what_was_walked_and_what_their_file_system_has(files: PodFiles) -> None:
    """VSU-03: one in memory is asked of its mount, and one that is not made yet has nothing."""
    one = pod()
    for name in ("cache", "memory"):
        (files.of("u1") / "volumes" / "kubernetes.io~empty-dir" / name).mkdir(parents=True)
    found = {volume.name: volume for volume in volume_spaces(files, one, DiskUse(volumes={"cache": TreeUse(4096, 2)}))}

    assert (found["cache"].used_bytes, found["cache"].used_inodes) == (4096, 2)
    assert (found["cache"].limit_bytes, found["memory"].limit_bytes) == (1 << 20, 0)
    assert found["memory"].used_bytes > 4096, "of the whole mount"
    assert found["cache"].capacity_bytes >= found["cache"].available_bytes > 0
    assert volume_spaces(files, pod("u2"), DiskUse()) == ()
