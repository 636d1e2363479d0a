# SPDX-License-Identifier: Apache-2.0
"""The kernel's word that a group ran out of memory, by the file that counts it.

With version 1 of control groups a descriptor is woken before the counter moves, and also when the group is removed;
with version 2 the file of events is changed. Never: reads a counter; who hears it looks.
"""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import structlog
from asyncinotify import Inotify, Mask, Watch

log = structlog.get_logger(plane="observe")

LEGACY = "memory.oom_control"
# Each is a descriptor, or a watch of the few that a user has.
MOST = 2048


class OomSignals:
    """Used in the loop. What is watched is known by a name."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._handles: dict[str, int] = {}
        self._watches: dict[str, Watch] = {}
        self._inotify: Inotify | None = None
        self._reading: asyncio.Task[None] | None = None
        self._woken: set[str] = set()
        self._rings = asyncio.Event()

    @property
    def watched(self) -> int:
        return len(self._handles) + len(self._watches)

    def keep(self, files: Mapping[str, str]) -> None:
        """Watch these files, by name, and no others; as many as there may be."""
        for name in (self._handles.keys() | self._watches.keys()) - files.keys():
            self._drop(name)
        for name, path in files.items():
            if name in self._handles or name in self._watches:
                continue
            if self.watched >= self._most:
                return
            try:
                self._watch(name, path)
            except OSError as error:
                # It is gone, or its kernel does not tell; each pass reads the counter.
                log.info("group_not_watched", path=path, error=str(error), v=4)

    async def woken(self) -> frozenset[str]:
        """Those that were woken since the last call."""
        await self._rings.wait()
        self._rings.clear()
        found, self._woken = frozenset(self._woken), set()
        return found

    def close(self) -> None:
        self.keep({})
        if self._reading is not None:
            self._reading.cancel()
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def _watch(self, name: str, path: str) -> None:
        if path.endswith(LEGACY):
            self._handles[name] = handle = _registered(Path(path))
            asyncio.get_running_loop().add_reader(handle, self._signalled, name)
            return
        if self._inotify is None:
            self._inotify = Inotify()
            self._reading = asyncio.get_running_loop().create_task(self._read(self._inotify), name="oom-signals")
        self._watches[name] = self._inotify.add_watch(path, Mask.MODIFY)

    def _signalled(self, name: str) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._handles[name])
        self._ring(name)

    async def _read(self, inotify: Inotify) -> None:
        async for event in inotify:
            name = next((known for known, watch in self._watches.items() if watch is event.watch), None)
            if name is not None and event.mask & Mask.IGNORED:
                del self._watches[name]
            elif name is not None:
                self._ring(name)

    def _ring(self, name: str) -> None:
        self._woken.add(name)
        self._rings.set()

    def _drop(self, name: str) -> None:
        handle, watch = self._handles.pop(name, None), self._watches.pop(name, None)
        if handle is not None:
            asyncio.get_running_loop().remove_reader(handle)
            os.close(handle)
        if watch is not None and self._inotify is not None:
            with suppress(OSError):
                self._inotify.rm_watch(watch)


def _registered(path: Path) -> int:
    """A descriptor that the kernel wakes. Raises OSError."""
    control = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    handle = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        path.with_name("cgroup.event_control").write_text(f"{handle} {control}", "ascii")
    except OSError:
        os.close(handle)
        raise
    finally:
        os.close(control)
    return handle
