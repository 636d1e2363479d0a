# SPDX-License-Identifier: Apache-2.0
"""Times of many questions by one timer."""

import asyncio

from kepd_dns.run.asking.timer_wheel import Wheel


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
