# SPDX-License-Identifier: Apache-2.0
"""Watches the content store while pulls run and turns what it sees into their progress.

One poller for all pulls; it sleeps while nothing is pulled. When the store cannot be watched, progress is off and
everything else goes on. Bytes that cannot be attributed to one pull belong to none.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable

import msgspec
import structlog
from msgspec.structs import replace

from agent.images.ports import Content
from agent.images.view.manifest import LARGEST_MANIFEST, Manifest, chain_ids, read_diff_ids, read_manifest
from agent.images.view.progress import PullProgress, StoreLook, advance, begin, lazy_snapshotters, resolved
from agent.model.clock import Clock
from agent.model.images.reference import ImageReference
from agent.model.images.state import LayerStage
from agent.model.images.store import BlobInfo, StoreEventKind
from agent.model.runtime.error import NotFound, RuntimeCallFailed

log = structlog.get_logger(plane="images")

EAGER_POLL_S = 0.2
DOWNLOAD_POLL_S = 1.0
UNPACK_POLL_S = 5.0
EVENT_RETRY_S = 2.0
# Clocks of the runtime and ours are the same; this is for the time between our start and its first write.
START_SLACK_S = 2.0
SOURCE_LABEL = "containerd.io/distribution.source."
DIGEST_LENGTH = 71
DIGEST = re.compile(r"sha(?:256|512):[0-9a-f]{64,128}")
EAGER_LOOKS = 10
FREQUENT_LOOKS = 40
LOOK_EVERY = 5
MOST_KNOWN = 5000

BlobsByPath = dict[str, list[BlobInfo]]


class _Followed(msgspec.Struct):
    reference: ImageReference
    began_wall_s: float
    progress: PullProgress
    committed: set[str] = msgspec.field(default_factory=set)
    looks: int = 0


async def no_snapshotters() -> Collection[str]:
    return ()


class ProgressWatcher:
    def __init__(
        self,
        content: Content | None,
        *,
        clock: Clock,
        snapshotters: Callable[[], Awaitable[Collection[str]]] = no_snapshotters,
    ) -> None:
        self._content = content
        self._clock = clock
        self._snapshotters = snapshotters
        self._lazy_by = ""
        self._followed: dict[int, _Followed] = {}
        self._wake = asyncio.Event()
        self._no_manifests: set[str] = set()
        self._unpacked: set[str] = set()
        self._unpacking: set[str] = set()
        self._events_seen = 0
        self._ingests: dict[str, int] = {}
        self.is_visible = False

    def follow(self, number: int, reference: ImageReference) -> None:
        now_s = self._clock.now_s()
        self._followed[number] = _Followed(reference, self._clock.wall_s(), begin(now_s))
        self._wake.set()

    def leave(self, number: int) -> PullProgress | None:
        """It is over. Answers with how far it came."""
        followed = self._followed.pop(number, None)
        return followed.progress if followed else None

    def progress(self, number: int) -> PullProgress | None:
        followed = self._followed.get(number)
        return followed.progress if followed else None

    def refs_of(self, ingests: Iterable[str], number: int) -> list[str]:
        followed = self._followed.get(number)
        if followed is None or followed.progress.manifest is None:
            return []
        layers = {layer.digest for layer in followed.progress.manifest.layers}
        return [ref for ref in ingests if _digest_of(ref) in layers]

    async def run(self) -> None:
        if self._content is None:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_events(self._content), name="images-store-events")
            while True:
                if not self._followed:
                    self._wake.clear()
                    await self._wake.wait()
                    self._forget()
                    await self._find_snapshotter()
                await self._look(self._content)
                await self._clock.sleep(self._pause_s())

    def _pause_s(self) -> float:
        if any(one.progress.manifest is None and one.looks < EAGER_LOOKS for one in self._followed.values()):
            return EAGER_POLL_S
        all_unpack = all(one.progress.is_downloaded for one in self._followed.values())
        return UNPACK_POLL_S if self._followed and all_unpack else DOWNLOAD_POLL_S

    async def _find_snapshotter(self) -> None:
        """It changes with the runtime's configuration, so it is asked again before each batch of pulls."""
        try:
            self._lazy_by = ", ".join(lazy_snapshotters(await self._snapshotters()))
        except RuntimeCallFailed as error:
            log.debug("image_snapshotter_unknown", error=str(error))

    def _forget(self) -> None:
        """Between two batches of pulls: what was seen of the last one is of no use."""
        self._unpacking.clear()
        self._ingests.clear()
        for known in (self._unpacked, self._no_manifests):
            if len(known) > MOST_KNOWN:
                known.clear()

    async def _follow_events(self, content: Content) -> None:
        while True:
            try:
                async for event in content.store_events():
                    self._events_seen += 1
                    if event.kind is StoreEventKind.UNPACKED:
                        self._unpacked.add(event.name)
                        self._unpacking.discard(event.name)
                    elif event.kind is StoreEventKind.UNPACKING and " " in event.name:
                        self._unpacking.add(event.name.rpartition(" ")[2])
            except RuntimeCallFailed as error:
                log.debug("image_events_lost", error=str(error))
            await self._clock.sleep(EVENT_RETRY_S)

    async def _look(self, content: Content) -> None:
        try:
            ingests = {_digest_of(one.ref): one.offset_bytes for one in await content.list_ingests()}
            blobs: dict[str, BlobsByPath] = {}
            for followed in list(self._followed.values()):
                await self._attribute(content, followed, blobs)
                await self._find_finished(content, followed, ingests)
        except RuntimeCallFailed as error:
            if self.is_visible:
                log.info("image_progress_lost", error=str(error))
            self.is_visible = False
            return
        self.is_visible = True
        await self._advance(ingests)

    async def _advance(self, ingests: dict[str, int]) -> None:
        now_s = self._clock.now_s()
        claimed = {
            layer.digest
            for one in self._followed.values()
            if one.progress.manifest is not None
            for layer in one.progress.manifest.layers
        }
        others = {digest: done for digest, done in ingests.items() if digest not in claimed}
        before = {digest: done for digest, done in self._ingests.items() if digest not in claimed}
        is_alive = others != before or self._events_seen > 0
        self._ingests, self._events_seen = ingests, 0
        for followed in list(self._followed.values()):
            # Others wait for this loop too, such as calls through the proxy, and a hundred pulls take their time.
            await asyncio.sleep(0)
            attributed = followed.progress.manifest is not None
            seen = StoreLook(
                ingests=ingests if attributed else {},
                committed=frozenset(followed.committed),
                unpacked=frozenset(self._unpacked.intersection(followed.progress.chains)),
                unpacking=frozenset(self._unpacking.intersection(followed.progress.chains)),
                is_alive=is_alive and (not attributed or followed.progress.is_downloaded),
            )
            followed.progress = advance(replace(followed.progress, lazy_by=self._lazy_by), seen, now_s)

    async def _attribute(self, content: Content, followed: _Followed, blobs: dict[str, BlobsByPath]) -> None:
        """Find the manifest of a pull, then its config; both appear while it runs. `blobs`: those of each registry by
        path, as far as this look has listed them."""
        followed.looks += 1
        progress = followed.progress
        if progress.manifest is None:
            if followed.looks > FREQUENT_LOOKS and followed.looks % LOOK_EVERY:
                return
            manifest = await self._find_manifest(content, followed, blobs)
            if manifest is None:
                return
            cached = set()
            for layer in manifest.unique_layers:
                blob = await content.blob_info(layer.digest)
                if blob is not None and blob.created_at_s < followed.began_wall_s:
                    cached.add(layer.digest)
                elif blob is not None:
                    followed.committed.add(layer.digest)
            followed.progress = resolved(progress, manifest, frozenset(cached))
        elif not progress.chains and followed.looks <= FREQUENT_LOOKS:
            chains = await self._find_chains(content, progress.manifest)
            followed.progress = replace(progress, chains=chains)

    async def _find_chains(self, content: Content, manifest: Manifest) -> tuple[str, ...]:
        try:
            return chain_ids(read_diff_ids(await content.read_blob(manifest.config.digest, LARGEST_MANIFEST)))
        except NotFound:
            return ()

    async def _find_manifest(
        self, content: Content, followed: _Followed, blobs: dict[str, BlobsByPath]
    ) -> Manifest | None:
        """The one manifest that can be meant; with two candidates it is neither."""
        reference = followed.reference
        claimed = {one.progress.manifest.digest for one in self._followed.values() if one.progress.manifest}
        label = SOURCE_LABEL + re.sub(r":[0-9]+$", "", reference.asked_host)
        found = []
        if label not in blobs:
            blobs[label] = _by_path(label, await content.list_blobs(label))
        for blob in blobs[label].get(reference.asked_path, ()):
            is_meant = reference.digest == blob.digest or blob.created_at_s >= followed.began_wall_s - START_SLACK_S
            if is_meant and blob.digest not in claimed:
                manifest = await self._read_manifest(content, blob)
                found += [manifest] if manifest is not None else []
        exact = [one for one in found if one.digest == reference.digest]
        candidates = exact or found
        return candidates[0] if len(candidates) == 1 else None

    async def _read_manifest(self, content: Content, blob: BlobInfo) -> Manifest | None:
        if blob.digest in self._no_manifests or blob.size_bytes > LARGEST_MANIFEST:
            return None
        try:
            manifest = read_manifest(blob.digest, await content.read_blob(blob.digest, LARGEST_MANIFEST))
        except NotFound:
            return None
        if manifest is None:
            self._no_manifests.add(blob.digest)
        return manifest

    async def _find_finished(self, content: Content, followed: _Followed, ingests: dict[str, int]) -> None:
        """A layer that is no longer being written is whole, or was thrown away: ask which."""
        for layer in followed.progress.layers:
            is_open = layer.stage in (LayerStage.DOWNLOADING, LayerStage.WAITING, LayerStage.LAZY)
            is_asked = is_open and layer.digest not in ingests and layer.digest not in followed.committed
            if is_asked and await content.blob_info(layer.digest) is not None:
                followed.committed.add(layer.digest)


def _by_path(label: str, blobs: list[BlobInfo]) -> BlobsByPath:
    found: BlobsByPath = {}
    for blob in blobs:
        for path in blob.labels.get(label, "").split(","):
            found.setdefault(path, []).append(blob)
    return found


def _digest_of(ref: str) -> str:
    """The digest that a name of containerd's ends with, or has in it; the name itself if it has none."""
    kind, _, digest = ref.partition("-")
    if len(digest) == DIGEST_LENGTH and digest.startswith("sha256:") and kind.isalpha():
        return digest
    found = DIGEST.search(ref)
    return found[0] if found else ref
