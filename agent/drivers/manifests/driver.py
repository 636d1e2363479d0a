# SPDX-License-Identifier: Apache-2.0
"""A directory of manifests: the files in it, again after every change.

Owns: watching (inotify, with a slow look at everything as a safety net, because symlink swaps and network file
systems tell nothing) and reading within bounds. Files that begin with a dot are somebody's work in progress.
Never: parses, or takes what cannot be read for something that is not there: only a directory or file that does not
exist is an empty one, after any other error the last content stays.
"""

import asyncio
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog
from asyncinotify import Inotify, Mask, Watch

from agent.drivers.manifests.snapshot import Snapshot
from agent.model.finding import Finding

__all__ = ["ManifestDirectory", "read_manifests"]

log = structlog.get_logger(plane="daemon")

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
MAX_FILE_BYTES = 4 << 20
CHANGES = (
    Mask.CREATE | Mask.CLOSE_WRITE | Mask.ATTRIB | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.DELETE
    | Mask.DELETE_SELF | Mask.MOVE_SELF
)  # fmt: skip
# A file that is renamed into the directory is whole, and one that is gone will not change any more (MAN-06).
COMPLETE = Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE
# Who writes without a pause is read all the same, after this many times the pause that is waited for.
MOST_DEBOUNCES = 10


def read_manifests(directory: Path, before: Snapshot | None = None) -> Snapshot:
    """Every manifest file by its path; what cannot be read keeps the content that `before` has of it."""
    try:
        paths = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return Snapshot()
    except OSError as error:
        problem = _problem(directory, error)
        if before is None:
            return Snapshot({}, (problem,), frozenset({str(directory)}))
        return Snapshot(before.files, (problem,), before.unread)
    files: dict[str, bytes] = {}
    problems: list[Finding] = []
    unread: set[str] = set()
    for path in paths:
        try:
            content = _content(path) if path.suffix in SUFFIXES else None
        except OSError as error:
            problems.append(_problem(path, error))
            content = before.files.get(str(path)) if before is not None else None
            if content is None:
                unread.add(str(path))
        if content is not None:
            files[str(path)] = content
    return Snapshot(files, tuple(problems), frozenset(unread))


def _content(path: Path) -> bytes | None:
    """None if there is no such file, or something that is no file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        with path.open("rb") as source:
            return source.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None


def _problem(path: Path, error: OSError) -> Finding:
    return Finding(str(path), "", f"cannot be read: {error.strerror or error}; what was read of it before stays valid")


class ManifestDirectory:
    """One directory. `timing` gives (rescan, debounce) in seconds and is asked anew each time: a reload changes it."""

    def __init__(self, directory: Path, timing: Callable[[], tuple[float, float]]) -> None:
        self.directory = directory
        self._timing = timing

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """The files now, and again whenever they differ from the last time."""
        last: Snapshot | None = None
        with _inotify() as inotify:
            watch: Watch | None = None
            while True:
                if inotify is not None:
                    watch = self._watched(inotify, watch)
                snapshot = await asyncio.to_thread(read_manifests, self.directory, last)
                if snapshot != last:
                    _tell(snapshot, last)
                    last = snapshot
                    yield snapshot
                await self._wait(inotify)

    def _watched(self, inotify: Inotify, before: Watch | None) -> Watch | None:
        """Watch what stands at the path now; that may be another directory than the last time, or none."""
        watch = None
        with suppress(OSError):
            watch = inotify.add_watch(self.directory, CHANGES)
        if before is not None and before is not watch:
            with suppress(OSError):  # the kernel drops the watch of a directory that is deleted
                inotify.rm_watch(before)
        return watch

    async def _wait(self, inotify: Inotify | None) -> None:
        """Until something changed and has been quiet for a moment, or until it is time to look anyway."""
        rescan_s, debounce_s = self._timing()
        if inotify is None:
            await asyncio.sleep(rescan_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(rescan_s):
                if await _next_change(inotify):
                    return
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + MOST_DEBOUNCES * debounce_s
        with suppress(TimeoutError):
            while loop.time() < deadline_s:
                async with asyncio.timeout(debounce_s):
                    if await _next_change(inotify):
                        return


async def _next_change(inotify: Inotify) -> bool:
    """Wait for a change of something that is looked at; whether it is over with it.

    Hidden files are nobody's news, but for names such as `..data`: a swap of that link changes what others lead to.
    """
    while True:
        event = await inotify.get()
        name = event.name.name if event.name is not None else ""
        if not name.startswith(".") or name.startswith(".."):
            return bool(event.mask & COMPLETE)


@contextmanager
def _inotify() -> Iterator[Inotify | None]:
    """The kernel's watcher, or none where its limit is reached."""
    try:
        inotify = Inotify()
    except OSError as error:
        log.warning("manifest_watch_failed", error=error.strerror, effect="changes are seen by looking now and then")
        yield None
        return
    with inotify:
        yield inotify


def _tell(snapshot: Snapshot, last: Snapshot | None) -> None:
    """Log what has become unreadable, once."""
    for problem in snapshot.problems:
        if last is None or problem not in last.problems:
            log.warning("manifest_unreadable", problem=str(problem))
