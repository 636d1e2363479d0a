# SPDX-License-Identifier: Apache-2.0
"""Keeps in a file what Services there are, for the first moments after a boot.

The API server may be away when a node boots, or slow. Then the Services that an earlier kepd knew are programmed at
once, and what the server lists takes their place. A task, and something to ask before the sources begin. Where rules
stand nothing is read: they are newer. The age of the file is that of the server's last word.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from agent.drivers.atomic_files import write_file
from agent.model.clock import Clock
from agent.model.services.nft_table import Family
from agent.services.objects.snapshot import ServiceSnapshot, SnapshotHead, pieces, read_snapshot
from agent.services.routes.frontends import PortPlan
from agent.services.ruleset import Beside
from agent.services.run.cluster.startup_taint import TAINT
from agent.services.run.plane import ServicesPlane

log = structlog.get_logger(plane="services")

SNAPSHOT_FILE = Path("services", "snapshot.bin")
FIRST_S = 60.0
EVERY_S = 600.0


class SnapshotFile(Beside):
    """`read_by`: what objects are read with. `silent_s`: how long the server has said nothing."""

    def __init__(
        self,
        plane: ServicesPlane,
        file: Path,
        clock: Clock,
        read_by: tuple[str, ...],
        *,
        silent_s: Callable[[], float],
        is_on: bool,
    ) -> None:
        self._plane = plane
        self._intake = plane.intake
        self._file = file
        self._clock = clock
        self._read_by = read_by
        self._silent_s = silent_s
        self._is_on = is_on
        self._written: tuple[int, int] | None = None

    def told(self, family: Family, port: PortPlan) -> Iterator[str]:  # noqa: ARG002
        if self._intake.unconfirmed:
            yield "from the snapshot of an earlier kepd: the API server has not listed it yet"

    async def begin(self) -> None:
        """Before the sources say anything."""
        if not self._is_on:
            await asyncio.to_thread(self._file.unlink, missing_ok=True)
            return
        if await self._plane.has_rules():
            return
        found = await asyncio.to_thread(self._read)
        if found is None or self._intake.arrived.is_set():
            return
        self._intake.restore(found)
        # It would come after the rules whose absence it stands for.
        self._intake.complete(TAINT)
        log.info("services_from_snapshot", services=len(found.services), slices=len(found.slices), v=0)

    def _read(self) -> ServiceSnapshot | None:
        try:
            age_s = self._clock.wall_s() - self._file.stat().st_mtime
            found = read_snapshot(self._file.read_bytes(), self._read_by, age_s)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("service_snapshot_unread", path=str(self._file), error=str(error))
            return None
        if isinstance(found, str):
            log.info("service_snapshot_unused", path=str(self._file), reason=found, age_s=round(age_s), v=0)
            return None
        return found

    async def run(self) -> None:
        pause_s = FIRST_S
        while True:
            await self._clock.sleep(pause_s)
            pause_s = EVERY_S
            await self.write()

    async def end(self) -> None:
        """What the next boot begins with."""
        await self.write()

    async def write(self) -> None:
        """Nothing while a snapshot is all that is known: it does not get younger by being written again."""
        fold = self._intake.fold
        if not self._is_on or not self._intake.arrived.is_set() or self._intake.unconfirmed:
            return
        now = fold.service_changes, fold.slice_changes
        heard_s = self._clock.wall_s() - self._silent_s()
        try:
            if self._written != now:
                content = await self._encoded()
                await asyncio.to_thread(write_file, self._file, content)
                self._written = now
            await asyncio.to_thread(os.utime, self._file, (heard_s, heard_s))
        except (OSError, OverflowError) as error:
            self._written = None
            log.warning("service_snapshot_not_written", path=str(self._file), error=str(error))

    async def _encoded(self) -> bytes:
        services, slices = tuple(self._intake.fold.services.values()), tuple(self._intake.fold.all_slices)
        head = SnapshotHead(
            read_by=self._read_by,
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
