# SPDX-License-Identifier: Apache-2.0
"""A directory of manifests: the files in it, again after every change.

Owns: watching (inotify, with a slow look at everything as a safety net, because symlink swaps and network file
systems tell nothing) and reading within bounds. Files that begin with a dot are somebody's work in progress.
Never: parses. A directory that is not there yet is an empty one.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import structlog
from asyncinotify import Inotify, Mask

__all__ = ["ManifestDirectory", "read_manifests"]

log = structlog.get_logger(plane="daemon")

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
MAX_FILE_BYTES = 4 << 20
CHANGES = Mask.CREATE | Mask.CLOSE_WRITE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.DELETE | Mask.DELETE_SELF


def read_manifests(directory: Path) -> dict[str, bytes]:
    """Every manifest file by its path. What cannot be read is logged and left out."""
    found: dict[str, bytes] = {}
    try:
        paths = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return found
    except OSError as error:
        log.warning("manifest_directory_unreadable", path=str(directory), error=error.strerror)
        return found
    for path in paths:
        if path.suffix not in SUFFIXES:
            continue
        try:
            if not path.is_file():
                continue
            with path.open("rb") as source:
                found[str(path)] = source.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            log.warning("manifest_unreadable", path=str(path), error=error.strerror)
    return found


class ManifestDirectory:
    """One directory. `timing` gives (rescan, debounce) in seconds and is asked anew each time: a reload changes it."""

    def __init__(self, directory: Path, timing: Callable[[], tuple[float, float]]) -> None:
        self.directory = directory
        self._timing = timing

    async def snapshots(self) -> AsyncIterator[Mapping[str, bytes]]:
        """The files now, and again whenever they differ from the last time."""
        last: Mapping[str, bytes] | None = None
        with Inotify() as inotify:
            watched = False
            while True:
                if not watched:
                    with suppress(OSError):
                        inotify.add_watch(self.directory, CHANGES)
                        watched = True
                files = read_manifests(self.directory)
                if files != last:
                    last = files
                    yield files
                watched = await self._wait(inotify) and watched

    async def _wait(self, inotify: Inotify) -> bool:
        """Until something changed and has been quiet for a moment. False if the directory itself went away."""
        exists = True
        rescan_s, debounce_s = self._timing()
        with suppress(TimeoutError):
            async with asyncio.timeout(rescan_s):
                event = await inotify.get()
                exists = not event.mask & (Mask.DELETE_SELF | Mask.IGNORED)
        with suppress(TimeoutError):
            while True:
                event = await asyncio.wait_for(inotify.get(), debounce_s)
                exists = exists and not event.mask & (Mask.DELETE_SELF | Mask.IGNORED)
        return exists
