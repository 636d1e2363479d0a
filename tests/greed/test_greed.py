# SPDX-License-Identifier: Apache-2.0
"""Whatever a caller does at a door, others are served, nothing grows, and who goes too far is told why.

`bench greed` measures how long the others wait; here it is enough that they are answered.
"""

from collections.abc import Iterator

import pytest

from bench.daemon import free_port
from tests.greed.greedy import API, CRI, HTTP
from tests.greed.witness import Doors, Seen, open_doors
from tests.lab import Lab

pytestmark = [pytest.mark.node, pytest.mark.alone, pytest.mark.timeout(180)]

GREED_S = 0.7
MOST_GROWN_BYTES, MOST_LINES = 64 << 20, 200
# These go beyond a share in any second; a caller that only asks a lot is slowed down instead.
CUT_OFF = [
    f"api/{kind}"
    for kind in (
        "window",
        "unknown",
        "large unknown",
        "settings",
        "ping",
        "priority",
        "resets of none",
        "calls given up",
    )
]
EVERY = (*(f"api/{one}" for one in API), *(f"cri/{one}" for one in CRI), *(f"http/{one}" for one in HTTP))
OTHERS = [kind for kind in EVERY if kind not in CUT_OFF]
TRIES, AT_ONCE = 5, 5


@pytest.fixture(scope="module")
def doors(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with open_doors(tmp_path_factory.mktemp("g"), free_port(), lab.endpoint, "proxy", "images") as found:
        yield found
        log = found.kepd.log.read_text().splitlines()
        assert found.kepd.end() == 0
    assert len([line for line in log if "api_caller_cut_off" in line]) < MOST_LINES
    assert not [line for line in log if "level=error" in line]


@pytest.mark.parametrize("kind", CUT_OFF)
def test_one_greedy_caller_takes_nothing_from_the_others_and_is_told_why(doors: Doors, kind: str) -> None:
    told: list[str] = []
    # On a busy machine a caller may not get far in its time.
    for number in range(1, TRIES + 1):
        seen = doors.watch(number * GREED_S, [kind])
        check(seen)
        told = [one for one in seen.told if one]
        if told:
            return
    raise AssertionError(f"{kind} was told nothing")


@pytest.mark.parametrize("first", range(0, len(OTHERS), AT_ONCE))
def test_several_greedy_users_at_once_take_nothing_from_the_others(doors: Doors, first: int) -> None:
    check(doors.watch(2 * GREED_S, OTHERS[first : first + AT_ONCE]))


def check(seen: Seen) -> None:
    assert seen.failed == []
    assert len(seen.calls_s) > 1
    assert seen.grown_bytes < MOST_GROWN_BYTES
