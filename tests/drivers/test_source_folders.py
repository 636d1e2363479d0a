# SPDX-License-Identifier: Apache-2.0
"""ConfigMaps and Secrets with a file per key: what is read, what is refused, and when a change is seen (VOL-06)."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.drivers.manifests.driver import ManifestDirectory
from agent.drivers.manifests.source_folders import MOST_BYTES, read_source_folders
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.model.pods.source_folder import SourceFolder


def folder(root: Path, path: str = "configmaps/default/c", **keys: str) -> Path:
    place = root / path
    place.mkdir(parents=True, exist_ok=True)
    for key, text in keys.items():
        (place / key).write_text(text)
    return place


def look(root: Path) -> tuple[dict[str, dict[str, bytes]], list[str]]:
    """Values by path, and everything that is wrong."""
    found = read_source_folders(root, {})
    told = [str(problem) for one in found.folders.values() for problem in one.problems]
    shown = {path.removeprefix(f"{root}/"): dict(one.values) for path, one in found.folders.items()}
    return shown, [text.removeprefix(f"{root}/") for text in (*map(str, found.problems), *told)]


def test_each_directory_is_a_source_and_each_file_a_key(tmp_path: Path) -> None:
    folder(tmp_path, mode="fast", **{".hidden": "x"})
    folder(tmp_path, "secrets/other/s", word="sesame", **{".dockerconfigjson": "{}"})
    folder(tmp_path, "configmaps/default/empty")
    found = read_source_folders(tmp_path, {})

    assert look(tmp_path) == (
        {"configmaps/default/c": {"mode": b"fast"}, "configmaps/default/empty": {},
         "secrets/other/s": {".dockerconfigjson": b"{}", "word": b"sesame"}},
        [],
    )  # fmt: skip
    assert [one.key for one in found.folders.values()][-1] == ("Secret", "other", "s")
    assert "sesame" not in repr(found)


def test_the_links_of_an_atomic_writer_are_followed(tmp_path: Path) -> None:
    place = folder(tmp_path)
    folder(tmp_path, "configmaps/default/c/..one", key="1")
    (place / "..data").symlink_to("..one")
    (place / "key").symlink_to("..data/key")

    assert look(tmp_path) == ({"configmaps/default/c": {"key": b"1"}}, [])


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("/etc/hostname", "is a link to /etc/hostname, outside of its source"),
        ("../d/key", "is a link to ../d/key, outside of its source"),
        ("nothing", "is a link to nothing, which does not exist"),
        ("key", "is a link in a chain of links without end"),
    ],
)
def test_no_link_leads_anywhere_else(tmp_path: Path, target: str, text: str) -> None:
    (folder(tmp_path, good="1") / "key").symlink_to(target)
    folder(tmp_path, "configmaps/default/d", key="of another")
    found, told = look(tmp_path)

    assert found["configmaps/default/c"] == {"good": b"1"}
    assert told[0].startswith(f"configmaps/default/c/key: {text}")
    assert told[0].endswith("its last good content stays valid")


def test_a_link_on_the_way_is_no_way_out(tmp_path: Path) -> None:
    place = folder(tmp_path)
    (place / "..data").symlink_to("/etc")
    (place / "hostname").symlink_to("..data/hostname")

    assert "is a link to /etc, outside of its source" in look(tmp_path)[1][0]


@pytest.mark.parametrize("path", ["configmaps", "configmaps/default", "configmaps/default/c"])
def test_directories_are_no_links(tmp_path: Path, path: str) -> None:
    elsewhere = folder(tmp_path / "elsewhere", "a/b", key="1")
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).symlink_to(elsewhere)
    found, told = look(tmp_path)

    assert found == {}
    assert told[0].startswith(f"{path}: ")
    assert "link" in told[0] or "is not a directory" in told[0]


def test_only_files_are_keys_and_nothing_is_waited_for(tmp_path: Path) -> None:
    place = folder(tmp_path, "secrets/default/s", good="1")
    os.mkfifo(place / "pipe")
    (place / "below").mkdir()
    (tmp_path / "secrets" / "stray").touch()

    assert look(tmp_path)[1] == [
        "secrets/stray: is not a directory; a source is a directory NAMESPACE/NAME with one file per key",
        "secrets/default/s/below: is a directory; a key is a file; its last good content stays valid",
        "secrets/default/s/pipe: is no regular file; its last good content stays valid",
    ]


def test_a_source_has_a_bound(tmp_path: Path) -> None:
    place = folder(tmp_path, a="x" * (MOST_BYTES - 1), b="x")
    assert look(tmp_path)[1] == []
    (place / "b").write_text("xx")

    (told,) = look(tmp_path)[1]
    assert told.startswith("configmaps/default/c/b: has 2 bytes; all keys of one source may have 1048576 together; ")


def test_what_cannot_be_listed_stays_as_it_was(tmp_path: Path) -> None:
    """MAN-08."""
    place = folder(tmp_path, key="1")
    before = read_source_folders(tmp_path, {}).folders
    (tmp_path / "aside").symlink_to(place.parent)
    place.parent.rename(tmp_path / "real")
    os.mkfifo(place.parent)
    (tmp_path / "configmaps").rename(tmp_path / "was")
    (tmp_path / "configmaps").symlink_to(tmp_path / "configmaps")
    found = read_source_folders(tmp_path, before)

    assert found.folders == before
    assert "it is a link" in str(found.problems[0])


def test_what_others_may_read_is_named(tmp_path: Path) -> None:
    place = folder(tmp_path, "secrets/default/s", word="x")
    (place / "word").chmod(0o640)
    tmp_path.chmod(0o755)

    def exposed() -> str:
        return next(iter(read_source_folders(tmp_path, {}).folders.values())).exposed

    assert exposed() == "", "root's group is root"
    (place / "word").chmod(0o644)
    assert exposed() == str(place / "word")
    (tmp_path / "secrets").chmod(0o700)
    assert exposed() == ""


@asynccontextmanager
async def watching(root: Path) -> AsyncIterator["asyncio.Queue[dict[str, SourceFolder]]"]:
    """What is seen without ever looking by the clock."""
    seen: asyncio.Queue[dict[str, SourceFolder]] = asyncio.Queue()

    async def follow() -> None:
        snapshot: ManifestSnapshot
        async for snapshot in ManifestDirectory(root, lambda: (300.0, 0.02), has_sources=True).snapshots():
            await seen.put({Path(path).name: one for path, one in snapshot.folders.items()})

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        yield seen
        task.cancel()


async def until(seen: "asyncio.Queue[dict[str, SourceFolder]]", wanted: dict[str, dict[str, bytes]]) -> None:
    shown: object = None
    while shown != wanted:
        found = await asyncio.wait_for(seen.get(), 30)
        shown = {name: dict(one.values) for name, one in found.items()}


async def test_changes_on_every_level_are_seen_at_once(tmp_path: Path) -> None:
    async with watching(tmp_path) as seen:
        await until(seen, {})
        place = folder(tmp_path, a="1")
        await until(seen, {"c": {"a": b"1"}})
        (place / "a").write_text("2")
        await until(seen, {"c": {"a": b"2"}})
        (tmp_path / "configmaps" / "default" / ".d").mkdir()
        (tmp_path / "configmaps" / "default" / ".d" / "b").write_text("3")
        (tmp_path / "configmaps" / "default" / ".d").rename(tmp_path / "configmaps" / "default" / "d")
        await until(seen, {"c": {"a": b"2"}, "d": {"b": b"3"}})
        (place / "a").unlink()
        place.rmdir()
        await until(seen, {"d": {"b": b"3"}})


async def test_a_swap_is_one_change(tmp_path: Path) -> None:
    place = folder(tmp_path)
    for name, text in (("..one", "1"), ("..two", "2")):
        folder(tmp_path, f"configmaps/default/c/{name}", a=text, b=text)
    (place / "..data").symlink_to("..one")
    for key in ("a", "b"):
        (place / key).symlink_to(f"..data/{key}")
    async with watching(tmp_path) as seen:
        await until(seen, {"c": {"a": b"1", "b": b"1"}})
        (place / "..next").symlink_to("..two")
        (place / "..next").rename(place / "..data")
        found = await asyncio.wait_for(seen.get(), 30)

        assert dict(found["c"].values) == {"a": b"2", "b": b"2"}


async def test_who_runs_no_pods_reads_no_sources(tmp_path: Path) -> None:
    folder(tmp_path, a="1")
    looks = ManifestDirectory(tmp_path, lambda: (300.0, 0.02)).snapshots()

    assert (await anext(looks)).folders == {}
    await looks.aclose()  # type: ignore[attr-defined]
