# SPDX-License-Identifier: Apache-2.0
"""A connection to the system bus of D-Bus, for the drivers of what answers there.

The library is imported on connecting: a node whose groups systemd does not own, and that delays no shutdown, needs
none. Every failure is an OSError that says what would heal it.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dbus_fast import Message
    from dbus_fast.aio import MessageBus

CALL_LIMIT_S = 10.0
DBUS, DBUS_PATH = "org.freedesktop.DBus", "/org/freedesktop/DBus"
PROPERTIES = "org.freedesktop.DBus.Properties"
SYSTEMD, SYSTEMD_PATH = "org.freedesktop.systemd1", "/org/freedesktop/systemd1"
SYSTEMD_MANAGER = "org.freedesktop.systemd1.Manager"


class BusRefusal(OSError):
    """Who was called says no; `name` is the error's own, such as org.freedesktop.systemd1.UnitExists."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class SystemBus:
    """One connection. `address` is that of the bus, empty for the system's own."""

    def __init__(self, address: str = "") -> None:
        self._address = address
        self._bus: MessageBus | None = None

    @property
    def is_connected(self) -> bool:
        return self._bus is not None and self._bus.connected

    async def connect(self) -> None:
        """A new connection; an earlier one is closed."""
        await self.close()
        try:
            from dbus_fast import BusType
            from dbus_fast.aio import MessageBus
            from dbus_fast.errors import AuthError, InvalidAddressError
        except ImportError as error:
            raise OSError("the library dbus-fast is missing: install kepd with the extra systemd") from error
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                bus = MessageBus(self._address or None, BusType.SYSTEM, negotiate_unix_fd=True)
                self._bus = await bus.connect()
        except (OSError, EOFError, AuthError, InvalidAddressError) as error:
            raise OSError(f"no connection to the system bus: {error or type(error).__name__}") from error

    async def close(self) -> None:
        bus, self._bus = self._bus, None
        if bus is not None:
            bus.disconnect()
            with suppress(OSError, EOFError):
                await bus.wait_for_disconnect()  # type: ignore[no-untyped-call]

    async def listen(self, rule: str) -> None:
        """For signals; the handler also hears others."""
        await self.call(DBUS, DBUS_PATH, DBUS, "AddMatch", "s", [rule])

    def hear(self, handler: "Callable[[Message], None]") -> None:
        self.connected().add_message_handler(handler)

    def connected(self) -> "MessageBus":
        if self._bus is None or not self._bus.connected:
            raise ConnectionError("not connected to the system bus")
        return self._bus

    async def property_of(self, name: str, path: str, interface: str, member: str) -> object:
        answer = await self.call(name, path, PROPERTIES, "Get", "ss", [interface, member])
        found: object = answer.body[0].value
        return found

    async def call(
        self, name: str, path: str, interface: str, member: str, signature: str, body: Sequence[object]
    ) -> "Message":
        from dbus_fast import Message, MessageType

        message = Message(
            destination=name, path=path, interface=interface, member=member, signature=signature, body=list(body)
        )
        bus = self.connected()
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                answer = await bus.call(message)
        except TimeoutError as error:
            raise OSError(f"{name} did not answer {member} within {CALL_LIMIT_S:g} s") from error
        except (EOFError, OSError) as error:
            bus.disconnect()
            raise ConnectionError("the connection to the system bus broke") from error
        if answer is None or answer.message_type is MessageType.ERROR:
            text = answer.body[0] if answer is not None and answer.body else "no reason given"
            raise BusRefusal(answer.error_name or "" if answer else "", f"{name} refused {member}: {text}")
        return answer
