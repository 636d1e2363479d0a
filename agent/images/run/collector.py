# SPDX-License-Identifier: Apache-2.0
"""Removes images as collect/plan.py plans it, and knows what images there are and who uses them.

One image at a time, with the disk measured again after each. Its tasks live in the group of `run`.
Source of behaviour: IMG-G02 to G12, G16, V06.
"""

import asyncio
from collections.abc import Sequence

import msgspec
import structlog
from msgspec.structs import replace

from agent.images.collect.plan import (
    CollectPlan,
    NodeImage,
    Removal,
    RemovalReason,
    no_room_text,
    plan_collection,
    removals_for_space,
    room_for,
)
from agent.images.ports import Content, Files, ImageEvents, ImageNames, ImageRuntime, Leases, Usage, WantedImages
from agent.images.prefetch.plan import normalised
from agent.images.run.history import ImageHistory
from agent.images.run.metrics import ImageMetrics
from agent.images.run.records import AccessRecords
from agent.images.settings import ImageSettings
from agent.images.view.texts import ImageEvent, Sentence
from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.feed import Feed
from agent.model.image_pull import NO_POD
from agent.model.image_state import CollectedImage, CollectionState, ImageState
from agent.model.image_store import Filesystem, is_expired
from agent.model.image_text import quoted
from agent.model.runtime_error import NotFound, RuntimeCallFailed
from agent.wire.cri import runtime_v1_pb2 as pb

log = structlog.get_logger(plane="images")

PINNED_BY = "kepd.dev/pinned-by"
PINNED_BY_US = "kepd"
OUR_LEASES = "kepd-"
POD_NAME, POD_NAMESPACE = "io.kubernetes.pod.name", "io.kubernetes.pod.namespace"
RETRY_S = 5.0
OLD_INGEST_S = 86400.0


class CollectorParts(msgspec.Struct, frozen=True, kw_only=True):
    runtime: ImageRuntime
    usage: Usage
    files: Files
    history: ImageHistory
    records: AccessRecords
    metrics: ImageMetrics
    names: ImageNames | None = None
    leases: Leases | None = None
    content: Content | None = None
    events: ImageEvents | None = None


class _Look(msgspec.Struct, frozen=True):
    images: tuple[NodeImage, ...]
    disk: Filesystem
    now_s: float


class ImageCollector:
    def __init__(self, parts: CollectorParts, settings: ImageSettings, *, clock: Clock) -> None:
        self._parts = parts
        self._settings = settings
        self._clock = clock
        self._lock = asyncio.Lock()
        self._wanted: list[WantedImages] = []
        self._failures = 0
        self._mounted: dict[str, tuple[str, ...]] = {}
        self._pinned_by_us: frozenset[str] = frozenset()
        self.images: Feed[ImageState] = Feed()
        self.disk = Filesystem()
        self.collected_at_s = 0.0

    def apply(self, settings: ImageSettings) -> None:
        self._settings = settings

    def protect(self, wanted: WantedImages) -> None:
        self._wanted.append(wanted)

    async def run(self, report: Report) -> None:
        await self._parts.history.load()
        try:
            while True:
                pause_s = self._settings.keys.gc.period
                try:
                    state = await self.collect(is_forced=False)
                    report.ready(f"{len(self.images.items)} images, {state.usage_percent}% of the disk used")
                except RuntimeCallFailed as error:
                    report.degraded(f"images cannot be inspected: {error.details}")
                    pause_s = RETRY_S
                await self._parts.history.save()
                await self._clock.sleep(pause_s)
        finally:
            await asyncio.shield(self._parts.history.save(is_last=True))

    async def collect(self, *, dry_run: bool = False, is_forced: bool = True) -> CollectionState:
        """One run; `is_forced`: all that nothing protects. Raises RuntimeCallFailed if the node cannot be seen."""
        async with self._lock:
            look = await self._observe()
            plan = self._plan(look, is_forced=is_forced)
            self._show(look, plan)
            if dry_run:
                listed = [self._collected(removal, is_removed=False) for removal in plan.removals]
                return CollectionState(tuple(listed), plan.expected_bytes, plan.used_percent)
            return await self._carry_out(look, plan, is_forced=is_forced)

    async def make_room(self, image: str, size_bytes: int | None) -> str:
        """Remove what may go until there is room for an image of that compressed size. Answers why there is none, or
        nothing where there is (IMG-B06). What may go is what the mode lets go."""
        needed_bytes = room_for(size_bytes)
        async with self._lock:
            try:
                look = await self._observe()
                for removal in removals_for_space(self._plan(look, is_forced=True), self._settings.collect, look.now_s):
                    if not self.disk.is_measured or self.disk.available_bytes > needed_bytes:
                        break
                    await self._remove(removal, RemovalReason.SPACE)
            except RuntimeCallFailed as error:
                log.warning("image_room_not_made", error=error.details)
                return f"images cannot be inspected: {error.details}"
            if self.disk.available_bytes > needed_bytes:
                return ""
            why = no_room_text(self.disk, needed_bytes, self._settings.collect.mode)
        self._tell(Sentence(True, "FreeDiskSpaceFailed", f"No room for image {quoted(image)}: {why}"))
        return why

    async def refresh(self) -> Sequence[ImageState]:
        """All images as they are now. Raises RuntimeCallFailed."""
        async with self._lock:
            look = await self._observe()
            self._show(look, self._plan(look, is_forced=False))
        return list(self.images.items.values())

    def _plan(self, look: _Look, *, is_forced: bool, previous: CollectPlan | None = None) -> CollectPlan:
        rules = self._settings.collect
        return plan_collection(look.images, look.disk, rules, look.now_s, is_forced=is_forced, previous=previous)

    async def _carry_out(self, look: _Look, plan: CollectPlan, *, is_forced: bool) -> CollectionState:
        """Remove one image, measure, plan again; until the plan is empty or nothing more works."""
        if plan.problem:
            self._tell(Sentence(True, "InvalidDiskCapacity", plan.problem))
        done: list[CollectedImage] = []
        before = look.disk.available_bytes
        tried: set[str] = set()
        while True:
            left = [removal for removal in plan.removals if removal.image.id not in tried]
            if not left:
                break
            removal = left[0]
            tried.add(removal.image.id)
            done.append(await self._remove(removal, removal.reason))
            gone = {one.image.id for one in done if one.is_removed}
            remaining = tuple(image for image in look.images if image.id not in gone)
            look = replace(look, images=remaining, disk=self.disk)
            plan = self._plan(look, is_forced=is_forced, previous=plan)
        await self._unname(plan)
        self._judge(plan, self.disk.available_bytes - before)
        self.collected_at_s = self._clock.wall_s()
        if done:
            look = await self._observe()
            self._show(look, self._plan(look, is_forced=False))
        await self._tidy_up()
        return CollectionState(tuple(done), max(0, self.disk.available_bytes - before), self.disk.used_percent)

    async def _unname(self, plan: CollectPlan) -> None:
        names = self._parts.names
        if names is None:
            return
        for name in plan.unnames:
            try:
                await names.delete_image(name)
                log.info("image_name_removed", image=name)
            except NotFound:
                log.debug("image_name_gone", image=name)

    async def _remove(self, removal: Removal, reason: RemovalReason) -> CollectedImage:
        image = removal.image
        available = self.disk.available_bytes
        try:
            await self._parts.runtime.remove_image(image.id)
            await self._measure()
        except RuntimeCallFailed as error:
            log.warning("image_not_removed", image=image.shown_name, error=error.details)
            return self._collected(removal, is_removed=False, error=error.details)
        self._parts.metrics.removed(str(reason), self.disk.available_bytes - available)
        log.info("image_removed", image=image.shown_name, reason=str(reason), idle_s=round(removal.age_s))
        return self._collected(removal, is_removed=True)

    def _judge(self, plan: CollectPlan, freed_bytes: int) -> None:
        """Tell when a run could not free what it should (IMG-G12)."""
        if not (plan.missing_bytes or plan.missing_inodes):
            self._failures = 0
            return
        self._failures += 1
        disk = self.disk
        figures = f"{disk.used_percent}% of {disk.capacity_bytes} bytes used"
        text = f"Failed to garbage collect required amount of images: {figures}, freed {max(0, freed_bytes)} bytes"
        self._tell(Sentence(True, "FreeDiskSpaceFailed", text))
        if self._failures >= 2:
            self._tell(
                Sentence(True, "ImageGCFailed", f"Image garbage collection failed {self._failures} times: {figures}")
            )

    def _tell(self, sentence: Sentence) -> None:
        log.warning("image_collection_warned", reason=sentence.reason, text=sentence.text)
        if self._parts.events is not None:
            self._parts.events.tell(ImageEvent(NO_POD, "", sentence))

    # looking

    async def _observe(self) -> _Look:
        parts = self._parts
        listed_at_s = self._clock.wall_s()
        images = await parts.runtime.list_images()
        users = await self._users(images)
        created = await self._created()
        parts.history.observe(images, users.keys(), created)
        await parts.records.forget_absent({image.id for image in images}, listed_at_s)
        await self._measure()
        known = parts.history.images
        return _Look(
            tuple(
                NodeImage(
                    id=image.id,
                    names=(*image.repo_tags, *image.repo_digests),
                    size_bytes=image.size,
                    first_seen_s=known[image.id].first_seen_s,
                    last_used_s=known[image.id].last_used_s,
                    # Some versions of containerd keep the label of a pin but do not report it.
                    is_pinned=image.pinned or not self._pinned_by_us.isdisjoint(image.repo_tags),
                    users=tuple(sorted(users.get(image.id, ()))),
                    named_at={name: created[name] for name in image.repo_tags if name in created},
                )
                for image in images
            ),
            self.disk,
            parts.history.now_s(),
        )

    async def _users(self, images: Sequence[pb.Image]) -> dict[str, set[str]]:
        """Who uses which image: containers in any state, sandboxes, and pods that wait for it."""
        by_name = {name: image.id for image in images for name in (*image.repo_tags, *image.repo_digests, image.id)}
        users: dict[str, set[str]] = {}

        def note(who: str, *names: str) -> None:
            for name in names:
                if image_id := by_name.get(name) or by_name.get(normalised(name)):
                    users.setdefault(image_id, set()).add(who)

        containers = await self._parts.usage.list_containers()
        present = {container.id for container in containers}
        self._mounted = {known: images for known, images in self._mounted.items() if known in present}
        for container in containers:
            labels = container.labels
            who = f"{labels.get(POD_NAMESPACE, '')}/{labels.get(POD_NAME, container.id[:12])}"
            mounted = await self._mounted_images(container.id)
            note(who, container.image_ref, container.image_id, container.image.image, *mounted)
        for wanted in self._wanted:
            note("a pod that is about to start", *wanted.wanted_images())
        note("sandboxes", await self._sandbox_image())
        return users

    async def _mounted_images(self, container_id: str) -> tuple[str, ...]:
        """Images that a container has as volumes (IMG-P09); asked once, for mounts never change."""
        if container_id not in self._mounted:
            try:
                status = await self._parts.usage.container_status(container_id)
            except NotFound:
                return ()
            self._mounted[container_id] = tuple(mount.image.image for mount in status.mounts if mount.image.image)
        return self._mounted[container_id]

    async def _created(self) -> dict[str, float]:
        if self._parts.names is None:
            return {}
        try:
            records = await self._parts.names.image_records()
        except RuntimeCallFailed:
            return {}
        self._pinned_by_us = frozenset(one.name for one in records if one.labels.get(PINNED_BY) == PINNED_BY_US)
        return {record.name: record.created_at_s for record in records}

    async def _measure(self) -> None:
        try:
            mountpoint = await self._parts.runtime.image_filesystem()
            self.disk = await self._parts.files.measure(mountpoint) if mountpoint else Filesystem()
        except (OSError, RuntimeCallFailed) as error:
            log.warning("image_disk_not_measured", error=str(error))
            self.disk = Filesystem()

    async def _sandbox_image(self) -> str:
        """The image that sandboxes are made of: no container names it, and not every runtime pins it (IMG-G05)."""
        try:
            return await self._parts.runtime.sandbox_image()
        except RuntimeCallFailed:
            return ""

    async def _tidy_up(self) -> None:
        """What is of no use any more and nothing else takes away (IMG-G16)."""
        await self._drop_old_leases()
        await self._drop_old_ingests()

    async def _drop_old_ingests(self) -> None:
        """Half-written blobs that had no byte for a day: no pull that runs is that slow."""
        content, oldest_s = self._parts.content, self._clock.wall_s() - OLD_INGEST_S
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
        leases = self._parts.leases
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

    # showing

    def _show(self, look: _Look, plan: CollectPlan) -> None:
        kept = {one.image.id: one.why for one in plan.kept}
        for image in look.images:
            self.images.put(image.id, self._state(image, kept.get(image.id, "")))
        present = {image.id for image in look.images}
        for image_id in set(self.images.items) - present:
            self.images.remove(image_id)

    def _state(self, image: NodeImage, kept_because: str) -> ImageState:
        memory = self._parts.history.images.get(image.id)
        return ImageState(
            id=image.id,
            names=image.names,
            size_bytes=image.size_bytes,
            handler=image.handler,
            is_pinned=image.is_pinned,
            is_pinned_by_kepd=any(name in self._pinned_by_us for name in image.names),
            is_in_use=bool(image.users),
            used_by=image.users,
            first_seen_s=image.first_seen_s,
            last_used_s=image.last_used_s,
            source=memory.source if memory else "",
            kept_because=kept_because,
        )

    def _collected(self, removal: Removal, *, is_removed: bool, error: str = "") -> CollectedImage:
        return CollectedImage(self._state(removal.image, ""), str(removal.reason), is_removed, error)

    def counts(self) -> dict[str, int]:
        states = list(self.images.items.values())
        used = sum(state.is_in_use for state in states)
        return {"used": used, "unused": len(states) - used, "pinned": sum(state.is_pinned for state in states)}
