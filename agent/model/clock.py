# SPDX-License-Identifier: Apache-2.0
"""Time, as every part that waits or measures gets it handed in, so that tests run hours in milliseconds.

Within a process durations are of the clock that only runs (`now_s`). A wall time goes from one process to the next with
the boot that it is of, so that the same boot gives the same moment whatever the clock was set to; of another boot, one
that is ahead of now counts as now. Only what a calendar says is by the wall: CronJobs, certificates, ages for people.
"""

import asyncio
from typing import Any, Protocol


class Clock(Protocol):
    """Monotonic time for decisions, wall time for people and dated documents."""

    def now_s(self) -> float: ...

    def wall_s(self) -> float: ...

    async def sleep(self, duration_s: float) -> None: ...


async def rung(bell: asyncio.Event, clock: Clock, until_s: float | None) -> None:
    """Until the bell is set, or that moment has come."""
    if bell.is_set() or until_s is None:
        await bell.wait()
        return
    timer = asyncio.ensure_future(clock.sleep(max(until_s - clock.now_s(), 0.0)))
    waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(bell.wait()), timer]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()
