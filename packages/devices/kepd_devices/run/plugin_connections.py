# SPDX-License-Identifier: Apache-2.0
"""Plugins that register at a socket of kepd's: judged, connected, and their lists followed until they end them.

Whoever uses them takes the lists; what a plugin does ends nothing but its own task.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from typing import Protocol

import structlog

from agent.model.clock import Clock
from agent.model.devices.plugin import PluginAllocation, PluginDevice, PluginOptions, PluginRegistration
from agent.model.event import Event
from agent.model.runtime.error import RuntimeCallFailed
from kepd_devices.plan.answers import told
from kepd_devices.plan.plugins.plugin_choice import Unusable, check_registration, checked_list

log = structlog.get_logger(plane="devices")

OPTIONS_S = 10.0
PEER_TRIES, PEER_PAUSE_S = 20, 0.5
LIST_PAUSE_S, READ_PAUSE_S = 0.1, 0.005


class Connection(Protocol):
    """Calls raise RuntimeCallFailed."""

    async def options(self, limit_s: float) -> PluginOptions: ...

    def lists(self) -> AsyncIterator[list[PluginDevice]]: ...

    async def preferred(self, available: list[str], kept: list[str], count: int, limit_s: float) -> list[str]: ...

    async def allocate(self, ids: list[str], limit_s: float) -> PluginAllocation | None: ...

    async def pre_start(self, ids: list[str], limit_s: float) -> None: ...

    async def close(self) -> None: ...


class Directory(Protocol):
    """`serving` and `peer` raise OSError."""

    def serving(
        self, register: Callable[[PluginRegistration], Awaitable[str]]
    ) -> AbstractAsyncContextManager[None]: ...

    async def peer(self, endpoint: str) -> int: ...

    def connect(self, endpoint: str) -> Connection: ...


class Plugin:
    def __init__(self, resource: str, endpoint: str, connection: Connection) -> None:
        self.resource = resource
        self.endpoint = endpoint
        self.connection = connection
        self.options = PluginOptions()
        self.devices: dict[str, PluginDevice] = {}
        self.is_connected = True
        self.task: asyncio.Task[None] | None = None

    @property
    def healthy(self) -> dict[str, PluginDevice]:
        return {name: one for name, one in self.devices.items() if one.is_healthy and self.is_connected}


class PluginConnections:
    """`take` gets each list, and is called once more when a plugin went away; `refuses` says why a resource may not
    register here, or nothing; `news` is called when one came, went or was refused."""

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        allowed: Callable[[], Collection[int]],
        tell: Callable[[Event], None],
        take: Callable[[Plugin, dict[str, PluginDevice]], None],
        *,
        refuses: Callable[[str], str] = lambda _resource: "",
        news: Callable[[], None] = lambda: None,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._allowed = allowed
        self._tell = tell
        self._take = take
        self._refuses = refuses
        self._news = news
        self._group: asyncio.TaskGroup | None = None
        self.known: dict[str, Plugin] = {}
        self.refused: dict[str, str] = {}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Plugins can register meanwhile; at the end none is connected."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                async with self._directory.serving(self.register):
                    yield
            finally:
                self._group = None
                for plugin in self.known.values():
                    if plugin.task is not None:
                        plugin.task.cancel()
                    await plugin.connection.close()
                self.known.clear()

    async def register(self, given: PluginRegistration) -> str:
        """Why it is refused; nothing where it is registered."""
        known = self.known.get(given.resource)
        try:
            check_registration(given, self.known.keys(), (*self._allowed(), given.user))
            if why := self._refuses(given.resource):
                raise Unusable(why)
            if known is not None and known.is_connected and known.endpoint != given.endpoint:
                raise Unusable(f"{given.resource} is registered by {known.endpoint}, which is alive")
        except Unusable as error:
            text = f"plugin of {told(given.resource)} is refused: {told(str(error))}"
            self.refused[given.resource] = text
            self._say("DriverRefused", text, is_warning=True)
            return told(str(error))
        if known is not None and known.task is not None:
            known.task.cancel()
            await known.connection.close()
        plugin = Plugin(given.resource, given.endpoint, self._directory.connect(given.endpoint))
        if self._group is None:
            return "kepd ends"
        self.known[given.resource] = plugin
        self.refused.pop(given.resource, None)
        plugin.task = self._group.create_task(self._follow(plugin), name=f"plugin {given.resource}")
        return ""

    async def _follow(self, plugin: Plugin) -> None:
        """Its lists, until it ends them; whatever it does ends this task alone."""
        why = "it ended its list"
        try:
            user = await self._peer(plugin.endpoint)
            if user not in self._allowed():
                raise Unusable(f"user {user} serves {plugin.endpoint}; devices.plugins.allow names no such user")
            plugin.options = await plugin.connection.options(OPTIONS_S)
            self._say("DriverRegistered", f"plugin of {plugin.resource} is registered", is_warning=False)
            async with aclosing(self._newest(plugin.connection)) as lists:
                async for listed in lists:
                    self._take(plugin, checked_list(listed))
                    await self._clock.sleep(LIST_PAUSE_S)
        except (OSError, RuntimeCallFailed, Unusable, ValueError) as error:
            why = told(error.details if isinstance(error, RuntimeCallFailed) else str(error))
        plugin.is_connected = False
        self._take(plugin, plugin.devices)
        log.warning("plugin_away", resource=plugin.resource, error=why)
        self._say("DriverAway", f"plugin of {plugin.resource} is away: {why}", is_warning=True)

    async def _newest(self, connection: Connection) -> AsyncGenerator[list[PluginDevice]]:
        """Of lists that came while one was taken, only the last."""
        inbox: deque[list[PluginDevice]] = deque(maxlen=1)
        news = asyncio.Event()

        async def read() -> None:
            async for listed in connection.lists():
                inbox.append(listed)
                news.set()
                # Who floods is read no faster, and waits.
                await self._clock.sleep(READ_PAUSE_S)

        reader = asyncio.create_task(read())
        reader.add_done_callback(lambda _: news.set())
        try:
            while inbox or not reader.done():
                if not inbox:
                    await news.wait()
                news.clear()
                if inbox:
                    yield inbox.pop()
            reader.result()
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _peer(self, endpoint: str) -> int:
        """A plugin may register a moment before it serves."""
        for _ in range(PEER_TRIES):
            with suppress(OSError):
                return await self._directory.peer(endpoint)
            await self._clock.sleep(PEER_PAUSE_S)
        return await self._directory.peer(endpoint)

    def _say(self, reason: str, text: str, *, is_warning: bool) -> None:
        self._news()
        self._tell(Event(is_warning=is_warning, reason=reason, message=text, plane="devices"))
