# SPDX-License-Identifier: Apache-2.0
"""FP-30: what a power cut leaves of CNI's results is set aside for the sandbox that ends, and for no other."""

from pathlib import Path

import pytest

from agent.pods.run.disk.lost_networks import set_aside, unreadable_results

MINE, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def results(tmp_path: Path) -> Path:
    place = tmp_path / "results"
    place.mkdir()
    (place / f"lab-{MINE}-eth0").write_text("")
    (place / f"lab-{MINE}-lo").write_text('{"kind": "cniCacheV1"}')
    (place / f"lab-{OTHER}-eth0").write_text('{"kind": "cniC')
    return place


def test_only_what_does_not_parse_of_this_sandbox_is_set_aside(results: Path) -> None:
    moved = set_aside(results, MINE)

    assert moved == [results.parent / "unreadable" / f"lab-{MINE}-eth0"]
    assert sorted(path.name for path in results.iterdir()) == [f"lab-{MINE}-lo", f"lab-{OTHER}-eth0"]
    assert set_aside(results, MINE) == []


def test_all_that_do_not_parse_are_found_for_the_doctor(results: Path) -> None:
    (results / "directory").mkdir()

    assert [path.name for path in unreadable_results(results)] == [f"lab-{MINE}-eth0", f"lab-{OTHER}-eth0"]
    assert unreadable_results(results / "absent") == []


def test_power_cuts_without_end_leave_no_files_without_end(results: Path) -> None:
    for number in range(15):
        (results / f"lab-{MINE}-eth{number}").write_text("")
    set_aside(results, MINE)

    assert len([*(results.parent / "unreadable").iterdir()]) == 10
