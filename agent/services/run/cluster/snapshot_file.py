# SPDX-License-Identifier: Apache-2.0
"""Keeps in files what Services there are, for the first moments after a boot.

The API server may be away when a node boots, or slow. Then the Services that an earlier kepd knew are programmed at
once, and what the server lists takes their place. A task, and something to ask before the sources begin. Where rules
stand nothing is read: they are newer, until the server stays silent. The age of the file is that of the server's last
word. For an outage changes are kept too, as they come, in a file beside it.
"""

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from agent.drivers.atomic_files import write_file
from agent.model.clock import Clock
from agent.model.event import Event
from agent.model.services.nft_table import Family
from agent.model.services.service import ServiceKey
from agent.services.objects.addresses import FAMILIES
from agent.services.objects.snapshot import (
    ChangedService,
    Expected,
    ServiceSnapshot,
    SnapshotHead,
    framed,
    pieces,
    read_snapshot,
)
from agent.services.routes.frontends import PortPlan
from agent.services.ruleset import Beside
from agent.services.run.cluster.startup_taint import TAINT
from agent.services.run.plane import ServicesPlane

log = structlog.get_logger(plane="services")

SNAPSHOT_FILE = Path("services", "snapshot.bin")
CHANGES_FILE = "changes.bin"
"""Beside it."""
FIRST_S = 60.0
EVERY_S = 600.0
CHANGES_S = 1.0
FIRST_CHANGES_S = 5.0
LEAST_ROUND_BYTES = 4 << 20
"""So many of changes, or as many as the snapshot has, are worth a new one."""


class SnapshotFile(Beside):
    """`expected`: what a snapshot has to be, asked when it is read or written. `silent_s`: how long the server has said
    nothing. `keeps_changes`: as they come, not every ten minutes. `restored` hears of the time of what was taken."""

    def __init__(
        self,
        plane: ServicesPlane,
        file: Path,
        clock: Clock,
        expected: Callable[[], Expected],
        *,
        silent_s: Callable[[], float],
        is_on: bool,
        keeps_changes: bool = False,
        restored: Callable[[float], None] = lambda _: None,
        tell: Callable[[Event], None] = lambda _: None,
    ) -> None:
        self._plane = plane
        self._intake = plane.intake
        self._file = file
        self._changes_file = file.with_name(CHANGES_FILE)
        self._clock = clock
        self._expected = expected
        self._silent_s = silent_s
        self._is_on = is_on
        self._keeps_changes = is_on and keeps_changes
        self._restored, self._tell = restored, tell
        self._written: tuple[int, int] | None = None
        self._changed: set[ServiceKey] | None = None
        """Since what is written."""
        self._sizes = 0, 0
        """Of both files."""

    def told(self, family: Family, port: PortPlan) -> Iterator[str]:  # noqa: ARG002
        if self._intake.unconfirmed:
            yield "from the snapshot of an earlier kepd: the API server has not listed it yet"

    async def begin(self) -> None:
        """Before the sources say anything."""
        if not self._is_on:
            for file in (self._file, self._changes_file):
                await asyncio.to_thread(file.unlink, missing_ok=True)
            return
        if not await self._plane.has_rules():
            await self.restore()

    async def restore(self) -> None:
        """What is in the files, unless lists were there first."""
        if not self._is_on or self._intake.arrived.is_set():
            return
        found = await asyncio.to_thread(self._read)
        if found is None or self._intake.arrived.is_set():
            return
        snapshot, when_s = found
        self._intake.restore(snapshot)
        # It would come after the rules whose absence it stands for.
        self._intake.complete(TAINT)
        log.info("services_from_snapshot", services=len(snapshot.services), slices=len(snapshot.slices), v=0)
        self._restored(when_s)

    def _read(self) -> tuple[ServiceSnapshot, float] | None:
        expected = self._expected()
        try:
            about = self._file.stat()
            age_s = self._clock.wall_s() - about.st_mtime
            content = _content(self._file, expected.most_bytes)
            changes = _content(self._changes_file, expected.most_bytes) if self._changes_file.exists() else b""
            found = read_snapshot(content, changes, expected, age_s)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("service_snapshot_unread", path=str(self._file), error=str(error))
            return None
        if isinstance(found, str):
            log.warning("service_snapshot_unused", path=str(self._file), reason=found, age_s=round(age_s))
            effect = "Services come from the API server alone"
            text = f"{self._file}: the snapshot of Services is refused: {found}, {age_s:.0f} s old; {effect}"
            self._tell(Event(is_warning=True, reason="SnapshotRefused", message=text, plane="services"))
            return None
        return found, about.st_mtime

    async def run(self) -> None:
        if not self._keeps_changes:
            pause_s = FIRST_S
            while True:
                await self._clock.sleep(pause_s)
                pause_s = EVERY_S
                await self.write()
        await self._intake.arrived.wait()
        await self._clock.sleep(FIRST_CHANGES_S)
        due_s = 0.0
        while True:
            if self._clock.now_s() >= due_s and await self.write():
                due_s = self._clock.now_s() + EVERY_S
            await self._clock.sleep(CHANGES_S)
            if await self.write_changes() > max(LEAST_ROUND_BYTES, self._sizes[0]):
                due_s = 0.0

    async def end(self) -> None:
        """What the next boot begins with."""
        await self.write()

    async def write(self) -> bool:
        """Nothing while a snapshot is all that is known: it does not get younger by being written again. Whether all
        that is known is in the file."""
        fold = self._intake.fold
        if not self._is_on or not self._intake.arrived.is_set() or self._intake.unconfirmed:
            return False
        now = fold.service_changes, fold.slice_changes
        heard_s = self._clock.wall_s() - self._silent_s()
        try:
            if self._written != now:
                await self._write_all()
                self._written = now
            await asyncio.to_thread(os.utime, self._file, (heard_s, heard_s))
        except (OSError, OverflowError) as error:
            self._written = None
            log.warning("service_snapshot_not_written", path=str(self._file), error=str(error))
            return False
        return True

    async def _write_all(self) -> None:
        """The file of changes is begun anew last: until then it is of another snapshot, and of no account."""
        if self._keeps_changes:
            self._changed = self._intake.fold.follow() if self._changed is None else self._changed
            self._changed.clear()
        mark = secrets.token_hex(8)
        content = await self._encoded(mark)
        await asyncio.to_thread(write_file, self._file, content)
        if self._keeps_changes:
            begin = framed(mark)
            await asyncio.to_thread(write_file, self._changes_file, begin)
            self._sizes = len(content), len(begin)

    async def write_changes(self) -> int:
        """What changed since, if that is known. How many bytes of changes there are."""
        if not self._changed or self._written is None or self._intake.unconfirmed:
            return self._sizes[1]
        keys, fold = tuple(self._changed), self._intake.fold
        self._changed.clear()
        found = []
        for key in keys:
            slices = tuple(one for family in FAMILIES for one in fold.slices(key, family))
            found.append(ChangedService(key, fold.services.get(key), slices))
        content = framed(tuple(found))
        try:
            await asyncio.to_thread(_append, self._changes_file, self._sizes[1], content)
            self._sizes = self._sizes[0], self._sizes[1] + len(content)
        except OSError as error:
            self._written = None
            log.warning("service_snapshot_not_written", path=str(self._changes_file), error=str(error))
            await self.write()
        return self._sizes[1]

    async def _encoded(self, mark: str) -> bytes:
        services, slices = tuple(self._intake.fold.services.values()), tuple(self._intake.fold.all_slices)
        expected = self._expected()
        head = SnapshotHead(
            read_by=expected.read_by,
            cluster=expected.cluster,
            mark=mark,
            sight=self._intake.sight,
            service_ranges=self._intake.service_ranges,
            services=len(services),
            slices=len(slices),
        )
        found = []
        for piece in pieces(head, services, slices):
            found.append(piece)
            await asyncio.sleep(0)
        return b"".join(found)


def _content(file: Path, most: int) -> bytes:
    """One byte more than there may be shows that there are too many."""
    with file.open("rb") as opened:
        return opened.read(most + 1)


def _append(file: Path, at: int, content: bytes) -> None:
    """Behind what is whole: a piece that a full disk cut off is written over."""
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(content)
        opened.truncate()
        opened.flush()
        os.fdatasync(opened.fileno())
