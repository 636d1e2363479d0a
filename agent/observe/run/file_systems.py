# SPDX-License-Identifier: Apache-2.0
"""Looks at the file systems of the node when somebody asks; a scrape gets what was seen last and asks for the next."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric

from agent.model.clock import Clock
from agent.model.file_system import FileSystemReport, LookedAt
from agent.model.runtime_error import RuntimeCallFailed
from agent.observe.ports import Disks, FileSystemsOfRuntime
from agent.observe.view.file_systems import file_system_reports

log = structlog.get_logger(plane="observe")

FRESH_S = 30.0
LOOK_LIMIT_S = 10.0


class FileSystemAnswers:
    """`own` are roles and paths of kepd's own."""

    def __init__(
        self, runtime: FileSystemsOfRuntime, disks: Disks, clock: Clock, own: Callable[[], Sequence[tuple[str, str]]]
    ) -> None:
        self._runtime = runtime
        self._disks = disks
        self._clock = clock
        self._own = own
        self._reports: tuple[FileSystemReport, ...] = ()
        self._looked_s: float | None = None
        self._looking: asyncio.Task[None] | None = None

    async def reports(self) -> tuple[FileSystemReport, ...]:
        """As they are now."""
        places = [*self._own(), *await self._runtimes()]
        looked = await asyncio.gather(*(self._look(path) for path in dict.fromkeys(path for _, path in places)))
        self._reports, self._looked_s = file_system_reports(places, dict(looked)), self._clock.now_s()
        return self._reports

    async def _runtimes(self) -> list[tuple[str, str]]:
        try:
            images, containers = await self._runtime.file_systems()
        except RuntimeCallFailed as error:
            log.warning("file_systems_of_runtime_unknown", error=str(error), v=3)
            return []
        # A runtime that names none for containers keeps their layers with those of images.
        return [*(("image", path) for path in images), *(("container", path) for path in containers or images)]

    async def _look(self, path: str) -> tuple[str, LookedAt | str]:
        """One that hangs, as over a network, is unknown; its thread ends when the kernel lets it."""
        try:
            async with asyncio.timeout(LOOK_LIMIT_S):
                return path, await asyncio.to_thread(self._disks.look, path)
        except TimeoutError:
            return path, f"does not answer within {LOOK_LIMIT_S:.0f} s"
        except OSError as error:
            return path, f"cannot be seen from here: {error.strerror}"

    def families(self) -> Iterator[Metric]:
        self._refresh()
        yield from file_system_families(self._reports)

    def _refresh(self) -> None:
        is_due = self._looked_s is None or self._clock.now_s() - self._looked_s >= FRESH_S
        if not is_due or (self._looking is not None and not self._looking.done()):
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._looking = loop.create_task(self._look_again(), name="observe-file-systems")

    async def _look_again(self) -> None:
        await self.reports()


def file_system_families(reports: Sequence[FileSystemReport]) -> Iterator[Metric]:
    labels = ("mountpoint", "role", "kind")
    space = GaugeMetricFamily("kepd_filesystem_bytes", "Space of file systems.", labels=labels)
    inodes = GaugeMetricFamily("kepd_filesystem_inodes", "Inodes of file systems.", labels=labels)
    for one in reports:
        for role in one.roles if one.size_bytes else ():
            add = partial(_add, one.mount, role)
            add(space, capacity=one.size_bytes, available=one.available_bytes, used=one.used_bytes)
            if one.inodes:
                add(inodes, total=one.inodes, free=one.inodes_free)
    yield space
    yield inodes


def _add(mount: str, role: str, family: GaugeMetricFamily, **values: int) -> None:
    for kind, value in values.items():
        family.add_metric((mount, role, kind), value)
