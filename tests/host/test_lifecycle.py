# SPDX-License-Identifier: Apache-2.0
import asyncio

from agent.host.lifecycle import DaemonLifecycle
from agent.model.component import Board, State
from tests.fakes.clock import FakeClock
from tests.host.fake_service_manager import FakeServiceManager


async def run_for(lifecycle: DaemonLifecycle, board: Board, clock: FakeClock, seconds: float) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(lifecycle.run(board.add("lifecycle", State.STARTING)))
        await clock.advance(seconds)
        task.cancel()


async def test_ready_is_said_once_when_every_part_has_settled() -> None:
    """SYS-01."""
    clock, manager = FakeClock(), FakeServiceManager()
    board = Board(clock.wall_s)
    pods = board.add("pods", State.STARTING, is_plane=True)
    lifecycle = DaemonLifecycle(board, manager, clock, lambda lag: None)
    await run_for(lifecycle, board, clock, 3)
    assert manager.messages == []

    pods.degraded("no runtime")
    await run_for(lifecycle, board, clock, 3)
    pods.ready()
    await run_for(lifecycle, board, clock, 3)

    assert manager.messages == ["READY=1 pods: no runtime", "STATUS=ready; planes: pods"]


async def test_signs_of_life_stop_when_a_part_is_past_its_own_deadline() -> None:
    """SYS-04."""
    clock, manager = FakeClock(), FakeServiceManager(watchdog_s=10.0)
    board = Board(clock.wall_s)
    pods = board.add("pods", State.READY, is_plane=True)
    lifecycle = DaemonLifecycle(board, manager, clock, lambda lag: None)
    await run_for(lifecycle, board, clock, 21)
    alive = manager.messages.count("WATCHDOG=1")
    assert 3 <= alive <= 5

    pods.busy_until(clock.now_s() + 2)
    await run_for(lifecycle, board, clock, 2)
    late = manager.messages.count("WATCHDOG=1")
    await run_for(lifecycle, board, clock, 30)
    assert manager.messages.count("WATCHDOG=1") == late
    assert lifecycle.overdue() == ["pods"]

    pods.busy_until(None)
    await run_for(lifecycle, board, clock, 11)
    assert manager.messages.count("WATCHDOG=1") > late
