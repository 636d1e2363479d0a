# SPDX-License-Identifier: Apache-2.0
"""File systems on loop devices: apart and joined, as the kernel has them (FSY-01, FSY-03)."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.config.sections.images import Images
from agent.drivers.clock.driver import SystemClock
from agent.drivers.file_systems.driver import FileSystems
from agent.drivers.state_files.driver import StateFiles
from agent.images.collect.plan import CollectRules
from agent.images.settings import image_settings
from agent.model.images.store import BlobInfo, StoreRoots
from tests.fakes.clock import FakeClock
from tests.fakes.containerd import FakeContainerd
from tests.fakes.cri import FakeCri
from tests.images.harness import build_plane
from tests.observe.test_file_systems import Runtime, answers_of

pytestmark = [pytest.mark.node, pytest.mark.timeout(60)]


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Path]]:
    """Two small ext4 file systems."""
    mounted: list[Path] = []
    try:
        for number in range(2):
            file, point = tmp_path / f"{number}.img", tmp_path / f"disk {number}"
            file.write_bytes(b"")
            point.mkdir()
            subprocess.run(["truncate", "-s", "16M", file], check=True)
            subprocess.run(["mkfs.ext4", "-q", "-N", "64", file], check=True)
            subprocess.run(["mount", "-o", "loop", file, point], check=True)
            mounted.append(point)
        yield mounted
    finally:
        for point in mounted:
            subprocess.run(["umount", point], check=False)


async def test_two_disks_are_told_apart_and_show_what_fills_them(disks: list[Path]) -> None:
    node, images = map(str, disks)
    answers = answers_of(Runtime((images,)), FileSystems(), SystemClock(), ("node", node), ("logs", node))
    before = {one.mount: one for one in await answers.reports()}
    (disks[1] / "fill").write_bytes(b"x" * (13 << 20))
    for number in range(60):
        try:
            (disks[0] / str(number)).touch()
        except OSError:
            break
    after = {one.mount: one for one in await answers.reports()}
    await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,ro", images], check=True)
    last = {one.mount: one for one in await answers.reports()}

    assert {mount: one.roles for mount, one in before.items()} == {
        node: ("node", "logs"), images: ("image", "container"),
    }  # fmt: skip
    assert {one.state for one in before.values()} == {"ok"}
    assert {one.type for one in before.values()} == {"ext4"}
    assert [after[node].message, after[images].message] == [
        "less than 10 % of its inodes are left", "less than 10 % of its space is left",
    ]  # fmt: skip
    assert last[images].state == "read-only"


class Store:
    """A runtime whose images are files: on the disk of their snapshotter, and what was downloaded for all on one."""

    def __init__(self, layers: dict[str, Path], downloads: Path) -> None:
        self.cri, self.containerd = FakeCri(), FakeContainerd()
        self.layers, self.downloads = layers, downloads
        self.files: dict[str, list[Path]] = {}
        roots = {name: str(place) for name, place in layers.items()}
        self.cri.image_places = tuple(roots.values())
        self.containerd.roots = StoreRoots(content=str(downloads), snapshotters=roots)
        self._remove = self.cri.remove_image
        self.cri.remove_image = self.remove  # type: ignore[method-assign]

    async def put(self, name: str, snapshotter: str, mib: int) -> None:
        self.cri.registry.add(name)
        image_id = await self.cri.pull_image(name)
        label = {f"containerd.io/gc.ref.snapshot.{snapshotter}": "sha256:x"}
        self.containerd.put_blob(BlobInfo(image_id, 1, 0.0, label))
        self.files[image_id] = [self.layers[snapshotter] / name, self.downloads / f"{name}.tar"]
        self.files[image_id][0].write_bytes(b"x" * (mib << 20))
        self.files[image_id][1].write_bytes(b"x" * (mib << 18))

    async def remove(self, image: str) -> None:
        await self._remove(image)
        for path in self.files.pop(image):
            path.unlink()

    @property
    def names(self) -> set[str]:
        return {files[0].name for files in self.files.values()}


async def test_each_disk_of_images_is_collected_by_itself(disks: list[Path], tmp_path: Path) -> None:
    """FSY-03, OBT-14: measured by the kernel, with two snapshotters, and then with downloads apart."""
    one, two = disks
    for layers, downloads, left in (
        ({"one": one, "two": two}, one, {"a", "b", "d"}),
        ({"one": one, "two": one}, two, {"d"}),
    ):
        store, clock = Store(layers, downloads), FakeClock()
        files = StateFiles(tmp_path / "state")
        settings = replace(image_settings(Images()), collect=CollectRules(high=60, low=50, min_age_s=1.0))
        collector = build_plane(store.cri, store.containerd, files, clock, settings=settings).collector
        for name, snapshotter, mib in (("a", "one", 1), ("b", "one", 1), ("c", "two", 4), ("d", "two", 4)):
            await store.put(name, snapshotter, mib)
            await collector.refresh()
            await clock.advance(100)
        await collector.collect(is_forced=False)
        assert store.names == left, "the oldest on the disk that is full"
        for name in sorted(store.files):
            await store.remove(name)
        files.close()
