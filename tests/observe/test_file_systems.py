# SPDX-License-Identifier: Apache-2.0
"""File systems by what is kept on them: apart, joined, unseen, full, read-only (FSY-01, FSY-02, FSY-06)."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from agent.drivers.file_systems.driver import FileSystems
from agent.model.images.store import StoreRoots
from agent.model.nodes.file_system import ImagesOnDisk, LookedAt, SpaceUse
from agent.model.pods.space import PodSpace, VolumeSpace
from agent.model.runtime.error import NotImplementedByRuntime, RuntimeCallFailed
from agent.observe.run.file_systems import FileSystemAnswers, PlaneWork
from agent.observe.view.file_systems import MOST, file_system_reports
from tests.fakes.clock import FakeClock

ONE = LookedAt(
    device_number=1, mount="/", device="/dev/vda", type="ext4", size_bytes=1000, available_bytes=500, free_bytes=550,
    inodes=100, inodes_free=90,
)  # fmt: skip
TWO = replace(ONE, device_number=2, mount="/images", device="/dev/vdb")
PLACES = (("node", "/var/lib/kepd"), ("logs", "/var/log/pods"), ("image", "/images/a"), ("container", "/images/a"))


@dataclass
class Disks:
    found: dict[str, LookedAt] = field(default_factory=dict)
    hangs: set[str] = field(default_factory=set)
    looked: list[str] = field(default_factory=list)

    def look(self, path: str) -> LookedAt:
        self.looked.append(path)
        if path in self.hangs:
            time.sleep(0.3)
        if path not in self.found:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.found[path]


class Runtime:
    def __init__(self, images: tuple[str, ...] = ("/images/a",), containers: tuple[str, ...] = ()) -> None:
        self.answer: tuple[tuple[str, ...], tuple[str, ...]] | None = (images, containers)
        self.content = ""

    async def file_systems(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self.answer is None:
            raise RuntimeCallFailed("ImageFsInfo", "the runtime is away")
        return self.answer

    async def image_use(self) -> dict[str, int]:
        return dict.fromkeys((await self.file_systems())[0], 300)

    async def writable_layers(self) -> dict[str, tuple[int, int]]:
        return {"c1": (40, 1), "c2": (2, 1)}

    async def store_roots(self) -> StoreRoots:
        if not self.content:
            raise NotImplementedByRuntime("Plugins", "unknown service")
        return StoreRoots(content=self.content)


def answers_of(
    runtime: Runtime, disks: Any, clock: Any, *own: tuple[str, str], work: PlaneWork | None = None
) -> FileSystemAnswers:
    return FileSystemAnswers(runtime, runtime, disks, clock, lambda: own, work or PlaneWork())


def test_places_on_one_device_are_one_file_system() -> None:
    """FSY-01."""
    (only,) = file_system_reports(PLACES, dict.fromkeys((path for _, path in PLACES), ONE))

    assert (only.mount, only.device, only.type, only.state) == ("/", "/dev/vda", "ext4", "ok")
    assert only.roles == ("node", "logs", "image", "container")
    assert only.paths == ("/var/lib/kepd", "/var/log/pods", "/images/a")
    assert (only.used_bytes, only.available_bytes) == (450, 500)


def test_images_on_a_device_of_their_own_are_another() -> None:
    found = file_system_reports(PLACES, {"/var/lib/kepd": ONE, "/var/log/pods": ONE, "/images/a": TWO})

    assert [(one.mount, one.roles) for one in found] == [("/", ("node", "logs")), ("/images", ("image", "container"))]


@pytest.mark.parametrize(
    ("looked", "state", "words"),
    [
        (ONE, "ok", ""),
        (replace(ONE, available_bytes=40, free_bytes=90), "full", "its space is left"),
        (replace(ONE, inodes_free=5), "full", "its inodes are left"),
        (replace(ONE, inodes=0, inodes_free=0), "ok", ""),
        (replace(ONE, is_read_only=True), "read-only", "mounted read-only"),
        (replace(ONE, size_bytes=0, available_bytes=0, free_bytes=0), "unknown", "no space at all"),
        ("cannot be seen from here: No such file or directory", "unknown", "cannot be seen"),
    ],
)
def test_what_is_wrong_is_said(looked: LookedAt | str, state: str, words: str) -> None:
    """FSY-02."""
    (found,) = file_system_reports([("node", "/x")], {"/x": looked})

    assert found.state == state
    assert words in found.message


def test_there_is_a_bound() -> None:
    """FSY-06."""
    places = [("image", f"/{number}") for number in range(100)]
    looked = {f"/{number}": replace(ONE, device_number=number) for number in range(100)}

    assert len(file_system_reports(places, looked)) == MOST


async def test_answers_are_of_now_and_a_scrape_gets_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """FSY-06: a scrape waits for no disk."""
    clock, disks = FakeClock(), Disks({"/state": ONE, "/images/a": TWO})
    answers = answers_of(Runtime(), disks, clock, ("node", "/state"))
    first = {one.name: one.samples for one in answers.families()}
    await asyncio.sleep(0.1)
    second = {one.name: one.samples for one in answers.families()}
    looks = len(disks.looked)
    list(answers.families())
    await asyncio.sleep(0.05)
    monkeypatch.setattr("agent.observe.run.file_systems.LOOK_LIMIT_S", 0.05)
    disks.hangs.add("/images/a")
    hung = await answers.reports()

    assert first["kepd_filesystem_bytes"] == []
    assert {(one.labels["mountpoint"], one.labels["role"]) for one in second["kepd_filesystem_bytes"]} == {
        ("/", "node"), ("/images", "image"), ("/images", "container"),
    }  # fmt: skip
    assert len(disks.looked) - looks == 2
    assert {one.state: one.message for one in hung}["unknown"].startswith("does not answer")


async def test_without_the_runtime_what_is_ours_is_shown() -> None:
    runtime = Runtime()
    runtime.answer = None
    answers = answers_of(runtime, Disks({"/state": ONE}), FakeClock(), ("node", "/state"))

    assert [one.roles for one in await answers.reports()] == [("node",)]


async def test_each_says_when_images_go_and_what_would_be_removed_next() -> None:
    """FSY-01, FSY-04, FSY-05: downloads apart from what was unpacked, and a disk that nothing can make room on."""
    runtime = Runtime()
    runtime.content = "/downloads"
    three, four = (replace(TWO, device_number=number, mount=f"/{number}") for number in (3, 4))
    disks = Disks({"/state": ONE, "/logs": four, "/images/a": TWO, "/downloads": three})
    own = (("node", "/state"), ("logs", "/logs"))
    images = [
        ImagesOnDisk(paths=("/images/a",), collects_at=85, next="r.io/old:1"),
        ImagesOnDisk(paths=("/downloads",), collects_at=70, is_collecting=True, next="2 images, 3.0MiB"),
    ]

    async def collection() -> list[ImagesOnDisk]:
        return images

    async def spaces() -> list[PodSpace]:
        return []

    async def away() -> list[ImagesOnDisk]:
        raise RuntimeCallFailed("ListImages", "the runtime is away")

    full = PlaneWork(images=collection, spaces=spaces, short_paths=lambda: {"/logs"})
    with_all = await answers_of(runtime, disks, FakeClock(), *own, work=full).reports()
    without = await answers_of(runtime, disks, FakeClock(), *own, work=PlaneWork(images=away)).reports()

    assert [(one.mount, one.roles, one.collects_at, one.state, one.next) for one in with_all] == [
        ("/", ("node",), 0, "ok", "no removal can make room on /"),
        ("/4", ("logs",), 0, "pressure", "old logs"),
        ("/images", ("image", "container"), 85, "ok", "r.io/old:1, dead containers"),
        ("/3", ("content",), 70, "collecting", "2 images, 3.0MiB"),
    ]  # fmt: skip
    assert {one.next for one in without} == {f"no removal can make room on {one.mount}" for one in without}
    assert {one.state for one in without} == {"ok"}


async def test_what_uses_the_space_is_told_when_it_is_asked_for() -> None:
    """FSY-05."""
    runtime = Runtime()
    disks = Disks({"/state": ONE, "/logs": ONE, "/images/a": TWO})
    volumes = (VolumeSpace(name="a", used_bytes=100), VolumeSpace(name="b", used_bytes=900, is_memory=True))

    async def spaces() -> list[PodSpace]:
        return [PodSpace(namespace="n", name="p", uid="u", logs={"main": 20, "side": 5}, volumes=volumes)]

    own = (("node", "/state"), ("logs", "/logs"))
    answers = answers_of(runtime, disks, FakeClock(), *own, work=PlaneWork(spaces=spaces))
    node, images = await answers.reports(with_use=True)
    runtime.answer = None
    alone, *_ = await answers.reports(with_use=True)

    assert node.used_by == (SpaceUse("logs", 25), SpaceUse("volumes", 100), SpaceUse("other", 325))
    assert images.used_by == (SpaceUse("images", 300), SpaceUse("layers", 42), SpaceUse("other", 108))
    assert alone.used_by == node.used_by
    assert [one.used_by for one in await answers.reports()] == [()]


def test_the_driver_sees_the_mount_of_a_path() -> None:
    """FSY-02."""
    found = FileSystems().look("/proc")
    root = FileSystems().look("/")

    assert (found.mount, found.type) == ("/proc", "proc")
    assert root.mount == "/"
    assert root.size_bytes > root.available_bytes > 0
    with pytest.raises(FileNotFoundError):
        FileSystems().look("/nowhere")
