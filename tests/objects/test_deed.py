# SPDX-License-Identifier: Apache-2.0
"""Several files that one apply changes: all of them or none, whatever happens between any two steps (MAN-16)."""

import errno
import os
import sys
import warnings
from collections.abc import Callable
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

import pytest

from agent.drivers.manifests.driver import ManifestDirectory
from agent.model.finding import Finding
from agent.model.refused import Refused
from agent.objects.run import deed, writer
from agent.objects.run.deed import INTENTION, Change, change_all, finish
from agent.objects.run.writer import Edited
from tests.objects.following import following
from tests.objects.histories import PODS

STEPS = frozenset({"open", "os.rename", "os.remove", "os.chmod", "os.chown", "ctypes.dlopen"})
OLD = {"a.yaml": b"a: 1\n", "b.yaml": b"b: 1\n"}
NEW = {"a.yaml": b"a: 2\n", "b.yaml": b"b: 2\n", "c.yaml": b"c: 2\n"}
EDIT = b"by: hand\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return filled(tmp_path)


def filled(root: Path) -> Path:
    """Its `b.yaml` is a link to another directory."""
    manifests, elsewhere = root / "manifests", root / "elsewhere"
    for place in (manifests, elsewhere):
        place.mkdir(mode=0o755, parents=True)
    (manifests / "b.yaml").symlink_to(elsewhere / "b")
    for name, content in OLD.items():
        (manifests / name).write_bytes(content)
    return manifests


def contents(folder: Path) -> dict[str, bytes]:
    """Leftovers as well, and those beside the file that is elsewhere."""
    places = (*folder.iterdir(), *(folder.parent / "elsewhere").glob(".*"))
    return {place.name: place.read_bytes() for place in sorted(places)}


def changes(folder: Path) -> list[Change]:
    return [Change(str(folder / name), OLD.get(name), content, 0o600) for name, content in NEW.items()]


def is_killed_at(count: int, do: Callable[[], object]) -> bool:
    """Whether the process that does it came as far as to that step."""
    with warnings.catch_warnings(action="ignore"):
        child = os.fork()
    if child == 0:
        left = count

        def step(name: str, _values: Any) -> None:
            nonlocal left
            left -= name in STEPS
            if left < 0:
                os._exit(1)

        sys.addaudithook(step)
        try:
            do()
        finally:
            os._exit(0)
    return bool(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def test_after_a_kill_at_any_step_the_next_start_has_all_or_nothing(tmp_path: Path) -> None:
    seen, count = [], 0
    while True:
        place = filled(tmp_path / str(count))
        is_killed = is_killed_at(count, lambda place=place: change_all(place, changes(place)))
        assert finish(place) == ()
        seen.append(contents(place))
        if not is_killed:
            break
        count += 1

    turn = seen.index(NEW)
    assert min(turn, len(seen) - turn) > 9, "kills before and after the intention is on the disk"
    assert seen == [OLD] * turn + [NEW] * (len(seen) - turn)


def test_a_start_that_is_killed_at_any_step_is_made_good_by_the_next(tmp_path: Path) -> None:
    count, is_killed = 0, True
    while is_killed:
        place = filled(tmp_path / str(count))
        half_done(place)
        is_killed = is_killed_at(count, lambda place=place: finish(place))
        assert finish(place) == ()
        assert contents(place) == NEW
        count += 1
    assert count > 9


def half_done(folder: Path) -> None:
    """The first file has changed, the others have not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deed, "_swap_all", lambda _changes: os._exit(1))
        if (child := os.fork()) == 0:
            change_all(folder, changes(folder))
        os.waitpid(child, 0)
    (folder / ".a.yaml.draft").rename(folder / "a.yaml")


@pytest.mark.parametrize("edited", ["a.yaml", "b.yaml", "c.yaml"])
def test_an_edit_between_a_crash_and_the_start_stays_and_is_told(folder: Path, edited: str) -> None:
    half_done(folder)
    (folder / edited).write_bytes(EDIT)
    (finding,) = finish(folder)
    others = ", ".join(str(folder / name) for name in NEW if name != edited)

    assert contents(folder) == {**NEW, edited: EDIT}
    assert finding == Finding(
        str(folder / edited), "",
        f"was edited while kepd was about to change it with {others}, and stays as it is; apply that manifest again",
    )  # fmt: skip


def test_a_file_that_was_removed_between_a_crash_and_the_start_does_not_come_back(folder: Path) -> None:
    half_done(folder)
    (folder / "a.yaml").unlink()

    assert [finding.where for finding in finish(folder)] == [str(folder / "a.yaml")]
    assert contents(folder) == {name: content for name, content in NEW.items() if name != "a.yaml"}


def test_an_edit_that_a_killed_swap_has_just_found_stays(folder: Path) -> None:
    half_done(folder)
    (folder / ".a.yaml.draft").write_bytes(EDIT)

    assert [finding.where for finding in finish(folder)] == [str(folder / "a.yaml")]
    assert contents(folder) == {**NEW, "a.yaml": EDIT}


@pytest.mark.parametrize("edited", ["a.yaml", "b.yaml", "c.yaml"])
def test_an_edit_before_the_swaps_takes_all_of_it_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch, edited: str
) -> None:
    swap = deed._swap_all

    def edit_and_swap(every: Any) -> None:
        (folder / edited).write_bytes(EDIT)
        swap(every)

    monkeypatch.setattr(deed, "_swap_all", edit_and_swap)
    with pytest.raises(Edited):
        change_all(folder, changes(folder))

    assert contents(folder) == {**OLD, edited: EDIT}


@pytest.mark.parametrize(("code", "reason"), [(errno.ENOSPC, "disk_full"), (errno.EROFS, "precondition")])
@pytest.mark.parametrize("count", range(4))
def test_a_disk_that_takes_nothing_refuses_before_the_first_file_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int, reason: str, count: int
) -> None:
    sync, left = os.fsync, count

    def full(handle: int) -> None:
        nonlocal left
        left -= not Path(f"/proc/self/fd/{handle}").is_dir()
        if left < 0:
            raise OSError(code, os.strerror(code))
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Refused, match="nothing is changed") as refused:
        change_all(folder, changes(folder))

    assert refused.value.kind == reason
    assert contents(folder) == OLD


def test_one_file_needs_no_intention(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deed, "write_file", None)
    change_all(folder, changes(folder)[:1])

    assert contents(folder) == {**OLD, "a.yaml": NEW["a.yaml"]}


def test_what_another_user_may_write_is_not_carried_out(folder: Path) -> None:
    half_done(folder)
    (folder / INTENTION).chmod(0o666)
    (finding,) = finish(folder)

    assert "every user may write it (mode 0666)" in finding.text
    assert (folder / "b.yaml").read_bytes() == OLD["b.yaml"]


def test_a_read_only_directory_is_no_finding(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: bool) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    without = finish(folder)
    (folder / INTENTION).write_bytes(b"[]")
    (folder / INTENTION).chmod(0o600)

    assert without == ()
    assert ["Read-only file system" in finding.text for finding in finish(folder)] == [True]


def test_a_name_that_is_not_utf_8_is_no_hindrance(folder: Path) -> None:
    (folder / "a.yaml").rename(folder / "\udcff.yaml")
    change_all(folder, [Change(str(folder / "\udcff.yaml"), OLD["a.yaml"], EDIT, 0o600), *changes(folder)[1:]])

    assert contents(folder) == {"\udcff.yaml": EDIT, "b.yaml": NEW["b.yaml"], "c.yaml": NEW["c.yaml"]}


def test_a_lock_of_another_program_is_not_waited_for(folder: Path) -> None:
    """It might be held for ever, and the daemon must start; what is half done is left to its owner."""
    half_done(folder)
    before = contents(folder)
    handle = os.open(folder, os.O_RDONLY)
    try:
        flock(handle, LOCK_EX)
        assert finish(folder) == ()
        with pytest.raises(Refused, match="another program has locked"):
            change_all(folder, changes(folder))
    finally:
        os.close(handle)

    assert contents(folder) == before


def test_without_a_directory_nothing_is_finished_and_nothing_written(tmp_path: Path) -> None:
    assert finish(tmp_path / "none") == ()
    with pytest.raises(Refused, match="No such file or directory; nothing is changed"):
        change_all(tmp_path / "none", changes(tmp_path / "none"))


def test_drafts_of_long_names_are_not_the_same(tmp_path: Path) -> None:
    places = [tmp_path / f"{'x' * 230}{number}.yaml" for number in range(2)]
    change_all(tmp_path, [Change(str(place), None, place.name.encode(), 0o600) for place in places])

    assert [place.read_bytes() for place in places] == [place.name.encode() for place in places]


async def test_planes_see_all_of_it_at_first_and_are_told_of_an_edit_until_the_file_is_another(folder: Path) -> None:
    half_done(folder)
    (folder / "b.yaml").unlink()
    (folder / "b.yaml").write_bytes(EDIT)
    async with following(folder, folder.parent / "objects.db", PODS) as (source,):
        news = source.news()
        first = (await anext(aiter(news))).look
        (folder / "b.yaml").write_bytes(NEW["b.yaml"])
        later = first
        while later.problems:
            later = (await anext(aiter(news))).look

    assert first.files == {str(folder / name): content for name, content in {**NEW, "b.yaml": EDIT}.items()}
    assert [problem.where for problem in first.problems] == [str(folder / "b.yaml")]
    assert (later.files[str(folder / "b.yaml")], later.problems) == (NEW["b.yaml"], ())


async def test_no_look_comes_between_two_swaps(folder: Path) -> None:
    class Ends:
        """A deed that has the lock when a look wants it."""

        def __enter__(self) -> None:
            for name, content in NEW.items():
                (folder / name).write_bytes(content)

        def __exit__(self, *_: object) -> None:
            (folder / "a.yaml").write_bytes(b"next\n")

    (folder / "a.yaml").write_bytes(NEW["a.yaml"])
    directory = ManifestDirectory(folder, lambda: (300.0, 0.02), lock=Ends())
    snapshot = await anext(aiter(directory.snapshots()))

    assert {Path(path).name: content for path, content in snapshot.files.items()} == NEW
    assert not writer.WRITING.locked()
