# SPDX-License-Identifier: Apache-2.0
import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agent.drivers.clock.driver import SystemClock
from agent.drivers.cri.polling import compare
from agent.kit.runtime import RuntimeEvents, RuntimeWatch
from agent.model.component import Board, State
from agent.model.runtime.error import NotImplementedByRuntime
from agent.model.runtime.event import EventKind, RuntimeEvent
from tests.fakes.containerd import FakeContainerd
from tests.fakes.cri import FakeCri


class NoContainerd(FakeContainerd):
    """Another runtime: it has none of containerd's services."""

    async def task_events(self) -> AsyncIterator[RuntimeEvent]:
        raise NotImplementedByRuntime("Subscribe", "unknown service")
        yield


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


async def followed(cri: FakeCri, containerd: FakeContainerd, change: Any) -> tuple[list[RuntimeEvent], RuntimeWatch]:
    board, clock = Board(lambda: 0.0), SystemClock()
    watch = RuntimeWatch(cri, "fake", clock.now_s)
    events = RuntimeEvents(cri, containerd, watch, clock)
    seen: list[RuntimeEvent] = []

    async def listen() -> None:
        async for event in events.listen():
            seen.append(event)

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(watch.run(board.add("runtime", State.STARTING))),
            group.create_task(events.run(board.add("events", State.STARTING))),
            group.create_task(listen()),
        ]
        # The first is of the listener, the second of a source that has settled.
        await until(lambda: len(seen) == 2)
        await change(seen)
        for task in tasks:
            task.cancel()
    return seen, watch


@pytest.mark.parametrize(("containerd", "source"), [(FakeContainerd(), "containerd"), (NoContainerd(), "cri")])
async def test_the_best_source_is_taken(containerd: FakeContainerd, source: str) -> None:
    """FP-21: CRI's stream is a listener's alone in containerd 1.7; its bus is everybody's."""
    cri = FakeCri()
    cri.has_events = True

    async def change(seen: list[RuntimeEvent]) -> None:
        containerd.emit(RuntimeEvent(EventKind.STOPPED, "c"))
        if source == "containerd":
            await until(lambda: len(seen) == 3)

    seen, watch = await followed(cri, containerd, change)

    assert watch.facts.event_source == source
    assert seen[0].kind is EventKind.LOST
    assert (RuntimeEvent(EventKind.STOPPED, "c") in seen) == (source == "containerd")


async def test_lists_are_compared_where_there_is_no_stream_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.kit.runtime.POLL_INTERVAL_S", 0.01)
    cri = FakeCri()
    cri.has_events = False
    cri.registry.add("i")

    async def change(seen: list[RuntimeEvent]) -> None:
        from agent.wire.cri import runtime_v1_pb2 as pb

        config = pb.PodSandboxConfig()
        await cri.pull_image("i")
        sandbox = await cri.run_sandbox(config)
        container = await cri.create_container(sandbox, pb.ContainerConfig(image=pb.ImageSpec(image="i")), config)
        await cri.start_container(container)
        await until(lambda: EventKind.STARTED in [event.kind for event in seen])

    seen, watch = await followed(cri, NoContainerd(), change)

    assert watch.facts.event_source == "polling"
    assert EventKind.STARTED in [event.kind for event in seen]


def test_two_lists_tell_what_happened_between_them() -> None:
    from agent.wire.cri import runtime_v1_pb2 as pb

    before = {"a": ("s", pb.CONTAINER_RUNNING), "b": ("s", pb.CONTAINER_RUNNING), "d": ("s", pb.CONTAINER_CREATED)}
    after = {"a": ("s", pb.CONTAINER_EXITED), "c": ("s", pb.CONTAINER_EXITED), "d": ("s", pb.CONTAINER_CREATED)}

    assert [(event.kind, event.container_id) for event in compare(before, after)] == [
        (EventKind.STOPPED, "a"),
        (EventKind.CREATED, "c"),
        (EventKind.STOPPED, "c"),
        (EventKind.DELETED, "b"),
    ]
    assert compare(after, after) == []


async def test_a_slow_listener_gets_lost_in_place_of_what_it_missed() -> None:
    cri = FakeCri()
    events = RuntimeEvents(cri, FakeContainerd(), RuntimeWatch(cri, "fake", SystemClock().now_s), SystemClock())
    listener = events.listen()
    await anext(listener)
    for number in range(1500):
        events._publish(RuntimeEvent(EventKind.STARTED, str(number)))

    first = await anext(listener)
    assert first.kind is EventKind.LOST
    await listener.aclose()  # type: ignore[attr-defined]
