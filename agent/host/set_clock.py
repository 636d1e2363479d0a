# SPDX-License-Identifier: Apache-2.0
"""Warns when the node's clock was set back. Only CronJobs wait by that clock; `model/clock.py` has the rule."""

from collections.abc import Callable

import structlog

from agent.model.clock import Clock
from agent.model.event import Event

log = structlog.get_logger(plane="daemon")

# A clock that is slewed goes back by less between two looks.
BACK_S = 2.0


class SetClock:
    def __init__(self, clock: Clock, tell: Callable[[Event], object]) -> None:
        self._clock, self._tell = clock, tell
        self._ahead_s = self._ahead()

    def _ahead(self) -> float:
        return self._clock.wall_s() - self._clock.now_s()

    def look(self) -> None:
        before_s, self._ahead_s = self._ahead_s, self._ahead()
        if (back_s := before_s - self._ahead_s) < BACK_S:
            return
        log.warning("clock_went_back", back_s=round(back_s, 3))
        text = (
            f"the node's clock went back by {back_s:.0f} s: what happened before may be dated later than now, and "
            "counts as now; pauses and deadlines go on as they were; CronJobs whose times were used up say so"
        )
        self._tell(Event(is_warning=True, reason="ClockWentBack", message=text, plane="daemon"))
