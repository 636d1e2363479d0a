# SPDX-License-Identifier: Apache-2.0
"""The daemon's life as a service manager sees it: ready, status, watchdog, and how late the event loop is.

READY is sent when every part has settled: ready, or degraded and said so. The sign of life is given only while the loop
turns and no part is past its own deadline.
"""

from collections.abc import Callable

import structlog

from agent.drivers.systemd.driver import ServiceManager
from agent.model.clock import Clock
from agent.model.component import Board, Report, State

log = structlog.get_logger(plane="daemon")

TURN_S = 4.0
LATE_S = 0.05
# Service managers give up on a start after 90 s; by then they hear what is still starting.
LONGEST_START_S = 60.0


class DaemonLifecycle:
    """Looks at the board every four seconds, as a wake-up costs; that time is also the ruler for the loop."""

    def __init__(self, board: Board, manager: ServiceManager, clock: Clock, note_lag: Callable[[float], None]) -> None:
        self._board = board
        self._manager = manager
        self._clock = clock
        self._note_lag = note_lag
        self._told = ""
        self.is_ready = False
        self._began_s = self._last_sign_s = clock.now_s()

    async def run(self, report: Report) -> None:
        report.ready()
        turn_s = TURN_S if self._manager.watchdog_s is None else min(TURN_S, self._manager.watchdog_s / 4)
        while True:
            self.look()
            before_s = self._clock.now_s()
            await self._clock.sleep(turn_s if self.is_ready else min(turn_s, 0.05))
            lag_s = self._clock.now_s() - before_s - turn_s if self.is_ready else 0.0
            self._note_lag(max(0.0, lag_s))
            if lag_s > LATE_S:
                log.info("event_loop_late", lag_s=round(lag_s, 3), v=3)

    def look(self) -> None:
        summary = self._board.summary()
        has_settled = all(line.has_settled for line in self._board.lines())
        if not self.is_ready and (has_settled or self._clock.now_s() - self._began_s > LONGEST_START_S):
            self.is_ready = True
            self._told = summary
            self._manager.ready(summary)
            log.info("daemon_ready", status=summary, v=0)
        elif self.is_ready and summary != self._told:
            self._told = summary
            self._manager.status(summary)
        self._give_sign()

    def reloaded(self) -> None:
        if self.is_ready:
            self._told = self._board.summary()
            self._manager.ready(self._told)

    def overdue(self) -> list[str]:
        now_s = self._clock.now_s()
        return [
            line.name
            for line in self._board.lines()
            if line.busy_until_s is not None and line.busy_until_s < now_s and line.state is not State.FAILED
        ]

    def _give_sign(self) -> None:
        watchdog_s = self._manager.watchdog_s
        if watchdog_s is None or self._clock.now_s() - self._last_sign_s < watchdog_s / 2 - 0.5:
            return
        overdue = self.overdue()
        if overdue:
            log.error("watchdog_withheld", overdue=overdue)
            return
        self._last_sign_s = self._clock.now_s()
        self._manager.alive()
