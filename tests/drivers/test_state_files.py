# SPDX-License-Identifier: Apache-2.0
"""FP-14: how writes wait for a disk and for each other."""

import asyncio
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agent.drivers.state_files.driver import StateFiles


class Disk:
    """A disk that is waited for until a test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.goes_on = threading.Event()
        self.waits = 0
        sync = os.fsync

        def fsync(descriptor: int) -> None:
            self.waits += 1
            self.goes_on.wait(10)
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[StateFiles]:
    made = StateFiles(tmp_path)
    yield made
    made.close()


async def test_what_need_not_be_durable_waits_for_no_disk(files: StateFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    async with asyncio.TaskGroup() as group:
        slow = [group.create_task(files.write(f"records/{number}.json", b"{}")) for number in range(110)]
        await asyncio.sleep(0.05)
        await files.write("records/stop.json", b"stop", is_durable=False)
        early = [one.done() for one in slow]
        disk.goes_on.set()

    assert (files.directory / "records/stop.json").read_bytes() == b"stop"
    assert not any(early)


async def test_durable_writes_that_wait_share_one_fsync_per_directory(
    files: StateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    async with asyncio.TaskGroup() as group:
        group.create_task(files.write("records/first.json", b"first"))
        await asyncio.sleep(0.05)
        for number in range(20):
            group.create_task(files.write(f"records/{number}.json", b"%d" % number))
        await asyncio.sleep(0.05)
        disk.goes_on.set()

    assert await files.read_folder("records") == {
        "first.json": b"first",
        **{f"{number}.json": b"%d" % number for number in range(20)},
    }
    assert disk.waits == 1 + 20 + 2, "each content, and the directory once for the first and once for the others"


async def test_a_write_that_fails_fails_alone(files: StateFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    (files.directory / "records/taken.json/in it").mkdir(parents=True)
    disk = Disk(monkeypatch)
    first = asyncio.create_task(files.write("records/first.json", b"first"))
    await asyncio.sleep(0.05)
    writes = [asyncio.create_task(files.write(f"records/{name}.json", b"{}")) for name in ("a", "taken", "b")]
    await asyncio.sleep(0.05)
    disk.goes_on.set()
    answers = await asyncio.gather(first, *writes, return_exceptions=True)

    assert [type(answer) for answer in answers] == [type(None), type(None), IsADirectoryError, type(None)]
    assert sorted(path.name for path in (files.directory / "records").iterdir()) == [
        "a.json",
        "b.json",
        "first.json",
        "taken.json",
    ]


async def test_writes_of_one_name_take_effect_in_their_order(
    files: StateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    async with asyncio.TaskGroup() as group:
        group.create_task(files.write("a.json", b"1"))
        await asyncio.sleep(0.05)
        group.create_task(files.write("a.json", b"2", is_durable=False))
        await asyncio.sleep(0)
        group.create_task(files.write("a.json", b"3"))
        await asyncio.sleep(0)
        gone = group.create_task(files.remove("b.json"))
        await asyncio.sleep(0.05)
        assert gone.done(), "another name waits for nothing"
        disk.goes_on.set()

    assert await files.read("a.json") == b"3"


async def test_who_gives_up_in_the_middle_overwrites_nothing_later(
    files: StateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    gives_up = asyncio.create_task(files.write("a.json", b"1"))
    await asyncio.sleep(0.05)
    gives_up.cancel()
    await asyncio.wait([gives_up])
    later = asyncio.create_task(files.write("a.json", b"2", is_durable=False))
    await asyncio.sleep(0.05)
    disk.goes_on.set()
    await later

    assert await files.read("a.json") == b"2"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k,mode=0700", "t", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.node
@pytest.mark.parametrize("is_durable", [True, False])
async def test_a_full_disk_is_named_by_the_file_that_found_no_room(small_disk: Path, is_durable: bool) -> None:
    files = StateFiles(small_disk)
    with pytest.raises(OSError, match="No space left on device") as failed:
        await files.write("folder/record", bytes(64 << 10), is_durable=is_durable)
    files.close()

    assert failed.value.filename == str(small_disk / "folder/record")


async def test_drafts_of_processes_that_died_are_swept_at_start(tmp_path: Path) -> None:
    """Neither what is being written now, nor what only looks a little like one."""
    (tmp_path / "records").mkdir()
    old = [tmp_path / ".cordon.abcd1234", tmp_path / "records" / ".u-1.json.x_9zzzzz"]
    kept = [tmp_path / "records" / name for name in ("u-1.json", ".note", ".u-1.json.LONGER-ONE")]
    for path in (*old, *kept):
        path.write_bytes(b"{}")
        os.utime(path, (1.0, 1.0))
    (tmp_path / "records" / ".folder.abcd1234").mkdir()
    files = StateFiles(tmp_path)
    young = tmp_path / "records" / ".u-2.json.abcd1234"
    young.write_bytes(b"{}")
    os.utime(young, (2.0**32, 2.0**32))
    found = await files.read_folder("records")
    files.close()

    assert list(found) == ["u-1.json"]
    assert [path for path in old if path.exists()] == []
    assert [path for path in (*kept, young) if not path.exists()] == []
