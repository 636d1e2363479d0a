# SPDX-License-Identifier: Apache-2.0
"""Writes faults of Services as events of the API server, beside kepd's own list of events.

What every node sees waits a random time first: most nodes then find the event that another one wrote, at the price of
one question. Repeats change the count of an event, ten minutes after the last write at the earliest.

Never: waits where an event is told, keeps more than 200, or holds up anything else when the API server is away.
"""

import asyncio
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
import structlog
from prometheus_client.core import Metric

from agent.drivers.kube.errors import Conflict, Denied, KubeError, Missing, Throttled, Unprocessable
from agent.drivers.kube.resource import EVENTS
from agent.model.clock import Clock
from agent.model.event import Event
from agent.model.histogram import counter_family
from agent.services.view.object_events import (
    event_body,
    event_name,
    event_namespace,
    is_shared,
    is_written,
    series_body,
)

if TYPE_CHECKING:
    from agent.drivers.kube.client import KubeClient

log = structlog.get_logger(plane="services")

MOST_WAITING = 200
MOST_KNOWN = 2000
LONGEST_WAIT_S = 60.0
REPEAT_S = 600.0
DENIED_S = 600.0
RETRY_S = 10.0
MOST_TRIES = 5
PER_S, BURST = 10 / 60, 25.0
STEP_S = 1.0


class WrittenEvent(msgspec.Struct):
    """What is known of an event: how often it was told, and whether it is ours on the server."""

    event: Event
    count: int = 1
    is_ours: bool = False
    due_s: float = 0.0
    tries: int = 0


class EventWriter:
    """A unit of work, and `tell`, which passes on to the next one."""

    def __init__(
        self,
        find: "Callable[[], KubeClient | None]",
        node: str,
        clock: Clock,
        passes_on: Callable[[Event], None],
        luck: Callable[[], float] = random.random,
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self._find = find
        self._node = node
        self._clock = clock
        self._passes_on = passes_on
        self._luck = luck
        self._known: OrderedDict[str, WrittenEvent] = OrderedDict()
        self._waiting: OrderedDict[str, WrittenEvent] = OrderedDict()
        self._tokens, self._filled_s = BURST, clock.now_s()
        self._off_until_s = 0.0
        self._wake = asyncio.Event()

    def tell(self, event: Event) -> None:
        self._passes_on(event)
        if not is_written(event):
            return
        name, now_s = event_name(event, self._node), self._clock.now_s()
        one = self._known.get(name)
        if one is None:
            wait_s = self._luck() * LONGEST_WAIT_S if is_shared(event) else 0.0
            one = self._known[name] = WrittenEvent(event, due_s=now_s + wait_s)
        else:
            one.count += 1
            if name not in self._waiting and not one.is_ours:
                # Another node wrote it, and counts what it sees itself.
                return
        self._waiting.setdefault(name, one)
        while len(self._waiting) > MOST_WAITING:
            self._waiting.popitem(last=False)
            self.outcomes["dropped"] += 1
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            await self.write_due()
            if self._waiting:
                await self._clock.sleep(STEP_S)
            else:
                await self._wake.wait()

    async def write_due(self) -> None:
        now_s = self._clock.now_s()
        kube_client = self._find()
        if kube_client is None or now_s < self._off_until_s:
            return
        for name in [name for name, one in self._waiting.items() if one.due_s <= now_s]:
            one = self._waiting.pop(name, None)
            if one is None:
                continue
            if not self._may_write(now_s):
                self.outcomes["dropped"] += 1
                self._known.pop(name, None)
                continue
            if not await self._write(kube_client, name, one):
                return

    def _may_write(self, now_s: float) -> bool:
        self._tokens = min(BURST, self._tokens + (now_s - self._filled_s) * PER_S)
        self._filled_s = now_s
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    async def _write(self, kube_client: "KubeClient", name: str, one: WrittenEvent) -> bool:
        """False: nothing more can be written for now."""
        try:
            self.outcomes[await self._written(kube_client, name, one)] += 1
        except Denied as error:
            self._off_until_s = self._clock.now_s() + DENIED_S
            self._again(name, one, DENIED_S)
            needs = "the rights of deploy/components/events"
            log.warning("service_events_denied", error=str(error), needs=needs, retry_s=DENIED_S)
            return False
        except Unprocessable as error:
            self.outcomes["refused"] += 1
            log.warning("service_event_refused", name=name, error=str(error), effect="it is in kepctl events only")
        except KubeError as error:
            retry_s = RETRY_S
            if isinstance(error, Throttled) and error.retry_after_s:
                retry_s = error.retry_after_s
            one.tries += 1
            if one.tries < MOST_TRIES:
                self._again(name, one, retry_s)
                self._off_until_s = self._clock.now_s() + retry_s
                return False
            self.outcomes["failed"] += 1
            self._known.pop(name, None)
            log.warning("service_event_lost", name=name, error=str(error), effect="it is in kepctl events only")
        return True

    def _again(self, name: str, one: WrittenEvent, wait_s: float) -> None:
        one.due_s = self._clock.now_s() + wait_s
        self._waiting.setdefault(name, one)

    async def _written(self, kube_client: "KubeClient", name: str, one: WrittenEvent) -> str:
        events = EVENTS.narrowed(namespace=event_namespace(one.event))
        now_s = self._clock.wall_s()
        if one.is_ours:
            try:
                await kube_client.patch(events, name, series_body(one.count, now_s))
            except Missing:
                one.is_ours = False
            else:
                one.due_s = self._clock.now_s() + REPEAT_S
                return "repeated"
        if is_shared(one.event) and await self._is_there(kube_client, name, one):
            return "known"
        try:
            await kube_client.create(events, event_body(one.event, self._node, now_s))
        except Conflict:
            return "known"
        one.is_ours, one.tries = True, 0
        one.due_s = self._clock.now_s() + REPEAT_S
        return "written"

    async def _is_there(self, kube_client: "KubeClient", name: str, one: WrittenEvent) -> bool:
        try:
            await kube_client.get(EVENTS.narrowed(namespace=event_namespace(one.event)), name)
        except Missing:
            return False
        return True

    def families(self) -> Iterator[Metric]:
        text = "Events for the API server by outcome."
        yield counter_family("kepd_services_object_events", text, ("outcome",), sorted(self.outcomes.items()))
