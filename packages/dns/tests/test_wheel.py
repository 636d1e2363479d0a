# SPDX-License-Identifier: Apache-2.0
"""Times of many questions by one timer."""

import asyncio

from kepd_dns.run.asking.timer_wheel import MOST_AT_ONCE, SLOT_S, Wheel


async def test_things_come_when_they_are_due_and_not_after_they_were_dropped() -> None:
    """DNS-81: what ends early leaves at once, so that thousands of answered questions a second cost no room."""
    heard: list[str] = []
    wheel: Wheel[str] = Wheel(lambda what, _now_s: heard.append(what))
    now_s = asyncio.get_running_loop().time()
    late = wheel.slot(now_s + 0.06)
    late["late"] = None
    soon = wheel.slot(now_s + 0.01)
    soon["soon"] = soon["gone"] = None
    del wheel.slot(now_s + 0.01)["gone"]
    before = len(wheel), list(heard)
    async with asyncio.timeout(30):
        while len(wheel):
            await asyncio.sleep(0.01)

    assert before == (2, [])
    assert heard == ["soon", "late"]
    assert wheel.slot(now_s + 0.06) is not late


async def test_what_is_due_next_does_not_wait_for_what_was_set_last() -> None:
    """DNS-81."""
    heard: list[str] = []
    wheel: Wheel[str] = Wheel(lambda what, _now_s: due(what))
    begun_s = asyncio.get_running_loop().time()

    def due(what: str) -> None:
        heard.append(what)
        if what == "first":
            wheel.slot(begun_s + 3600.0)["last"] = None

    for number, what in enumerate(("first", "second")):
        wheel.slot(begun_s + 2 * number * SLOT_S)[what] = None
    async with asyncio.timeout(30):
        while len(heard) < 2:
            await asyncio.sleep(0)
    wheel.close()

    assert heard == ["first", "second"]


async def test_of_many_that_are_due_some_wait_for_others_of_the_loop() -> None:
    """DNS-94: thousands of names that nobody answers in time hold nobody up."""
    heard: list[int] = []
    others: list[int] = []
    wheel: Wheel[int] = Wheel(lambda what, _now_s: heard.append(what))
    slot = wheel.slot(asyncio.get_running_loop().time())
    slot.update(dict.fromkeys(range(10 * MOST_AT_ONCE)))
    async with asyncio.timeout(30):
        while len(wheel):
            await asyncio.sleep(0)
            others.append(len(heard))

    assert heard == list(range(10 * MOST_AT_ONCE))
    assert {0, MOST_AT_ONCE, 9 * MOST_AT_ONCE} < set(others)
