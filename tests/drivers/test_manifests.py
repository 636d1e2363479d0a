# SPDX-License-Identifier: Apache-2.0
"""The manifest directory with real files and inotify."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from agent.drivers.manifests.driver import ManifestDirectory, read_manifests


@asynccontextmanager
async def watching(folder: Path, rescan_s: float = 5.0) -> AsyncIterator["asyncio.Queue[dict[str, bytes]]"]:
    seen: asyncio.Queue[dict[str, bytes]] = asyncio.Queue()

    async def follow() -> None:
        async for files in ManifestDirectory(folder, lambda: (rescan_s, 0.02)).snapshots():
            await seen.put(named(files))

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        yield seen
        task.cancel()


def named(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {Path(path).name: content for path, content in files.items()}


async def test_files_that_appear_change_and_go_are_told(tmp_path: Path) -> None:
    """MAN-06: an atomic rename counts once, a file in the making not at all."""
    (tmp_path / "a.yaml").write_bytes(b"1")
    async with watching(tmp_path) as seen:
        assert await asyncio.wait_for(seen.get(), 2) == {"a.yaml": b"1"}
        (tmp_path / ".b.tmp").write_bytes(b"2")
        (tmp_path / ".b.tmp").rename(tmp_path / "b.json")
        assert await asyncio.wait_for(seen.get(), 2) == {"a.yaml": b"1", "b.json": b"2"}
        (tmp_path / "a.yaml").unlink()
        assert await asyncio.wait_for(seen.get(), 2) == {"b.json": b"2"}
        (tmp_path / "note.txt").write_bytes(b"x")
        (tmp_path / ".hidden.yaml").write_bytes(b"x")
        await asyncio.sleep(0.1)
        assert seen.empty()


async def test_a_directory_that_comes_goes_and_comes_again(tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    async with watching(folder, rescan_s=0.05) as seen:
        assert await asyncio.wait_for(seen.get(), 2) == {}
        folder.mkdir()
        (folder / "a.yaml").write_bytes(b"1")
        assert await asyncio.wait_for(seen.get(), 2) == {"a.yaml": b"1"}
        (folder / "a.yaml").unlink()
        folder.rmdir()
        assert await asyncio.wait_for(seen.get(), 2) == {}
        folder.mkdir()
        (folder / "b.yaml").write_bytes(b"2")
        assert await asyncio.wait_for(seen.get(), 2) == {"b.yaml": b"2"}


async def test_a_symlink_swap_is_seen(tmp_path: Path) -> None:
    """How a mounted ConfigMap changes."""
    for name, content in (("one", b"1"), ("two", b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").write_bytes(content)
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "..data").symlink_to(tmp_path / "one")
    (folder / "a.yaml").symlink_to(folder / "..data" / "a.yaml")
    async with watching(folder) as seen:
        assert await asyncio.wait_for(seen.get(), 2) == {"a.yaml": b"1"}
        (folder / "..next").symlink_to(tmp_path / "two")
        (folder / "..next").rename(folder / "..data")
        assert await asyncio.wait_for(seen.get(), 2) == {"a.yaml": b"2"}


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nothing")
    (tmp_path / "good.yaml").write_bytes(b"1")

    assert named(read_manifests(tmp_path)) == {"good.yaml": b"1"}
    assert read_manifests(tmp_path / "good.yaml") == {}
