# SPDX-License-Identifier: Apache-2.0
"""Removes images as collect/plan.py plans it, and knows what images there are and who uses them.

One image at a time, with the disk measured again after each. Its tasks live in the group of `run`.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence

import msgspec
import structlog
from msgspec.structs import replace

from agent.images.collect.disks import ImageDisk, Need, lies_on
from agent.images.collect.plan import (
    CollectPlan,
    ImageRemoval,
    NodeImage,
    RemovalReason,
    no_room_text,
    plan_collection,
    removals_for_space,
    room_for,
)
from agent.images.ports import Content, Files, ImageNames, ImageRuntime, Leases, Usage, WantedImages
from agent.images.prefetch.plan import normalised
from agent.images.run.image_disks import ImageDisks, Leftovers
from agent.images.run.metrics import ImageMetrics
from agent.images.run.records import AccessRecords
from agent.images.run.state import ImageHistory
from agent.images.settings import ImageSettings
from agent.images.view.texts import ImageEvent, Sentence
from agent.images.view.view import images_on_disks
from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.feed import Feed
from agent.model.images.pull import NO_POD
from agent.model.images.state import CollectedImage, CollectionState, ImageState
from agent.model.images.store import Filesystem
from agent.model.images.text import quoted
from agent.model.nodes.file_system import ImagesOnDisk
from agent.model.runtime.error import NotFound, RuntimeCallFailed
from agent.wire.cri import runtime_v1_pb2 as pb

log = structlog.get_logger(plane="images")

PINNED_BY = "kepd.dev/pinned-by"
PINNED_BY_US = "kepd"
POD_NAME, POD_NAMESPACE = "io.kubernetes.pod.name", "io.kubernetes.pod.namespace"
RETRY_S = 5.0


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
    events: Callable[[ImageEvent], None] | None = None


class _Look(msgspec.Struct, frozen=True):
    images: tuple[NodeImage, ...]
    disks: tuple[ImageDisk, ...]
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
        self._failed: frozenset[str] = frozenset()
        self._last: tuple[_Look, CollectPlan] | None = None
        self._disks = ImageDisks(parts.runtime, parts.files, parts.content)
        self._leftovers = Leftovers(parts.content, parts.leases, clock)
        self.images: Feed[ImageState] = Feed()
        self.collected_at_s = 0.0

    @property
    def disk(self) -> Filesystem:
        """The first file system of images."""
        return self._disks.first

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
                    if self._failed:
                        report.degraded("; ".join(sorted(self._failed)))
                    else:
                        report.ready(f"{len(self.images.items)} images, {state.usage_percent}% of the disk used")
                except RuntimeCallFailed as error:
                    report.degraded(f"images cannot be inspected: {error.details}")
                    pause_s = RETRY_S
                await self._parts.history.save()
                await self._clock.sleep(pause_s)
        finally:
            await asyncio.shield(self._parts.history.save(is_last=True))

    async def collect(
        self, *, dry_run: bool = False, is_forced: bool = True, only: Collection[int] = ()
    ) -> CollectionState:
        """One run; `is_forced`: all that nothing protects, of some file systems `only`, by their devices. Raises
        RuntimeCallFailed if the node cannot be seen."""
        async with self._lock:
            look = await self._observe()
            plan = self._plan(look, is_forced=is_forced, only=only)
            self._show(look, plan)
            if dry_run:
                listed = [self._collected(removal, is_removed=False) for removal in plan.removals]
                return CollectionState(tuple(listed), plan.expected_bytes, plan.used_percent)
            return await self._carry_out(look, plan, is_forced=is_forced, only=only)

    async def make_room(self, image: str, size_bytes: int | None) -> str:
        """Remove what may go until there is room for an image of that compressed size. Answers why there is none, or
        nothing where there is. What may go is what the mode lets go."""
        async with self._lock:
            try:
                look = await self._observe()
                going = self._plan(look, is_forced=True)
                for removal in removals_for_space(going, self._settings.collect, look.now_s):
                    short = self._short_for(size_bytes)
                    if short is None or not short.space.is_measured:
                        break
                    if lies_on(removal.image.devices, short.device, going.needs):
                        await self._remove(removal, RemovalReason.SPACE)
            except RuntimeCallFailed as error:
                log.warning("image_room_not_made", error=error.details)
                return f"images cannot be inspected: {error.details}"
            short = self._short_for(size_bytes)
            if short is None:
                return ""
            needed_bytes = self._needed_bytes(size_bytes, short)
            why = no_room_text(short.space, needed_bytes, self._settings.collect.mode)
        self._tell(Sentence(True, "FreeDiskSpaceFailed", f"No room for image {quoted(image)}: {why}"))
        return why

    def _short_for(self, size_bytes: int | None) -> ImageDisk | None:
        """The file system that has no room for an image of that size, of those that a pull writes to."""
        first, *others = self._disks.disks
        written = [first, *(one for one in others if "content" in one.roles)]
        return next((one for one in written if one.space.available_bytes <= self._needed_bytes(size_bytes, one)), None)

    def _needed_bytes(self, size_bytes: int | None, disk: ImageDisk) -> int:
        # Where downloads lie may be unknown; then they are taken to lie with the images.
        is_apart = any("content" in one.roles for one in self._disks.disks)
        return room_for(size_bytes, disk.roles) if is_apart else room_for(size_bytes)

    async def on_disks(self) -> tuple[ImagesOnDisk, ...]:
        """What collection does where images lie; while it does, as its plan is. Raises RuntimeCallFailed."""
        if not self._lock.locked():
            await self.refresh()
        if self._last is None:
            return ()
        look, plan = self._last
        return images_on_disks(look.disks, plan, self._plan(look, is_forced=True), self._settings.collect)

    async def refresh(self) -> Sequence[ImageState]:
        """All images as they are now. Raises RuntimeCallFailed."""
        async with self._lock:
            look = await self._observe()
            self._show(look, self._plan(look, is_forced=False))
        return list(self.images.items.values())

    def _plan(
        self, look: _Look, *, is_forced: bool, only: Collection[int] = (), previous: CollectPlan | None = None
    ) -> CollectPlan:
        plan = plan_collection(
            look.images, look.disks, self._settings.collect, look.now_s,
            is_forced=is_forced, only=only, previous=previous,
        )  # fmt: skip
        if not is_forced:
            self._last = (look, plan)
        return plan

    async def _carry_out(
        self, look: _Look, plan: CollectPlan, *, is_forced: bool, only: Collection[int]
    ) -> CollectionState:
        """Remove one image, measure, plan again; until the plan is empty or nothing more works."""
        self._tell_problems(plan.needs)
        done: list[CollectedImage] = []
        before = self._disks.available_bytes
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
            look = replace(look, images=remaining, disks=self._disks.disks)
            plan = self._plan(look, is_forced=is_forced, only=only, previous=plan)
        await self._unname(plan)
        self._judge(plan, self._disks.available_bytes - before)
        self.collected_at_s = self._clock.wall_s()
        if done:
            look = await self._observe()
            self._show(look, self._plan(look, is_forced=False))
        await self._leftovers.remove()
        freed_bytes = max(0, self._disks.available_bytes - before)
        return CollectionState(tuple(done), freed_bytes, self.disk.used_percent)

    def _tell_problems(self, needs: Sequence[Need]) -> None:
        """A file system without writes has one event, one without a size an event at each run."""
        failed = frozenset(one.problem for one in needs if one.is_failed)
        for problem in sorted(failed - self._failed):
            self._tell(Sentence(True, "FilesystemFailed", problem))
        self._failed = failed
        for one in needs:
            if one.problem and not one.is_failed:
                self._tell(Sentence(True, "InvalidDiskCapacity", one.problem))

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

    async def _remove(self, removal: ImageRemoval, reason: RemovalReason) -> CollectedImage:
        image = removal.image
        available = self._disks.available_bytes
        try:
            await self._parts.runtime.remove_image(image.id)
            await self._disks.measure(self._settings.collect.by_path)
        except RuntimeCallFailed as error:
            log.warning("image_not_removed", image=image.shown_name, error=error.details)
            return self._collected(removal, is_removed=False, error=error.details)
        self._parts.metrics.removed(str(reason), self._disks.available_bytes - available)
        log.info("image_removed", image=image.shown_name, reason=str(reason), idle_s=round(removal.age_s))
        return self._collected(removal, is_removed=True)

    def _judge(self, plan: CollectPlan, freed_bytes: int) -> None:
        """Tell when a run could not free what it should."""
        short = [one for one in plan.needs if one.is_some]
        if not short:
            self._failures = 0
            return
        self._failures += 1
        for need in short:
            disk = next(one for one in self._disks.disks if one.device == need.device)
            where = f" on {disk.path}" if len(plan.needs) > 1 else ""
            figures = f"{disk.space.used_percent}% of {disk.space.capacity_bytes} bytes used{where}"
            text = f"Failed to garbage collect required amount of images: {figures}, freed {max(0, freed_bytes)} bytes"
            self._tell(Sentence(True, "FreeDiskSpaceFailed", text))
            if self._failures >= 2:
                text = f"Image garbage collection failed {self._failures} times: {figures}"
                self._tell(Sentence(True, "ImageGCFailed", text))

    def _tell(self, sentence: Sentence) -> None:
        log.warning("image_collection_warned", reason=sentence.reason, text=sentence.text)
        if self._parts.events is not None:
            self._parts.events(ImageEvent(NO_POD, "", sentence))

    # looking

    async def _observe(self) -> _Look:
        parts = self._parts
        listed_at_s = self._clock.wall_s()
        images = await parts.runtime.list_images()
        users = await self._users(images)
        created = await self._created()
        parts.history.observe(images, users.keys(), created)
        await parts.records.forget_absent({image.id for image in images}, listed_at_s)
        await self._disks.find(self._settings.collect.by_path)
        devices = await self._disks.devices(images)
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
                    devices=devices.get(image.id, ()),
                )
                for image in images
            ),
            self._disks.disks,
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
        """Images that a container has as volumes; asked once, for mounts never change."""
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

    async def _sandbox_image(self) -> str:
        """The image that sandboxes are made of: no container names it, and not every runtime pins it."""
        try:
            return await self._parts.runtime.sandbox_image()
        except RuntimeCallFailed:
            return ""

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

    def _collected(self, removal: ImageRemoval, *, is_removed: bool, error: str = "") -> CollectedImage:
        return CollectedImage(self._state(removal.image, ""), str(removal.reason), is_removed, error)

    def counts(self) -> dict[str, int]:
        states = list(self.images.items.values())
        used = sum(state.is_in_use for state in states)
        return {"used": used, "unused": len(states) - used, "pinned": sum(state.is_pinned for state in states)}
