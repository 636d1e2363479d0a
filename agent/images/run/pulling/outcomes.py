# SPDX-License-Identifier: Apache-2.0
"""How pulls end: what is remembered and counted, and the answer to each of those who waited.

The puller calls it from the flight's own task.
"""

from collections.abc import Callable

import structlog

from agent.images.queue.errors import MEANINGS, PullFailure, failure_of
from agent.images.queue.flights import SharedPull
from agent.images.run.metrics import ImageMetrics
from agent.images.run.pulling.attempt import Job, Pulled
from agent.images.run.pulling.intake import PullIntake, own_key, shared_key
from agent.images.run.pulling.requests import PullAsk, PullRequests
from agent.images.run.pulling.watcher import ProgressWatcher
from agent.images.run.sizes import SizeMemory
from agent.images.run.state import ImageHistory
from agent.images.view.texts import failed, fell_back, present, pulled
from agent.images.view.view import pull_phases
from agent.model.clock import Clock
from agent.model.images.pull import (
    CRITICAL_PRIORITY,
    PullClass,
    PullOutcome,
    PullPhase,
    PullPolicy,
    PullRequest,
    PullResult,
)
from agent.model.images.state import LayerStage, PullStage
from agent.model.span import SpanRef

log = structlog.get_logger(plane="images")

MOST_PODS_KNOWN = 2000


class PullOutcomes:
    def __init__(
        self,
        intake: PullIntake,
        requests: PullRequests,
        metrics: ImageMetrics,
        watcher: ProgressWatcher,
        history: ImageHistory,
        *,
        luck: Callable[[], float],
        clock: Clock,
    ) -> None:
        self._intake = intake
        self._requests = requests
        self._metrics = metrics
        self._watcher = watcher
        self._history = history
        self._luck = luck
        self._clock = clock
        self._failed_keys: dict[str, set[str]] = {}

    def settled(self, request: PullRequest, outcome: PullOutcome) -> None:
        is_critical = request.priority >= CRITICAL_PRIORITY
        of_pod = PullClass.CRITICAL if is_critical else PullClass.POD
        pull_class = PullClass.PREFETCH if request.is_prefetch else of_pod
        self._metrics.request_ended(outcome.result, pull_class)

    def started(self, flight: SharedPull, now_s: float) -> None:
        waited_s = now_s - min(member.arrived_s for member in flight.members)
        self._metrics.waited(flight.pull_class, waited_s)
        log.info(
            "image_pull_started", image=flight.key.reference, waited_s=round(waited_s, 3), members=len(flight.members)
        )

    def succeeded(self, flight: SharedPull, job: Job, result: Pulled, sizes: SizeMemory) -> None:
        now_s = self._clock.now_s()
        started_s = flight.started_s if flight.started_s is not None else now_s
        active_s = now_s - started_s
        sizes.learn(job.reference.repo, str(job.reference), result.size_bytes, self._clock.wall_s())
        if result.image_id:
            self._history.pulled(result.image_id, "prefetched" if flight.is_prefetch else "pulled")
        asks = self._requests.asks(flight.members)
        span = next((ask.request.span for ask in asks if ask.request.span is not None), None)
        fetched_bytes = self._count(flight, job, result, active_s, span)
        for position, ask in enumerate(asks):
            was_there = bool(result.image_id) and ask.ready.present_id == result.image_id and not fetched_bytes
            first = PullResult.REVALIDATED if was_there else PullResult.PULLED
            whole_s = now_s - ask.member.arrived_s
            outcome = PullOutcome(
                result=PullResult.JOINED if position else first,
                image=ask.request.image,
                image_id=result.image_id,
                size_bytes=result.size_bytes,
                waited_s=max(0.0, started_s - ask.member.arrived_s),
                active_s=active_s,
                phases=self._phases(flight, ask, started_s),
            )
            self._intake.note_success(ask.request, flight.key, result.image_id)
            self._requests.close(ask, outcome, (pulled(ask.request.image, active_s, whole_s, result.size_bytes),))
        self._requests.show_over(flight, PullStage.DONE, image_id=result.image_id)

    def _phases(self, flight: SharedPull, ask: PullAsk, started_s: float) -> tuple[PullPhase, ...]:
        now_s, progress = self._clock.now_s(), self._watcher.progress(flight.number)
        return pull_phases(ask.member.arrived_s, started_s, now_s, progress, self._clock.wall_s() - now_s)

    def _count(self, flight: SharedPull, job: Job, result: Pulled, active_s: float, span: SpanRef | None) -> int:
        now_s = self._clock.now_s()
        first_s = min((member.arrived_s for member in flight.members), default=now_s)
        self._metrics.pull_succeeded(flight.registry, result.size_bytes, active_s, now_s - first_s, span)
        progress = self._watcher.progress(flight.number)
        fetched_bytes = 0
        if progress is not None and progress.downloaded_s is not None:
            self._metrics.unpacked(max(0.0, now_s - progress.downloaded_s))
        if progress is not None and progress.manifest is not None:
            cached = sum(layer.stage is LayerStage.CACHED for layer in progress.layers)
            # Where no layer was missing, nothing but the manifest was asked for.
            is_new = cached < len(progress.layers)
            fetched_bytes = progress.total_bytes or 0 if is_new else 0
            self._metrics.fetched(flight.registry, fetched_bytes, len(progress.layers) - cached, cached)
        log.info(
            "image_pull_finished",
            image=str(job.reference),
            size_bytes=result.size_bytes,
            duration_s=round(active_s, 3),
            attempts=job.attempts,
            outcome="ok",
        )
        return fetched_bytes

    async def failed(self, flight: SharedPull, job: Job) -> PullFailure:
        """A pull failed: the same error for every member, a pause for each."""
        failure = failure_of(job.reference.written, job.failures)
        self._intake.note_shared_failure(flight.key, failure)
        self._metrics.pull_failed(flight.registry, failure.error_class)
        log.warning(
            "image_pull_failed",
            image=str(job.reference),
            error_class=str(failure.error_class),
            error=failure.text,
            attempts=job.attempts,
        )
        for ask in self._requests.asks(flight.members):
            if not await self._fall_back(ask, failure):
                self._fail(ask, flight, failure)
        self._requests.show_over(flight, PullStage.FAILED, error=failure.message, error_class=failure.error_class)
        return failure

    def _fail(self, ask: PullAsk, flight: SharedPull, failure: PullFailure) -> None:
        retry_in_s = self._intake.note_failure(ask.request, failure, self._luck())
        if retry_in_s is not None and ask.request.pod.uid:
            self._remember(ask, flight)
        now_s = self._clock.now_s()
        started_s = flight.started_s if flight.started_s is not None else now_s
        outcome = PullOutcome(
            result=PullResult.FAILED,
            image=ask.request.image,
            reason=failure.reason,
            message=failure.message,
            error_class=failure.error_class,
            waited_s=max(0.0, started_s - ask.member.arrived_s),
            active_s=now_s - started_s,
            retry_in_s=retry_in_s,
            phases=self._phases(flight, ask, started_s),
        )
        self._requests.close(ask, outcome, failed(ask.request.image, failure.text, failure.reason))

    async def _fall_back(self, ask: PullAsk, failure: PullFailure) -> bool:
        """Use what is there because no registry answers, where that is wanted."""
        request, ready = ask.request, ask.ready
        is_wanted = self._intake.settings.keys.fallback_to_present
        is_possible = bool(ready.present_id) and request.policy is PullPolicy.ALWAYS
        if not (is_wanted and is_possible and MEANINGS[failure.error_class].is_outage):
            return False
        may_use, _ = await self._intake.may_use(request, ready.reference, ready.present_id)
        if may_use:
            outcome = PullOutcome(
                result=PullResult.PRESENT, image=request.image, image_id=ready.present_id, notes=(failure.text,)
            )
            self._requests.close(ask, outcome, (fell_back(request.image, failure.text),))
        return may_use

    def present(self, ask: PullAsk, image_id: str, size_bytes: int) -> None:
        """It turned up while the request waited."""
        outcome = PullOutcome(
            result=PullResult.PRESENT,
            image=ask.request.image,
            image_id=image_id,
            size_bytes=size_bytes,
            waited_s=self._clock.now_s() - ask.member.arrived_s,
        )
        self._requests.close(ask, outcome, (present(ask.request.image),))

    def found(self, flight: SharedPull, image_id: str) -> None:
        """Nothing had to be pulled after all."""
        self._requests.show_over(flight, PullStage.DONE, image_id=image_id)

    def cancelled(self, flight: SharedPull) -> None:
        log.info("image_pull_cancelled", image=flight.key.reference)
        self._requests.show_over(flight, PullStage.CANCELLED)

    def retry(self, namespace: str, pod: str) -> int:
        prefix = f"{namespace}/{pod}" if pod else f"{namespace}/" if namespace else ""
        names = [name for name in self._failed_keys if (name == prefix if pod else name.startswith(prefix))]
        forgotten = 0
        for name in names:
            for key in self._failed_keys.pop(name, ()):
                forgotten += self._intake.backoff.is_waiting(key, self._clock.now_s())
                self._intake.backoff.reset(key)
        return forgotten

    def _remember(self, ask: PullAsk, flight: SharedPull) -> None:
        if len(self._failed_keys) > MOST_PODS_KNOWN:
            del self._failed_keys[next(iter(self._failed_keys))]
        keys = self._failed_keys.setdefault(str(ask.request.pod), set())
        keys |= {own_key(ask.request), shared_key(flight.key)}
