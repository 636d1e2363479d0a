# SPDX-License-Identifier: Apache-2.0
"""What is kept on the file systems that signals of eviction are about: one disk, images apart, layers with the node."""

from pathlib import Path
from typing import Any

import pytest

from agent.host.joints.pods_observe import NodeLooks
from agent.model.images.store import StoreRoots
from agent.model.nodes.file_system import LookedAt, Room
from agent.model.runtime.error import NotImplementedByRuntime
from tests.fakes.clock import FakeClock

CASES = {
    "one": ({}, {"nodefs": ("node", "logs", "image", "container", "content")}, "one"),
    "apart": (
        {"/images": 2, "/downloads": 2},
        {"nodefs": ("node", "logs"), "imagefs": ("image", "container", "content")},
        "apart",
    ),
    "split": (
        {"/images": 2, "/downloads": 2},
        {"nodefs": ("node", "logs", "container"), "imagefs": ("image", "content")},
        "split",
    ),
    "logs and downloads apart": (
        {"/logs": 3, "/images": 2},
        {"nodefs": ("node", "content"), "imagefs": ("image", "container")},
        "apart",
    ),
}


class Runtime:
    """Images in one place; writable layers in `layers`, or with them."""

    def __init__(self, layers: tuple[str, ...], content: str) -> None:
        self._layers = layers
        self._content = content

    async def file_systems(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("/images",), self._layers

    async def store_roots(self) -> StoreRoots:
        if not self._content:
            raise NotImplementedByRuntime("Plugins", "unknown service")
        return StoreRoots(content=self._content)


class Disks:
    def __init__(self, devices: dict[str, int]) -> None:
        self._devices = devices

    def look(self, path: str) -> LookedAt:
        return LookedAt(
            device_number=self._devices.get(path, 1), mount=path, device="", type="", size_bytes=100,
            available_bytes=50, free_bytes=50, inodes=10, inodes_free=5,
        )  # fmt: skip


def looks_of(devices: dict[str, int], tmp_path: Path, *layers: str, content: str = "/downloads") -> Any:
    collected: list[tuple[int, ...]] = []

    async def collect(*, only: Any = ()) -> None:
        collected.append(tuple(only))

    runtime: Any = Runtime(layers, content)
    disks: Any = Disks(devices)
    looks = NodeLooks(runtime, runtime, disks, FakeClock(), tmp_path, logs=lambda: "/logs", collect=collect)
    return looks, collected


@pytest.mark.parametrize("case", CASES)
async def test_each_signal_knows_what_lies_on_its_file_system(case: str, tmp_path: Path) -> None:
    """FSY-04."""
    devices, roles, layout = CASES[case]
    looks, _ = looks_of(devices, tmp_path, *(["/layers"] if layout == "split" else []))
    look = await looks.look()

    assert look.layout == layout
    assert {name: set(look.places[name].roles) for name in roles} == {name: set(given) for name, given in roles.items()}


async def test_images_go_from_the_file_system_that_is_short_alone(tmp_path: Path) -> None:
    """FSY-03, FSY-04: where images lie apart, and where the runtime does not say where its downloads are."""
    looks, collected = looks_of({"/images": 2}, tmp_path, content="")
    look = await looks.look()
    await looks.make_room("imagefs.available")

    assert collected == [(2,)]
    assert look.rooms("imagefs.available") == (Room.IMAGES, Room.CONTAINERS)
    assert look.rooms("nodefs.inodesFree") == (Room.LOGS,)
    assert look.rooms("memory.available") == tuple(Room)
