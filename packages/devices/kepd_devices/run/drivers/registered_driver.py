# SPDX-License-Identifier: Apache-2.0
"""A driver that registered, with the sockets that it serves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

from agent.model.clock import Clock
from agent.model.devices.plugin import ClaimAnswer, ClaimReference, ToldHealth
from agent.model.runtime.error import DeadlineExceeded, RuntimeCallFailed, Unavailable
from kepd_devices.manifest.objects import DeviceClass, Slice
from kepd_devices.plan.answers import Answers, told
from kepd_devices.plan.health import Key
from kepd_devices.plan.records import ClaimRecord
from kepd_devices.plan.registration import Instance
from kepd_devices.ports import DriverFailed
from kepd_devices.run.drivers.driver_health import DriverHealth

# So long the slices of a driver that is away count.
KEPT_S = 30.0
MOST_CALLS, MOST_DEADLINES = 4, 3
PROBE_S = 60.0


class Connection(Protocol):
    """To one instance of a driver. Calls raise RuntimeCallFailed."""

    @property
    def is_connected(self) -> bool: ...

    async def prepare(self, claims: Sequence[ClaimReference], limit_s: float) -> Mapping[str, ClaimAnswer]: ...

    async def unprepare(self, claims: Sequence[ClaimReference], limit_s: float) -> Mapping[str, ClaimAnswer]: ...

    def health(self) -> AsyncIterator[Sequence[ToldHealth]]: ...

    async def close(self) -> None: ...


class RegisteredDriver:
    """All instances of one driver, the newest last."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        limit_s: Callable[[], float],
        news: Callable[[], None],
        changed: Callable[[str, Collection[Key]], None],
    ) -> None:
        """`news` is called when it fails, and when it is well again; `changed` when devices of it are so."""
        self.health = DriverHealth(name, clock, changed, news)
        self.name = name
        self._news = news
        self._clock = clock
        self._limit_s = limit_s
        self.instances: list[tuple[Instance, Connection]] = []
        self._places = asyncio.Semaphore(MOST_CALLS)
        self._deadlines = 0
        self._probe_s = 0.0
        self.last_error = ""
        self._away_since_s: float | None = None

    @property
    def why_away(self) -> str:
        if not self.instances:
            return f"driver {self.name} is not registered any more"
        if self._deadlines >= MOST_DEADLINES and self._clock.now_s() < self._probe_s:
            return f"driver {self.name} is hung: {self._deadlines} calls in a row had no answer"
        return ""

    def add(self, instance: Instance, connection: Connection) -> None:
        """It answered a moment ago, whether it is connected by now or not."""
        self.instances.append((instance, connection))
        self._away_since_s = None
        if instance.tells_health:
            self.health.follow(connection)

    async def remove(self, instance: Instance) -> None:
        for pair in [one for one in self.instances if one[0] is instance]:
            self.instances.remove(pair)
            await self.health.leave(pair[1])
            await pair[1].close()

    async def close(self) -> None:
        for instance, _ in list(self.instances):
            await self.remove(instance)
        await self.health.close()

    def notice(self) -> None:
        """Now and then: whether any instance of it is there. A process that was killed leaves its sockets."""
        if self._is_there:
            self._away_since_s = None
        elif self._away_since_s is None:
            self._away_since_s = self._clock.now_s()

    @property
    def has_left(self) -> bool:
        """It is away for so long that its slices do not count."""
        since_s = self._away_since_s
        return since_s is not None and self._clock.now_s() - since_s >= KEPT_S and not self._is_there

    @property
    def _is_there(self) -> bool:
        return any(connection.is_connected for _, connection in self.instances)

    def slices(self) -> Sequence[Slice]:
        """It has them in manifests; a driver that asks an API server for claims cannot work here."""
        return ()

    def classes(self) -> Sequence[DeviceClass]:
        return ()

    def extra_s(self, claims: Sequence[ClaimRecord], *, is_prepare: bool) -> float:
        del claims, is_prepare
        return 0.0

    async def prepare(self, claims: Sequence[ClaimRecord]) -> Answers:
        return await self._called(lambda one, refs: one.prepare(refs, self._limit_s()), claims)

    async def unprepare(self, claims: Sequence[ClaimRecord]) -> Answers:
        return await self._called(lambda one, refs: one.unprepare(refs, self._limit_s()), claims)

    async def _called(
        self,
        call: Callable[[Connection, Sequence[ClaimReference]], Awaitable[Mapping[str, ClaimAnswer]]],
        claims: Sequence[ClaimRecord],
    ) -> Answers:
        """By the newest that is connected; one that turns out to be away leaves it to the next, once."""
        refs = [ClaimReference(one.claim.metadata.namespace, one.claim.metadata.name, one.uid) for one in claims]
        async with self._places:
            for attempt, connection in enumerate(self._in_turn()[:2]):
                self._probe_s = self._clock.now_s() + PROBE_S
                try:
                    answers = await call(connection, refs)
                except Unavailable as error:
                    if attempt or len(self.instances) == 1:
                        raise self._failed(error) from error
                except RuntimeCallFailed as error:
                    self._deadlines += isinstance(error, DeadlineExceeded)
                    raise self._failed(error) from error
                else:
                    if self.last_error:
                        self._news()
                    self._deadlines = 0
                    self.last_error = ""
                    return answers
        raise DriverFailed("no instance of it is left")

    def _in_turn(self) -> list[Connection]:
        newest = [connection for _, connection in reversed(self.instances)]
        return sorted(newest, key=lambda one: not one.is_connected)

    def _failed(self, error: RuntimeCallFailed) -> DriverFailed:
        text = "did not answer in time" if isinstance(error, DeadlineExceeded) else error.details
        self.last_error = told(text)
        self._news()
        return DriverFailed(self.last_error)
