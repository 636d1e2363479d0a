# SPDX-License-Identifier: Apache-2.0
"""Time, as every part that waits or measures gets it handed in, so that tests run hours in milliseconds."""

from typing import Protocol


class Clock(Protocol):
    """Monotonic time for decisions, wall time for people and dated documents."""

    def now_s(self) -> float: ...

    def wall_s(self) -> float: ...

    async def sleep(self, duration_s: float) -> None: ...
