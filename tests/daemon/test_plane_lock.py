# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

from agent.daemon.plane_lock import PlaneTaken, held_plane_lock


def test_there_is_one_holder_per_plane_and_runtime(tmp_path: Path) -> None:
    with held_plane_lock("pods", "unix:///a", tmp_path):
        with (
            pytest.raises(PlaneTaken, match=f"held by process {os.getpid()}"),
            held_plane_lock("pods", "unix:///a", tmp_path),
        ):
            pass
        with held_plane_lock("pods", "unix:///b", tmp_path), held_plane_lock("images", "unix:///a", tmp_path):
            pass
    with held_plane_lock("pods", "unix:///a", tmp_path):
        pass
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    """The directory is writable by all on many systems."""
    with held_plane_lock("pods", "x", tmp_path):
        (lock,) = tmp_path.iterdir()
    target = tmp_path / "target"
    target.write_text("precious")
    lock.symlink_to(target)

    with pytest.raises(OSError, match="symbolic"), held_plane_lock("pods", "x", tmp_path):
        pass
    assert target.read_text() == "precious"


@pytest.mark.node
def test_a_file_that_somebody_else_put_there_holds_nothing(tmp_path: Path) -> None:
    with held_plane_lock("pods", "x", tmp_path):
        (lock,) = tmp_path.iterdir()
    lock.touch()
    os.chown(lock, 1000, 1000)
    with held_plane_lock("pods", "x", tmp_path):
        assert lock.stat().st_uid == 0
