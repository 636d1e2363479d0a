# SPDX-License-Identifier: Apache-2.0
"""The directory of manifests, looked at once for every plane that reads it.

Owns: the looks, what is remembered of them, and that each plane sees first what was in force when the last process
ended, then what is there, and again after changes. A plane that is slow misses what came and went meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from msgspec.structs import replace

from agent.config.document import Configuration
from agent.drivers.manifests.driver import ManifestDirectory
from agent.drivers.manifests.trust import Trust
from agent.model.component import Report
from agent.model.finding import Finding
from agent.model.manifests.in_force import FileInForce
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.model.pods.source_folder import SourceFolder
from agent.objects.decoding import PREPARED
from agent.objects.run.database import DATABASE
from agent.objects.run.deed import finish
from agent.objects.run.memory import ObjectMemory, Remembered
from agent.objects.run.writer import WRITING

NOTHING = ManifestSnapshot()
NO_FOLDERS: Mapping[str, SourceFolder] = MappingProxyType({})


class ManifestFollower:
    def __init__(self, directory: ManifestDirectory, memory: ObjectMemory) -> None:
        self._directory, self._memory = directory, memory
        self._thread = ThreadPoolExecutor(1, "objects-memory")
        self._sources: list[PlaneManifests] = []
        self._unfinished: tuple[Finding, ...] = ()
        self.remembered: Remembered | None = None
        self.latest: ManifestSnapshot | None = None

    def source(self, plane: str, has_sources: bool) -> "PlaneManifests":
        """For a plane, before the follower runs. `has_sources`: with the folders that objects are made from."""
        source = PlaneManifests(self, plane, has_sources)
        self._directory.has_sources |= has_sources
        self._sources.append(source)
        return source

    async def run(self, report: Report) -> None:
        loop = asyncio.get_running_loop()
        if self.remembered is None:
            self._unfinished = await asyncio.to_thread(finish, self._directory.directory)
            self.remembered = await loop.run_in_executor(self._thread, self._memory.load)
            await asyncio.to_thread(_prepare, self.remembered.snapshot, NOTHING)
            for source in self._sources:
                source.begin(self.remembered)
        report.ready()
        known = self.latest or self.remembered.snapshot
        is_known = all(source.plane in self.remembered.whole for source in self._sources)
        async for snapshot in self._directory.snapshots(known, is_known=is_known):
            await asyncio.to_thread(_prepare, snapshot, known)
            self.latest = known = self._with_unfinished(snapshot)
            for source in self._sources:
                source.hear()

    def _with_unfinished(self, snapshot: ManifestSnapshot) -> ManifestSnapshot:
        """What an earlier process could not finish is told of until the file is another."""
        if self.latest is not None and not self.latest.is_remembered:
            before = self.latest.files
            self._unfinished = tuple(
                finding
                for finding in self._unfinished
                if before.get(finding.where) == snapshot.files.get(finding.where)
            )
        return replace(snapshot, problems=(*snapshot.problems, *self._unfinished))

    async def keep(
        self, plane: str, files: Mapping[str, FileInForce], folders: Mapping[str, SourceFolder], *, is_whole: bool
    ) -> tuple[Finding, ...]:
        """What is still wrong with the memory afterwards."""
        place = self.latest.place if self.latest is not None else 0
        await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: self._memory.keep(plane, files, folders, place, is_whole=is_whole)
        )
        return self._memory.problems

    def taken(self) -> None:
        """A plane has read its snapshot. When every plane has, the parsed files are dropped."""
        if all(source.taken is self.latest for source in self._sources):
            PREPARED.forget()

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._memory.close)
        self._thread.shutdown(wait=False)


def _prepare(snapshot: ManifestSnapshot, before: ManifestSnapshot) -> None:
    """What planes have not read yet."""
    for path, content in snapshot.files.items():
        if before.files.get(path) != content:
            PREPARED.prepare(content, path)


def follow_manifests(current: Callable[[], Configuration]) -> ManifestFollower:
    """The directory as the configuration in force has it."""

    def timing() -> tuple[float, float]:
        now = current().manifests
        return now.rescan, now.debounce

    def trust() -> Trust:
        return Trust(current().manifests.group_writable)

    directory = ManifestDirectory(Path(current().manifests.directory), timing, trust, lock=WRITING)
    return ManifestFollower(directory, ObjectMemory(Path(current().node.state_directory) / DATABASE))


class PlaneManifests:
    """What one plane sees of the directory, and what it has in force of it."""

    def __init__(self, follower: ManifestFollower, plane: str, has_sources: bool) -> None:
        self.plane = plane
        self.taken: ManifestSnapshot | None = None
        """What it has read last."""
        self._follower, self._has_sources = follower, has_sources
        self._news = asyncio.Event()
        self._first: ManifestSnapshot | None = None
        """What is remembered, until the plane has seen it."""
        self._is_first, self._doubts = True, tuple[Finding, ...]()
        """Until the plane has told all that it has in force."""

    def begin(self, remembered: Remembered) -> None:
        self._first, self._doubts = remembered.snapshot, remembered.snapshot.problems
        self._is_first = self.plane not in remembered.whole
        self._news.set()

    def hear(self) -> None:
        self._news.set()

    async def snapshots(self) -> AsyncIterator[ManifestSnapshot]:
        """What is remembered, the files now, and again whenever they differ from the last time."""
        last: ManifestSnapshot | None = None
        self._news.set()
        while True:
            await self._news.wait()
            self._news.clear()
            first, self._first = self._first, None
            for snapshot in (first, self._follower.latest):
                if snapshot is None:
                    continue
                seen = self._as_seen(snapshot)
                if seen != last and not (seen.is_remembered and not (seen.files or seen.folders)):
                    last = seen
                    yield seen
                self.taken = snapshot
                self._follower.taken()

    async def remember(
        self,
        files: Mapping[str, FileInForce],
        folders: Mapping[str, SourceFolder] = NO_FOLDERS,
        *,
        is_whole: bool = True,
    ) -> None:
        """What is in force now, by file or folder, and whether that is known of all."""
        doubts = await self._follower.keep(self.plane, files, folders, is_whole=is_whole)
        if is_whole and (self._is_first or self._doubts != doubts):
            self._is_first, self._doubts = False, doubts
            self._news.set()

    def _as_seen(self, snapshot: ManifestSnapshot) -> ManifestSnapshot:
        problems = snapshot.problems if snapshot.is_remembered else (*self._doubts, *snapshot.problems)
        seen = replace(snapshot, problems=problems, is_first=self._is_first)
        if self._has_sources:
            return seen
        return replace(seen, folders={}, ignored=(), exposed=frozenset())
