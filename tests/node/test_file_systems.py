# SPDX-License-Identifier: Apache-2.0
"""File systems on loop devices: apart and joined, as the kernel has them (FSY-01)."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.drivers.clock.driver import SystemClock
from agent.drivers.file_systems.driver import FileSystems
from agent.observe.run.file_systems import FileSystemAnswers
from tests.observe.test_file_systems import Runtime

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
    answers = FileSystemAnswers(
        Runtime((images,)), FileSystems(), SystemClock(), lambda: [("node", node), ("logs", node)]
    )
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
