# SPDX-License-Identifier: Apache-2.0
"""A clock that somebody sets back is told of once, with what follows."""

import pytest

from agent.host.set_clock import SetClock
from agent.model.event import Event
from tests.fakes.clock import FakeClock


@pytest.mark.parametrize(
    ("set_s", "texts"),
    [(0.0, []), (-1.5, []), (3600.0, []), (-3600.0, ["3600 s"]), (-315e6, ["315000000 s"])],
)
async def test_a_clock_that_went_back_is_told_of_once(set_s: float, texts: list[str]) -> None:
    clock, events = FakeClock(), list[Event]()
    told = SetClock(clock, events.append)
    for ahead_s in (0.0, set_s, 0.0, 0.0):
        await clock.advance(4)
        clock._epoch_s += ahead_s
        told.look()

    assert len(events) == len(texts)
    assert all(text in event.message for text, event in zip(texts, events, strict=True))
    assert {event.reason for event in events} <= {"ClockWentBack"}
