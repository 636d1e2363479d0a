# SPDX-License-Identifier: Apache-2.0
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.kit.plane_lock import PlaneTaken, held_plane_lock
from tests.host.other_user import NOBODY, as_user, passable

KEPD_UID, READERS_GID = 4801, 4802


@contextmanager
def held(plane: str, scope: str, folder: Path) -> Iterator[None]:
    with held_plane_lock(plane, scope, folder / "run", folder / "locks"):
        yield


def locks(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_there_is_one_holder_per_plane_and_runtime(tmp_path: Path) -> None:
    with held("pods", "unix:///a", tmp_path):
        with pytest.raises(PlaneTaken, match=f"held by process {os.getpid()}"), held("pods", "unix:///a", tmp_path):
            pass
        with held("pods", "unix:///b", tmp_path), held("images", "unix:///a", tmp_path):
            pass
    with held("pods", "unix:///a", tmp_path):
        pass
    assert locks(tmp_path) == [], "nothing is left behind"


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    with held("pods", "x", tmp_path):
        (lock,) = locks(tmp_path)
    target = tmp_path / "target"
    target.write_text("precious")
    lock.symlink_to(target)

    with pytest.raises(PlaneTaken, match="symbolic"), held("pods", "x", tmp_path):
        pass
    assert target.read_text() == "precious"


@pytest.mark.parametrize("make", [lambda path: path.mkdir(0o777), lambda path: path.symlink_to("/tmp")])
def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """FX-4: anyone could put something else in the place of a lock."""
    make(tmp_path / "locks")
    if not (tmp_path / "locks").is_symlink():
        (tmp_path / "locks").chmod(0o777)

    with pytest.raises(PlaneTaken, match="systemd-tmpfiles"), held("pods", "x", tmp_path):
        pass


def as_tmpfiles_makes_it(folder: Path) -> None:
    passable(folder)
    (folder / "locks").mkdir(0o755)
    shared = folder / "locks/services"
    shared.mkdir()
    os.chown(shared, KEPD_UID, 0)
    shared.chmod(0o770)


def hold(plane: str, folder: Path) -> str:
    with held(plane, "x", folder):
        return "held"


@pytest.mark.node
def test_root_and_user_kepd_share_the_lock_of_services_and_no_other(short_path: Path) -> None:
    """FX-4: whoever runs the first of two daemons."""
    as_tmpfiles_makes_it(short_path)

    def kepd(plane: str) -> object:
        return as_user(KEPD_UID, READERS_GID, [], lambda: hold(plane, short_path))

    def root_without_capabilities(plane: str) -> object:
        return as_user(0, READERS_GID, [0], lambda: hold(plane, short_path))

    def kepd_holds_while_root_tries() -> str:
        with held("services", "x", short_path):
            return str(locks(short_path)[0].stat().st_mode & 0o777)

    with held("services", "x", short_path):
        (lock,) = locks(short_path)
        assert stat.S_IMODE(lock.stat().st_mode) == 0o666, "its directory keeps others out"
        assert kepd("services") == "PlaneTaken"
    assert kepd("services") == "held"
    assert root_without_capabilities("services") == "held"
    assert as_user(KEPD_UID, READERS_GID, [], kepd_holds_while_root_tries) == str(0o666)
    assert kepd("pods") == "PlaneTaken"


@pytest.mark.node
@pytest.mark.parametrize(("groups"), [[], [READERS_GID]], ids=["nobody", "a reader of the API"])
def test_another_user_can_neither_hold_nor_replace_nor_block_a_lock(short_path: Path, groups: list[int]) -> None:
    """FX-4: a directory or a link of the lock's name in a world-writable place stopped planes."""
    as_tmpfiles_makes_it(short_path)
    places = [short_path / "locks", short_path / "locks/services"]
    with held("services", "x", short_path), held("pods", "x", short_path):
        names = locks(short_path)
        tries = [lambda path=path: os.open(path, os.O_RDONLY) for path in names]
        tries += [lambda path=path: path.unlink() for path in names]
        tries += [lambda path=path: path.rename(path.with_suffix(".x")) for path in names]
        for deed in tries:
            assert as_user(NOBODY, NOBODY, groups, deed) == "PermissionError"
    squats = [lambda path=path: path.mkdir() for path in names]
    squats += [lambda path=path: path.symlink_to("/etc/passwd") for path in names]
    squats += [lambda place=place: place.rename(place.with_suffix(".x")) for place in places]
    for deed in squats:
        assert as_user(NOBODY, NOBODY, groups, deed) == "PermissionError"
    for plane in ("services", "pods"):
        assert as_user(NOBODY, NOBODY, groups, lambda plane=plane: hold(plane, short_path)) == "PlaneTaken"
        assert hold(plane, short_path) == "held"
