# SPDX-License-Identifier: Apache-2.0
"""The manifest directory with real files and inotify."""

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.drivers.manifests.driver import ManifestDirectory, read_manifests
from agent.drivers.manifests.vanishing import Vanishing, judge
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.model.pods.source_folder import SourceFolder
from tests.fakes.manifests import FakeManifestDirectory

FOLDER = SourceFolder(kind="Secret", namespace="n", name="s", path="/m/secrets/n/s", values={"key": b"value"})


@asynccontextmanager
async def watching(
    folder: Path, rescan_s: float | list[float] = 5.0, *, problems: bool = False
) -> AsyncIterator["asyncio.Queue[dict[str, bytes]]"]:
    """What is seen. `rescan_s` may be a list whose first value a test changes; `problems` adds the first of them."""
    seen: asyncio.Queue[dict[str, bytes]] = asyncio.Queue()

    def timing() -> tuple[float, float]:
        return (rescan_s[0] if isinstance(rescan_s, list) else rescan_s), 0.02

    async def follow() -> None:
        async for snapshot in ManifestDirectory(folder, timing).snapshots():
            told = {Path(one.where).name: one.text.encode() for one in snapshot.problems if problems}
            await seen.put(named(snapshot.files) | told)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        yield seen
        task.cancel()


def write(path: Path, content: bytes) -> None:
    """At once, as a reader in another thread sees it."""
    hidden = path.with_name(f".{path.name}.tmp")
    hidden.write_bytes(content)
    hidden.rename(path)


def named(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {Path(path).name: content for path, content in files.items()}


async def test_files_that_appear_change_and_go_are_told(tmp_path: Path) -> None:
    """MAN-06: an atomic rename counts once, a file in the making not at all."""
    write(tmp_path / "a.yaml", b"1")
    async with watching(tmp_path) as seen:
        assert await asyncio.wait_for(seen.get(), 30) == {"a.yaml": b"1"}
        (tmp_path / ".b.tmp").write_bytes(b"2")
        (tmp_path / ".b.tmp").rename(tmp_path / "b.json")
        assert await asyncio.wait_for(seen.get(), 30) == {"a.yaml": b"1", "b.json": b"2"}
        (tmp_path / "a.yaml").unlink()
        assert await asyncio.wait_for(seen.get(), 30) == {"b.json": b"2"}
        write(tmp_path / "note.txt", b"x")
        write(tmp_path / ".hidden.yaml", b"x")
        await asyncio.sleep(0.1)
        assert seen.empty()


async def test_a_directory_that_comes_goes_and_comes_again(tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    async with watching(folder, rescan_s=0.05) as seen:
        assert await asyncio.wait_for(seen.get(), 30) == {}
        folder.mkdir()
        write(folder / "a.yaml", b"1")
        assert await asyncio.wait_for(seen.get(), 30) == {"a.yaml": b"1"}
        (folder / "a.yaml").unlink()
        folder.rmdir()
        assert await asyncio.wait_for(seen.get(), 30) == {}
        folder.mkdir()
        write(folder / "b.yaml", b"2")
        assert await asyncio.wait_for(seen.get(), 30) == {"b.yaml": b"2"}


async def test_a_symlink_swap_is_seen(tmp_path: Path) -> None:
    """How a mounted ConfigMap changes."""
    for name, content in (("one", b"1"), ("two", b"2")):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "a.yaml", content)
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "..data").symlink_to(tmp_path / "one")
    (folder / "a.yaml").symlink_to(folder / "..data" / "a.yaml")
    async with watching(folder) as seen:
        assert await asyncio.wait_for(seen.get(), 30) == {"a.yaml": b"1"}
        (folder / "..next").symlink_to(tmp_path / "two")
        (folder / "..next").rename(folder / "..data")
        assert await asyncio.wait_for(seen.get(), 30) == {"a.yaml": b"2"}


def test_what_is_no_file_is_left_out_and_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "good.yaml").write_bytes(b"1")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    snapshot = read_manifests(tmp_path)
    (problem,) = snapshot.problems

    assert named(snapshot.files) == {"good.yaml": b"1"}
    assert str(problem).startswith(f"{tmp_path}/loop.yaml: cannot be read: Too many levels of symbolic links")
    assert snapshot.unread == {f"{tmp_path}/loop.yaml"}


def test_of_a_directory_that_cannot_be_read_the_last_content_stays(tmp_path: Path) -> None:
    """MAN-08: one that is not there says nothing, so nothing is known of it."""
    (tmp_path / "file").write_bytes(b"1")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = ManifestSnapshot({"/m/a.yaml": b"1"})

    missing = str(tmp_path / "nothing")
    assert read_manifests(tmp_path / "nothing") == ManifestSnapshot(unread=frozenset({missing}), is_missing=True)
    for name, reason in (("pipe", "Not a directory"), ("loop", "Too many levels"), ("file/below", "Not a directory")):
        path = tmp_path / name
        fresh, later = read_manifests(path), read_manifests(path, before)
        assert f"{path}: cannot be read: {reason}" in str(fresh.problems[0])
        assert (fresh.files, fresh.unread) == ({}, {str(path)})
        assert (later.files, later.problems, later.unread) == (before.files, fresh.problems, frozenset())


def test_a_single_file_may_stand_in_the_place_of_the_directory(tmp_path: Path) -> None:
    """MAN-01: whatever its name ends in."""
    (tmp_path / "pod").write_bytes(b"1")

    assert named(read_manifests(tmp_path / "pod").files) == {"pod": b"1"}


async def test_a_single_file_that_is_deleted_is_gone_and_one_that_is_not_there_at_the_start_says_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pod"
    write(path, b"1")
    async with watching(path, rescan_s=0.05) as seen:
        assert await asyncio.wait_for(seen.get(), 30) == {"pod": b"1"}
        path.unlink()
        assert await asyncio.wait_for(seen.get(), 30) == {}
        write(path, b"2")
        assert await asyncio.wait_for(seen.get(), 30) == {"pod": b"2"}


def test_what_lies_beside_manifests_is_told(tmp_path: Path) -> None:
    """MAN-01, MAN-02: nobody has to guess why a file has no effect."""
    for name in ("web.yaml.bak", "web.yaml"):
        (tmp_path / name).write_bytes(b"1")
    for name in ("below", "odd.yaml", "configmaps", "secrets"):
        (tmp_path / name).mkdir()
    told = [str(one).removeprefix(f"{tmp_path}/") for one in read_manifests(tmp_path).ignored]

    assert told == [
        "below: is a directory and is not read: put manifests into the directory above it",
        "odd.yaml: is not a file and is not read",
        "web.yaml.bak: is not read: names of manifests end in .json, .yaml, .yml",
    ]


def test_files_that_others_may_read_are_named(tmp_path: Path) -> None:
    for name, mode in (("a.yaml", 0o600), ("b.yaml", 0o644)):
        (tmp_path / name).write_bytes(b"1")
        (tmp_path / name).chmod(mode)
    tmp_path.chmod(0o755)
    assert {Path(path).name for path in read_manifests(tmp_path).exposed} == {"b.yaml"}
    tmp_path.chmod(0o700)

    assert read_manifests(tmp_path).exposed == frozenset(), "nobody gets that far"


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_file_that_cannot_be_read_any_more_keeps_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_bytes(name.encode())
    before = read_manifests(tmp_path)
    usual = Path.open

    def broken(path: Path, *arguments: Any) -> Any:
        if path.name != "b.yaml":
            raise OSError(code, os.strerror(code), str(path))
        return usual(path, *arguments)

    (tmp_path / "b.yaml").write_bytes(b"new")
    (tmp_path / "c.yaml").write_bytes(b"new")
    monkeypatch.setattr(Path, "open", broken)
    snapshot = read_manifests(tmp_path, before)

    assert named(snapshot.files) == {"a.yaml": b"a.yaml", "b.yaml": b"new"}
    assert [Path(one.where).name for one in snapshot.problems] == ["a.yaml", "c.yaml"]
    assert all(os.strerror(code) in one.text for one in snapshot.problems)
    assert snapshot.unread == {f"{tmp_path}/c.yaml"}


def test_names_that_are_no_utf8_are_read(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff.yaml"
    with open(name, "wb") as file:  # noqa: PTH123
        file.write(b"1")

    assert read_manifests(tmp_path).files == {os.fsdecode(name): b"1"}


async def test_a_directory_that_becomes_unreadable_and_heals(tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    write(folder / "a.yaml", b"1")
    async with watching(folder, rescan_s=0.05, problems=True) as seen:
        assert await asyncio.wait_for(seen.get(), 30) == {"a.yaml": b"1"}
        (tmp_path / "next").symlink_to(folder)
        folder.rename(tmp_path / "aside")
        (tmp_path / "next").rename(folder)
        shown: dict[str, bytes] = {}
        while folder.name not in shown:
            shown = await asyncio.wait_for(seen.get(), 30)
        assert shown[folder.name].startswith(b"cannot be read: Too many levels")
        folder.unlink()
        (tmp_path / "aside").rename(folder)
        while shown != {"a.yaml": b"1"}:
            shown = await asyncio.wait_for(seen.get(), 30)


async def test_a_directory_that_is_moved_away_is_noticed_at_once_and_watched_again(tmp_path: Path) -> None:
    """The path counts, not the directory that once stood there."""
    folder = tmp_path / "manifests"
    folder.mkdir()
    write(folder / "a.yaml", b"1")
    async with watching(folder, rescan_s=300.0) as seen:
        assert await asyncio.wait_for(seen.get(), 30) == {"a.yaml": b"1"}
        fresh = tmp_path / "fresh"
        fresh.mkdir()
        write(fresh / "b.yaml", b"2")
        folder.rename(tmp_path / "aside")
        fresh.rename(folder)
        shown = await asyncio.wait_for(seen.get(), 30)
        while shown != {"b.yaml": b"2"}:
            shown = await asyncio.wait_for(seen.get(), 30)
        write(tmp_path / "aside" / "c.yaml", b"3")
        write(folder / "d.yaml", b"4")
        assert await asyncio.wait_for(seen.get(), 30) == {"b.yaml": b"2", "d.yaml": b"4"}


async def test_a_linked_directory_is_watched_where_the_link_leads_after_a_rescan(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "a.yaml", name.encode())
    folder = tmp_path / "manifests"
    folder.symlink_to(tmp_path / "one")
    rescan_s = [0.05]
    async with watching(folder, rescan_s) as seen:
        assert await asyncio.wait_for(seen.get(), 30) == {"a.yaml": b"one"}
        (tmp_path / "next").symlink_to(tmp_path / "two")
        (tmp_path / "next").rename(folder)
        assert await asyncio.wait_for(seen.get(), 30) == {"a.yaml": b"two"}
        rescan_s[0] = 300.0
        await asyncio.sleep(0.2)
        write(tmp_path / "two" / "b.yaml", b"2")
        assert await asyncio.wait_for(seen.get(), 30) == {"a.yaml": b"two", "b.yaml": b"2"}


async def test_who_writes_all_the_time_is_read_all_the_same(tmp_path: Path) -> None:
    """MAN-06: the pause that is waited for has an end."""
    async with watching(tmp_path, rescan_s=300.0) as seen:
        assert await asyncio.wait_for(seen.get(), 30) == {}
        write(tmp_path / "a.yaml", b"1")
        for _ in range(2000):
            write(tmp_path / "note.txt", b"x")
            await asyncio.sleep(0.005)
            if not seen.empty():
                break
        assert seen.get_nowait() == {"a.yaml": b"1"}


async def test_without_a_watch_changes_are_seen_by_looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may have used up the kernel's watches; that is no reason not to run pods."""

    def refuse(**_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("agent.drivers.manifests.driver.Inotify", refuse)
    async with watching(tmp_path, rescan_s=0.05) as seen:
        assert await asyncio.wait_for(seen.get(), 30) == {}
        write(tmp_path / "a.yaml", b"1")
        assert await asyncio.wait_for(seen.get(), 30) == {"a.yaml": b"1"}


@pytest.mark.parametrize("pause_s", [0.0, 0.0005, 0.003])
async def test_all_files_that_are_removed_one_after_the_other_were_seen_to_be_removed(
    tmp_path: Path, pause_s: float
) -> None:
    """FP-23, CL-14: the kernel tells of each, and what it has told counts at once, not one file a look."""
    paths = [tmp_path / f"{number}.yaml" for number in range(100)]
    for path in paths:
        write(path, b"1")

    def remove() -> None:
        for path in paths:
            path.unlink()
            time.sleep(pause_s)

    looks = [{"": b""}]
    async with watching(tmp_path, problems=True) as seen:
        assert len(await asyncio.wait_for(seen.get(), 30)) == len(paths)
        removing = asyncio.ensure_future(asyncio.to_thread(remove))
        while looks[-1]:
            looks.append(await asyncio.wait_for(seen.get(), 30))
        await removing

    assert [told for told in looks[1:] if tmp_path.name in told] == []


async def test_the_fake_says_what_the_driver_says(tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    write(folder / "a.yaml", b"1")
    path = str(folder / "a.yaml")
    folder.chmod(0o700)
    fake = FakeManifestDirectory({path: b"1"})
    news = fake.news()
    first, real_first = (await anext(news)).look, read_manifests(folder)
    fake.fail(str(folder), "broken")
    broken = (await anext(news)).look
    folder.rename(tmp_path / "aside")
    os.mkfifo(folder)
    real_broken = read_manifests(folder, real_first)

    assert first == replace(real_first, place=0)
    assert (broken.files, broken.unread) == (real_broken.files, real_broken.unread)
    assert [one.where for one in broken.problems] == [one.where for one in real_broken.problems]


class TestVanishing:
    """MAN-08: an empty directory may be one that was unmounted."""

    @pytest.mark.parametrize("names", [("a",), ("a", "b")])
    def test_what_vanishes_unseen_is_waited_for(self, names: tuple[str, ...]) -> None:
        full = ManifestSnapshot({f"/m/{name}.yaml": b"1" for name in names})
        first = judge(None, full, frozenset(), 0.0, 20.0, "/m")
        held = judge(first, ManifestSnapshot(), frozenset(), 5.0, 20.0, "/m")
        still = judge(held, ManifestSnapshot(), frozenset(), 24.9, 20.0, "/m")
        gone = judge(held, ManifestSnapshot(), frozenset(), 25.0, 20.0, "/m")
        back = judge(held, full, frozenset(), 10.0, 20.0, "/m")

        assert held.snapshot.files == still.snapshot.files == full.files
        assert str(held.snapshot.problems[0]).startswith(
            f"/m: all {len(names)} manifests are gone at once, but kepd saw no deletion"
        )
        assert (held.until_s, still.until_s) == (25.0, 25.0)
        assert gone == Vanishing(ManifestSnapshot())
        assert back == Vanishing(full)

    def test_what_somebody_deleted_is_gone(self) -> None:
        first = judge(None, ManifestSnapshot({"/m/a": b"1", "/m/b": b"1"}), frozenset(), 0.0, 20.0, "/m")

        assert judge(first, ManifestSnapshot(), {"/m/a", "/m/b"}, 1.0, 20.0, "/m") == Vanishing(ManifestSnapshot())
        assert judge(first, ManifestSnapshot(), {"/m/a"}, 1.0, 20.0, "/m").until_s == 21.0
        assert judge(first, ManifestSnapshot({"/m/b": b"1"}), frozenset(), 1.0, 20.0, "/m").until_s is None, (
            "not all of them"
        )
        assert judge(None, ManifestSnapshot(), frozenset(), 0.0, 20.0, "/m") == Vanishing(ManifestSnapshot()), (
            "there was nothing"
        )

    async def test_deleting_all_of_them_counts_at_once(self, tmp_path: Path) -> None:
        folder = tmp_path / "manifests"
        folder.mkdir()
        for name in "abc":
            write(folder / f"{name}.yaml", b"1")
        async with watching(folder, rescan_s=300.0) as seen:
            assert len(await asyncio.wait_for(seen.get(), 30)) == 3
            for name in "abc":
                (folder / f"{name}.yaml").unlink()
            shown = await asyncio.wait_for(seen.get(), 30)
            while shown:
                shown = await asyncio.wait_for(seen.get(), 30)

    async def test_an_empty_directory_that_is_another_one_says_nothing(self, tmp_path: Path) -> None:
        """A mount point without its disk, also what a service manager makes of a directory that is missing."""
        folder = tmp_path / "manifests"
        folder.mkdir()
        write(folder / "a.yaml", b"1")
        rescan_s = [300.0]
        async with watching(folder, rescan_s, problems=True) as seen:
            assert await asyncio.wait_for(seen.get(), 30) == {"a.yaml": b"1"}
            rescan_s[0] = 0.3
            folder.rename(tmp_path / "aside")
            folder.mkdir()
            held = await asyncio.wait_for(seen.get(), 30)
            assert held["a.yaml"] == b"1"
            assert b"another directory than before" in held["manifests"]
            write(folder / "b.yaml", b"2")
            while held != {"b.yaml": b"2"}:
                assert held.get("a.yaml") == b"1"
                held = await asyncio.wait_for(seen.get(), 30)

    def test_an_empty_directory_that_is_the_same_one_is_believed_later(self) -> None:
        full = ManifestSnapshot({"/m/a.yaml": b"1"}, place=7)
        held = judge(Vanishing(full), ManifestSnapshot(place=8), frozenset(), 5.0, 20.0, "/m")
        years = judge(held, ManifestSnapshot(place=8), frozenset(), 1e9, 20.0, "/m")
        same = judge(years, ManifestSnapshot(place=7), frozenset(), 1e9, 20.0, "/m")
        gone = judge(same, ManifestSnapshot(place=7), frozenset(), 1e9 + 20, 20.0, "/m")

        assert [one.snapshot.files for one in (held, years, same, gone)] == [full.files] * 3 + [{}]

    def test_a_directory_that_is_not_there_ends_nothing_but_what_was_seen_to_be_deleted(self) -> None:
        full = ManifestSnapshot({"/m/a.yaml": b"1", "/m/b.yaml": b"1"}, folders={"/m/secrets/n/s": FOLDER})
        missing = ManifestSnapshot(unread=frozenset({"/m"}), is_missing=True)
        held = judge(Vanishing(full), missing, {"/m/a.yaml"}, 5.0, 20.0, "/m")
        years = judge(held, missing, frozenset(), 1e9, 20.0, "/m")
        removed = judge(Vanishing(full), missing, {"/m/a.yaml", "/m/b.yaml", "/m/secrets"}, 5.0, 20.0, "/m")

        assert (held.snapshot.files, held.snapshot.folders) == ({"/m/b.yaml": b"1"}, full.folders)
        assert [one.text for one in held.snapshot.problems] == [
            "is not there; what its manifests said stays valid until it is there again"
        ]
        assert years.snapshot == held.snapshot
        assert (removed.snapshot.files, removed.snapshot.folders, removed.snapshot.problems) == ({}, {}, ())
        assert held.snapshot.unread == removed.snapshot.unread == frozenset(), "it is known what is in force"

    async def test_a_running_kepd_keeps_what_a_directory_had_that_vanishes(self, tmp_path: Path) -> None:
        folder = tmp_path / "manifests"
        folder.mkdir()
        write(folder / "a.yaml", b"1")
        async with watching(folder, rescan_s=0.05, problems=True) as seen:
            assert await asyncio.wait_for(seen.get(), 30) == {"a.yaml": b"1"}
            folder.rename(tmp_path / "aside")
            held = await asyncio.wait_for(seen.get(), 30)
            assert (held["a.yaml"], held["manifests"][:12]) == (b"1", b"is not there")
            folder.mkdir()
            write(folder / "b.yaml", b"2")
            while held != {"b.yaml": b"2"}:
                held = await asyncio.wait_for(seen.get(), 30)


@pytest.mark.parametrize("kind", ["directory", "dangling link"])
def test_what_is_no_file_any_more_keeps_the_content_that_it_had(tmp_path: Path, kind: str) -> None:
    """MAN-08: a link may lead to a disk that is mounted later."""
    path = tmp_path / "a.yaml"
    path.write_bytes(b"1")
    before = read_manifests(tmp_path)
    path.unlink()
    path.mkdir() if kind == "directory" else path.symlink_to("nothing")
    later = read_manifests(tmp_path, before)

    assert later.files == before.files
    assert [str(one) for one in later.problems] == [
        f"{path}: is no file, or a link that leads to none; its last good content stays valid"
    ]
