# SPDX-License-Identifier: Apache-2.0
"""One pull from its slot to the answers, for all who share it.

    start ─► served meanwhile? ─► pull ─► succeeded: everybody is answered, and others who wait for the same image
                                    └───► failed: everybody is answered, and its registry may be left alone
    stop: nobody wants it any more

Never: decides which pull is next.
"""

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from agent.images.ports import SizeProbe
from agent.images.queue.errors import AttemptFailure
from agent.images.queue.flights import FlightKey, SharedPull
from agent.images.queue.queue import PullQueue
from agent.images.run.caller_pulls import CallerPulls, FollowedPods
from agent.images.run.collector import ImageCollector
from agent.images.run.pulling.attempt import Attempts, Job, Pulled
from agent.images.run.pulling.holds import PullHolds
from agent.images.run.pulling.intake import PullIntake
from agent.images.run.pulling.outcomes import PullOutcomes
from agent.images.run.pulling.recorded_pull import RecordedPulls
from agent.images.run.pulling.requests import PullRequests
from agent.images.run.pulling.watcher import ProgressWatcher
from agent.images.run.records import AccessRecords
from agent.images.run.sizes import SizeRecord, Sizes
from agent.images.run.state import StateFile
from agent.images.settings import ImageSettings
from agent.model.clock import Clock
from agent.model.images.pull import PullPolicy
from agent.model.runtime.error import RuntimeCallFailed

log = structlog.get_logger(plane="images")


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


class StartedPulls:
    """Those that have a slot. `changed` is called when one ends."""

    def __init__(
        self,
        parts: Parts,
        queue: PullQueue,
        callers: CallerPulls,
        holds: PullHolds,
        *,
        settings: Callable[[], ImageSettings],
        sizes: Sizes,
        changed: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._parts = parts
        self._requests = parts.requests
        self._queue = queue
        self._callers = callers
        self._holds = holds
        self._settings = settings
        self._sizes = sizes
        self._changed = changed
        self._clock = clock
        self._group: asyncio.TaskGroup | None = None
        self.jobs: dict[int, Job] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self._stopping: set[int] = set()

    def enter(self, group: asyncio.TaskGroup | None) -> None:
        """None: nothing is begun any more."""
        self._group = group

    def start(self, group: asyncio.TaskGroup, flight: SharedPull, now_s: float) -> None:
        """It has a slot."""
        asks = self._requests.asks(flight.members)
        ready = asks[0].ready
        if asks[0].go is not None:
            self._parts.outcomes.started(flight, now_s)
            self._callers.start(flight, asks)
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
            present_id=ready.present_id,
            is_content_only=lambda: self._is_content_only(flight.number),
        )
        self.jobs[flight.number] = job
        self._parts.watcher.follow(flight.number, target.reference if target else ready.reference)
        self._parts.outcomes.started(flight, now_s)
        task = group.create_task(self._fly(flight.number, job), name=f"pull:{ready.reference}")
        self.tasks[flight.number] = task

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
            result = await self._parts.pulls.pull(job, self._settings)
            flight = self._queue.end(number) or flight
            if result is not None:
                if result.image_id:
                    self._serve_others(flight, result)
                outcomes.succeeded(flight, job, result, self._sizes.memory)
            else:
                failure = await outcomes.failed(flight, job)
                self._holds.begin(flight, failure, self._settings(), self._group)
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
            self.jobs.pop(number, None)
            self.tasks.pop(number, None)
            self._stopping.discard(number)
            self._parts.watcher.leave(number)
            self._changed()

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
            for ask in self._callers.drop_present(is_proven, result.image_id):
                self._parts.outcomes.present(ask, result.image_id, result.size_bytes)

    def refuse(self, group: asyncio.TaskGroup, flight: SharedPull) -> None:
        self._queue.end(flight.number)
        asks = self._requests.asks(flight.members)
        job = Job(flight.number, asks[0].ready.reference, asks[0].ready.reference.cri_image, flight.key.handler, ())
        job.failures.append(AttemptFailure("pull QPS exceeded"))
        group.create_task(self._parts.outcomes.failed(flight, job), name=f"pull-refused:{flight.key.reference}")

    def stop(self, number: int) -> None:
        """End an abandoned pull; its slot is free already."""
        task, job = self.tasks.get(number), self.jobs.get(number)
        if task is None or job is None or self._group is None or number in self._stopping:
            return
        self._stopping.add(number)
        self._group.create_task(self._end_task(job, task), name=f"pull-stop:{job.reference}")

    async def _end_task(self, job: Job, task: asyncio.Task[None]) -> None:
        await self._parts.attempts.keep_partial(job)
        task.cancel()


def _cause(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return type(error).__name__
