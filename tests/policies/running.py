# SPDX-License-Identifier: Apache-2.0
"""The plane with a fake kernel, pods and files that tests change."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from agent.drivers.clock.driver import SystemClock
from agent.kinds.registry import MANIFEST_KINDS
from agent.model.component import Board, State
from agent.model.event import Event
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.model.services.flow import Flow
from agent.objects.admitting import NOTHING, admit
from agent.objects.reading import Readings
from agent.objects.wanted import Wanted
from agent.policies.manifest.objects import PolicedPod
from agent.policies.manifest.reading import POLICY_READING
from agent.policies.run.bridges import Bridges
from agent.policies.run.flow_ender import FlowEnder
from agent.policies.run.metrics import PolicyMetrics
from agent.policies.run.plane import PolicyPlane
from tests.policies.fake_table import FakeBridge, FakeTable

NODE = (bytes([10, 0, 0, 1]),)


class GivenManifests:
    def __init__(self, *objects: Any) -> None:
        self._looks: asyncio.Queue[ManifestSnapshot] = asyncio.Queue()
        self._in_force = NOTHING
        self.give(*objects)

    def give(self, *objects: Any) -> None:
        content = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).encode()
        self._looks.put_nowait(ManifestSnapshot({"policies.yaml": content}))

    async def news(self) -> AsyncIterator[Wanted]:
        while True:
            look = await self._looks.get()
            self._in_force = admit(look.files, {}, self._in_force, Readings([POLICY_READING]), MANIFEST_KINDS)
            yield Wanted(look, self._in_force)

    async def settle(self) -> None:
        """Nothing outlives a test."""

    def replace(self, look: ManifestSnapshot) -> None:
        """What the first look brings."""
        self._looks.get_nowait()
        self._looks.put_nowait(look)


class GivenPods:
    def __init__(self, *pods: PolicedPod, is_listed: bool = True) -> None:
        self.known = list(pods)
        self._listed, self._bell = asyncio.Event(), asyncio.Event()
        if is_listed:
            self._listed.set()

    def pods(self) -> Sequence[PolicedPod]:
        return list(self.known)

    def list_them(self) -> None:
        self._listed.set()

    async def listed(self) -> None:
        await self._listed.wait()

    def put(self, *pods: PolicedPod) -> None:
        self.known = list(pods)
        self._bell.set()

    async def changes(self) -> AsyncIterator[object]:
        while True:
            await self._bell.wait()
            self._bell.clear()
            yield None


class GivenFlows:
    def __init__(self, *flows: Flow) -> None:
        self.tracked, self.deleted = list(flows), asyncio.Queue[Flow]()

    async def flows(self, family: str, protocols: Collection[str]) -> Sequence[Flow]:
        return [one for one in self.tracked if one.family == family and one.protocol in protocols]

    async def delete(self, flows: Iterable[Flow]) -> int:
        doomed = list(flows)
        for one in doomed:
            self.tracked.remove(one)
            self.deleted.put_nowait(one)
        return len(doomed)


class Running(msgspec.Struct):
    plane: PolicyPlane
    table: FakeTable
    pods: GivenPods
    manifests: Any
    flows: GivenFlows
    metrics: PolicyMetrics
    board: Board
    events: list[Event]
    task: asyncio.Task[None] | None = None

    async def until(self, state: State, words: str = "") -> str:
        """What the board says then."""
        async with asyncio.timeout(20):
            line = self.board.line("policies")
            if line.state is state and words in line.message:
                return line.message
            async for _ in self.board.feed.follow():
                line = self.board.line("policies")
                if line.state is state and words in line.message:
                    return line.message
        raise AssertionError


async def node_addresses() -> Collection[bytes]:
    return NODE


@asynccontextmanager
async def running(
    manifests: Any, pods: GivenPods, *, table: FakeTable | None = None, flows: GivenFlows | None = None,
    root: Path = Path("/nowhere"), bridge: Any = None, off: str = "", claim: Any = None,
) -> AsyncIterator[Running]:  # fmt: skip
    metrics, kernel, tracked, events = PolicyMetrics(), table or FakeTable(), flows or GivenFlows(), list[Event]()
    more = {"claim": claim} if claim is not None else {}
    plane = PolicyPlane(
        table=kernel, bridge_table=bridge or FakeBridge(),
        pods=pods, manifests=manifests, ender=FlowEnder(tracked, node_addresses, metrics),
        bridges=Bridges(root), clock=SystemClock(), tell=events.append, metrics=metrics, off=off, **more,
    )  # fmt: skip
    board = Board(lambda: 0.0)
    made = Running(plane, kernel, pods, manifests, tracked, metrics, board, events)
    made.task = asyncio.create_task(plane.run(board.add("policies", State.STARTING)))
    try:
        yield made
    finally:
        made.task.cancel()
        await asyncio.wait([made.task])
