# SPDX-License-Identifier: Apache-2.0
"""Waits until something in a directory, or in those below it, changes; without inotify it waits a second each time."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from asyncinotify import Inotify, Mask, Watch

CHANGES = Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.ATTRIB | Mask.DELETE_SELF | Mask.MOVE_SELF
BLIND_S = 1.0
MOST_WATCHES = 256


class FolderWatch:
    """`mode` is that of the directory where it has to be made; `further` are others to watch, as they are now."""

    def __init__(self, directory: Path, depth: int, mode: int, further: Callable[[], Iterable[Path]] = tuple) -> None:
        self._further = further
        self._directory = directory
        self._depth = depth
        self._mode = mode
        self._inotify: Inotify | None = None
        self._watches: dict[Path, Watch] = {}

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
            self._watches.clear()

    async def changed(self, limit_s: float) -> None:
        """Since the last call, or after this time. A directory that is new was changed."""
        try:
            is_new = self._watch()
        except OSError:
            self.close()
            await asyncio.sleep(min(limit_s, BLIND_S))
            return
        if is_new or self._inotify is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._inotify.get()

    def _watch(self) -> bool:
        """Raises OSError."""
        if self._inotify is None:
            self._directory.mkdir(parents=True, exist_ok=True, mode=self._mode)
            self._inotify = Inotify()
        before, self._watches = self._watches, {}
        for path in (*self._below(self._directory, 0), *self._further()):
            with suppress(OSError):  # gone meanwhile
                self._watches[path] = self._inotify.add_watch(path, CHANGES)
            if len(self._watches) == MOST_WATCHES:
                break
        for watch in set(before.values()) - set(self._watches.values()):
            with suppress(OSError):
                self._inotify.rm_watch(watch)
        if not self._watches:
            raise FileNotFoundError(f"{self._directory} is not there")
        return any(before.get(path) is not watch for path, watch in self._watches.items())

    def _below(self, path: Path, depth: int) -> Iterator[Path]:
        yield path
        if depth < self._depth:
            with suppress(OSError):
                for one in sorted(path.iterdir()):
                    if one.is_dir() and not one.is_symlink() and not one.name.startswith("."):
                        yield from self._below(one, depth + 1)
