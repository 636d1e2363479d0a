# SPDX-License-Identifier: Apache-2.0
"""Which file systems hold images, how full they are, which image lies on which, and what is left half-written there.

Where the runtime keeps things is asked once per look; measuring again costs a call of the kernel per place. Which
snapshotter unpacked an image is asked only where that matters: with several file systems.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

import structlog

from agent.images.collect.disks import ImageDisk, joined_disks
from agent.images.ports import Content, Files, ImageRuntime, Leases
from agent.model.clock import Clock
from agent.model.images.store import Filesystem, StoreRoots, is_expired
from agent.model.runtime.error import NotFound, RuntimeCallFailed
from agent.wire.cri import runtime_v1_pb2 as pb

log = structlog.get_logger(plane="images")

IMAGE, CONTENT = "image", "content"
OUR_LEASES = "kepd-"
OLD_INGEST_S = 86400.0
UNPACKED_LABEL = "containerd.io/gc.ref.snapshot."


class ImageDisks:
    def __init__(self, runtime: ImageRuntime, files: Files, content: Content | None) -> None:
        self._runtime = runtime
        self._files = files
        self._content = content
        self._places: tuple[tuple[str, str], ...] = ()
        self._roots = StoreRoots()
        self._unknown: frozenset[str] = frozenset()
        self.disks: tuple[ImageDisk, ...] = (ImageDisk(),)

    @property
    def first(self) -> Filesystem:
        """Where the runtime keeps images unless another place is asked for."""
        return self.disks[0].space

    @property
    def available_bytes(self) -> int:
        return sum(disk.space.available_bytes for disk in self.disks)

    async def find(self, rules_at: Iterable[str]) -> None:
        """Ask where images are, and measure. `rules_at` are paths with thresholds of their own."""
        try:
            images, _ = await self._runtime.file_systems()
        except RuntimeCallFailed as error:
            log.warning("image_disk_not_measured", error=str(error))
            self._places, self.disks = (), (ImageDisk(),)
            return
        self._roots = await self._told_roots()
        content = ((CONTENT, self._roots.content),) if self._roots.content else ()
        self._places = (*((IMAGE, path) for path in images), *content)
        await self.measure(rules_at)

    async def _told_roots(self) -> StoreRoots:
        """Runtimes other than containerd do not say; then images lie where the runtime's first place is."""
        if self._content is None:
            return StoreRoots()
        try:
            return await self._content.store_roots()
        except RuntimeCallFailed as error:
            log.debug("image_roots_unknown", error=error.details)
            return StoreRoots()

    async def measure(self, rules_at: Iterable[str]) -> None:
        images = [(role, path, await self._measured(path)) for role, path in self._places]
        # What downloads lie on may be hidden from here, where images are not.
        seen = [one for one in images if one[0] == IMAGE or one[2].is_measured]
        given = [(path, await self._measured(path, is_quiet=True)) for path in rules_at]
        self.disks = joined_disks(seen, given) or (ImageDisk(),)
        used = {path for disk in self.disks for path in disk.paths}
        unknown = frozenset(path for path, _ in given if path not in used)
        if unknown - self._unknown:
            log.warning("image_disk_rules_unused", paths=sorted(unknown), reason="no images lie there")
        self._unknown = unknown

    async def _measured(self, path: str, *, is_quiet: bool = False) -> Filesystem:
        try:
            return await self._files.measure(path)
        except OSError as error:
            if not is_quiet:
                log.warning("image_disk_not_measured", path=path, error=str(error), v=3)
            return Filesystem()

    async def devices(self, images: Sequence[pb.Image]) -> dict[str, tuple[int, ...]]:
        """By id, the file systems of images; what is not known is missing."""
        if len(self.disks) < 2:
            return {}
        by_path = {path: disk.device for disk in self.disks for path in disk.paths}
        downloads = [by_path[self._roots.content]] if self._roots.content in by_path else []
        unpacked = await self._unpacked(by_path)
        return {
            image.id: tuple(dict.fromkeys((*(unpacked.get(image.id) or [self.disks[0].device]), *downloads)))
            for image in images
        }

    async def _unpacked(self, by_path: dict[str, int]) -> dict[str, list[int]]:
        found: defaultdict[str, list[int]] = defaultdict(list)
        places = {name: by_path[root] for name, root in self._roots.snapshotters.items() if root in by_path}
        if self._content is None or len(set(places.values())) < 2:
            return found
        content = self._content
        try:
            lists = await asyncio.gather(*(content.list_blobs(f"{UNPACKED_LABEL}{name}") for name in places))
        except RuntimeCallFailed as error:
            log.warning("image_places_unknown", error=error.details, v=3)
            return found
        for device, blobs in zip(places.values(), lists, strict=True):
            for blob in blobs:
                found[blob.digest].append(device)
        return found


class Leftovers:
    """What is of no use any more and nothing else takes away."""

    def __init__(self, content: Content | None, leases: Leases | None, clock: Clock) -> None:
        self._content = content
        self._leases = leases
        self._clock = clock

    async def remove(self) -> None:
        await self._drop_old_leases()
        await self._drop_old_ingests()

    async def _drop_old_ingests(self) -> None:
        """Half-written blobs that had no byte for a day: no pull that runs is that slow."""
        content, oldest_s = self._content, self._clock.wall_s() - OLD_INGEST_S
        if content is None:
            return
        try:
            for ingest in await content.list_ingests():
                if 0 < ingest.updated_at_s < oldest_s:
                    await content.abort_ingest(ingest.ref)
                    log.info("image_partial_dropped", ref=ingest.ref, size_bytes=ingest.offset_bytes)
        except NotFound:
            return
        except RuntimeCallFailed as error:
            log.debug("image_partials_not_tidied", error=error.details)

    async def _drop_old_leases(self) -> None:
        """Leases of ours past their time; the runtime ignores them and keeps them."""
        leases = self._leases
        if leases is None:
            return
        try:
            for lease_id, labels in (await leases.list_leases()).items():
                if lease_id.startswith(OUR_LEASES) and is_expired(labels, self._clock.wall_s()):
                    await leases.delete_lease(lease_id)
        except NotFound:
            return
        except RuntimeCallFailed as error:
            log.debug("image_leases_not_tidied", error=error.details)
