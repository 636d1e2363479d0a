# SPDX-License-Identifier: Apache-2.0
"""One feed of runtime events for all planes, from the best source this runtime has.

The order of preference: containerd's event bus, CRI's own stream (containerd 1.7 gives that to one listener, and takes
it away from a kubelet), comparing lists. LOST follows every gap, because no source replays what was missed.
Never: interprets an event. Runs only while there is a listener.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import structlog

from agent.drivers.containerd.driver import Containerd
from agent.drivers.cri.driver import CriRuntime
from agent.drivers.cri.polling import poll_events
from agent.kit.runtime_watch import RuntimeWatch
from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.runtime_error import NotImplementedByRuntime, RuntimeCallFailed
from agent.model.runtime_event import EventKind, RuntimeEvent

log = structlog.get_logger(plane="daemon")

QUEUE_LENGTH = 1000
POLL_INTERVAL_S = 1.0
PAUSE_S = 0.2


class RuntimeEvents:
    """The feed. Each listener has its own bounded queue; one that falls behind gets LOST in place of what it missed."""

    def __init__(self, cri: CriRuntime, containerd: Containerd, watch: RuntimeWatch, clock: Clock) -> None:
        self._cri = cri
        self._containerd = containerd
        self._watch = watch
        self._clock = clock
        self._queues: list[asyncio.Queue[RuntimeEvent]] = []
        self._wanted = asyncio.Event()

    async def listen(self) -> AsyncIterator[RuntimeEvent]:
        """Events from now on. The first is LOST: whoever listens has not looked yet."""
        queue: asyncio.Queue[RuntimeEvent] = asyncio.Queue(QUEUE_LENGTH)
        queue.put_nowait(RuntimeEvent(EventKind.LOST))
        self._queues.append(queue)
        self._wanted.set()
        try:
            while True:
                yield await queue.get()
        finally:
            self._queues.remove(queue)

    async def run(self, report: Report) -> None:
        """Feed the queues for ever: the first source the runtime has, until it breaks, then from the top."""
        report.ready("no listener yet")
        await self._wanted.wait()
        while True:
            await self._watch.connected.wait()
            for name, source in self._sources():
                if not await self._pump(name, source(), report):
                    break
            self._publish(RuntimeEvent(EventKind.LOST))
            self._watch.look_again()
            await self._clock.sleep(PAUSE_S)

    def _sources(self) -> tuple[tuple[str, Callable[[], AsyncIterator[RuntimeEvent]]], ...]:
        return (
            ("containerd", self._containerd.task_events),
            ("cri", self._cri.events),
            ("polling", lambda: poll_events(self._cri, self._clock, POLL_INTERVAL_S)),
        )

    async def _pump(self, name: str, source: AsyncIterator[RuntimeEvent], report: Report) -> bool:
        """Pass one source on until it breaks. True means that this runtime does not have it: try the next."""

        def settled() -> None:
            # Nothing tells when a subscription has reached the runtime, and what happened before that is in no
            # stream. So whoever listens looks once more a moment later.
            self._watch.note_event_source(name)
            report.ready(f"from {name}")
            self._publish(RuntimeEvent(EventKind.LOST))

        timer = asyncio.get_running_loop().call_later(PAUSE_S, settled)
        try:
            async for event in source:
                self._publish(event)
        except NotImplementedByRuntime:
            return True
        except RuntimeCallFailed as error:
            log.warning("event_stream_broken", source=name, error=str(error))
        finally:
            timer.cancel()
        return False

    def _publish(self, event: RuntimeEvent) -> None:
        for queue in self._queues:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(RuntimeEvent(EventKind.LOST))
            queue.put_nowait(event)
