# SPDX-License-Identifier: Apache-2.0
"""Follows the health that the instances of one driver report for its devices.

A stream that ends, fails or sends garbage is opened again after growing pauses; reports expire by themselves. A driver
that floods is read part of the time, and changes are passed on at most ten times a second.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Protocol

import structlog

from agent.model.clock import Clock
from agent.model.devices.plugin import ToldHealth
from agent.model.runtime.error import RuntimeCallFailed
from kepd_devices.plan.answers import told
from kepd_devices.plan.health import MOST_DEVICES, BadHealth, DeviceHealth, HealthTable, Key

log = structlog.get_logger(plane="devices")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
# Who told for so long is begun anew at once the next time.
LASTING_S = 60.0
TELL_PAUSE_S, READ_PAUSE_S, READ_PART = 0.1, 0.002, 4


class Stream(Protocol):
    def health(self) -> AsyncIterator[Sequence[ToldHealth]]:
        """Lazy: what is too long is not read. Raises RuntimeCallFailed."""


class DriverHealth:
    """`changed` hears which devices became unhealthy, or well again; `news` that `problem` is another."""

    def __init__(
        self, driver: str, clock: Clock, changed: Callable[[str, Collection[Key]], None], news: Callable[[], None]
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._changed = changed
        self._news = news
        self._table = HealthTable()
        self._streams: dict[Stream, asyncio.Task[None]] = {}
        self._untold: dict[Key, None] = {}
        self._telling: asyncio.Task[None] | None = None
        self.problem = ""

    def follow(self, stream: Stream) -> None:
        self._streams[stream] = asyncio.create_task(self._follow(stream), name=f"health of {self._driver}")

    async def leave(self, stream: Stream) -> None:
        if (task := self._streams.pop(stream, None)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if not self._streams:
            self._note("")

    async def close(self) -> None:
        for stream in list(self._streams):
            await self.leave(stream)
        if self._telling is not None:
            self._telling.cancel()

    def of(self, pool: str, device: str) -> DeviceHealth:
        return self._table.of((pool, device), self._clock.now_s())

    def unhealthy(self) -> list[Key]:
        return list(self._table.unhealthy(self._clock.now_s()))

    def drop_old(self) -> None:
        """Now and then."""
        self._table.drop_old(self._clock.now_s())

    async def _follow(self, stream: Stream) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            began_s = self._clock.now_s()
            try:
                await self._read(stream)
                why = "it ended its stream"
            except RuntimeCallFailed as error:
                why = told(error.details)
            except BadHealth as error:
                why = str(error)
                self._table.clear()
                self._tell(())
            if self._clock.now_s() - began_s >= LASTING_S:
                pause_s = FIRST_PAUSE_S
            self._note(f"health of {self._driver} is not known: {why}")
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _read(self, stream: Stream) -> None:
        async for devices in stream.health():
            began_s = self._clock.now_s()
            if len(devices) > MOST_DEVICES:
                raise BadHealth(f"it tells of {len(devices)} devices at once; expected at most {MOST_DEVICES}")
            self._tell(self._table.take(devices, self._clock.now_s()))
            self._note("")
            await self._clock.sleep(max(READ_PAUSE_S, READ_PART * (self._clock.now_s() - began_s)))

    def _tell(self, changed: Collection[Key]) -> None:
        self._untold.update(dict.fromkeys(changed))
        if self._untold and self._telling is None:
            self._telling = asyncio.create_task(self._tell_soon(), name=f"changed health of {self._driver}")

    async def _tell_soon(self) -> None:
        await self._clock.sleep(TELL_PAUSE_S)
        self._telling = None
        untold, self._untold = self._untold, {}
        self._changed(self._driver, untold.keys())

    def _note(self, text: str) -> None:
        if text != self.problem:
            self.problem = text
            if text:
                log.warning("driver_health_not_followed", driver=self._driver, error=text)
            self._news()
