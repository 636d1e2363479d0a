# SPDX-License-Identifier: Apache-2.0
import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

from structlog.testing import capture_logs

from agent.host.tree import LONGEST_PAUSE_S, LastWork, Unit, flattened, run_tree
from agent.model.component import Board, Report, State
from tests.fakes.clock import FakeClock


def unit(board: Board, name: str, run: Callable[[Report], Awaitable[None]], stop_s: float = 5.0) -> Unit:
    return Unit(name, run, board.add(name, State.STARTING), stop_s)


async def test_a_failing_unit_is_restarted_with_growing_pauses_and_the_others_go_on() -> None:
    """STY-31."""
    clock, stop, hurry = FakeClock(), asyncio.Event(), asyncio.Event()
    board = Board(clock.wall_s)
    starts: list[float] = []
    turns = 0

    async def failing(report: Report) -> None:
        starts.append(clock.now_s())
        raise ExceptionGroup("inner", [ValueError("broken"), KeyError("x")])

    async def steady(report: Report) -> None:
        nonlocal turns
        report.ready()
        while True:
            await clock.sleep(1)
            turns += 1

    with capture_logs() as logs:
        async with asyncio.TaskGroup() as group:
            units = [unit(board, "failing", failing), unit(board, "steady", steady)]
            group.create_task(run_tree(units, clock, stop, hurry))
            await clock.advance(200)
            stop.set()

    gaps = [round(after - before, 3) for before, after in pairwise(starts)]
    assert gaps[:8] == [0.5, 1, 2, 4, 8, 16, 32, LONGEST_PAUSE_S]
    assert turns >= 199
    assert board.line("failing").message.startswith("ValueError: broken; KeyError: 'x'; restarts in")
    assert board.line("failing").restarts == len(starts)
    assert logs[0]["event"] == "unit_failed"


async def test_a_unit_that_ran_long_begins_with_the_first_pause_again() -> None:
    clock, stop = FakeClock(), asyncio.Event()
    board = Board(clock.wall_s)
    starts: list[float] = []

    async def lasting(report: Report) -> None:
        starts.append(clock.now_s())
        await clock.sleep(130)

    async with asyncio.TaskGroup() as group:
        group.create_task(run_tree([unit(board, "lasting", lasting)], clock, stop, asyncio.Event()))
        await clock.advance(400)
        stop.set()

    assert starts == [0.0, 130.5, 261.0, 391.5]
    assert board.line("lasting").restarts == 3


async def test_units_end_in_reverse_order_and_a_hurry_cuts_their_time() -> None:
    clock, stop, hurry = FakeClock(), asyncio.Event(), asyncio.Event()
    board = Board(clock.wall_s)
    ended: list[str] = []

    def ending(name: str, lingers: bool) -> Callable[[Report], Awaitable[None]]:
        async def run(report: Report) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if lingers:
                    await asyncio.Event().wait()
                raise
            finally:
                ended.append(name)

        return run

    units = [unit(board, name, ending(name, name == "b"), stop_s=60) for name in ("a", "b", "c")]
    async with asyncio.TaskGroup() as group:
        group.create_task(run_tree(units, clock, stop, hurry))
        await asyncio.sleep(0.01)
        stop.set()
        await asyncio.sleep(0.05)
        assert ended == ["c"]
        hurry.set()

    assert ended == ["c", "b", "a"]


async def test_last_work_is_done_while_all_units_still_run_and_has_its_limit() -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()
    board = Board(FakeClock().wall_s)
    seen: list[str] = []

    async def lasting(report: Report) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("ended")

    def at_last(name: str, last: LastWork) -> Unit:
        return Unit(name, lasting, board.add(name, State.STARTING), 5.0, last)

    async def work() -> None:
        seen.append("worked")

    async def fail() -> None:
        raise OSError("the bus is gone")

    units = [
        at_last("a", LastWork(work, lambda: 60.0)),
        at_last("b", LastWork(fail, lambda: 60.0)),
        at_last("c", LastWork(asyncio.Event().wait, lambda: 0.01)),
    ]
    with capture_logs() as logs:
        async with asyncio.TaskGroup() as group:
            group.create_task(run_tree(units, FakeClock(), stop, hurry))
            await asyncio.sleep(0.01)
            stop.set()

    assert seen == ["worked", "ended", "ended", "ended"]
    assert [line["event"] for line in logs] == ["unit_last_work_failed", "unit_last_work_overdue"]
    assert sum(one.end_s for one in units) == 15 + 120.01


def test_groups_are_flattened_in_order() -> None:
    leaves = [ValueError("1"), ValueError("2"), ValueError("3")]
    group = ExceptionGroup("", [leaves[0], ExceptionGroup("", leaves[1:])])

    assert flattened(group) == leaves
