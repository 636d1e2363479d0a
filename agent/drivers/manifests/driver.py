# SPDX-License-Identifier: Apache-2.0
"""A directory of manifests: the files in it, again after every change.

Owns: watching (inotify, with a slow look at everything as a safety net, because symlink swaps and network file systems
tell nothing) and reading within bounds. Files that begin with a dot are left out: unfinished.
Never: parses, or takes what cannot be read for something that is not there: only a file that does not exist is none,
after any other error the last content stays, be it one that an earlier process has seen. A directory that does not
exist says nothing. Directories below are those of ConfigMaps and Secrets, which source_folders.py reads for whoever
wants them.
"""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import structlog
from asyncinotify import Event as InotifyEvent
from asyncinotify import Inotify, Mask, Watch
from msgspec.structs import replace

from agent.drivers.manifests.source_folders import KEPT, is_exposed, is_key, is_shut, read_source_folders
from agent.drivers.manifests.trust import ROOT_ALONE, Distrusted, Trust, reason
from agent.drivers.manifests.vanishing import Vanishing, judge
from agent.model.finding import Finding
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.model.pods.source_folder import SOURCE_FOLDERS

log = structlog.get_logger(plane="daemon")

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
MAX_FILE_BYTES = 10 << 20
CHANGES = (
    Mask.CREATE | Mask.CLOSE_WRITE | Mask.ATTRIB | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.DELETE
    | Mask.DELETE_SELF | Mask.MOVE_SELF
)  # fmt: skip
# A file that is renamed into the directory is whole, and one that is gone will not change any more.
COMPLETE = Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE
# A single file in the place of the directory goes itself.
GONE = Mask.MOVED_FROM | Mask.DELETE | Mask.DELETE_SELF | Mask.MOVE_SELF
COME = Mask.MOVED_TO | Mask.CREATE | Mask.CLOSE_WRITE
# Who writes without a pause is read all the same, after this many times the pause that is waited for.
MOST_DEBOUNCES = 10
# Directories that come while one looks are looked at again, but not without end.
MOST_LOOKS = 8
NOTHING_KNOWN = ManifestSnapshot()
NO_LOCK = nullcontext()


def read_manifests(
    directory: Path, before: ManifestSnapshot | None = None, trust: Trust = ROOT_ALONE
) -> ManifestSnapshot:
    """Every manifest file by its path; what cannot be read, or must not be, keeps the content that `before` has."""
    try:
        there, paths = directory.stat(), _listed(directory, trust)
    except FileNotFoundError:
        return ManifestSnapshot(unread=frozenset({str(directory)}), is_missing=True)
    except OSError as error:
        problem = _problem(directory, error)
        if before is None:
            return ManifestSnapshot({}, (problem,), frozenset({str(directory)}))
        return replace(before, problems=(problem,), is_remembered=False, is_missing=False)
    files: dict[str, bytes] = {}
    problems: list[Finding] = []
    unread: set[str] = set()
    ignored: list[Finding] = []
    exposed: set[str] = set()
    refused: set[str] = set()
    known = before.files if before is not None else {}
    for path in paths:
        is_manifest = path.suffix in SUFFIXES or path == directory
        try:
            content = _content(path, directory, trust, ignored, exposed) if is_manifest else None
        except OSError as error:
            problems.append(_problem(path, error))
            content = known.get(str(path))
            if content is None:
                unread.add(str(path))
                refused |= {str(path)} if isinstance(error, Distrusted) else set()
        if content is None and is_manifest and str(path) in known and os.path.lexists(path):
            content = known[str(path)]
            problems.append(Finding(str(path), "", f"is no file, or a link that leads to none; {KEPT}"))
        if content is not None:
            files[str(path)] = content
        elif path.suffix not in SUFFIXES:
            _say_why(path, directory, ignored)
    is_private = bool(exposed) and is_shut(there)
    return ManifestSnapshot(
        files,
        tuple(problems),
        frozenset(unread),
        refused=frozenset(refused),
        ignored=tuple(ignored),
        exposed=frozenset() if is_private else frozenset(exposed),
        place=there.st_ino if stat.S_ISDIR(there.st_mode) else 0,
    )


def _listed(directory: Path, trust: Trust) -> list[Path]:
    """What may be a manifest; a single file in the place of the directory is one."""
    found = directory.stat()
    if stat.S_ISREG(found.st_mode):
        return [directory]
    trust.check(found)
    return sorted(path for path in directory.iterdir() if not path.name.startswith("."))


def _content(path: Path, directory: Path, trust: Trust, ignored: list[Finding], exposed: set[str]) -> bytes | None:
    """None if there is no such file, or something that is not a file."""
    try:
        told = path.stat()
        if not stat.S_ISREG(told.st_mode):
            ignored.append(Finding(str(path), "", "is not a file and is not read"))
            return None
        trust.check_way(path, directory)
        trust.check(told)
        if is_exposed(told):
            exposed.add(str(path))
        with path.open("rb") as source:
            return source.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None


def _say_why(path: Path, directory: Path, ignored: list[Finding]) -> None:
    """What lies there and is no manifest; told once by whoever runs pods."""
    if not path.is_dir():
        text = f"is not read: names of manifests end in {', '.join(sorted(SUFFIXES))}"
    elif path.parent == directory and path.name in SOURCE_FOLDERS:
        return
    else:
        text = "is a directory and is not read: put manifests into the directory above it"
    ignored.append(Finding(str(path), "", text))


def _problem(path: Path, error: OSError) -> Finding:
    return Finding(str(path), "", f"{reason(error)}; {KEPT}")


class ManifestDirectory:
    """One directory. `timing` gives (rescan, debounce) in seconds; it and `trust` are asked anew each time, for a
    reload changes them."""

    def __init__(
        self,
        directory: Path,
        timing: Callable[[], tuple[float, float]],
        trust: Callable[[], Trust] = Trust,
        *,
        has_sources: bool = False,
        lock: AbstractContextManager[object] = NO_LOCK,
    ) -> None:
        """`has_sources`: with the folders that objects are made from. `lock` is held by who changes several files, so
        that no look sees half of them."""
        self._lock = lock
        self.directory, self.has_sources = directory, has_sources
        self._timing = timing
        self._trust = trust
        self._watches: dict[Path, Watch] = {}
        self._places: tuple[Path, ...] = (directory,)
        self._deleted: set[str] = set()
        self._place = 0

    async def snapshots(
        self, known: ManifestSnapshot = NOTHING_KNOWN, *, is_known: bool = False
    ) -> AsyncIterator[ManifestSnapshot]:
        """The files now, and again whenever they differ from the last time. `known` is what was there before, all of it
        if `is_known`: else what stands in a directory that is not there is unknown, and not nothing."""
        loop = asyncio.get_running_loop()
        last = Vanishing(known if is_known else replace(known, unread=frozenset({str(self.directory)})))
        with _inotify() as inotify:
            self._watches = {}
            while True:
                before = last.snapshot
                seen = await self._look(inotify, before)
                # What was deleted before the look was seen to be deleted; what else came calls for the next look.
                news = self._ready(inotify)
                rescan_s, debounce_s = self._timing()
                judged = partial(judge, last, seen, self._deleted)
                last = judged(loop.time(), rescan_s, str(self.directory))
                if last.until_s is not None:
                    # A deleted file is gone a moment before the kernel tells of it.
                    await asyncio.sleep(debounce_s)
                    news = self._ready(inotify, news)
                    last = judged(loop.time(), rescan_s, str(self.directory))
                self._deleted &= last.snapshot.files.keys()
                self._place = last.snapshot.place
                if last.snapshot != before:
                    _tell(last.snapshot, before)
                    yield last.snapshot
                pause_s = rescan_s if last.until_s is None else last.until_s - loop.time()
                await self._wait(inotify, max(pause_s, 0.0), news)

    async def _look(self, inotify: Inotify | None, last: ManifestSnapshot) -> ManifestSnapshot:
        """A look with a watch on everything that was looked at: what was not watched meanwhile is looked at again."""
        for _ in range(MOST_LOOKS):
            is_new = self._watch(inotify)
            snapshot, below = await asyncio.to_thread(self._read, last)
            before, self._places = self._places, (self.directory, *below)
            if before == self._places and not (is_new and below):
                break
        return snapshot

    def _read(self, last: ManifestSnapshot) -> tuple[ManifestSnapshot, list[Path]]:
        trust = self._trust()
        with self._lock:
            snapshot = read_manifests(self.directory, last, trust)
        if not self.has_sources:
            # What is no manifest, and who else may read one, is the affair of whoever reads all of it.
            return replace(snapshot, ignored=(), exposed=frozenset()), []
        if str(self.directory) in snapshot.files:
            return snapshot, []
        look = read_source_folders(self.directory, last.folders, trust)
        return replace(snapshot, folders=look.folders, problems=(*snapshot.problems, *look.problems)), look.watched

    def _watch(self, inotify: Inotify | None) -> bool:
        """Watch what stands at the paths now, be it another directory than the last time; whether any is new."""
        if inotify is None:
            return False
        before, self._watches = self._watches, {}
        for path in self._places:
            with suppress(OSError):  # not there, or the kernel's limit is reached
                self._watches[path] = inotify.add_watch(path, CHANGES)
        for watch in set(before.values()) - set(self._watches.values()):
            with suppress(OSError):  # the kernel drops the watch of a directory that is deleted
                inotify.rm_watch(watch)
        return any(before.get(path) is not watch for path, watch in self._watches.items())

    async def _wait(self, inotify: Inotify | None, pause_s: float, news: bool | None) -> None:
        """Until something changed and has been quiet for a moment, or until it is time to look anyway. `news` is what
        changed already."""
        _, debounce_s = self._timing()
        if inotify is None:
            await asyncio.sleep(pause_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                news = await self._next_change(inotify) if news is None else news
        if news is not False:
            return
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + MOST_DEBOUNCES * debounce_s
        with suppress(TimeoutError):
            while loop.time() < deadline_s:
                async with asyncio.timeout(debounce_s):
                    if await self._next_change(inotify):
                        return

    async def _next_change(self, inotify: Inotify) -> bool:
        """Wait for a change of something that is looked at; whether it is over with it."""
        while True:
            told = self._told(await inotify.get())
            if told is not None:
                return told

    def _ready(self, inotify: Inotify | None, told: bool | None = None) -> bool | None:
        """Take in what the kernel has ready: whether one of the changes is over, None without any."""
        while inotify is not None and (event := inotify.sync_get()) is not None:
            is_over = self._told(event)
            told = told if is_over is None else bool(told) or is_over
        return told

    def _told(self, event: InotifyEvent) -> bool | None:
        """Whether a change is over, None for no news: hidden files are none, but for names such as `..data`, as a swap
        of that link changes what others lead to."""
        name = event.name.name if event.name is not None else ""
        # The watch of a directory that is gone by now is none.
        if event.watch is None or event.watch.path == self.directory:
            path = self.directory / name
            # Where two names are swapped the last word is of the one that goes.
            self._deleted |= {str(path)} if event.mask & GONE and not path.is_file() else set()
            self._deleted -= {str(path)} if event.mask & COME else set()
        return bool(event.mask & COMPLETE) if is_key(name) or name.startswith("..") else None


@contextmanager
def _inotify() -> Iterator[Inotify | None]:
    """The kernel's watcher, or none where its limit is reached."""
    try:
        inotify = Inotify(sync_timeout=0)
    except OSError as error:
        log.warning("manifest_watch_failed", error=error.strerror, effect="kepd polls for changes")
        yield None
        return
    with inotify:
        yield inotify


def _tell(snapshot: ManifestSnapshot, last: ManifestSnapshot) -> None:
    """Log what has become unreadable, once."""
    for problem in snapshot.problems:
        if problem not in last.problems or last.is_remembered:
            log.warning("manifest_unreadable", problem=str(problem))
