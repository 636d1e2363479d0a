# SPDX-License-Identifier: Apache-2.0
"""A clock that a test moves by hand."""

import asyncio
import heapq
from itertools import count

TURNS, IDLE_TURNS = 20, 3


class FakeClock:
    """Time stands still until `advance` is called."""

    def __init__(self, wall_s: float = 1_700_000_000.0) -> None:
        self._now_s = 0.0
        self._epoch_s = wall_s
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        """Virtual wall time; it moves with the monotonic one."""
        return self._epoch_s + self._now_s

    async def sleep(self, duration_s: float) -> None:
        if duration_s <= 0:
            await asyncio.sleep(0)
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self._now_s + duration_s, next(self._order), done))
        await done

    async def advance(self, duration_s: float) -> None:
        """Move time and let everybody run whose turn has come."""
        target_s = self._now_s + duration_s
        await self._settle()
        while self._waiting and self._waiting[0][0] <= target_s:
            due_s, _, done = heapq.heappop(self._waiting)
            self._now_s = max(self._now_s, due_s)
            if not done.done():
                done.set_result(None)
            await self._settle()
        self._now_s = target_s
        await self._settle()

    @staticmethod
    async def _settle() -> None:
        """Turns until nobody has anything to do, and a few more for what comes from outside the loop."""
        ready, idle = asyncio.get_running_loop()._ready, 0  # type: ignore[attr-defined]
        for _ in range(TURNS):
            await asyncio.sleep(0)
            idle = 0 if ready else idle + 1
            if idle == IDLE_TURNS:
                return
