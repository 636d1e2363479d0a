# SPDX-License-Identifier: Apache-2.0
"""The task tree: every long-lived task, who starts it, and what happens when it fails.

    run_tree
    ├── unit: restarted with growing pauses when it fails; the others go on
    │   └── whatever TaskGroup the unit opens for itself
    ├── unit …
    └── stop: waits for the end, lets units do their last work, then cancels them in reverse order of starting

Owns: supervision. A unit is a coroutine function that runs until it is cancelled; ending by itself is a failure too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog

from agent.kit.plane import LastWork
from agent.kit.plane_lock import PlaneTaken
from agent.model.clock import Clock
from agent.model.component import Report

log = structlog.get_logger(plane="daemon")

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
# A unit that ran this long before it failed begins with the first pause again.
STEADY_S = 120.0


class Unit(msgspec.Struct, frozen=True):
    """One part of the daemon. `stop_s` is how long it may take to end after it was cancelled."""

    name: str
    run: Callable[[Report], Awaitable[None]]
    report: Report
    stop_s: float = 5.0
    last: LastWork | None = None

    @property
    def end_s(self) -> float:
        return self.stop_s + (self.last.longest_s() if self.last else 0.0)


class EndedByItself(Exception):
    """A unit returned although nobody asked it to."""


# Failures of the surroundings: their text says all, a traceback would only bury it.
EXPECTED = (EndedByItself, PlaneTaken, OSError)


def flattened(error: BaseException) -> list[BaseException]:
    """The failures inside an exception group, in order; a plain one is a group of one."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in flattened(inner)]
    return [error]


async def run_tree(units: Sequence[Unit], clock: Clock, stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """Run all units until `stop` is set, then end them, the last one first. `hurry` cuts their time short."""
    async with asyncio.TaskGroup() as group:
        tasks = [(unit, group.create_task(_supervise(unit, clock), name=unit.name)) for unit in units]
        await stop.wait()
        hurried = group.create_task(hurry.wait(), name="hurry")
        for unit in units:
            await _do_last_work(unit, hurried)
        for unit, task in reversed(tasks):
            task.cancel()
            await asyncio.wait([task, hurried], timeout=unit.stop_s, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                log.warning("unit_stop_overdue", unit=unit.name, allowed_s=unit.stop_s)
                task.cancel()
        hurried.cancel()


async def _do_last_work(unit: Unit, hurried: "asyncio.Task[bool]") -> None:
    if unit.last is None or hurried.done():
        return
    work = asyncio.ensure_future(unit.last.do())
    await asyncio.wait([work, hurried], timeout=unit.last.longest_s(), return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        log.warning("unit_last_work_overdue", unit=unit.name, allowed_s=unit.last.longest_s())
        work.cancel()
    elif error := work.exception():
        log.error("unit_last_work_failed", unit=unit.name, error=str(error) or repr(error), exc_info=error)


async def _supervise(unit: Unit, clock: Clock) -> None:
    pause_s = FIRST_PAUSE_S
    while True:
        unit.report.starting()
        began_s = clock.now_s()
        try:
            await unit.run(unit.report)
            raise EndedByItself("ended unexpectedly")
        except Exception as error:  # the one place where a plane's failure is caught
            if clock.now_s() - began_s > STEADY_S:
                pause_s = FIRST_PAUSE_S
            causes = flattened(error)
            text = "; ".join(f"{type(cause).__name__}: {cause}" if str(cause) else repr(cause) for cause in causes)
            log.error(
                "unit_failed",
                unit=unit.name,
                error=text,
                restart_in_s=pause_s,
                exc_info=None if isinstance(causes[0], EXPECTED) else causes[0],
            )
            unit.report.failed(f"{text}; restarts in {pause_s:g} s", clock.wall_s() + pause_s)
        await clock.sleep(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
