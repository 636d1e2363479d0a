# SPDX-License-Identifier: Apache-2.0
"""The clock: monotonic time for decisions, wall time for people, and waiting. Planes get it handed in."""

import asyncio
import time


class SystemClock:
    def now_s(self) -> float:
        """Monotonic seconds; only differences mean anything."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Seconds since 1970, for timestamps that leave the process."""
        return time.time()

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)
