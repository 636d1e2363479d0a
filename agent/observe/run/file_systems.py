# SPDX-License-Identifier: Apache-2.0
"""Looks at the file systems of the node when somebody asks; a scrape gets what was seen last and asks for the next."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

import msgspec
import structlog
from prometheus_client.core import Metric

from agent.model.clock import Clock
from agent.model.histogram import gauge_family
from agent.model.nodes.file_system import FileSystemReport, ImagesOnDisk, LookedAt
from agent.model.pods.space import PodSpace
from agent.model.runtime.error import RuntimeCallFailed
from agent.observe.ports import Disks, FileSystemsOfRuntime, StoreOfRuntime
from agent.observe.view.file_systems import Upkeep, file_system_reports, with_upkeep
from agent.observe.view.file_systems import with_use as used

log = structlog.get_logger(plane="observe")

FRESH_S = 30.0
LOOK_LIMIT_S = 10.0


class PlaneWork(msgspec.Struct, frozen=True, kw_only=True):
    """What planes of this kepd do about space, and what their pods use. `images` raises RuntimeCallFailed; without pods
    there is no `spaces`."""

    images: Callable[[], Awaitable[Sequence[ImagesOnDisk]]] | None = None
    spaces: Callable[[], Awaitable[Sequence[PodSpace]]] | None = None
    short_paths: Callable[[], Collection[str]] = tuple


NO_WORK = PlaneWork()


class FileSystemAnswers:
    """`own` are roles and paths of kepd's own."""

    def __init__(
        self,
        runtime: FileSystemsOfRuntime,
        store: StoreOfRuntime,
        disks: Disks,
        clock: Clock,
        own: Callable[[], Sequence[tuple[str, str]]],
        work: PlaneWork = NO_WORK,
    ) -> None:
        self.work = work
        self._runtime = runtime
        self._store = store
        self._disks = disks
        self._clock = clock
        self._own = own
        self._reports: tuple[FileSystemReport, ...] = ()
        self._looked_s: float | None = None
        self._looking: asyncio.Task[None] | None = None

    async def reports(self, *, with_use: bool = False) -> tuple[FileSystemReport, ...]:
        """As they are now; `with_use` walks over what pods wrote."""
        reports = await self.look()
        upkeep = Upkeep(
            images=await self._images(), has_pods=self.work.spaces is not None, short=self.work.short_paths()
        )
        uses = await self._uses() if with_use else ()
        found = [with_upkeep(one, upkeep) for one in reports]
        return tuple(used(one, uses) for one in found) if with_use else tuple(found)

    async def _images(self) -> Sequence[ImagesOnDisk]:
        try:
            return await self.work.images() if self.work.images is not None else ()
        except RuntimeCallFailed as error:
            log.warning("images_of_file_systems_unknown", error=str(error), v=3)
            return ()

    async def _uses(self) -> list[tuple[str, str, int]]:
        """Kinds, paths and bytes."""
        own = dict(self._own())
        try:
            uses = [("images", path, size) for path, size in (await self._runtime.image_use()).items()]
            images, containers = await self._runtime.file_systems()
            layers = sum(size for size, _ in (await self._runtime.writable_layers()).values())
            uses += [("layers", path, layers) for path in (containers or images)[:1]]
        except RuntimeCallFailed as error:
            log.warning("use_of_file_systems_unknown", error=str(error), v=3)
            uses = []
        spaces = await self.work.spaces() if self.work.spaces is not None else ()
        if "logs" in own:
            uses.append(("logs", own["logs"], sum(sum(one.logs.values()) for one in spaces)))
        volumes = [each for one in spaces for each in one.volumes if not each.is_memory]
        return [*uses, ("volumes", own["node"], sum(one.used_bytes for one in volumes))] if spaces else uses

    async def look(self) -> tuple[FileSystemReport, ...]:
        """Sizes alone."""
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
        found = [*(("image", path) for path in images), *(("container", path) for path in containers or images)]
        try:
            content = (await self._store.store_roots()).content
        except RuntimeCallFailed:
            # Other runtimes than containerd do not say.
            return found
        return [*found, ("content", content)] if content else found

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
        await self.look()


def file_system_families(reports: Sequence[FileSystemReport]) -> Iterator[Metric]:
    labels = ("mountpoint", "role", "kind")
    places = [(one, role) for one in reports for role in one.roles if one.size_bytes]
    space = [
        ((one.mount, role, kind), size)
        for one, role in places
        for kind, size in (("capacity", one.size_bytes), ("available", one.available_bytes), ("used", one.used_bytes))
    ]
    yield gauge_family("kepd_filesystem_bytes", "Space of file systems.", labels, space)
    inodes = [
        ((one.mount, role, kind), count)
        for one, role in places
        if one.inodes
        for kind, count in (("total", one.inodes), ("free", one.inodes_free))
    ]
    yield gauge_family("kepd_filesystem_inodes", "Inodes of file systems.", labels, inodes)
