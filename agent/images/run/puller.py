# SPDX-License-Identifier: Apache-2.0
"""The images plane's pulls: takes requests, lets the queue say what starts, and tells everybody how it goes.

    request ─► intake ─► queue ─► plan ─► one task per flight ─► outcome for every member
                 │ present, refused, paused                └─ watcher: progress, deadlines

Its tasks live in the group that `run` opens. Never: decides which pull is next (plan.py).
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence

import msgspec
import structlog

from agent.images.ports import SizeProbe
from agent.images.prefetch.plan import Skip
from agent.images.queue.errors import AttemptFailure, PullFailure
from agent.images.queue.flights import FlightKey, SharedPull
from agent.images.queue.meanings import MEANINGS, Deed
from agent.images.queue.plan import NODE, PullPlan, WaitReason
from agent.images.queue.queue import PullQueue
from agent.images.run.caller_pulls import CallerPulls, FollowedPods
from agent.images.run.collector import ImageCollector
from agent.images.run.credentials import Lookup
from agent.images.run.metrics import Gauges, gauges_of
from agent.images.run.pulling.attempt import Attempts, Job, Pulled
from agent.images.run.pulling.intake import NeededPull, PullIntake, Settled
from agent.images.run.pulling.outcomes import PullOutcomes
from agent.images.run.pulling.pull_display import PullDisplay
from agent.images.run.pulling.recorded_pull import RecordedPulls
from agent.images.run.pulling.requests import PullAsk, PullRequests, cancelled
from agent.images.run.pulling.watcher import ProgressWatcher
from agent.images.run.records import AccessRecords
from agent.images.run.sizes import SizeRecord, Sizes
from agent.images.run.state import StateFile
from agent.images.settings import ImageSettings, with_limit
from agent.images.view.texts import pulling
from agent.images.view.view import limit_states, pull_id
from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.feed import Feed
from agent.model.images.pull import CallerPull, PullGivenUp, PullOutcome, PullPolicy, PullRequest, PullsAway
from agent.model.images.reference import ReferenceInvalid, parse_reference
from agent.model.images.state import LimitState, PullState
from agent.model.runtime.error import RuntimeCallFailed
from agent.model.runtime.proxy_report import HoldReport

log = structlog.get_logger(plane="images")

TICK_S = 1.0
MANY_FLIGHTS, BURST_S = 50, 0.02
GONE_PODS_KEPT_S = 3600.0
DISK_HOLD_S = 600.0
SHUTTING_DOWN = "kepd is shutting down"
SLOT_REASONS = frozenset({WaitReason.SLOT, WaitReason.RESERVE, WaitReason.POD})


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    intake: PullIntake
    attempts: Attempts
    pulls: RecordedPulls
    watcher: ProgressWatcher
    outcomes: PullOutcomes
    requests: PullRequests
    records: AccessRecords
    sizes: StateFile[dict[str, SizeRecord]]
    collector: ImageCollector
    probe: SizeProbe | None = None
    pods: FollowedPods = msgspec.field(default_factory=FollowedPods)


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
        self._jobs: dict[int, Job] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._stopping: set[int] = set()
        self._gone: dict[str, float] = {}
        self._plan = PullPlan()
        self._alarm_s: float | None = None
        self._is_ending = False
        self._problem = ""
        self._hold_causes: dict[str, tuple[float, str]] = {}

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
        self._display.show_places(self._plan, self._jobs, is_look=True)

    def holds(self) -> Sequence[HoldReport]:
        """Registries that are left alone, and the node while it makes room."""
        now_s, found = self._clock.now_s(), []
        causes, self._hold_causes = self._hold_causes, {}
        for scope, until_s in self._queue.holds.items():
            if until_s > now_s:
                since_s, why = self._hold_causes[scope] = causes.get(scope, (now_s, ""))
                of_node = scope == NODE
                found.append(
                    HoldReport(
                        id="node" if of_node else scope,
                        method="PullImage",
                        reason="disk" if of_node else "registry",
                        held_s=now_s - since_s,
                        ends_in_s=until_s - now_s,
                        why=why,
                    )
                )
        return found

    def release_hold(self, hold_id: str) -> bool:
        """Let pulls start there again. False: nothing is held so."""
        was_held = self._queue.release(NODE if hold_id == "node" else hold_id)
        self._wake.set()
        return was_held

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
        return self._display.rate_bytes_s(self._jobs)

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
        try:
            while True:
                now_s = self._clock.now_s()
                self._dispatch(group, now_s)
                if self._problem:
                    report.degraded(f"{self._problem}; {self._summary()}")
                else:
                    report.ready(self._summary())
                self._set_alarm(group)
                await self._display.show(self._plan, self._jobs, self._settings, now_s)
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

    async def _drain(self) -> None:
        """Start nothing more, and let what runs come to its end; whoever stops the daemon twice does not wait."""
        self._is_ending = True
        for flight in list(self._queue.flights.values()):
            if not flight.is_running:
                self._dismiss(self._requests.asks(flight.members))
        running = list(self._tasks.values())
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
        self._sizes.note_running(self._jobs)
        waiting = {number: flight for number, flight in self._queue.flights.items() if not flight.is_running}
        plan = self._queue.dispatch(now_s)
        if not plan.is_empty:
            log.info(
                "image_pulls_planned", starts=len(plan.starts), cancels=len(plan.cancels), waiting=len(plan.waiting)
            )
        for number in plan.cancels:
            self._stop(number)
        for number in plan.refusals:
            self._refuse(group, waiting[number])
        for number in plan.starts:
            self._start(group, self._queue.flights[number], now_s)
        self._plan = plan
        self._sizes.ask_for(plan, group)

    def _start(self, group: asyncio.TaskGroup, flight: SharedPull, now_s: float) -> None:
        asks = self._requests.asks(flight.members)
        ready = asks[0].ready
        if asks[0].go is not None:
            self._parts.outcomes.started(flight, now_s)
            self.caller_pulls.start(flight, asks)
            return
        target = ready.target
        job = Job(
            flight.number,
            ready.reference,
            ready.reference.cri_image,
            flight.key.handler,
            ready.lookup.credentials,
            target=target.reference if target else None,
            is_target_only=target is not None and target.rule.is_only,
            is_content_only=lambda: self._is_content_only(flight.number),
        )
        self._jobs[flight.number] = job
        self._parts.watcher.follow(flight.number, target.reference if target else ready.reference)
        self._parts.outcomes.started(flight, now_s)
        task = group.create_task(self._fly(flight.number, job), name=f"pull:{ready.reference}")
        self._tasks[flight.number] = task

    def _is_content_only(self, number: int) -> bool:
        flight = self._queue.flights.get(number)
        asks = self._requests.asks(flight.members) if flight is not None else []
        return bool(asks) and all(ask.request.is_content_only for ask in asks)

    async def _fly(self, number: int, job: Job) -> None:
        """One flight, from its slot to the answers."""
        outcomes = self._parts.outcomes
        flight = self._queue.flights[number]
        try:
            if await self._is_served(number, job):
                return
            result = await self._parts.pulls.pull(job, lambda: self._settings)
            flight = self._queue.end(number) or flight
            if result is not None:
                if result.image_id:
                    self._serve_others(flight, result)
                outcomes.succeeded(flight, job, result, self._sizes.memory)
            else:
                failure = await outcomes.failed(flight, job)
                self._hold(flight, failure)
        except asyncio.CancelledError:
            if number not in self._stopping:
                raise
            outcomes.cancelled(flight)
        except Exception as error:  # a defect of ours in one pull must not end the others
            log.error("image_pull_broke", image=str(job.reference), exc_info=error)
            job.failures.append(AttemptFailure(f"internal error: {_cause(error)}"))
            await outcomes.failed(self._queue.end(number) or flight, job)
        finally:
            self._queue.end(number)
            self._jobs.pop(number, None)
            self._tasks.pop(number, None)
            self._stopping.discard(number)
            self._parts.watcher.leave(number)
            self._wake.set()

    async def _is_served(self, number: int, job: Job) -> bool:
        """Just before the start: serve who can be served by what is there by now; True if none is left."""
        if not self._queue.rules.is_rechecked:
            return False
        try:
            found = await self._parts.intake.look(job.reference, job.handler)
        except RuntimeCallFailed:
            return False
        if found is None:
            return False
        flight = self._queue.flights[number]
        for ask in self._requests.asks(flight.members):
            if ask.member.policy is not PullPolicy.IF_NOT_PRESENT or ask.ready.present_id == found.id:
                continue
            may_use, _ = await self._parts.intake.may_use(ask.request, job.reference, found.id)
            if may_use:
                self._queue.leave(ask.id, self._clock.now_s())
                self._parts.outcomes.present(ask, found.id, found.size)
        is_over = number not in self._queue.flights
        if is_over:
            self._parts.outcomes.found(flight, found.id)
        return is_over

    def _serve_others(self, flight: SharedPull, result: Pulled) -> None:
        """Who waits for the same image and may use it by what this pull proved, need not wait any longer."""
        is_node_wide = result.used is None or result.used.is_node_wide

        def is_proven(key: FlightKey) -> bool:
            return key.image == flight.key.image and (is_node_wide or key.fingerprint == flight.key.fingerprint)

        if self._queue.rules.is_rechecked:
            for ask in self.caller_pulls.drop_present(is_proven, result.image_id):
                self._parts.outcomes.present(ask, result.image_id, result.size_bytes)

    def _hold(self, flight: SharedPull, failure: PullFailure) -> None:
        now_s = self._clock.now_s()
        if self._settings.is_like_kubelet:
            return
        if failure.hold_s is not None:
            self._queue.hold(flight.registry, now_s + failure.hold_s)
            self._hold_causes[flight.registry] = (now_s, failure.text)
        if MEANINGS[failure.error_class].deed is Deed.MAKE_ROOM and self._group is not None:
            self._queue.hold(NODE, now_s + DISK_HOLD_S)
            self._hold_causes[NODE] = (now_s, failure.text)
            self._group.create_task(self._make_room(flight), name="images-make-room")

    async def _make_room(self, flight: SharedPull) -> None:
        """Pulls go on when it is done, with room or without: the one that failed waits for its back-off, and others may
        be smaller."""
        try:
            why = await self._parts.collector.make_room(flight.key.reference, flight.size_bytes)
            if why:
                log.warning("image_pull_has_no_room", image=flight.key.reference, why=why)
        finally:
            self._queue.release(NODE)
            self._wake.set()

    def _refuse(self, group: asyncio.TaskGroup, flight: SharedPull) -> None:
        self._queue.end(flight.number)
        asks = self._requests.asks(flight.members)
        job = Job(flight.number, asks[0].ready.reference, asks[0].ready.reference.cri_image, flight.key.handler, ())
        job.failures.append(AttemptFailure("pull QPS exceeded"))
        group.create_task(self._parts.outcomes.failed(flight, job), name=f"pull-refused:{flight.key.reference}")

    def _leave(self, ask: PullAsk) -> None:
        flight = self._queue.home(ask.id)
        progress = self._parts.watcher.progress(flight.number) if flight else None
        stopped = self._queue.leave(ask.id, self._clock.now_s(), progress.share if progress else 0.0)
        if stopped is not None:
            self._stop(stopped.number)
        self._wake.set()

    def _stop(self, number: int) -> None:
        """End an abandoned pull; its slot is free already."""
        task, job = self._tasks.get(number), self._jobs.get(number)
        if task is None or job is None or self._group is None or number in self._stopping:
            return
        self._stopping.add(number)
        self._group.create_task(self._end_task(job, task), name=f"pull-stop:{job.reference}")

    async def _end_task(self, job: Job, task: asyncio.Task[None]) -> None:
        await self._parts.attempts.keep_partial(job)
        task.cancel()

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


def _cause(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return type(error).__name__
