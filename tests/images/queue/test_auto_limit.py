# SPDX-License-Identifier: Apache-2.0
"""`images.maxParallelPulls: auto`: one more while it pays, half as many when the node is short of something."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.config.sections.images import Images
from agent.images.queue.auto_limit import AutoLimit, AutoSample, Pressure, next_limit, read_pressure
from agent.images.run.pulling.limiter import SAMPLE_S, AutoLimiter
from agent.images.settings import image_settings, with_limit
from tests.contract.fake_pressure import FakePressure
from tests.fakes.clock import FakeClock

CALM = Pressure()


def minute(state: AutoLimit, rate: float, pressure: Pressure = CALM, *, has_waiting: bool = True) -> AutoLimit:
    for _ in range(12):
        state = next_limit(state, AutoSample(5.0, has_waiting, rate, pressure))
    return state


def test_the_limit_grows_by_one_a_minute_as_long_as_more_bytes_come() -> None:
    """IMG-N02."""
    first = minute(AutoLimit(), 1e6)
    second = minute(first, 1.06e6)
    third = minute(second, 1.07e6)

    assert [first.limit, second.limit, third.limit] == [4, 5, 5]
    assert str(second) == "5 pulls at once: pulls wait, and 1.1 MB/s come in"


def test_nothing_is_learnt_while_nothing_waits() -> None:
    """IMG-N02: with waiting work."""
    assert minute(AutoLimit(), 1e6, has_waiting=False) == AutoLimit()


@pytest.mark.parametrize(
    ("pressure", "limit"),
    [
        (Pressure(io_some=19.9), 4),
        (Pressure(io_some=20.0), 3),
        (Pressure(io_some=39.9), 3),
        (Pressure(io_some=40.0), 1),
        (Pressure(memory_full=0.01), 1),
    ],
)
def test_pressure_holds_it_or_halves_it(pressure: Pressure, limit: int) -> None:
    """IMG-N02: bounds of the disk and the memory."""
    assert minute(AutoLimit(), 1e6, pressure).limit == limit


def test_it_is_halved_once_until_the_kernels_average_can_tell_of_it() -> None:
    """IMG-N02: an average over 10 s says nothing new after 5."""
    pressed = AutoSample(5.0, True, 1e6, Pressure(io_some=80.0))
    once = next_limit(AutoLimit(limit=8), pressed)
    again = next_limit(once, pressed)
    later = next_limit(again, pressed)

    assert [once.limit, again.limit, later.limit] == [4, 4, 2]
    assert once.why == "tasks waited for the disk 80% of the time"


SAMPLES = st.builds(
    AutoSample,
    st.floats(0.1, 120),
    st.booleans(),
    st.floats(0, 1e9),
    st.builds(Pressure, st.floats(0, 100), st.sampled_from([0.0, 0.0, 1.0])),
)


@given(st.lists(SAMPLES, max_size=60))
def test_it_stays_within_its_bounds(samples) -> None:
    """IMG-N02: 1 to 8."""
    state = AutoLimit()
    for sample in samples:
        state = next_limit(state, sample)

        assert 1 <= state.limit <= 8


def test_pressure_files_are_read_and_missing_ones_press_nothing() -> None:
    """IMG-N02."""
    assert read_pressure(*FakePressure(12.5, 3.0).texts()) == Pressure(12.5, 3.0)
    assert read_pressure("", "full avg10=x\n") == Pressure()


class FakePuller:
    """Settings that can be tuned, and what the limiter asks."""

    def __init__(self) -> None:
        self.settings = image_settings(Images(max_parallel_pulls="auto"))
        self.is_short_of_slots = True
        self.rate_bytes_s = 1e6

    def tune(self, limit: int) -> None:
        self.settings = with_limit(self.settings, limit, is_tuned=True)


async def test_the_limiter_tunes_and_a_number_by_hand_ends_it() -> None:
    """IMG-N02, IMG-S20: shares follow; a reload brings it back to what was found out."""
    clock, puller = FakeClock(), FakePuller()
    async with asyncio.TaskGroup() as group:
        limiter = AutoLimiter(puller, FakePressure(), clock=clock)
        task = group.create_task(limiter.run())
        for _ in range(13):
            await clock.advance(SAMPLE_S)
        tuned = puller.settings.queue
        puller.settings = image_settings(Images(max_parallel_pulls="auto"))
        await clock.advance(SAMPLE_S)
        reloaded = puller.settings.queue
        puller.settings = with_limit(puller.settings, 2)
        for _ in range(30):
            await clock.advance(SAMPLE_S)
        task.cancel()

    assert (tuned.max_parallel, tuned.per_pod_max, tuned.critical_reserve) == (4, 3, 1)
    assert reloaded.max_parallel == 4
    assert puller.settings.queue.max_parallel == 2


def test_a_number_is_never_tuned() -> None:
    """IMG-N02."""
    settings = image_settings(Images(max_parallel_pulls=5))

    assert not settings.is_limit_auto
    assert not replace(settings, is_limit_auto=with_limit(settings, 2, is_tuned=True).is_limit_auto).is_limit_auto
    assert not image_settings(Images(max_parallel_pulls="auto", serialize_pulls=True)).is_limit_auto
