# SPDX-License-Identifier: Apache-2.0
"""Slices of systemd over D-Bus: made with their limits, given others, ended.

systemd keeps what it is asked for and writes it again when it reloads its units; what others write into the files of
its groups is gone then. One call at a time, so that of two values for one slice the later one stays.
Never: decides what a limit is. Every failure is an OSError.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from agent.drivers.system_bus import SYSTEMD, SYSTEMD_MANAGER, SYSTEMD_PATH, BusRefusal, SystemBus

EXISTS = "org.freedesktop.systemd1.UnitExists"
NO_SUCH = "org.freedesktop.systemd1.NoSuchUnit"
UNIT = "org.freedesktop.systemd1.Unit"
DESCRIPTION = "limits of pods, by kepd"
ACCOUNTING = ("CPUAccounting", "MemoryAccounting", "TasksAccounting")
# A slice has no process to start: it is there as soon as systemd comes to it.
LOOKS, FIRST_PAUSE_S, LONGEST_PAUSE_S = 60, 0.002, 0.2


class SystemdSlices:
    """`address` is that of the bus, empty for the system's own."""

    def __init__(self, address: str = "") -> None:
        self._bus = SystemBus(address)
        self._turn = asyncio.Lock()
        # What each slice was given last, by this process over this connection.
        self._held: dict[str, tuple[tuple[str, int], ...]] = {}

    async def hold(self, unit: str, properties: Sequence[tuple[str, int]], *, anew: bool = False) -> None:
        """The slice is there and has these properties; `anew` says it even where it was said before."""
        wanted = tuple(properties)
        async with self._turn:
            await self._connect()
            if self._held.get(unit) == wanted and not anew:
                return
            self._held.pop(unit, None)
            try:
                await self._start(unit, wanted)
            except BusRefusal as error:
                if error.name != EXISTS:
                    raise
                await self._manager("SetUnitProperties", "sba(sv)", [unit, True, _variants(wanted)])
            self._held[unit] = wanted

    async def stop(self, unit: str) -> None:
        """It ends, with whatever is in it; one that is not there is fine."""
        async with self._turn:
            await self._connect()
            self._held.pop(unit, None)
            with suppress(_NoSuchUnit):
                await self._manager("StopUnit", "ss", [unit, "replace"])

    async def close(self) -> None:
        await self._bus.close()

    async def _connect(self) -> None:
        if not self._bus.is_connected:
            self._held.clear()
            await self._bus.connect()

    async def _start(self, unit: str, properties: tuple[tuple[str, int], ...]) -> None:
        """Returns when its group is there."""
        from dbus_fast import Variant

        whole = [["Description", Variant("s", DESCRIPTION)], *([name, Variant("b", True)] for name in ACCOUNTING)]
        await self._manager(
            "StartTransientUnit", "ssa(sv)a(sa(sv))", [unit, "replace", whole + _variants(properties), []]
        )
        pause_s = FIRST_PAUSE_S
        for _ in range(LOOKS):
            if await self._bus.property_of(SYSTEMD, _path(unit), UNIT, "ActiveState") == "active":
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise OSError(f"systemd has not started {unit}; see systemctl status {unit}")

    async def _manager(self, member: str, signature: str, body: Sequence[object]) -> None:
        try:
            await self._bus.call(SYSTEMD, SYSTEMD_PATH, SYSTEMD_MANAGER, member, signature, body)
        except BusRefusal as error:
            if error.name == NO_SUCH:
                raise _NoSuchUnit(error.name, str(error)) from error
            raise


class _NoSuchUnit(BusRefusal):
    pass


def _variants(properties: tuple[tuple[str, int], ...]) -> list[list[object]]:
    from dbus_fast import Variant

    return [[name, Variant("t", value)] for name, value in properties]


def _path(unit: str) -> str:
    """Of its object; what is neither a letter nor a digit is written as its code."""
    escaped = "".join(one if one.isascii() and one.isalnum() else f"_{ord(one):02x}" for one in unit)
    return f"{SYSTEMD_PATH}/unit/{escaped}"
