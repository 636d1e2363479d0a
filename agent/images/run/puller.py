# SPDX-License-Identifier: Apache-2.0
"""The images plane's pulls: takes requests, lets the queue say what starts, and tells everybody how it goes.

    request ─► intake ─► queue ─► plan ─► one task per flight ─► outcome for every member
                 │ present, refused, paused                └─ watcher: progress, deadlines

Its tasks live in the group that `run` opens. Never: decides which pull is next (plan.py).
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence

import structlog

from agent.images.prefetch.plan import Skip
from agent.images.queue.flights import FlightKey
from agent.images.queue.plan import NODE, PullPlan, WaitReason
from agent.images.queue.queue import PullQueue
from agent.images.run.caller_pulls import CallerPulls
from agent.images.run.credentials import Lookup
from agent.images.run.metrics import Gauges, gauges_of
from agent.images.run.pulling.flight import Parts, StartedPulls
from agent.images.run.pulling.holds import PullHolds
from agent.images.run.pulling.intake import NeededPull, Settled
from agent.images.run.pulling.pull_display import PullDisplay
from agent.images.run.pulling.requests import PullAsk, cancelled
from agent.images.run.sizes import Sizes
from agent.images.settings import ImageSettings, with_limit
from agent.images.view.texts import pulling
from agent.images.view.view import limit_states, pull_id
from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.feed import Feed
from agent.model.images.pull import CallerPull, PullGivenUp, PullOutcome, PullRequest, PullsAway
from agent.model.images.reference import ReferenceInvalid, parse_reference
from agent.model.images.state import LimitState, PullState
from agent.model.runtime.proxy_report import HoldReport

log = structlog.get_logger(plane="images")

TICK_S = 1.0
MANY_FLIGHTS, BURST_S = 50, 0.02
GONE_PODS_KEPT_S = 3600.0
SHUTTING_DOWN = "kepd is shutting down"
SLOT_REASONS = frozenset({WaitReason.SLOT, WaitReason.RESERVE, WaitReason.POD})


class Puller:
    def __init__(self, parts: Parts, settings: ImageSettings, *, clock: Clock) -> None:
        self._parts = parts
        self._requests = parts.requests
        self._clock = clock
        self._settings = settings
        self._queue = PullQueue(settings.queue)
        self.caller_pulls = CallerPulls(self._queue, parts.requests, parts.watcher, parts.pods, clock)
        self._display = PullDisplay(self._queue, parts.requests, parts.watcher, self.caller_pulls)
        self._group: asyncio.TaskGroup | None = None
        self._wake = asyncio.Event()
        self._sizes = Sizes(
            self._queue,
            parts.requests,
            parts.watcher,
            parts.sizes,
            parts.probe,
            settings=lambda: self._settings,
            learned=self._wake.set,
            clock=clock,
        )
        self._loaded = asyncio.Event()
        self._holds = PullHolds(self._queue, parts.collector, self._wake.set, clock)
        self._flights = StartedPulls(
            parts,
            self._queue,
            self.caller_pulls,
            self._holds,
            settings=lambda: self._settings,
            sizes=self._sizes,
            changed=self._wake.set,
            clock=clock,
        )
        self._gone: dict[str, float] = {}
        self._plan = PullPlan()
        self._alarm_s: float | None = None
        self._is_ending = False
        self._problem = ""

    # what others use

    @property
    def pulls(self) -> Feed[PullState]:
        """Pulls that wait, run, or ended a moment ago."""
        return self._requests.pulls

    @property
    def plan(self) -> PullPlan:
        return self._plan

    @property
    def settings(self) -> ImageSettings:
        return self._settings

    def limits(self) -> Sequence[LimitState]:
        return limit_states(list(self._queue.flights.values()), self._queue.rules)

    def set_limit(self, registry: str, limit: int) -> None:
        """Another limit, of a registry or (empty) of the node, until the next reload."""
        self.apply(with_limit(self._settings, limit, registry))
        log.info("pull_limit_set", scope=registry or "node", limit=limit)

    def look(self) -> None:
        """Somebody is about to read all pulls: their places are brought up to date."""
        self._display.show_places(self._plan, self._flights.jobs, is_look=True)

    def holds(self) -> Sequence[HoldReport]:
        return self._holds.reports()

    def release_hold(self, hold_id: str) -> bool:
        """Let pulls start there again. False: nothing is held so."""
        return self._holds.release(NODE if hold_id == "node" else hold_id)

    def apply(self, settings: ImageSettings) -> None:
        self._settings = settings
        self._parts.intake.apply(settings)
        self._queue.set_rules(settings.queue, self._clock.now_s())
        self._wake.set()

    def note_runtime(self, problem: str) -> None:
        """Why it does not answer; empty: it does."""
        if problem != self._problem:
            self._problem = problem
            self._wake.set()

    def tune(self, limit: int) -> None:
        """Another limit of the node, found by measuring."""
        self.apply(with_limit(self._settings, limit, is_tuned=True))

    @property
    def is_short_of_slots(self) -> bool:
        return any(waiting.why.reason in SLOT_REASONS for waiting in self._plan.waiting)

    @property
    def rate_bytes_s(self) -> float:
        return self._display.rate_bytes_s(self._flights.jobs)

    async def request(self, request: PullRequest) -> PullOutcome:
        """Have an image; cancelling withdraws the request."""
        await self._loaded.wait()
        if self._is_ending:
            return cancelled(request, SHUTTING_DOWN, "Unavailable")
        if request.pod.uid in self._gone:
            return cancelled(request, "its pod is gone")
        examined = await self._parts.intake.examine(request)
        if isinstance(examined, Settled):
            self._requests.tell(request, examined.sentences)
            self._parts.outcomes.settled(request, examined.outcome)
            return examined.outcome
        size_bytes = await self._sizes.known(examined)
        ask = self._requests.open(request, examined)
        self._requests.tell(request, (*examined.sentences, pulling(request.image)))
        self._queue.arrive(ask.member, examined.key, examined.reference.asked_host, size_bytes)
        self._wake.set()
        try:
            return await ask.future
        except asyncio.CancelledError:
            self._leave(ask)
            self._requests.forget(ask)
            raise

    async def run_caller_pull(self, request: PullRequest, fingerprint: str, pull: CallerPull) -> None:
        """A slot for a pull that the caller makes itself, as the same requests of others may at the same time. Raises
        PullGivenUp if the queue gives the request up, PullsAway where there is no queue for it."""
        if self._group is None:
            raise PullsAway
        if request.pod.uid in self._gone:
            raise PullGivenUp("its pod is gone")
        try:
            reference = parse_reference(request.image)
        except ReferenceInvalid as error:
            raise PullsAway from error  # the runtime has the right words for it
        ready = NeededPull(reference, FlightKey(str(reference), request.handler, f"carried {fingerprint}"), Lookup(()))
        size_bytes = self._sizes.memory.guess(reference.repo, str(reference))
        ask = self.caller_pulls.open(request, ready, size_bytes)
        self._wake.set()
        try:
            await self.caller_pulls.run(ask, pull)
        except PullGivenUp:
            if self._group is None:
                raise PullsAway from None
            raise
        finally:
            self._wake.set()

    def order(self, request: PullRequest) -> None:
        if self._group is not None:
            self._group.create_task(self.request(request), name=f"image-order:{request.image}")

    def cancel(self, some_id: str) -> bool:
        """Cancel a pull with all who wait for it, or one of those. False: there is no such thing."""
        flight = next((one for one in self._queue.flights.values() if pull_id(one) == some_id), None)
        asks = self._requests.asks(flight.members) if flight else [self._requests.ask(some_id)]
        found = [ask for ask in asks if ask is not None]
        for ask in found:
            self._leave(ask)
            self._requests.cancel(ask, "the pull was cancelled")
        return bool(found)

    def pod_gone(self, uid: str) -> None:
        """A pod is deleted or about to be: nothing more is pulled for it."""
        if not self._queue.rules.is_cancelled_with_pod:
            return
        now_s = self._clock.now_s()
        self._gone = {pod: since_s for pod, since_s in self._gone.items() if now_s - since_s < GONE_PODS_KEPT_S}
        self._gone[uid] = now_s
        for ask in self._requests.all_asks(uid):
            self._leave(ask)
            self._requests.cancel(ask, "its pod is gone")

    def retry(self, namespace: str = "", pod: str = "") -> int:
        """Forget the pauses of a pod, or of all; answers how many there were."""
        return self._parts.outcomes.retry(namespace, pod)

    async def may_use(self, request: PullRequest, image_id: str) -> bool:
        """Whether a pod may use what is there without asking the registry."""
        await self._loaded.wait()
        return (await self._parts.intake.may_use(request, parse_reference(request.image), image_id))[0]

    def wanted_images(self) -> Collection[str]:
        return {flight.key.reference for flight in self._queue.flights.values()}

    def show_skips(self, skips: Iterable[Skip]) -> None:
        self._requests.show_skips(skips)

    def size_guess(self, image: str) -> int | None:
        return self._sizes.guess(image)

    def gauges(self) -> Gauges:
        flights = list(self._queue.flights.values())
        return gauges_of(flights, self.limits(), len(self._parts.intake.backoff), self._clock.now_s())

    # the loop

    async def run(self, report: Report) -> None:
        """Until cancelled; then rejects waiting pulls, and drains running ones for `images.drain`."""
        self._is_ending = False
        await self._load()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._parts.watcher.run(), name="images-progress")
                group.create_task(self._sizes.keep(), name="images-sizes")
                await self._follow_plans(group, report)
        finally:
            self._alarm_s = None
            self._abandon()
            await asyncio.shield(self._sizes.save())

    async def _follow_plans(self, group: asyncio.TaskGroup, report: Report) -> None:
        self._group = group
        self._flights.enter(group)
        try:
            while True:
                now_s = self._clock.now_s()
                self._dispatch(group, now_s)
                if self._problem:
                    report.degraded(f"{self._problem}; {self._summary()}")
                else:
                    report.ready(self._summary())
                self._set_alarm(group)
                await self._display.show(self._plan, self._flights.jobs, self._settings, now_s)
                await self._wake.wait()
                if len(self._queue.flights) > MANY_FLIGHTS:
                    # A plan looks at all of them, so what comes in a burst is planned together.
                    await asyncio.sleep(BURST_S)
                self._wake.clear()
        except asyncio.CancelledError:
            await self._drain()
            raise
        finally:
            self._group = None
            self._flights.enter(None)

    async def _drain(self) -> None:
        """Start nothing more, and let what runs come to its end; whoever stops the daemon twice does not wait."""
        self._is_ending = True
        for flight in list(self._queue.flights.values()):
            if not flight.is_running:
                self._dismiss(self._requests.asks(flight.members))
        running = list(self._flights.tasks.values())
        if not running or self._settings.keys.drain <= 0:
            return
        log.info("image_pulls_drained", running=len(running), allowed_s=self._settings.keys.drain)
        async with asyncio.TaskGroup() as group:
            patience = group.create_task(self._clock.sleep(self._settings.keys.drain), name="images-drain")
            while not patience.done() and (left := [task for task in running if not task.done()]):
                await asyncio.wait([*left, patience], return_when=asyncio.FIRST_COMPLETED)
            patience.cancel()

    def _dismiss(self, asks: Iterable[PullAsk]) -> None:
        for ask in asks:
            self._queue.leave(ask.id, self._clock.now_s())
            self._requests.cancel(ask, SHUTTING_DOWN, "Unavailable")

    async def _load(self) -> None:
        await self._parts.records.load()
        await self._sizes.load()
        self._loaded.set()

    def _summary(self) -> str:
        running = sum(flight.is_running for flight in self._queue.flights.values())
        return f"{running} pulling, {len(self._queue.flights) - running} waiting"

    def _dispatch(self, group: asyncio.TaskGroup, now_s: float) -> None:
        self._sizes.note_running(self._flights.jobs)
        waiting = {number: flight for number, flight in self._queue.flights.items() if not flight.is_running}
        plan = self._queue.dispatch(now_s)
        if not plan.is_empty:
            log.info(
                "image_pulls_planned", starts=len(plan.starts), cancels=len(plan.cancels), waiting=len(plan.waiting)
            )
        for number in plan.cancels:
            self._flights.stop(number)
        for number in plan.refusals:
            self._flights.refuse(group, waiting[number])
        for number in plan.starts:
            self._flights.start(group, self._queue.flights[number], now_s)
        self._plan = plan
        self._sizes.ask_for(plan, group)

    def _leave(self, ask: PullAsk) -> None:
        flight = self._queue.home(ask.id)
        progress = self._parts.watcher.progress(flight.number) if flight else None
        stopped = self._queue.leave(ask.id, self._clock.now_s(), progress.share if progress else 0.0)
        if stopped is not None:
            self._flights.stop(stopped.number)
        self._wake.set()

    def _abandon(self) -> None:
        self._dismiss(self._requests.all_asks())
        for number in list(self._queue.flights):
            self._queue.end(number)

    # waking

    def _set_alarm(self, group: asyncio.TaskGroup) -> None:
        """Wake up when time alone changes something, and every second while there is something to show."""
        now_s = self._clock.now_s()
        times = [self._plan.wake_at_s] if self._plan.wake_at_s is not None else []
        times += [now_s + TICK_S] if self._queue.flights else []
        if not times:
            return
        due_s = min(times)
        if self._alarm_s is None or due_s < self._alarm_s or self._alarm_s <= now_s:
            self._alarm_s = due_s
            group.create_task(self._ring(due_s - now_s), name="images-alarm")

    async def _ring(self, in_s: float) -> None:
        await self._clock.sleep(in_s)
        self._wake.set()
