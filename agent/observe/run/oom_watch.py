# SPDX-License-Identifier: Apache-2.0
"""Looks at a container as soon as the kernel says that it ran out of memory.

Which containers there are is asked when the runtime tells of a change, once a second at most. With version 1 the
counter moves a little after the signal; and that a container is over shows a little later. One that is always at its
limit costs three looks a second. What the counter says is counted, never the signal: a group that is removed is
signalled too.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator

import structlog

from agent.model.clock import Clock
from agent.model.runtime.error import RuntimeCallFailed
from agent.observe.ports import OomSignals
from agent.observe.run.collector import Collector
from agent.observe.run.container_registry import Observed, Roster
from agent.observe.run.oom_book import OomBook

log = structlog.get_logger(plane="observe")

LISTS_S = 1.0
COUNTERS = ("memory.oom_control", "memory.events")
# 10, 100 and 1000 ms after the signal; and at once, then as often.
LEGACY_PAUSES_S, UNIFIED_PAUSES_S = (0.01, 0.09, 0.9), (0.0, 0.1, 0.9)
# By then what was killed is gone, and its container with it or not.
OVER_S = 0.1


class OomWatch:
    """`is_on` is asked at each signal; `changed` hears of what was counted."""

    def __init__(
        self, collector: Collector, roster: Roster, signals: OomSignals, clock: Clock, is_on: Callable[[], bool]
    ) -> None:
        self._collector = collector
        self._roster = roster
        self._signals = signals
        self._clock = clock
        self._is_on = is_on
        self._due = asyncio.Event()
        self._due.set()
        self._looking: dict[str, bool] = {}

    def due(self) -> None:
        """There may be other containers, or another wish."""
        self._due.set()

    async def run(self, book: OomBook, changed: Callable[[], None]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep(), name="oom-watch-lists")
                while True:
                    woken = await self._signals.woken()
                    for instance in self._begun(woken if self._is_on() else ()):
                        group.create_task(self._look(instance, book, changed), name="oom-watch-look")
        finally:
            self._signals.close()

    def _begun(self, woken: Collection[str]) -> Iterator[str]:
        """Those to look at now; one that is looked at already is so once more afterwards."""
        for instance in woken:
            is_new = instance not in self._looking
            self._looking[instance] = not is_new
            if is_new:
                yield instance

    async def _keep(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            if self._is_on():
                await self._collector.know()
            self._signals.keep(self._files() if self._is_on() else {})
            await self._clock.sleep(LISTS_S)

    def _files(self) -> dict[str, str]:
        living = (one for pod in self._roster.pods.values() for one in pod.containers.values() if one.ended_s is None)
        return {one.id: path for one in living if (path := _counter(one))}

    async def _look(self, instance: str, book: OomBook, changed: Callable[[], None]) -> None:
        """Again for as long as there are further signals."""
        try:
            while True:
                self._looking[instance] = False
                legacy = self._roster.hierarchies.version == 1
                since_s = 0.0
                for pause_s in LEGACY_PAUSES_S if legacy else UNIFIED_PAUSES_S:
                    await self._clock.sleep(pause_s)
                    since_s += pause_s
                    await self._collector.look_at(instance)
                    if book.looked(instance):
                        changed()
                    if since_s >= OVER_S:
                        book.tell(instance)
                if not self._looking[instance]:
                    return
        except (OSError, RuntimeCallFailed) as error:
            log.warning("container_not_looked_at", error=str(error))
        finally:
            del self._looking[instance]

    async def tell_later(self, instance: str, book: OomBook) -> None:
        """Of a kill that the runtime told of, once it shows whether its container goes on."""
        await self._clock.sleep(OVER_S)
        try:
            await self._collector.look_at(instance)
        except (OSError, RuntimeCallFailed) as error:
            log.warning("container_not_looked_at", error=str(error))
        book.tell(instance)


def _counter(one: Observed) -> str:
    found = dict(zip(one.every_file.names, one.every_file.paths, strict=True))
    return next((found[name] for name in COUNTERS if name in found), "")
