# SPDX-License-Identifier: Apache-2.0
"""Who held the loop: the caller, the pod or the file whose work a long turn was."""

import asyncio
from collections.abc import Iterator

import pytest

from agent.api.peer import WORK
from agent.host.turns import HELD_S, MOST_NAMES, LongTurns


class Time:
    """Moves by itself only where work says so."""

    def __init__(self) -> None:
        self.now_s = self.waited_s = 0.0

    def work(self, took_s: float, waited_s: float = 0.0) -> None:
        self.now_s += took_s
        self.waited_s += waited_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def turns(time: Time) -> Iterator[LongTurns]:
    turns = LongTurns(lambda: time.waited_s, lambda: time.now_s)
    end = turns.watch()
    yield turns
    end()


async def test_a_long_turn_is_told_by_whose_work_it_was(turns: LongTurns, time: Time) -> None:
    async def called() -> None:
        WORK.set("uid 7, /kepd.v1.ObjectService/List")
        await asyncio.sleep(0)
        time.work(0.3)

    async def keep() -> None:
        for took_s in (0.1, 0.25, 0.01):
            await asyncio.sleep(0)
            time.work(took_s)

    await asyncio.gather(asyncio.create_task(called()), asyncio.create_task(keep(), name="pod shop/web"))
    asyncio.get_running_loop().call_soon(time.work, 0.2)
    await asyncio.sleep(0)

    assert {name: (holder.count, holder.longest_s) for name, holder in turns.holders.items()} == {
        "uid 7, /kepd.v1.ObjectService/List": (1, pytest.approx(0.3)),
        "task pod shop/web": (2, pytest.approx(0.25)),
        "callback Time.work": (1, pytest.approx(0.2)),
    }
    assert await turns.advice() == []
    for _ in range(8):
        asyncio.create_task(keep_on(time), name="pod shop/web")  # noqa: RUF006 - it ends at its next turn
        await asyncio.sleep(0)
    (advice,) = await turns.advice()
    assert advice.is_note
    assert "250 ms at once, 10 times" in advice.found
    turns.tick(is_ready=False)
    assert turns.holders == {}


async def keep_on(time: Time) -> None:
    time.work(0.2)


async def test_a_turn_that_waited_for_a_processor_is_nobodys(turns: LongTurns, time: Time) -> None:
    for took_s, waited_s in ((0.5, 0.45), (5.0, 5.0), (HELD_S / 2, 0)):
        asyncio.get_running_loop().call_soon(time.work, took_s, waited_s)
        await asyncio.sleep(0)
    assert turns.holders == {}

    # What it waited before this turn, and was counted, is not counted again.
    time.work(0, 10)
    turns.tick()
    asyncio.get_running_loop().call_soon(time.work, 0.3)
    await asyncio.sleep(0)
    assert [holder.longest_s for holder in turns.holders.values()] == [pytest.approx(0.3)]


async def test_names_that_others_choose_are_bounded_and_printable(turns: LongTurns, time: Time) -> None:
    async def called(name: str) -> None:
        WORK.set(name)
        await asyncio.sleep(0)
        time.work(1)

    for number in range(MOST_NAMES + 5):
        await asyncio.create_task(called(f"{number}\x1b[31m\n" + "x" * 5000))

    assert len(turns.holders) == MOST_NAMES
    assert all(name.isprintable() and len(name) <= 200 for name in turns.holders)
    assert next(iter(turns.holders)).startswith("5")


async def test_a_callback_that_fails_is_told_of_too(turns: LongTurns, time: Time) -> None:
    failures: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: failures.append(context["exception"]))

    def fail() -> None:
        time.work(1)
        raise ValueError

    loop.call_soon(fail)
    await asyncio.sleep(0)
    assert len(failures) == len(turns.holders) == 1
