# SPDX-License-Identifier: Apache-2.0
"""The container runtime, for the planes that work with one: its clients, whether it answers, what it tells.

gRPC is imported with this module and not before.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import structlog
from msgspec.structs import replace

from agent.config.document import RuntimeSection
from agent.drivers.containerd.driver import Containerd
from agent.drivers.cri.driver import CriRuntime
from agent.drivers.cri.polling import poll_events
from agent.kit.removal import RemovingRuntime
from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.runtime.error import NotImplementedByRuntime, RuntimeCallFailed, Unavailable
from agent.model.runtime.event import EventKind, RuntimeEvent
from agent.model.runtime.features import RuntimeFacts, RuntimeFeatures

log = structlog.get_logger(plane="daemon")

CALL_LIMIT_S = 3.0
CALLS = 6
PAUSE_AWAY_S = 1.0
PAUSE_THERE_S = 10.0
NOT_TRIED = "not tried yet"

QUEUE_LENGTH = 1000
POLL_INTERVAL_S = 1.0
PAUSE_S = 0.2


class RuntimeWatch:
    """Whether the runtime answers, and what it is. Keeps `facts`; `connected` is set while it answers.

    Looks often while the runtime is away, seldom while it is there, and at once when a listener lost a stream.
    Never: fails. A node without a runtime is a state, not an error.
    """

    def __init__(self, runtime: CriRuntime, endpoint: str, now_s: Callable[[], float]) -> None:
        self.facts = RuntimeFacts(endpoint, message=NOT_TRIED)
        self.connected = asyncio.Event()
        self._runtime = runtime
        self._now_s = now_s
        self._hurry = asyncio.Event()
        self._features = RuntimeFeatures()
        # They hear why it does not answer, and nothing once it does.
        self.listeners: list[Callable[[str], None]] = []

    def look_again(self) -> None:
        self._hurry.set()

    async def features(self) -> RuntimeFeatures:
        """What the runtime can do, as of the last time it came; waits for the first."""
        if not self.facts.name:
            await self.connected.wait()
        return self._features

    def note_event_source(self, source: str) -> None:
        self.facts = replace(self.facts, event_source=source)

    async def run(self, report: Report) -> None:
        while True:
            # All calls are bounded; a look that lasts longer than all of them is stuck, and the watchdog shall know.
            report.busy_until(self._now_s() + CALLS * CALL_LIMIT_S)
            await self._look(report)
            report.busy_until(None)
            pause_s = PAUSE_THERE_S if self.connected.is_set() else PAUSE_AWAY_S
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._hurry.wait()

    async def _look(self, report: Report) -> None:
        is_hurried = self._hurry.is_set()
        self._hurry.clear()
        try:
            version = await self._runtime.version(deadline_s=CALL_LIMIT_S)
            status = await self._runtime.status(deadline_s=CALL_LIMIT_S)
            if is_hurried or not self.connected.is_set():
                await self._learn()
        except RuntimeCallFailed as error:
            self._lost(report, f"does not answer: {error.details}")
            return
        unready = [condition for condition in status.conditions if not condition.status]
        found = replace(
            self.facts, name=version.runtime_name, version=version.runtime_version, is_connected=True, message=""
        )
        if not self.connected.is_set():
            log.info("runtime_connected", endpoint=found.endpoint, runtime=found.name, version=found.version, v=0)
        self.facts = found
        self.connected.set()
        self._tell("")
        blocking = [condition for condition in unready if condition.type in ("RuntimeReady", "NetworkReady")]
        if blocking:
            report.degraded("; ".join(f"{one.type}: {one.message or one.reason}" for one in blocking))
        else:
            report.ready(f"{found.name} {found.version}")

    async def _learn(self) -> None:
        """What it can do. One that answers and does not say is as good as one that can do little."""
        try:
            self._features = await self._runtime.features(deadline_s=CALL_LIMIT_S)
        except Unavailable:
            raise
        except RuntimeCallFailed as error:
            log.warning(
                "runtime_features_unknown", error=str(error), effect="the API server refuses what this needs to read"
            )

    def _lost(self, report: Report, message: str) -> None:
        is_news = self.facts.is_connected or self.facts.message == NOT_TRIED
        log.warning("runtime_lost", endpoint=self.facts.endpoint, error=message, v=0 if is_news else 3)
        self.facts = replace(self.facts, is_connected=False, message=message)
        self.connected.clear()
        report.degraded(f"{self.facts.endpoint} {message}")
        self._tell(f"the container runtime {message}")

    def _tell(self, problem: str) -> None:
        for listener in self.listeners:
            listener(problem)


class RuntimeEvents:
    """One feed for all planes, from the best source this runtime has. Runs only while there is a listener.

    The order of preference: containerd's event bus, CRI's own stream (containerd 1.7 gives that to one listener, and
    takes it away from a kubelet), comparing lists. LOST follows every gap, because no source replays what was missed.
    Each listener has its own bounded queue; one that falls behind gets LOST in place of what it missed.
    Never: interprets an event.
    """

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


class Runtime:
    """`observe` hears (method, code, seconds) of every call by CRI, `observe_other` of those to containerd itself."""

    def __init__(
        self,
        settings: RuntimeSection,
        clock: Clock,
        observe: Callable[[str, str, float], None],
        observe_other: Callable[[str, str, float], None],
    ) -> None:
        endpoint = settings.endpoint
        self.containerd = Containerd(endpoint, settings.containerd_namespace, observe=observe_other)
        self.cri = RemovingRuntime(
            endpoint,
            settings.image_endpoint,
            self.containerd,
            request_timeout_s=settings.request_timeout,
            observe=observe,
        )
        self.watch = RuntimeWatch(self.cri, endpoint, clock.now_s)
        self.events = RuntimeEvents(self.cri, self.containerd, self.watch, clock)

    async def close(self) -> None:
        await self.cri.close()
        await self.containerd.close()
