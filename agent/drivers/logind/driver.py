# SPDX-License-Identifier: Apache-2.0
"""systemd-logind over D-Bus: the delay lock, the announcement of a shutdown, and how long a delay may last.

Never: decides when the lock goes. Every failure is an OSError that says what would heal it.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from agent.drivers.system_bus import DBUS, SYSTEMD, SYSTEMD_MANAGER, SYSTEMD_PATH, SystemBus

if TYPE_CHECKING:
    from dbus_fast import Message

# Gone after a reboot, when kepd writes it again: nothing is left on a node that has kepd no more.
DROP_IN_DIRECTORY = Path("/run/systemd/logind.conf.d")
DROP_IN_NAME = "99-kepd.conf"
SYSTEMD_RUNS = Path("/run/systemd/system")
LOGIN, LOGIN_PATH, LOGIN_MANAGER = "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"
ANNOUNCED, STOPPING = "PrepareForShutdown", "stopping"
RELOAD_SIGNAL = 1
# How soon a connection that broke is noticed.
LOOK_S = 1.0
# logind reads its files after the signal, and nothing tells when it has.
LOOKS_AFTER_RELOAD, PAUSE_S = 40, 0.05
MICRO = 10**6


class Logind:
    """One connection. `address` is that of the bus, empty for the system's own."""

    def __init__(self, address: str = "", drop_ins: Path = DROP_IN_DIRECTORY) -> None:
        self._address = address
        self._bus = SystemBus(address)
        self._drop_ins = drop_ins
        self._lock: int | None = None
        self._news: asyncio.Queue[bool | None] = asyncio.Queue()

    def is_expected(self) -> bool:
        """Whether systemd runs this machine."""
        return SYSTEMD_RUNS.is_dir()

    async def connect(self) -> None:
        """A new connection; an earlier one is closed, its lock stays until it is dropped."""
        self._news = asyncio.Queue()
        await self._bus.connect()
        self._bus.hear(self._heard)
        await self._bus.listen(f"type='signal',interface='{LOGIN_MANAGER}',member='{ANNOUNCED}'")
        await self._bus.listen(f"type='signal',sender='{DBUS}',member='NameOwnerChanged',arg0='{LOGIN}'")

    async def close(self) -> None:
        """Of the connection; the lock is another matter."""
        await self._bus.close()

    async def take_lock(self) -> None:
        """Ask logind to wait. One that is held stays the one."""
        if self._lock is not None:
            return
        body = ["shutdown", "kepd", "pods end in their order", "delay"]
        answer = await self._bus.call(LOGIN, LOGIN_PATH, LOGIN_MANAGER, "Inhibit", "ssss", body)
        self._lock = answer.unix_fds[answer.body[0]]

    def drop_lock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    async def longest_delay_s(self) -> float:
        """InhibitDelayMaxSec."""
        return float(await self._property("InhibitDelayMaxUSec")) / MICRO

    async def raise_longest_delay(self, delay_s: float) -> None:
        """By a drop-in, which logind is told to read. Returns when it has, or after some time if it will not."""
        try:
            await asyncio.to_thread(self._write_drop_in, delay_s)
        except OSError as error:
            raise OSError(f"{self._drop_ins / DROP_IN_NAME} cannot be written: {error.strerror}") from error
        body = ["systemd-logind.service", "main", RELOAD_SIGNAL]
        await self._bus.call(SYSTEMD, SYSTEMD_PATH, SYSTEMD_MANAGER, "KillUnit", "ssi", body)
        for _ in range(LOOKS_AFTER_RELOAD):
            if await self.longest_delay_s() >= delay_s:
                return
            await asyncio.sleep(PAUSE_S)

    async def is_going_down(self) -> bool:
        """Whether systemd ends the units of the machine by now. Asked over a connection of its own: logind, and with
        it the other one, may have ended already."""
        bus = SystemBus(self._address)
        await bus.connect()
        try:
            return await bus.property_of(SYSTEMD, SYSTEMD_PATH, SYSTEMD_MANAGER, "SystemState") == STOPPING
        finally:
            await bus.close()

    async def news(self) -> AsyncIterator[bool]:
        """Whether a shutdown is being prepared: as it is now, then every announcement."""
        yield bool(await self._property("PreparingForShutdown"))
        while (is_preparing := await self._next()) is not None:
            yield is_preparing
        raise ConnectionError("systemd-logind ended or was restarted")

    async def _next(self) -> bool | None:
        """The library's own future for a broken connection dies with the first who is tired of waiting for it."""
        while True:
            self._bus.connected()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    return await self._news.get()

    def _heard(self, message: "Message") -> None:
        """A signal. Others than those asked for come as well."""
        if message.interface == LOGIN_MANAGER and message.member == ANNOUNCED:
            self._news.put_nowait(bool(message.body[0]))
        elif message.member == "NameOwnerChanged" and message.interface == DBUS and message.body[0] == LOGIN:
            self._news.put_nowait(None)

    def _write_drop_in(self, delay_s: float) -> None:
        self._drop_ins.mkdir(parents=True, exist_ok=True, mode=0o755)
        path = self._drop_ins / DROP_IN_NAME
        text = f"# Written by kepd: what pods.shutdown needs.\n[Login]\nInhibitDelayMaxSec={ceil(delay_s)}\n"
        draft = path.with_name(f".{DROP_IN_NAME}.draft")
        draft.write_text(text)
        draft.chmod(0o644)
        draft.rename(path)

    async def _property(self, name: str) -> int:
        found = await self._bus.property_of(LOGIN, LOGIN_PATH, LOGIN_MANAGER, name)
        if not isinstance(found, int):
            raise OSError(f"{LOGIN} answers {name} with {found!r}; expected: a number or a truth value")
        return found
