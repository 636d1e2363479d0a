# SPDX-License-Identifier: Apache-2.0
"""Trees that a container made: deep, wide, moved while they are walked, and with links that lead out."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.pods.run.disk.trees import remove_tree, tree_use

DEEP = 3000
"""More than the interpreter recurses, and with names of this length more than a path can be long."""
NAME = "directory"
FULL = b"x" * 4096


@contextmanager
def inside(place: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)


def nested(place: Path, depth: int = DEEP) -> Path:
    """Directories in each other, and a file of one block in the last."""
    place.mkdir(parents=True, exist_ok=True)
    with inside(place):
        for _ in range(depth):
            os.mkdir(NAME)  # noqa: PTH102  # a path of this depth has no name
            os.chdir(NAME)
        Path("file").write_bytes(FULL)
    return place


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """As many as a walk may need, and a few that the interpreter has anyway."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208  # names only
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 50, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("few_descriptors")
class TestDepth:
    """FP-3."""

    def test_a_tree_deeper_than_any_path_is_measured(self, tmp_path: Path) -> None:
        assert tree_use(nested(tmp_path / "v")).bytes == len(FULL)
        remove_tree(tmp_path / "v")

    def test_a_tree_deeper_than_any_path_is_removed(self, tmp_path: Path) -> None:
        remove_tree(nested(tmp_path / "v"))

        assert list(tmp_path.iterdir()) == []

    def test_branches_below_the_depth_that_is_held_open_are_all_visited(self, tmp_path: Path) -> None:
        """The way back up leads over directories that were closed meanwhile."""
        place = nested(tmp_path / "v", 100)
        with inside(place):
            for _ in range(100):
                for side in ("left", "right"):
                    Path(side).mkdir()
                    Path(side, "file").write_bytes(FULL)
                os.chdir(NAME)

        assert tree_use(place).bytes == len(FULL) * 201
        remove_tree(place)
        assert list(tmp_path.iterdir()) == []


def test_links_are_removed_and_what_they_lead_to_stays(tmp_path: Path) -> None:
    """VOL-05."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "file").write_bytes(FULL)
    place = tmp_path / "v"
    place.mkdir()
    (place / "directory").symlink_to(tmp_path / "host")
    (place / "file").symlink_to(tmp_path / "host" / "file")
    os.mkfifo(place / "pipe")

    assert tree_use(place).bytes == sum(path.lstat().st_blocks * 512 for path in place.iterdir())
    remove_tree(place)
    assert [path.name for path in tmp_path.rglob("*")] == ["host", "file"]


def test_a_tree_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "host" / "below").mkdir(parents=True)
    (tmp_path / "v").symlink_to(tmp_path / "host")

    with pytest.raises(OSError, match="v'"):
        remove_tree(tmp_path / "v")
    assert (tmp_path / "host" / "below").is_dir()


def test_a_directory_that_is_moved_meanwhile_ends_the_removal_and_leaves_its_new_place_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, elsewhere = nested(tmp_path / "v", 80), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    real, moved = os.rmdir, []

    def rmdir(path: str, *, dir_fd: int | None = None) -> None:
        if not moved:
            moved.append(path)
            (place / "/".join([NAME] * 20)).rename(elsewhere / NAME)
        real(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", rmdir)
    with pytest.raises(OSError, match="moved while kepd was reading it"):
        remove_tree(place)

    assert (elsewhere / "file").exists()
    monkeypatch.undo()
    remove_tree(place)


def test_a_directory_that_is_moved_meanwhile_ends_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = nested(tmp_path / "v", 80)
    (place / "file").write_bytes(FULL)
    real, looks = os.scandir, []

    def scandir(handle: int) -> object:
        looks.append(handle)
        if len(looks) == 70:
            (place / "/".join([NAME] * 20)).rename(tmp_path / "elsewhere")
        return real(handle)

    monkeypatch.setattr(os, "scandir", scandir)

    assert tree_use(place).bytes == 2 * len(FULL)


@pytest.mark.parametrize("call", ["unlink", "scandir", "rmdir"])
def test_what_cannot_be_removed_is_told_and_keeps_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """FP-3: one bad block, or a file that a container made immutable, does not keep the rest of a volume."""
    place = tmp_path / "v"
    for side in ("a", "bad", "z"):
        nested(place / side, 3)
    real = getattr(os, call)
    bad = (place / "bad").stat().st_ino

    def refusing(what: int | str, *rest: object, **named: int) -> object:
        above = os.stat(what) if isinstance(what, int) else os.stat(".", dir_fd=named["dir_fd"])  # noqa: PTH116  # by handle
        if above.st_ino == bad or what == "bad" or (call == "unlink" and is_below(named["dir_fd"], "bad")):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(what))
        return real(what, *rest, **named)

    monkeypatch.setattr(os, call, refusing)
    with pytest.raises(OSError, match="v/bad") as told:
        remove_tree(place)
    assert told.value.errno == errno.EIO
    assert [path.name for path in place.iterdir()] == ["bad"]

    monkeypatch.undo()
    remove_tree(place)
    assert list(tmp_path.iterdir()) == []


def is_below(handle: int, name: str) -> bool:
    return f"/{name}" in str(Path(f"/proc/self/fd/{handle}").readlink())


def test_a_unit_that_forbids_the_call_is_told_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd answers openat2 with ENOSYS where a unit says RestrictSUIDSGID."""

    def forbidden(handle: int, name: str) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), name)

    (tmp_path / "t").mkdir()
    monkeypatch.setattr("agent.pods.run.disk.trees._step", forbidden)

    with pytest.raises(OSError, match=r"needs the drop-in pods\.conf of this version \(kepd setup\)"):
        remove_tree(tmp_path / "t")
