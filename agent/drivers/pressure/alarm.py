# SPDX-License-Identifier: Apache-2.0
"""The kernel's word that memory runs short, before a look is due: a trigger of pressure, and with version 1 of
control groups one of the amount that is in use.

Each is there where the kernel has it and kepd may ask for it. Never: decides; who hears it looks for itself.
"""

import asyncio
import os
import select
from contextlib import suppress
from pathlib import Path

import structlog

from agent.drivers.pressure.driver import FOLDER

log = structlog.get_logger()

# Some task waits for memory for 150 ms within two seconds; without CAP_SYS_RESOURCE no shorter time is taken.
TRIGGER = b"some 150000 2000000\0"


class MemoryAlarm:
    """Used by one task of the loop."""

    def __init__(self, pressure: Path = FOLDER / "memory") -> None:
        self._pressure = pressure
        self._rings = asyncio.Event()
        self._trigger: int | None = None
        self._poll: select.epoll | None = None
        self._usage: int | None = None
        self._has_tried = False

    def arm(self, root: Path | None, more_bytes: int | None) -> None:
        """From now on; `root` is where version 1 counts all memory, and so much more in use rings. What was armed
        before for another amount is not any more."""
        self._close_usage()
        try:
            if not self._has_tried:
                self._has_tried = True
                self._watch_pressure()
            if root is not None and more_bytes is not None:
                self._watch_usage(root, more_bytes)
        except OSError as error:
            log.info("memory_alarm_missing", error=str(error), v=3)

    def disarm(self) -> None:
        self._close_usage()
        self._close_pressure()
        self._has_tried = False
        self._rings.clear()

    async def rung(self) -> None:
        await self._rings.wait()
        self._rings.clear()

    def _watch_pressure(self) -> None:
        """The loop has no word for what the kernel says here, but a set of descriptors is readable when one of it is
        urgent."""
        handle = os.open(self._pressure, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(handle, TRIGGER)
            poll = select.epoll()
            poll.register(handle, select.EPOLLPRI)
        except OSError:
            os.close(handle)
            raise
        self._trigger, self._poll = handle, poll
        asyncio.get_running_loop().add_reader(poll.fileno(), self._pressed)

    def _pressed(self) -> None:
        if self._poll is None:
            return
        events = self._poll.poll(0)
        if any(what & select.EPOLLPRI for _, what in events):
            self._rings.set()
        if any(what & (select.EPOLLERR | select.EPOLLHUP) for _, what in events):
            self._close_pressure()

    def _watch_usage(self, root: Path, more_bytes: int) -> None:
        line = int((root / "memory.usage_in_bytes").read_bytes()) + more_bytes
        usage = os.open(root / "memory.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)
        handle = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            (root / "cgroup.event_control").write_text(f"{handle} {usage} {line}", "ascii")
        except OSError:
            os.close(handle)
            raise
        finally:
            os.close(usage)
        self._usage = handle
        asyncio.get_running_loop().add_reader(handle, self._crossed)

    def _crossed(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._usage or 0)
        self._rings.set()

    def _close_usage(self) -> None:
        handle, self._usage = self._usage, None
        if handle is not None:
            asyncio.get_running_loop().remove_reader(handle)
            os.close(handle)

    def _close_pressure(self) -> None:
        handle, poll, self._trigger, self._poll = self._trigger, self._poll, None, None
        if poll is not None:
            asyncio.get_running_loop().remove_reader(poll.fileno())
            poll.close()
        if handle is not None:
            os.close(handle)
