# SPDX-License-Identifier: Apache-2.0
"""The directory of manifests, looked at once for every plane, and what is in force of it.

Owns: the looks, what is in force, that it outlives the process, and that each plane hears first what was in force when
the last process ended, then what is now, and again after changes. A plane that is slow misses what came and went
meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from agent.config.document import Configuration
from agent.drivers.manifests.driver import ManifestDirectory
from agent.drivers.manifests.trust import Trust
from agent.kinds.registry import MANIFEST_KINDS
from agent.model.component import Report
from agent.model.finding import Finding
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.objects.admitting import NOTHING, InForce, admit
from agent.objects.plain_kinds import PLAIN_READING
from agent.objects.reading import Reading, Readings
from agent.objects.run.database import DATABASE
from agent.objects.run.deed import finish
from agent.objects.run.memory import ObjectMemory
from agent.objects.run.writer import WRITING
from agent.objects.wanted import Wanted

Result = TypeVar("Result")


class ManifestFollower:
    def __init__(self, directory: ManifestDirectory, memory: ObjectMemory) -> None:
        self._directory, self._memory = directory, memory
        self._thread = ThreadPoolExecutor(1, "objects")
        self._sources: list[PlaneObjects] = []
        self._unfinished: tuple[Finding, ...] = ()
        self.latest: ManifestSnapshot | None = None
        self.in_force: InForce | None = None
        """None until the memory has been read."""
        self._told = frozenset[str]()
        self._settled, self._doubts = frozenset[str](), tuple[Finding, ...]()
        """Planes that know all that may have been in force, and what is wrong with the memory."""

    def source(self, reading: Callable[[], Reading]) -> "PlaneObjects":
        """For a plane, before the follower runs."""
        source = PlaneObjects(self, reading)
        self._directory.has_sources |= reading().read_folder is not None
        self._sources.append(source)
        return source

    async def run(self, report: Report) -> None:
        if self.in_force is None:
            self._unfinished = await asyncio.to_thread(finish, self._directory.directory)
            remembered = await self._in_thread(self._memory.load)
            self._settled, self._doubts = remembered.settled, remembered.snapshot.problems
            self._told = self._settled
            self.in_force, self.latest = await self._admitted(remembered.snapshot), remembered.snapshot
            if self.in_force.objects:
                self._tell()
        report.ready()
        assert self.latest is not None  # noqa: S101 - it is at least what was remembered
        is_known = all(source.reading().plane in self._settled for source in self._sources)
        async for look in self._directory.snapshots(self.latest, is_known=is_known):
            self.in_force, self.latest = await self._admitted(look), self._with_unfinished(look)
            self._tell()
            await self._remember()

    def _with_unfinished(self, look: ManifestSnapshot) -> ManifestSnapshot:
        """What an earlier process could not finish is told of until the file is another."""
        if self.latest is not None and not self.latest.is_remembered:
            before = self.latest.files
            self._unfinished = tuple(
                finding for finding in self._unfinished if before.get(finding.where) == look.files.get(finding.where)
            )
        return replace(look, problems=(*look.problems, *self._unfinished))

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _admitted(self, look: ManifestSnapshot) -> InForce:
        before = self.in_force or NOTHING
        readings = Readings([*(source.reading() for source in self._sources), PLAIN_READING])
        return await self._in_thread(lambda: admit(look.files, look.folders, before, readings, MANIFEST_KINDS))

    def _tell(self) -> None:
        assert self.latest is not None and self.in_force is not None  # noqa: S101, PT018 - after the first look
        problems = self.latest.problems if self.latest.is_remembered else (*self._doubts, *self.latest.problems)
        for source in self._sources:
            is_first = source.reading().plane not in self._settled
            source.hear(Wanted(replace(self.latest, problems=problems, is_first=is_first), self.in_force))

    async def _remember(self) -> None:
        """After planes have heard of it: they carry it out meanwhile, and a process that ends before begins with what
        was in force before."""
        assert self.latest is not None and self.in_force is not None  # noqa: S101, PT018 - as above
        if not self.latest.unread:
            self._settled |= {source.reading().plane for source in self._sources if not source.reading().holds_what_was}
        files, folders = self.in_force.to_remember()
        place, settled = self.latest.place, self._settled
        await self._in_thread(lambda: self._memory.keep(files, folders, place, settled))
        doubts = self._memory.problems
        if self._doubts != doubts or settled != self._told:
            self._doubts, self._told = doubts, settled
            self._tell()

    async def settle(self, plane: str) -> None:
        """It knows what was in force."""
        if plane not in self._settled:
            self._settled |= {plane}
            await self._remember()

    async def close(self) -> None:
        await self._in_thread(self._memory.close)
        self._thread.shutdown(wait=False)


def follow_manifests(current: Callable[[], Configuration]) -> ManifestFollower:
    """The directory as the configuration in force has it."""

    def timing() -> tuple[float, float]:
        now = current().manifests
        return now.rescan, now.debounce

    def trust() -> Trust:
        return Trust(current().manifests.group_writable)

    directory = ManifestDirectory(Path(current().manifests.directory), timing, trust, lock=WRITING)
    return ManifestFollower(directory, ObjectMemory(Path(current().node.state_directory) / DATABASE))


class PlaneObjects:
    """What one plane hears."""

    def __init__(self, follower: ManifestFollower, reading: Callable[[], Reading]) -> None:
        self._follower = follower
        self.reading = reading
        self._heard = asyncio.Event()
        self._remembered: Wanted | None = None
        """Until the plane has seen it."""
        self._latest: Wanted | None = None

    def hear(self, wanted: Wanted) -> None:
        if wanted.look.is_remembered:
            self._remembered = wanted
        else:
            self._latest = wanted
        self._heard.set()

    async def news(self) -> AsyncIterator[Wanted]:
        """What was in force when the last process ended, what is now, and again whenever it differs."""
        last: Wanted | None = None
        self._heard.set()
        while True:
            await self._heard.wait()
            self._heard.clear()
            remembered, self._remembered = self._remembered, None
            for wanted in (remembered, self._latest):
                if wanted is not None and not (last is not None and self._is_same(wanted, last)):
                    last = wanted
                    yield wanted

    async def settle(self) -> None:
        await self._follower.settle(self.reading().plane)

    def _is_same(self, wanted: Wanted, last: Wanted) -> bool:
        """For this plane."""
        if wanted.in_force is last.in_force:
            return wanted.look == last.look
        reading = self.reading()
        kinds, plane, has_folders = reading.kinds, reading.plane, reading.read_folder is not None
        if has_folders or _without_files(wanted.look) != _without_files(last.look):
            return False
        now, before = wanted.in_force.of(kinds), last.in_force.of(kinds)
        is_alike = len(now) == len(before) and all(map(_is, now, before))
        return is_alike and wanted.in_force.findings_of(plane) == last.in_force.findings_of(plane)


def _is(first: object, second: object) -> bool:
    return first is second


def _without_files(look: ManifestSnapshot) -> ManifestSnapshot:
    return replace(look, files={}, folders={}, ignored=(), exposed=frozenset())
