# SPDX-License-Identifier: Apache-2.0
"""Keeps in files what Services there are, for the first moments after a boot.

The API server may be away when a node boots, or slow. Then the Services that an earlier kepd knew are programmed at
once, and what the server lists takes their place. A task, and something to ask before the sources begin. Where rules
stand nothing is read: they are newer, until the server stays silent. The age of the file is that of the server's last
word. For an outage changes are kept too, as they come, in a file beside it.
"""

import asyncio
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from agent.drivers.atomic_files import write_file
from agent.model.clock import Clock
from agent.model.event import Event
from agent.model.finding import printable
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
RETRY_S = 30.0
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
        self._written: object = None
        """What was known when the file was written."""
        self._due_s = 0.0
        self.problem = ""
        """Why what is known is not in the file; empty: it is, or will be in a moment."""
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
            await asyncio.to_thread(self._remove)
        elif not await self._plane.has_rules():
            await self.restore()
        elif self._keeps_changes:
            await self._remember()

    def _remove(self) -> None:
        for file in (self._file, self._changes_file):
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                log.warning("service_snapshot_not_removed", path=str(file), error=str(error))

    async def _remember(self) -> None:
        """What there was, for a first list that lacks most of it."""
        found, _ = await asyncio.to_thread(self._read)
        if isinstance(found, ServiceSnapshot):
            self._intake.remembered = {
                "Service": frozenset(one.key for one in found.services),
                "EndpointSlice": frozenset((one.service.namespace, one.name) for one in found.slices),
            }

    async def restore(self) -> None:
        """What is in the files, unless lists were there first."""
        if not self._is_on or self._intake.arrived.is_set():
            return
        snapshot, when_s = await asyncio.to_thread(self._read)
        if isinstance(snapshot, str):
            self._refuse(snapshot, when_s)
        if not isinstance(snapshot, ServiceSnapshot) or self._intake.arrived.is_set():
            return
        self._intake.restore(snapshot)
        # It would come after the rules whose absence it stands for.
        self._intake.complete(TAINT)
        log.info("services_from_snapshot", services=len(snapshot.services), slices=len(snapshot.slices), v=0)
        self._restored(when_s)

    def _read(self) -> tuple[ServiceSnapshot | str | None, float]:
        """What is in the files, or why it is refused, and of when."""
        expected = self._expected()
        try:
            when_s, content = _content(self._file, expected.most_bytes)
            changes = _content(self._changes_file, expected.most_bytes)[1] if self._changes_file.exists() else b""
        except FileNotFoundError:
            return None, 0.0
        except OSError as error:
            return printable(str(error)), 0.0
        return read_snapshot(content, changes, expected, self._clock.wall_s() - when_s), when_s

    def _refuse(self, reason: str, when_s: float) -> None:
        away_s = round(self._clock.wall_s() - when_s)
        log.warning("service_snapshot_unused", path=str(self._file), reason=reason, age_s=away_s)
        age = f", {away_s} s old" if away_s >= 0 else f", by {-away_s} s: is the clock of this node right?"
        text = f"{self._file}: the snapshot of Services is refused: {reason}{age if when_s else ''}"
        effect = "Services come from the API server alone"
        self._tell(Event(is_warning=True, reason="SnapshotRefused", message=f"{text}; {effect}", plane="services"))

    async def run(self) -> None:
        if not self._keeps_changes:
            pause_s = FIRST_S
            while True:
                await self._clock.sleep(pause_s)
                pause_s = EVERY_S
                await self.write()
        await self._intake.arrived.wait()
        await self._clock.sleep(FIRST_CHANGES_S)
        while True:
            if self._clock.now_s() >= self._due_s:
                await self.write()
            await self._clock.sleep(CHANGES_S)
            if await self.write_changes() > max(LEAST_ROUND_BYTES, self._sizes[0]):
                self._due_s = 0.0

    async def end(self) -> None:
        """What the next boot begins with."""
        await self.write()

    async def write(self) -> bool:
        """Nothing while a snapshot is all that is known: it does not get younger by being written again. Whether all
        that is known is in the file."""
        intake = self._intake
        if not self._is_on or not intake.arrived.is_set() or intake.unconfirmed:
            return False
        now = (
            *(intake.fold.service_changes, intake.fold.slice_changes),
            *(intake.sight, intake.service_ranges, self._expected()),
        )
        heard_s = self._clock.wall_s() - self._silent_s()
        try:
            if self._written != now:
                await self._write_all()
                self._written = now
            await asyncio.to_thread(os.utime, self._file, (heard_s, heard_s))
        except (OSError, OverflowError) as error:
            self._failed(self._file, error)
            return False
        self.problem, self._due_s = "", self._clock.now_s() + EVERY_S
        return True

    def _failed(self, file: Path, error: Exception) -> None:
        """All of it is tried again, not too often: it may be much."""
        self._written, self._due_s = None, self._clock.now_s() + RETRY_S
        problem = f"{file}: {printable(str(error))}"
        log.warning("service_snapshot_not_written", path=str(file), error=str(error), retry_s=RETRY_S)
        if not self.problem:
            effect = "after a boot kepd would begin with what was known before; tried again"
            text = f"the snapshot of Services is not written: {problem}; {effect} every {RETRY_S:.0f} s"
            self._tell(Event(is_warning=True, reason="SnapshotNotWritten", message=text, plane="services"))
        self.problem = problem

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
            self._failed(self._changes_file, error)
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


def _content(file: Path, most: int) -> tuple[float, bytes]:
    """When it was written, and what it says. Raises OSError; nothing is read of one that is too large."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        about = os.fstat(opened.fileno())
        is_ours = about.st_uid in (0, os.geteuid()) and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISREG(about.st_mode) or not is_ours:
            found = f"is {stat.filemode(about.st_mode)} of uid {about.st_uid}"
            raise PermissionError(errno.EPERM, f"{found}; expected a file that root alone can write", str(file))
        if about.st_size > most:
            raise OSError(errno.EFBIG, f"too large: {about.st_size} bytes; expected at most {most}", str(file))
        return about.st_mtime, opened.read(most + 1)


def _append(file: Path, at: int, content: bytes) -> None:
    """Behind what is whole: a piece that a full disk cut off is written over."""
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(content)
        opened.truncate()
        opened.flush()
        os.fdatasync(opened.fileno())
