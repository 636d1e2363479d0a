# SPDX-License-Identifier: Apache-2.0
"""The order of an end, enumerated: a runtime whose calls, lists and events come late, lost, doubled or out of order,
and a kepd that is killed at every step. Time is virtual and goes on while no kepd is there.

The runtime keeps the truth: what it was asked, and what ran at that moment.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.model.runtime.error import RuntimeCallFailed
from agent.model.runtime.event import EventKind, RuntimeEvent
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.clock import FakeClock
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import Killed, Plane, Slow, running

GRACE_S = 40.0
POD = b"""
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 40
  initContainers:
  - {name: net, image: "i:1", restartPolicy: Always, lifecycle: {preStop: {exec: {command: [flush]}}}}
  - {name: log, image: "i:1", restartPolicy: Always}
  containers:
  - {name: app, image: "i:1", lifecycle: {preStop: {exec: {command: [drain]}}}}
  - {name: web, image: "i:1"}
"""
MAINS, SIDECARS = {"app", "web"}, ["log", "net"]
ON_TERM_S = {"app": 6.0, "web": 1.0, "log": 0.5, "net": 0.5}
START = ("run_sandbox", "create_container", "start_container")
END = ("exec_sync", "stop_container", "stop_sandbox", "remove_sandbox")
STEP_S = 0.25
# What may happen to news of an exit, and how late calls and lists are.
EVENTS = ("in time", "late", "lost", "doubled", "reversed")
# How late a list, a start and the answer to a stop are.
CALLS = {
    "in time": (0.0, 0.0, 0.0),
    "late": (1.5, 0.3, 2.0),
    "a late start": (0.0, 2.0, 0.0),
    "all late": (1.5, 4.0, 3.0),
}
PAIRS = [*((one, "all late") for one in EVENTS), *(("in time", one) for one in CALLS), ("lost", "a late start")]
TURNS = 4000


class Odd(Slow):
    """Containers obey their signal after a while, whoever is still there; a start that was asked for is carried out
    though its caller is gone. A list that comes late shows what was when it was asked for."""

    def __init__(self, clock: FakeClock, events: str = "in time", calls: str = "in time") -> None:
        super().__init__()
        self.registry.add("i:1")
        self.clock, self.news = clock, events
        self.list_s, self.start_s, self.stop_s = CALLS[calls]
        self._now_ns = lambda: int(clock.wall_s() * 1e9)
        self.tasks: set[asyncio.Task[None]] = set()
        self.signals: list[tuple[str, float, frozenset[str]]] = []
        self.begun: set[str] = set()
        self.is_patient = False
        self.queue: asyncio.Queue[RuntimeEvent] = asyncio.Queue()
        self.held: list[RuntimeEvent] = []

    def go(self, work: Any) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    @property
    def truth(self) -> frozenset[str]:
        return frozenset(one.metadata.name for one in self._containers.values() if one.state == pb.CONTAINER_RUNNING)

    async def start_container(self, container_id: str) -> None:
        await asyncio.shield(self.go(self._begin(container_id)))

    async def _begin(self, container_id: str) -> None:
        await self.clock.sleep(self.start_s)
        if container_id in self._containers:
            await super().start_container(container_id)

    async def remove_container(self, container_id: str) -> None:
        known = self._containers.get(container_id)
        if known is not None and known.state == pb.CONTAINER_CREATED and self.tasks:
            raise RuntimeCallFailed("RemoveContainer", "container is in starting state, can't be removed")
        await super().remove_container(container_id)

    async def stop_container(self, container_id: str, grace_s: int) -> None:
        status = self._containers.get(container_id)
        if status is None or status.state != pb.CONTAINER_RUNNING:
            return
        name = status.metadata.name
        if grace_s == 0:
            self.exit(container_id, 137)
            return
        self.signals.append((name, self.clock.now_s(), self.truth))
        self.stops.append((name, grace_s))
        if container_id not in self.begun:
            self.begun.add(container_id)
            self.go(self._obey(container_id, name))
        for _ in range(int(grace_s / STEP_S)):
            if container_id not in self._containers or status.state != pb.CONTAINER_RUNNING:
                break
            await self.clock.sleep(STEP_S)
        else:
            # A runtime may be late with its kill as well.
            if not self.is_patient:
                self.exit(container_id, 137)
        await self.clock.sleep(self.stop_s)

    async def _obey(self, container_id: str, name: str) -> None:
        await self.clock.sleep(ON_TERM_S[name])
        if container_id in self._containers and self._containers[container_id].state == pb.CONTAINER_RUNNING:
            self.exit(container_id, 0)

    async def list_containers(self, sandbox_id: str = "") -> list[pb.Container]:
        found = await super().list_containers(sandbox_id)
        await self.clock.sleep(self.list_s)
        return found

    def _tell(self, kind: EventKind, object_id: str, exit_code: int | None = None) -> None:
        event = RuntimeEvent(kind, object_id, self._holder.get(object_id, object_id), exit_code)
        match self.news:
            case "in time":
                self.queue.put_nowait(event)
            case "late":
                self.go(self._later(event))
            case "doubled":
                self.queue.put_nowait(event)
                self.queue.put_nowait(event)
            case "reversed":
                self.held.append(event)
                if len(self.held) > 1:
                    self.queue.put_nowait(self.held.pop())
                    self.queue.put_nowait(self.held.pop())

    async def _later(self, event: RuntimeEvent) -> None:
        await self.clock.sleep(3.0)
        self.queue.put_nowait(event)

    async def listen(self) -> AsyncIterator[RuntimeEvent]:
        yield RuntimeEvent(EventKind.LOST)
        while True:
            yield await self.queue.get()


class Dying:
    """Ends the process at a step: before it is passed on, while it is under way, or after it was answered."""

    def __init__(self, runtime: Odd, steps: tuple[str, ...], number: int, at: str) -> None:
        self._runtime, self._steps, self._left, self._at = runtime, steps, number, at

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._runtime, name)
        if name not in self._steps:
            return method

        async def counted(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0 and self._at == "before":
                raise Killed
            if self._left == 0 and self._at == "during":
                asked = asyncio.ensure_future(method(*args, **kwargs))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                asked.cancel()
                raise Killed
            result = await method(*args, **kwargs)
            if self._left == 0:
                raise Killed
            return result

        return counted


class Node:
    """One node over the lives of its kepd."""

    def __init__(self, place: Path, events: str, calls: str) -> None:
        self.place, self.clock = place, FakeClock()
        self.runtime = Odd(self.clock, events, calls)
        self.files = FakeManifestDirectory({"/m/f.yaml": POD})
        self.told: list[str] = []
        self.removed_s = 0.0

    @asynccontextmanager
    async def kepd(self, runtime: Any = None) -> AsyncIterator[Plane]:
        async with running(
            runtime or self.runtime, self.files, self.place, clock=self.clock, events=self.runtime, relist=5.0
        ) as plane:
            try:
                yield plane
            finally:
                self.told += [one.reason for one in plane.events]

    async def until(self, condition: Any, what: str) -> None:
        for _ in range(TURNS):
            if condition():
                return
            await self.clock.advance(STEP_S)
        raise AssertionError(f"{what} does not come; {self.runtime.signals} {self.runtime.truth}")

    async def life(self, steps: tuple[str, ...], number: int, at: str) -> None:
        """One kepd, until it is killed, or is through with the pod."""
        try:
            async with self.kepd(Dying(self.runtime, steps, number, at)) as plane:
                await self.until(lambda: self.is_over(plane) or self.is_up(plane, steps), "its work is done")
        except BaseExceptionGroup as died:
            if died.split(Killed)[1] is not None:
                raise

    def is_over(self, plane: Plane) -> bool:
        return bool(self.removed_s) and not self.runtime._sandboxes and not plane.runner.keepers

    def is_up(self, plane: Plane, steps: tuple[str, ...]) -> bool:
        return steps is START and self.runtime.truth == MAINS | set(SIDECARS) and plane.phases == {"web-n": "Running"}

    def remove(self) -> None:
        self.files.put("/m/f.yaml", None)
        self.removed_s = self.clock.now_s() or STEP_S

    async def close(self) -> None:
        for task in list(self.runtime.tasks):
            task.cancel()

    def check_order(self) -> None:
        """No sidecar is signalled while a main runs, or one that is listed after it, before the grace is over."""
        for name, at_s, running_then in self.runtime.signals:
            served = MAINS | ({"log"} if name == "net" else set())
            if name in SIDECARS and at_s < self.removed_s + GRACE_S:
                assert not running_then & served, f"{name} was signalled at {at_s:g} while {running_then & served} ran"


KILLS = [(number, at) for number in range(1, 11) for at in ("before", "during", "after")]


@pytest.mark.parametrize(("events", "calls"), PAIRS)
async def test_an_end_keeps_its_order_whatever_the_runtime_does(tmp_path: Path, events: str, calls: str) -> None:
    """NP-5: a kill at every step of the end, and one of the kepd that comes after at every step."""
    for place, (number, at) in enumerate(KILLS):
        node = Node(tmp_path / str(place), events, calls)
        async with node.kepd() as plane:
            await node.until(lambda plane=plane, node=node: node.is_up(plane, START), "all run")
            await node.clock.advance(10.0)
        node.remove()
        await node.life(END, number, at)
        await node.life(END, 1 + number % 3, at)
        await node.life(END, 0, at)

        node.check_order()
        assert not node.runtime._sandboxes, (number, at)
        assert {name for name, _, _ in node.runtime.signals} == MAINS | set(SIDECARS)
        await node.close()


@pytest.mark.parametrize(("events", "calls"), PAIRS)
async def test_a_start_that_is_still_carried_out_is_part_of_the_end(tmp_path: Path, events: str, calls: str) -> None:
    """NP-5: kepd is killed at a step of the start, and the manifest goes while it is away."""
    for place, (number, at) in enumerate(KILLS):
        node = Node(tmp_path / str(place), events, calls)
        await node.life(START, number, at)
        node.remove()
        await node.life(END, 0, at)

        node.check_order()
        assert not node.runtime._sandboxes, (number, at)
        await node.close()


@pytest.mark.parametrize(("events", "calls"), PAIRS)
async def test_what_a_timeline_shows_is_what_happened(tmp_path: Path, events: str, calls: str) -> None:
    """NP-5: signals at the moment at which they were sent, and before the exits that they brought about."""
    node = Node(tmp_path, events, calls)
    async with node.kepd() as plane:
        await node.until(lambda: node.is_up(plane, START), "all run")
        node.remove()
        await node.until(lambda: node.is_over(plane), "it is over")
        moments, _ = plane.runner.shown.past["default/web-n"]
    await node.close()
    shown = [
        (one.container, one.at_s - node.clock.wall_s() + node.clock.now_s())
        for one in moments
        if one.kind == "stop_signal"
    ]
    exits = {one.container: place for place, one in enumerate(moments) if one.kind == "exit"}
    signals = {one.container: place for place, one in enumerate(moments) if one.kind == "stop_signal"}

    assert sorted(shown) == sorted((name, pytest.approx(at_s)) for name, at_s, _ in node.runtime.signals)
    assert all(signals[name] < exits[name] for name in MAINS | set(SIDECARS))
    assert max(exits[name] for name in MAINS) < signals["log"] < exits["log"] < signals["net"]
    assert "GracePeriodOver" not in node.told


async def test_who_is_signalled_because_the_grace_is_over_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NP-5: in the timeline and in an event; a main that ignores its signal serves as the reason."""
    monkeypatch.setitem(ON_TERM_S, "app", 1000.0)
    node = Node(tmp_path, "in time", "in time")
    node.runtime.is_patient = True
    async with node.kepd() as plane:
        await node.until(lambda: node.is_up(plane, START), "all run")
        node.remove()
        await node.until(lambda: node.is_over(plane), "it is over")
        moments, _ = plane.runner.shown.past["default/web-n"]
        told = [one.message for one in plane.events if one.reason == "GracePeriodOver"]
    await node.close()
    texts = {one.container: one.text for one in moments if one.kind == "stop_signal"}

    assert texts["app"] == texts["web"] == ""
    assert texts["log"] == "the grace is over, and app still run"
    assert "Container log is signalled: the grace is over, and app still run" in told
    assert min(at_s for name, at_s, _ in node.runtime.signals if name in SIDECARS) >= node.removed_s + GRACE_S
