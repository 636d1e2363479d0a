# SPDX-License-Identifier: Apache-2.0
"""Manifest files that kepd changes, while others change them too."""

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from agent.model.refused import Refused
from agent.objects.documents import read_objects
from agent.objects.run import writer
from agent.objects.run.writer import FILE_MODE, Edited, take_out, write_whole

BEFORE, OURS, THEIRS = b"before\n", b"ours\n", b"theirs\n"
POD = b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"


def renamed(place: Path) -> None:
    (place.parent / "theirs").write_bytes(THEIRS)
    (place.parent / "theirs").rename(place)


EDITS: dict[str, Callable[[Path], object]] = {
    "by rename": renamed,
    "in place": lambda place: place.write_bytes(THEIRS),
    "gone": lambda place: place.unlink(),
}


@pytest.fixture(params=["names are swapped", "names cannot be swapped"])
def swaps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(_source: Path, _target: Path, _flags: int) -> None:
        raise OSError(errno.EINVAL, "no such flag")

    if request.param != "names are swapped":
        monkeypatch.setattr(writer, "_rename", unable)


@pytest.mark.usefixtures("swaps")
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_after_the_read_stays(tmp_path: Path, edit: str) -> None:
    place = tmp_path / "a.yaml"
    place.write_bytes(BEFORE)
    EDITS[edit](place)
    with pytest.raises((Edited, FileNotFoundError)):
        write_whole(place, OURS, 0o640, BEFORE)

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == (
        {} if edit == "gone" else {"a.yaml": THEIRS}
    )


@pytest.mark.usefixtures("swaps")
def test_what_was_read_is_replaced_with_its_mode(tmp_path: Path) -> None:
    place = tmp_path / "a.yaml"
    place.write_bytes(BEFORE)
    place.chmod(0o604)
    write_whole(place, OURS, 0o640, BEFORE)

    assert ([path.name for path in tmp_path.iterdir()], place.read_bytes()) == (["a.yaml"], OURS)
    assert place.stat().st_mode & 0o777 == 0o604


@pytest.mark.usefixtures("swaps")
def test_a_new_file_takes_no_other_ones_place(tmp_path: Path) -> None:
    place = tmp_path / "a.yaml"
    write_whole(place, BEFORE, 0o640, None)
    with pytest.raises((Edited, FileExistsError, OSError)):
        write_whole(place, OURS, 0o640, None)

    assert ([path.name for path in tmp_path.iterdir()], place.read_bytes()) == (["a.yaml"], BEFORE)


def test_an_object_is_taken_out_of_what_was_edited_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "a.yaml"
    place.write_bytes(POD)
    remove = writer.remove

    def edited(file: Path, before: bytes) -> None:
        if file.read_bytes() == POD:
            file.write_bytes(POD + b"---\n" + POD.replace(b"a}", b"b}"))
        remove(file, before)

    monkeypatch.setattr(writer, "remove", edited)
    take_out(str(place), ("Pod", "default", "a"))

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a.yaml": b"---\n" + POD.replace(b"a}", b"b}")
    }


def test_a_link_is_taken_out_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "to").write_bytes(POD)
    (tmp_path / "a.yaml").symlink_to(tmp_path / "to")
    take_out(str(tmp_path / "a.yaml"), ("Pod", "default", "a"))

    assert [path.name for path in tmp_path.iterdir()] == ["to"]


def test_a_full_disk_leaves_the_file_as_it_was_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SYS-16."""
    path = tmp_path / "there.yaml"
    path.write_text("a")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"b", FILE_MODE, b"a")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("there.yaml", "a")]


def test_a_file_that_cannot_be_changed_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "a.yaml"
    place.write_bytes(POD)

    def read_only(_source: Path, _target: Path) -> Path:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "replace", read_only)
    with pytest.raises(Refused, match=r"a\.yaml cannot be written: Read-only file system"):
        take_out(str(place), ("Pod", "default", "a"))

    assert place.read_bytes() == POD


def link_to_nowhere(place: Path) -> None:
    place.unlink()
    place.symlink_to(place.with_name("nowhere"))


def directory(place: Path) -> None:
    place.unlink()
    place.mkdir()


@pytest.mark.parametrize("edit", [link_to_nowhere, directory])
def test_what_an_edit_puts_there_at_the_last_moment_stays_though_it_is_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: Callable[[Path], None]
) -> None:
    place, swap, moved = tmp_path / "a.yaml", writer._rename, Path.replace

    def late(source: Path, target: Path, flags: int) -> None:
        monkeypatch.setattr(writer, "_rename", swap)
        edit(place)
        swap(source, target, flags)

    def late_move(source: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", moved)
        edit(place)
        return moved(source, target)

    def left() -> tuple[list[str], bool, bool]:
        return sorted(path.name for path in tmp_path.iterdir()), place.is_symlink(), place.is_dir()

    wanted = (["a.yaml"], edit is link_to_nowhere, edit is directory)
    place.write_bytes(POD)
    monkeypatch.setattr(writer, "_rename", late)
    with pytest.raises(Edited):
        write_whole(place, OURS, FILE_MODE, POD)
    assert left() == wanted
    place.rmdir() if edit is directory else place.unlink()
    place.write_bytes(POD)
    monkeypatch.setattr(Path, "replace", late_move)
    with suppress(Refused):
        take_out(str(place), ("Pod", "default", "a"))

    assert left() == wanted


def test_threads_that_change_one_file_lose_nothing_of_each_other(tmp_path: Path) -> None:
    """Jobs of one file whose time is up at once, and pods of it that are deleted meanwhile."""
    place = tmp_path / "a.yaml"
    for _ in range(5):
        place.write_bytes(b"---\n".join(POD.replace(b"name: a", b"name: a%d" % number) for number in range(5)))
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: take_out(str(place), ("Pod", "default", f"a{number}")), range(4)))

        assert [each.name for each in read_objects("a.yaml", place.read_bytes())] == ["a4"]
