# SPDX-License-Identifier: Apache-2.0
"""A private system bus with a double of systemd-logind on it.

The real logind runs under systemd as PID 1 alone, which test machines do not have. What kepd says to it is the real
protocol on a real bus: descriptors, properties, signals, a name that comes and goes.

Owns: a dbus-daemon as a child process, and the double, in a loop of its own thread so that any test may use it.
"""

import asyncio
import os
import select
import subprocess
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, Self

from dbus_fast import DBusError
from dbus_fast.aio import MessageBus
from dbus_fast.annotations import (
    DBusBool,
    DBusInt32,
    DBusObjectPath,
    DBusSignature,
    DBusStr,
    DBusUInt64,
    DBusUnixFd,
)
from dbus_fast.constants import PropertyAccess
from dbus_fast.service import ServiceInterface, dbus_method, dbus_property, dbus_signal

Properties = Annotated[list[list[Any]], DBusSignature("a(sv)")]
Others = Annotated[list[Any], DBusSignature("a(sa(sv))")]

WITHIN_S = 30.0
CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={folder}/bus</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
"""


class _Manager(ServiceInterface):
    """org.freedesktop.login1.Manager, as far as kepd knows it."""

    def __init__(self, longest_s: float) -> None:
        super().__init__("org.freedesktop.login1.Manager")
        self.longest_usec = int(longest_s * 1e6)
        self.is_preparing = False
        # The ends that tell when a holder lets go.
        self.locks: list[int] = []
        self.asked: list[tuple[str, ...]] = []

    @dbus_method()
    def Inhibit(self, what: DBusStr, who: DBusStr, why: DBusStr, mode: DBusStr) -> DBusUnixFd:  # noqa: N802
        if self.is_preparing:
            text = "The operation inhibition has been requested for is already running"
            raise DBusError("org.freedesktop.login1.OperationInProgress", text)
        self.asked.append((what, who, why, mode))
        ours, theirs = os.pipe()
        self.locks.append(ours)
        # The reply is sent before this loop comes to anything else.
        asyncio.get_running_loop().call_later(0.2, os.close, theirs)
        return theirs

    @dbus_property(access=PropertyAccess.READ)
    def InhibitDelayMaxUSec(self) -> DBusUInt64:  # noqa: N802
        return self.longest_usec

    @dbus_property(access=PropertyAccess.READ)
    def PreparingForShutdown(self) -> DBusBool:  # noqa: N802
        return self.is_preparing

    @dbus_signal()
    def PrepareForShutdown(self, start: DBusBool) -> DBusBool:  # noqa: N802
        return start


class _Systemd(ServiceInterface):
    """org.freedesktop.systemd1.Manager: the signal that makes logind read its files, and slices."""

    def __init__(self, manager: _Manager, drop_ins: Path, bus: MessageBus) -> None:
        super().__init__("org.freedesktop.systemd1.Manager")
        self._bus = bus
        self.state = "running"
        self.slices: dict[str, dict[str, int]] = {}
        self.units: dict[str, SliceDouble] = {}
        self._manager = manager
        self._drop_ins = drop_ins

    @dbus_method()
    def KillUnit(self, name: DBusStr, whom: DBusStr, signal: DBusInt32) -> None:  # noqa: N802
        assert (name, whom, signal) == ("systemd-logind.service", "main", 1)
        for path in sorted(self._drop_ins.glob("*.conf")):
            for line in path.read_text().splitlines():
                if line.startswith("InhibitDelayMaxSec="):
                    self._manager.longest_usec = int(line.partition("=")[2]) * 10**6

    @dbus_property(access=PropertyAccess.READ)
    def SystemState(self) -> DBusStr:  # noqa: N802
        return self.state

    @dbus_method()
    def StartTransientUnit(  # noqa: N802
        self,
        name: DBusStr,
        mode: DBusStr,
        properties: Properties,
        aux: Others,
    ) -> DBusObjectPath:
        assert mode == "replace"
        assert aux == []
        if name in self.slices:
            text = f"Unit {name} was already loaded or has a fragment file."
            raise DBusError("org.freedesktop.systemd1.UnitExists", text)
        self.slices[name] = _figures(properties)
        unit = self.units[name] = SliceDouble()
        self._bus.export(_unit_path(name), unit)
        return "/org/freedesktop/systemd1/job/1"

    @dbus_method()
    def SetUnitProperties(self, name: DBusStr, runtime: DBusBool, properties: Properties) -> None:  # noqa: N802
        assert runtime
        self.slices[name].update(_figures(properties))

    @dbus_method()
    def StopUnit(self, name: DBusStr, mode: DBusStr) -> DBusObjectPath:  # noqa: N802
        assert mode == "replace"
        if name not in self.slices:
            raise DBusError("org.freedesktop.systemd1.NoSuchUnit", f"Unit {name} not loaded.")
        del self.slices[name]
        self._bus.unexport(_unit_path(name), self.units.pop(name))
        return "/org/freedesktop/systemd1/job/2"


def _figures(properties: list[list[Any]]) -> dict[str, int]:
    found = {name: one.value for name, one in properties}
    return {name: value for name, value in found.items() if isinstance(value, int) and not isinstance(value, bool)}


def _unit_path(name: str) -> str:
    return "/org/freedesktop/systemd1/unit/" + name.replace("_", "_5f").replace("-", "_2d").replace(".", "_2e")


class SliceDouble(ServiceInterface):
    """One unit: what of it kepd asks for."""

    def __init__(self) -> None:
        super().__init__("org.freedesktop.systemd1.Unit")
        self.looks = 0

    @dbus_property(access=PropertyAccess.READ)
    def ActiveState(self) -> DBusStr:  # noqa: N802
        self.looks += 1
        return "active" if self.looks > 1 else "inactive"


class LogindDouble:
    """The bus and who is on it, while the block lasts."""

    def __init__(self, folder: Path, longest_s: float = 5.0) -> None:
        self.folder = folder
        self.drop_ins = folder / "logind.conf.d"
        self.address = f"unix:path={folder}/bus"
        self._longest_s = longest_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._daemon: subprocess.Popen[bytes] | None = None
        self._bus: MessageBus | None = None
        self._manager: _Manager | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self.start_bus()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.stop_bus()
        # What is still to be closed after a reply.
        self._do(asyncio.sleep(0.3))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WITHIN_S)
        self._loop.close()

    def start_bus(self) -> None:
        """A dbus-daemon with nobody on it."""
        config = self.folder / "bus.conf"
        config.write_text(CONFIG.format(folder=self.folder))
        argv = ["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile", "--print-address"]
        self._daemon = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert self._daemon.stdout is not None
        assert self._daemon.stdout.readline(), "dbus-daemon (Debian package dbus-daemon) did not start"

    def stop_bus(self) -> None:
        """Everybody loses their connection."""
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.wait(WITHIN_S)
            assert self._daemon.stdout is not None
            self._daemon.stdout.close()
            self._daemon = None

    def start(self) -> None:
        """logind comes up, and knows of no locks."""
        self._manager = _Manager(self._longest_s)
        self._do(self._join())

    def stop(self) -> None:
        """logind goes away."""
        if self._bus is not None:
            self._do(self._leave())
        for lock in self.manager.locks:
            os.close(lock)
        self.manager.locks.clear()

    @property
    def manager(self) -> _Manager:
        assert self._manager is not None
        return self._manager

    async def _join(self) -> None:
        self._bus = await MessageBus(self.address, negotiate_unix_fd=True).connect()
        self._bus.export("/org/freedesktop/login1", self.manager)
        self.systemd = _Systemd(self.manager, self.drop_ins, self._bus)
        self._bus.export("/org/freedesktop/systemd1", self.systemd)
        await self._bus.request_name("org.freedesktop.systemd1")
        await self._bus.request_name("org.freedesktop.login1")

    async def _leave(self) -> None:
        assert self._bus is not None
        self._bus.disconnect()
        await self._bus.wait_for_disconnect()
        self._bus = None

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WITHIN_S)

    def announce(self, *, is_preparing: bool) -> None:
        """A shutdown begins, or is called off."""

        async def tell() -> None:
            self.manager.is_preparing = is_preparing
            self.manager.PrepareForShutdown(is_preparing)

        self._do(tell())

    @property
    def is_stopping(self) -> bool:
        return self.systemd.state == "stopping"

    @is_stopping.setter
    def is_stopping(self, is_so: bool) -> None:
        self.systemd.state = "stopping" if is_so else "running"

    @property
    def is_locked(self) -> bool:
        """Whether somebody holds a lock: the other end of a pipe that was closed can be read."""
        return any(not select.select([lock], [], [], 0)[0] for lock in self.manager.locks)
