# SPDX-License-Identifier: Apache-2.0
"""The runtime's events for clients that followed them before it went away: first what they missed, then what comes.

Never: misses an event between the two. The runtime is asked for its events before it is asked what there is.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

from agent.model.clock import Clock
from agent.model.runtime.error import NotFound
from agent.proxy.gates.missed_events import missed_event, newest_sandboxes
from agent.proxy.ports import ProxyRuntime
from agent.wire.cri import runtime_v1_pb2 as pb

NANO = 1_000_000_000


class EventSource:
    def __init__(self, runtime: ProxyRuntime, clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock

    async def messages(self) -> AsyncIterator[bytes]:
        """Answers of GetContainerEvents, until the stream breaks: raises RuntimeCallFailed then."""
        async with aclosing(self._runtime.event_messages()) as events:
            first = asyncio.ensure_future(anext(events, None))
            await asyncio.sleep(0)  # so that it is asked for before the rest
            try:
                async for message in self._missed():
                    yield message
                event = await first
            finally:
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)
            while event is not None:
                yield event
                event = await anext(events, None)

    async def _missed(self) -> AsyncIterator[bytes]:
        at_ns = int(self._clock.wall_s() * NANO)
        sandboxes, containers = await self._runtime.list_sandboxes(), await self._runtime.list_containers()
        for sandbox in newest_sandboxes(sandboxes):
            statuses: list[pb.ContainerStatus] = []
            for container in containers:
                if container.pod_sandbox_id == sandbox.id:
                    with suppress(NotFound):
                        statuses.append(await self._runtime.container_status(container.id))
            with suppress(NotFound):
                yield missed_event(await self._runtime.sandbox_status(sandbox.id), statuses, at_ns)
