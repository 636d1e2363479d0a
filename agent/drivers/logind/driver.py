# SPDX-License-Identifier: Apache-2.0
"""systemd-logind over D-Bus: the delay lock, the announcement of a shutdown, and how long a delay may last.

The library is imported on connecting: a node without shutdown groups needs none.
Never: decides when the lock goes. Every failure is an OSError that says what would heal it.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dbus_fast import Message
    from dbus_fast.aio import MessageBus

# Gone after a reboot, when kepd writes it again: nothing is left on a node that has kepd no more.
DROP_IN_DIRECTORY = Path("/run/systemd/logind.conf.d")
DROP_IN_NAME = "99-kepd.conf"
SYSTEMD_RUNS = Path("/run/systemd/system")
LOGIN, LOGIN_PATH, LOGIN_MANAGER = "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"
SYSTEMD, SYSTEMD_PATH = "org.freedesktop.systemd1", "/org/freedesktop/systemd1"
SYSTEMD_MANAGER = "org.freedesktop.systemd1.Manager"
DBUS, DBUS_PATH = "org.freedesktop.DBus", "/org/freedesktop/DBus"
PROPERTIES = "org.freedesktop.DBus.Properties"
ANNOUNCED = "PrepareForShutdown"
RELOAD_SIGNAL = 1
CALL_LIMIT_S = 10.0
# How soon a connection that broke is noticed.
LOOK_S = 1.0
# logind reads its files after the signal, and nothing tells when it has.
LOOKS_AFTER_RELOAD, PAUSE_S = 40, 0.05
MICRO = 10**6


class Logind:
    """One connection. `address` is that of the bus, empty for the system's own."""

    def __init__(self, address: str = "", drop_ins: Path = DROP_IN_DIRECTORY) -> None:
        self._address = address
        self._drop_ins = drop_ins
        self._bus: MessageBus | None = None
        self._lock: int | None = None
        self._news: asyncio.Queue[bool | None] = asyncio.Queue()

    def is_expected(self) -> bool:
        """Whether systemd runs this machine."""
        return SYSTEMD_RUNS.is_dir()

    async def connect(self) -> None:
        """A new connection; an earlier one is closed, its lock stays until it is dropped."""
        await self.close()
        try:
            from dbus_fast import BusType
            from dbus_fast.aio import MessageBus
            from dbus_fast.errors import AuthError, InvalidAddressError
        except ImportError as error:
            raise OSError("the library dbus-fast is missing: install kepd with the extra systemd") from error
        self._news = asyncio.Queue()
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                bus = MessageBus(self._address or None, BusType.SYSTEM, negotiate_unix_fd=True)
                self._bus = await bus.connect()
        except (OSError, EOFError, AuthError, InvalidAddressError) as error:
            raise OSError(f"no connection to the system bus: {error or type(error).__name__}") from error
        self._bus.add_message_handler(self._heard)
        await self._listen(f"type='signal',interface='{LOGIN_MANAGER}',member='{ANNOUNCED}'")
        await self._listen(f"type='signal',sender='{DBUS}',member='NameOwnerChanged',arg0='{LOGIN}'")

    async def close(self) -> None:
        """Of the connection; the lock is another matter."""
        bus, self._bus = self._bus, None
        if bus is not None:
            bus.disconnect()
            with suppress(OSError, EOFError):
                await bus.wait_for_disconnect()  # type: ignore[no-untyped-call]

    async def take_lock(self) -> None:
        """Ask logind to wait. One that is held stays the one."""
        if self._lock is not None:
            return
        body = ["shutdown", "kepd", "pods end in their order", "delay"]
        answer = await self._call(LOGIN, LOGIN_PATH, LOGIN_MANAGER, "Inhibit", "ssss", body)
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
        await self._call(SYSTEMD, SYSTEMD_PATH, SYSTEMD_MANAGER, "KillUnit", "ssi", body)
        for _ in range(LOOKS_AFTER_RELOAD):
            if await self.longest_delay_s() >= delay_s:
                return
            await asyncio.sleep(PAUSE_S)

    async def news(self) -> AsyncIterator[bool]:
        """Whether a shutdown is being prepared: as it is now, then every announcement."""
        yield bool(await self._property("PreparingForShutdown"))
        while (is_preparing := await self._next()) is not None:
            yield is_preparing
        raise ConnectionError("systemd-logind ended or was restarted")

    async def _next(self) -> bool | None:
        """The library's own future for a broken connection dies with the first who is tired of waiting for it."""
        while True:
            self._connected()
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

    async def _listen(self, rule: str) -> None:
        await self._call(DBUS, DBUS_PATH, DBUS, "AddMatch", "s", [rule])

    async def _property(self, name: str) -> int:
        answer = await self._call(LOGIN, LOGIN_PATH, PROPERTIES, "Get", "ss", [LOGIN_MANAGER, name])
        return int(answer.body[0].value)

    def _connected(self) -> "MessageBus":
        if self._bus is None or not self._bus.connected:
            raise ConnectionError("not connected to the system bus")
        return self._bus

    async def _call(
        self, name: str, path: str, interface: str, member: str, signature: str, body: Sequence[object]
    ) -> "Message":
        from dbus_fast import Message, MessageType

        message = Message(
            destination=name, path=path, interface=interface, member=member, signature=signature, body=list(body)
        )
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                answer = await self._connected().call(message)
        except TimeoutError as error:
            raise OSError(f"{name} did not answer {member} within {CALL_LIMIT_S:g} s") from error
        except EOFError as error:
            raise ConnectionError("the connection to the system bus broke") from error
        if answer is None or answer.message_type is MessageType.ERROR:
            text = answer.body[0] if answer is not None and answer.body else "no reason given"
            raise OSError(f"{name} refused {member}: {text}")
        return answer
