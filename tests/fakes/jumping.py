# SPDX-License-Identifier: Apache-2.0
"""A module that imports `jumps` has each of its tests twice: with a right clock on the wall, and with one that jumps by
an hour, a day and ten years, both ways, at every step.

What waits, ends or is tried again goes by the clock that only runs, so that both come to the same end. A test of what
a calendar says, or of times that are shown, is marked with `by_the_wall`.
"""

import random
from collections.abc import Callable

import pytest

from agent.drivers.clock.driver import SystemClock
from tests.fakes.clock import FakeClock

HOUR_S, DAY_S, TEN_YEARS_S = 3600.0, 86400.0, 315e6
JUMPS_S = (0.0, HOUR_S, -HOUR_S, DAY_S, -DAY_S, TEN_YEARS_S, -TEN_YEARS_S)
# Of a test's own time, and of a real one.
STEPS_S = {FakeClock: 1.0, SystemClock: 0.05}
by_the_wall = pytest.mark.by_the_wall


@pytest.fixture(autouse=True, params=("", "jumps"), ids=("", "jumps"))
def jumps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param and request.node.get_closest_marker("by_the_wall") is None:
        for clock, step_s in STEPS_S.items():
            monkeypatch.setattr(clock, "wall_s", _jumping(clock.wall_s, step_s, request.node.name))


def _jumping(right: Callable[..., float], step_s: float, seed: str) -> Callable[..., float]:
    def wall_s(self: FakeClock | SystemClock) -> float:
        return right(self) + random.Random(f"{seed} {int(self.now_s() / step_s)}").choice(JUMPS_S)

    return wall_s
