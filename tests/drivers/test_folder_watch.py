# SPDX-License-Identifier: Apache-2.0
"""Who waits for a change of directories hears of it at once, and misses none between two looks."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.drivers.folder_watch import FolderWatch

LONG_S, WITHIN_S = 60.0, 10.0


def link(place: Path) -> None:
    (place / "gpu" / "current").symlink_to("v1")


@pytest.mark.parametrize(
    "change",
    [
        lambda place: (place / "a.sock").touch(),
        lambda place: (place / "new").mkdir(),
        lambda place: (place / "gpu" / "v1").mkdir(),
        lambda place: (place / "gpu").rmdir(),
        link,
    ],
)
async def test_a_change_ends_the_wait(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """DVM-1, DVM-28: whether it came while somebody waited, or before."""
    place = tmp_path / "r"
    (place / "gpu").mkdir(parents=True)
    for is_waiting in (True, False):
        watch = FolderWatch(place if is_waiting else tmp_path / "s", 1, 0o750)
        if not is_waiting:
            place = tmp_path / "s"
            (place / "gpu").mkdir(parents=True)
        await watch.changed(LONG_S)
        if not is_waiting:
            change(place)
        task = asyncio.create_task(watch.changed(LONG_S))
        await asyncio.sleep(0.01)
        if is_waiting:
            change(place)
        await asyncio.wait_for(task, WITHIN_S)
        watch.close()


async def test_nothing_is_the_end_of_its_time_and_a_directory_is_made(tmp_path: Path) -> None:
    watch = FolderWatch(tmp_path / "a" / "b", 1, 0o700)
    await watch.changed(LONG_S)
    await watch.changed(0.05)
    (tmp_path / "a" / "b").rmdir()
    await asyncio.wait_for(watch.changed(LONG_S), WITHIN_S)
    await watch.changed(0.05)
    watch.close()

    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
