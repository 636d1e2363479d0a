# SPDX-License-Identifier: Apache-2.0
"""FP-24: who makes its sandbox when."""

import asyncio

from agent.pods.run.pod_context import LONGEST_IN_LANE_S, SandboxLane
from tests.fakes.clock import FakeClock


class Bench:
    def __init__(self) -> None:
        self.lane, self.clock = SandboxLane(), FakeClock()
        self.made: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}

    async def make(self, name: str) -> None:
        async with self.lane.place(2, self.clock):
            self.made.append(name)
            self.ends[name] = asyncio.Event()
            await self.ends[name].wait()


async def test_places_are_given_in_order_as_they_come_free() -> None:
    bench = Bench()
    async with asyncio.TaskGroup() as group:
        for name in "abcd":
            group.create_task(bench.make(name))
        await bench.clock.advance(0.1)
        first = list(bench.made)
        bench.ends["b"].set()
        await bench.clock.advance(0.1)
        second = list(bench.made)
        for name in "acd":
            await bench.clock.advance(0.1)
            bench.ends[name].set()

    assert (first, second, bench.made) == (["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"])


async def test_a_sandbox_that_hangs_holds_up_nobody_for_long() -> None:
    bench = Bench()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(bench.make(name)) for name in "abcde"]
        await bench.clock.advance(LONGEST_IN_LANE_S + 0.1)
        after_one, after_two = list(bench.made), []
        await bench.clock.advance(LONGEST_IN_LANE_S)
        after_two += bench.made
        for task in tasks:
            task.cancel()

    assert (after_one, after_two) == (list("abcd"), list("abcde"))


async def test_who_gives_up_waiting_leaves_its_turn_to_the_next() -> None:
    bench = Bench()
    async with asyncio.TaskGroup() as group:
        tasks = {name: group.create_task(bench.make(name)) for name in "abcd"}
        await bench.clock.advance(0.1)
        bench.ends["a"].set()
        await asyncio.sleep(0)
        tasks["c"].cancel()
        await bench.clock.advance(0.1)
        made = list(bench.made)
        for task in tasks.values():
            task.cancel()

    assert "d" in made
    async with asyncio.timeout(30), bench.lane.place(2, bench.clock):
        pass
