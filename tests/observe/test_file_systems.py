# SPDX-License-Identifier: Apache-2.0
"""File systems by what is kept on them: apart, joined, unseen, full, read-only (FSY-01, FSY-02, FSY-06)."""

import asyncio
import time
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from agent.drivers.clock.fake import FakeClock
from agent.drivers.file_systems.driver import FileSystems
from agent.model.file_system import LookedAt
from agent.model.runtime_error import RuntimeCallFailed
from agent.observe.run.file_systems import FileSystemAnswers
from agent.observe.view.file_systems import MOST, file_system_reports

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

    async def file_systems(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self.answer is None:
            raise RuntimeCallFailed("ImageFsInfo", "the runtime is away")
        return self.answer


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
    answers = FileSystemAnswers(Runtime(), disks, clock, lambda: [("node", "/state")])
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
    answers = FileSystemAnswers(runtime, Disks({"/state": ONE}), FakeClock(), lambda: [("node", "/state")])

    assert [one.roles for one in await answers.reports()] == [("node",)]


def test_the_driver_sees_the_mount_of_a_path() -> None:
    """FSY-02."""
    found = FileSystems().look("/proc")
    root = FileSystems().look("/")

    assert (found.mount, found.type) == ("/proc", "proc")
    assert root.mount == "/"
    assert root.size_bytes > root.available_bytes > 0
    with pytest.raises(FileNotFoundError):
        FileSystems().look("/nowhere")
