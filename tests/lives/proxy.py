# SPDX-License-Identifier: Apache-2.0
"""A kubelet behind the proxy: a call that passes, a pull that is held and let go, one that finds no queue."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from agent.drivers.clock.driver import SystemClock
from agent.model.component import Board, State
from agent.model.images.pull import PullsAway
from agent.model.runtime.event import EventKind, RuntimeEvent
from agent.proxy.attach.endpoint import ProxyEndpoint
from agent.proxy.gates.kubelet_advice import KubeletSettings
from agent.proxy.run.plane import ProxyParts, ProxyPlane
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.cri import FakeCri
from tests.lives.figures import Watched, until
from tests.proxy.run.test_held_calls import PULL, SETTINGS, Asker, Events, Files, Pulls
from tests.proxy.wire import CLIENT, Wire

PULL_IMAGE = "/runtime.v1.ImageService/PullImage"


class Parallel:
    """A kubelet that pulls several images at once, so that one pull may be held."""

    async def settings(self) -> KubeletSettings:
        return KubeletSettings(source="a test", is_serial=False)


async def answered(requests: AsyncIterator[bytes], _context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
    async for _ in requests:
        yield pb.PullImageResponse(image_ref="sha256:1").SerializeToString()


@asynccontextmanager
async def proxied(wire: Wire, pulls: Pulls) -> AsyncIterator[ProxyPlane]:
    """The whole plane in front of a runtime that answers to everything."""
    events = Events()
    events.queue.put_nowait(RuntimeEvent(EventKind.LOST))
    plane = ProxyPlane(
        ProxyParts(
            runtime=FakeCri(), events=events, asker=Asker(), records=Files(), kubelet=Parallel(), clock=SystemClock(),
            pulls=pulls, endpoint=ProxyEndpoint(wire.through, None, wire.direct, None), tell=lambda _event: None,
            settings=lambda: SETTINGS, runtime_path=str(wire.direct), drain_s=0.0,
        )
    )  # fmt: skip
    report = Board(lambda: 0.0).add("proxy", State.STARTING)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(plane.run(report))
        yield plane
        task.cancel()


async def proxy_life(folder: Path) -> set[str]:
    """What moved."""
    wire, pulls = Wire(folder), Pulls()
    wire.runtime.methods[PULL_IMAGE] = answered
    async with wire.serving(), proxied(wire, pulls) as plane:
        watched = Watched(plane.families)
        await until(lambda: plane.is_recovered and plane.kubelet and wire.through.exists())
        async with grpc.aio.insecure_channel(f"unix:{wire.through}", options=CLIENT) as channel:
            pull = channel.unary_unary(PULL_IMAGE)
            held = asyncio.ensure_future(pull(PULL.SerializeToString(), timeout=30))
            await until(lambda: plane.state.holds)
            watched.look()
            pulls.slot.set()
            await held
            pulls.error = PullsAway()
            await pull(PULL.SerializeToString(), timeout=30)
            watched.look()
    return watched.moved
