# SPDX-License-Identifier: Apache-2.0
"""Fetches images ahead of need and keeps pins, as prefetch/plan.py says.

Its tasks live in the group that `run` opens. Never: takes a pin away that it did not set.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import msgspec
import structlog

from agent.images.ports import ContentStore, Files, ImageNames, ImageRuntime, PodSource, RolloutSource
from agent.images.prefetch.plan import (
    DAY_S,
    Fetch,
    PodImage,
    PrefetchPlan,
    Shelf,
    Skip,
    SkipKind,
    normalised,
    plan_prefetch,
)
from agent.images.run.caller_pulls import FollowedPods
from agent.images.run.collector import PINNED_BY, PINNED_BY_US, ImageCollector
from agent.images.run.puller import Puller
from agent.images.run.state import StateFile
from agent.images.settings import ImageSettings
from agent.images.view.texts import ImageEvent, Sentence, refused, skipped, thrashing
from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.images.pull import NO_POD, ListedImage, PullPolicy, PullRequest, PullResult
from agent.model.images.state import PrefetchedImage
from agent.model.runtime.error import NotFound, RuntimeCallFailed

log = structlog.get_logger(plane="images")

RUNTIME_PIN = "io.cri-containerd.pinned"
RUNTIME_PIN_VALUE = "pinned"
FILE, KIND = "prefetch.json", "PrefetchHistory"
LOOK_AGAIN_S = 60.0
FIRST_RETRY_S, LONGEST_RETRY_S = 30.0, 1800.0
# A disk about its threshold would tell the same again and again.
TOLD_FOR_S = 3600.0
# What the settings leave out for whole pods is no news.
QUIET_SKIPS = frozenset({SkipKind.POD})


class PrefetchState(msgspec.Struct, frozen=True):
    """Fetches of the last day, pins by time, and when content was fetched, by normalised name."""

    fetched_at: dict[str, tuple[float, ...]] = {}
    held_until: dict[str, float] = {}
    contents: dict[str, float] = {}


class PrefetcherParts(msgspec.Struct, frozen=True, kw_only=True):
    runtime: ImageRuntime
    pulls: Puller
    disk: ImageCollector
    files: Files
    names: ImageNames | None = None
    pods: Callable[[], PodSource | None] = lambda: None
    rollouts: Callable[[], RolloutSource | None] = lambda: None
    follows_pods: bool = False
    """Also while nothing is fetched for them: the plane has to learn which pods are gone."""
    events: Callable[[ImageEvent], None] | None = None
    contents: ContentStore | None = None
    followed: FollowedPods = msgspec.field(default_factory=FollowedPods)


class Prefetcher:
    def __init__(self, parts: PrefetcherParts, settings: ImageSettings, *, clock: Clock) -> None:
        self._parts = parts
        self._settings = settings
        self._clock = clock
        self._state_file: StateFile[PrefetchState] = StateFile(parts.files, FILE, KIND, PrefetchState)
        self._asked: tuple[ListedImage, ...] = ()
        self._source: PodSource | None = None
        self._pods: Sequence[PodImage] = ()
        self._rollouts: Sequence[PodImage] = ()
        self._applied = asyncio.Event()
        self._wake = asyncio.Event()
        self._fetching: dict[str, tuple[Fetch, asyncio.Task[None]]] = {}
        self._retry_at: dict[str, tuple[float, float]] = {}
        self._fetched_at: dict[str, tuple[float, ...]] = {}
        self._held_until: dict[str, float] = {}
        self._contents: dict[str, float] = {}
        self._told_s: dict[tuple[str, SkipKind], float] = {}
        self.plan = PrefetchPlan()

    def apply(self, settings: ImageSettings) -> None:
        self._settings = settings
        self._applied.set()
        self._wake.set()

    async def prefetch(self, images: Sequence[ListedImage]) -> Sequence[PrefetchedImage]:
        """A list by hand in place of the last one. Answers what becomes of each. Raises RuntimeCallFailed."""
        self._asked = tuple(images)
        plan = await self._make_plan()
        self._wake.set()
        fetches = {normalised(fetch.image) for fetch in plan.fetches}
        skips = {skip.image: skip.why for skip in plan.skips}
        return [self._answer(one.image, fetches, skips) for one in self._asked]

    def _answer(self, image: str, fetches: Collection[str], skips: Mapping[str, str]) -> PrefetchedImage:
        name = normalised(image)
        why = skips.get(name or image)
        if why is not None:
            return PrefetchedImage(image, "skipped", why)
        due_s, _ = self._retry_at.get(name, (0.0, 0.0))
        pause_s = due_s - self._clock.now_s()
        if name in fetches and pause_s > 0:
            return PrefetchedImage(image, "queued", f"its last pull failed; the next begins in {round(pause_s)}s")
        return PrefetchedImage(image, "queued" if name in fetches else "present")

    async def run(self, report: Report) -> None:
        state = await self._state_file.load()
        if state is not None:
            self._fetched_at, self._held_until = dict(state.fetched_at), dict(state.held_until)
            self._contents = dict(state.contents)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_pods(), name="prefetch-pods")
            group.create_task(self._follow_rollouts(), name="prefetch-rollouts")
            while True:
                try:
                    await self._reconcile(group)
                    report.ready(self._summary())
                except RuntimeCallFailed as error:
                    report.degraded(f"the container runtime does not answer: {error.details}")
                alarm = group.create_task(self._ring(), name="prefetch-alarm")
                await self._wake.wait()
                self._wake.clear()
                alarm.cancel()

    def _summary(self) -> str:
        """An API server that is away, or denies us its pods, is no fault of this node, and worth knowing."""
        trouble = self._source.trouble if self._source is not None else ""
        return f"{len(self._fetching)} fetching" + (f"; pods are not followed: {trouble}" if trouble else "")

    async def _ring(self) -> None:
        await self._clock.sleep(LOOK_AGAIN_S)
        self._wake.set()

    async def _follow_pods(self) -> None:
        while not (self._parts.follows_pods or self._settings.prefetch.is_for_pods):
            await self._next_settings()
        self._source = source = self._parts.pods()
        if source is None:
            return
        async for pods in source.snapshots():
            self._pods = tuple(one for one in pods if not one.is_started)
            self._parts.followed.replace((one.pod.uid, one.priority, normalised(one.image), one.policy) for one in pods)
            self._wake.set()

    async def _follow_rollouts(self) -> None:
        while not self._settings.prefetch.is_for_rollouts:
            await self._next_settings()
        source = self._parts.rollouts()
        if source is not None:
            await source.follow(self._take_rollouts)

    def _take_rollouts(self, images: Sequence[PodImage]) -> None:
        self._rollouts = tuple(images)
        self._wake.set()

    async def _next_settings(self) -> None:
        self._applied.clear()
        await self._applied.wait()

    async def _reconcile(self, group: asyncio.TaskGroup) -> None:
        self._forget_old(self._clock.wall_s())
        self.plan = await self._make_plan()
        self._tell_skips()
        await self._pin()
        await self._drop()
        for fetch in self.plan.fetches:
            name = normalised(fetch.image)
            due_s, _ = self._retry_at.get(name, (0.0, 0.0))
            if name not in self._fetching and self._clock.now_s() >= due_s:
                task = group.create_task(self._fetch(fetch, name), name=f"prefetch:{name}")
                self._fetching[name] = (fetch, task)
                task.add_done_callback(partial(self._over, name))
        self._give_up(frozenset(map(normalised, self._wanted())))

    async def _make_plan(self) -> PrefetchPlan:
        shelf = await self._shelf(self._wanted())
        listed = (*self._settings.listed, *self._asked)
        pods = (*self._pods, *self._rollouts)
        return plan_prefetch(listed, pods, shelf, self._settings.prefetch, self._clock.wall_s())

    def _wanted(self) -> list[str]:
        listed = (*self._settings.listed, *self._asked)
        return [*(one.image for one in listed), *(one.image for one in (*self._pods, *self._rollouts))]

    def _give_up(self, wanted: frozenset[str]) -> None:
        """What only pods wanted that are gone, or have it another way. A list is fetched to its end."""
        for name, (fetch, task) in self._fetching.items():
            if fetch.pod.uid and name not in wanted:
                task.cancel()

    def _over(self, name: str, _task: asyncio.Task[None]) -> None:
        del self._fetching[name]
        self._wake.set()

    async def _shelf(self, wanted: Sequence[str]) -> Shelf:
        our_pins: frozenset[str] = frozenset()
        if self._parts.names is not None:
            records = await self._parts.names.image_records()
            our_pins = frozenset(one.name for one in records if one.labels.get(PINNED_BY) == PINNED_BY_US)
        return Shelf(
            names=await self._present_names(),
            our_pins=our_pins,
            held_until=self._held_until,
            disk=self._parts.disk.disk,
            fetched_at=self._fetched_at,
            contents=self._contents,
            obstacles=await self._obstacles(),
            sizes={normalised(image): size for image in wanted if (size := self._parts.pulls.size_guess(image))},
        )

    async def _obstacles(self) -> dict[str, str]:
        contents = self._parts.contents
        listed = (*self._settings.listed, *self._asked)
        names = {normalised(one.image) for one in listed if one.is_content_only} - {""}
        if contents is None:
            return dict.fromkeys(names, "this runtime keeps no content without its image")
        return {name: why for name in names if (why := await contents.obstacle(name))}

    async def _present_names(self) -> frozenset[str]:
        images = await self._parts.runtime.list_images()
        return frozenset(name for image in images for name in (*image.repo_tags, *image.repo_digests))

    async def _fetch(self, fetch: Fetch, name: str) -> None:
        request = PullRequest(
            image=fetch.image,
            policy=PullPolicy.IF_NOT_PRESENT,
            handler=fetch.handler,
            priority=fetch.priority,
            is_prefetch=True,
            is_content_only=fetch.is_content_only,
        )
        outcome = await self._parts.pulls.request(request)
        now_s = self._clock.wall_s()
        if outcome.is_ok or outcome.result is PullResult.PULLED:
            self._retry_at.pop(name, None)
            self._note(fetch, name, now_s)
            await self._save()
        else:
            _, pause_s = self._retry_at.get(name, (0.0, FIRST_RETRY_S / 2))
            pause_s = min(2 * pause_s, LONGEST_RETRY_S)
            self._retry_at[name] = (self._clock.now_s() + pause_s, pause_s)
            log.warning("image_prefetch_failed", image=name, error=outcome.message, retry_in_s=pause_s)

    def _note(self, fetch: Fetch, name: str, now_s: float) -> None:
        if fetch.is_content_only:
            # Without an image it is content that is held; with one, it was unpacked meanwhile.
            self._contents[name] = now_s
            return
        self._fetched_at[name] = (*self._fetched_at.get(name, ()), now_s)
        if fetch.hold_s > 0:
            self._held_until[name] = now_s + fetch.hold_s

    async def _save(self) -> None:
        await self._state_file.save(PrefetchState(dict(self._fetched_at), dict(self._held_until), dict(self._contents)))

    async def _drop(self) -> None:
        contents = self._parts.contents
        if contents is None or not self.plan.drops:
            return
        for name in self.plan.drops:
            await contents.drop(name)
            self._contents.pop(name, None)
        await self._save()

    async def _pin(self) -> None:
        names = self._parts.names
        if names is None:
            return
        for name in self.plan.pins:
            await _label(names, name, {RUNTIME_PIN: RUNTIME_PIN_VALUE, PINNED_BY: PINNED_BY_US})
        for name in self.plan.unpins:
            await _label(names, name, {RUNTIME_PIN: "", PINNED_BY: ""})

    def _tell_skips(self) -> None:
        """Why something is not fetched: to the feed of pulls, and once for as long as it holds as an event."""
        self._parts.pulls.show_skips(self.plan.skips)
        now_s = self._clock.now_s()
        self._told_s = {key: told_s for key, told_s in self._told_s.items() if now_s - told_s < TOLD_FOR_S}
        for skip in self.plan.skips:
            key = (skip.image, skip.kind)
            is_news = key not in self._told_s and skip.kind not in QUIET_SKIPS
            self._told_s[key] = now_s
            if is_news:
                log.warning("image_prefetch_skipped", image=skip.image, why=skip.why)
                if self._parts.events is not None:
                    self._parts.events(ImageEvent(NO_POD, "", self._sentence(skip)))

    def _sentence(self, skip: Skip) -> Sentence:
        if skip.kind is SkipKind.THRASHING:
            return thrashing(skip.image, len(self._fetched_at.get(skip.image, ())))
        return (refused if skip.kind is SkipKind.REFUSED else skipped)(skip.image, skip.why)

    def _forget_old(self, now_s: float) -> None:
        recent = {
            name: tuple(at_s for at_s in times if now_s - at_s < DAY_S) for name, times in self._fetched_at.items()
        }
        self._fetched_at = {name: times for name, times in recent.items() if times}
        self._held_until = {name: until_s for name, until_s in self._held_until.items() if until_s > now_s}


async def _label(names: ImageNames, name: str, labels: dict[str, str]) -> None:
    try:
        await names.label_image(name, labels)
    except NotFound:
        log.debug("image_pin_gone", image=name)
