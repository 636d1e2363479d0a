# SPDX-License-Identifier: Apache-2.0
"""Pulls under our limit that their callers make themselves: a kubelet's, which pass through the CRI proxy.

    open ─► queue ─► start: all callers of the flight pull ─► one ends ─► the last one frees the slot

Callers of one flight ask the runtime each for itself: it fetches once, and every kubelet call gets its own answer.
One whose pull just failed keeps its place in the queue.
Never: pulls, looks for credentials, keeps records, or reports events that the kubelet reports itself.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import cast

from msgspec.structs import replace

from agent.images.queue.flights import FlightKey, SharedPull
from agent.images.queue.queue import PullQueue
from agent.images.run.pulling.intake import NeededPull
from agent.images.run.pulling.requests import PullAsk, PullRequests
from agent.images.run.pulling.watcher import ProgressWatcher
from agent.model.clock import Clock
from agent.model.images.pull import (
    CallerPull,
    CallerPullEnd,
    PullGivenUp,
    PullOutcome,
    PullPolicy,
    PullRequest,
    PullResult,
)
from agent.model.images.state import PullStage

# A kubelet that has several credentials tries them one after the other.
NEXT_CREDENTIAL_S = 5.0
MOST_REMEMBERED = 1000


class FollowedPods:
    """Priority and policy of this node's pods, which a kubelet's pull lacks."""

    def __init__(self) -> None:
        self._priorities: dict[str, int] = {}
        self._policies: dict[tuple[str, str], PullPolicy] = {}

    def replace(self, pods: Iterable[tuple[str, int, str, PullPolicy]]) -> None:
        """All pods there are: uid, priority, full name of an image, policy; a pod has a line for each image."""
        known = list(pods)
        self._priorities = {uid: priority for uid, priority, _, _ in known}
        # An image that a pod names twice is asked for by the stricter of both.
        lenient_first = sorted(known, key=lambda one: one[3] is PullPolicy.ALWAYS)
        self._policies = {(uid, image): policy for uid, _, image, policy in lenient_first}

    def priority_of(self, uid: str) -> int:
        return self._priorities.get(uid, 0)

    def policy_of(self, uid: str, image: str) -> PullPolicy | None:
        """By which a pod wants an image, by its full name; None where that is not known."""
        return self._policies.get((uid, image))


class CallerPulls:
    def __init__(
        self, queue: PullQueue, requests: PullRequests, watcher: ProgressWatcher, pods: FollowedPods, clock: Clock
    ) -> None:
        self._queue = queue
        self._requests = requests
        self._watcher = watcher
        self._pods = pods
        self._clock = clock
        self._running: set[int] = set()
        self._failed: dict[tuple[str, str], tuple[float, float]] = {}

    def open(self, request: PullRequest, ready: NeededPull, size_bytes: int | None) -> PullAsk:
        """A request begins to wait, or joins a flight that is on its way."""
        request = replace(
            request,
            priority=request.priority or self._pods.priority_of(request.pod.uid),
            policy=self._pods.policy_of(request.pod.uid, str(ready.reference)) or request.policy,
        )
        now_s = self._clock.now_s()
        failed_s, arrived_s = self._failed.pop((request.pod.uid, request.image), (-NEXT_CREDENTIAL_S, now_s))
        if not request.pod.uid or now_s - failed_s > NEXT_CREDENTIAL_S:
            arrived_s = now_s
        ask = self._requests.open(request, ready, arrived_s=arrived_s, is_pulled_by_caller=True)
        flight = self._queue.arrive(ask.member, ready.key, ready.reference.asked_host, size_bytes)
        if flight.is_running and ask.go is not None:
            ask.go.set()
        return ask

    def start(self, flight: SharedPull, asks: Iterable[PullAsk]) -> None:
        self._running.add(flight.number)
        for ask in asks:
            if ask.go is not None:
                ask.go.set()
            self._watcher.follow(flight.number, ask.ready.reference)

    def drop_present(self, is_proven: Callable[[FlightKey], bool], image_id: str) -> list[PullAsk]:
        """Take out who waits for what is there by now. Ours go without a slot, the rest is returned: for them the
        runtime has only to look at what it has, and to check the credentials."""
        before = dict(self._queue.flights)
        asks = self._requests.asks(self._queue.drop_present(is_proven))
        for number in before.keys() - self._queue.flights.keys():
            self._requests.show_over(before[number], PullStage.DONE, image_id=image_id)
        for ask in asks:
            if ask.go is not None:
                ask.go.set()
        return [ask for ask in asks if ask.go is None]

    @property
    def running(self) -> Collection[int]:
        """Numbers of flights, some of which may have ended in the queue."""
        self._running &= self._queue.flights.keys()
        return self._running

    async def run(self, ask: PullAsk, pull: CallerPull) -> None:
        """Waits for the slot, then lets the caller pull. Raises PullGivenUp."""
        ended = CallerPullEnd(error="it was cancelled")
        try:
            await self._slot(ask)
            ended = await self._pulled(ask, pull)
        except asyncio.CancelledError:
            self._requests.forget(ask)
            raise
        finally:
            self._leave(ask, ended)
        if ended.error and ask.request.pod.uid:
            self._remember(ask)
        result = PullResult.FAILED if ended.error else PullResult.PULLED
        outcome = PullOutcome(result=result, image=ask.request.image, image_id=ended.image_id, message=ended.error)
        self._requests.close(ask, outcome)

    async def _slot(self, ask: PullAsk) -> None:
        if ask.go is None:
            return
        going = asyncio.ensure_future(ask.go.wait())
        waits: list[asyncio.Future[object]] = [cast("asyncio.Future[object]", one) for one in (going, ask.future)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            going.cancel()
        _check(ask)

    async def _pulled(self, ask: PullAsk, pull: CallerPull) -> CallerPullEnd:
        pulling = asyncio.ensure_future(pull())
        try:
            waits = [cast("asyncio.Future[object]", one) for one in (pulling, ask.future)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not pulling.done():
                _check(ask)
            return await pulling
        finally:
            pulling.cancel()

    def _leave(self, ask: PullAsk, ended: CallerPullEnd) -> None:
        flight = self._queue.home(ask.id)
        if flight is None:
            return
        if len(flight.members) > 1 or not flight.is_running:
            self._queue.leave(ask.id, self._clock.now_s())
            return
        self._queue.end(flight.number)
        self._running.discard(flight.number)
        self._watcher.leave(flight.number)
        stage = PullStage.FAILED if ended.error else PullStage.DONE
        self._requests.show_over(flight, stage, image_id=ended.image_id, error=ended.error)

    def _remember(self, ask: PullAsk) -> None:
        if len(self._failed) >= MOST_REMEMBERED:
            del self._failed[next(iter(self._failed))]
        self._failed[ask.request.pod.uid, ask.request.image] = (self._clock.now_s(), ask.member.arrived_s)


def _check(ask: PullAsk) -> None:
    """A person, or the end of its pod, may have ended the request."""
    if ask.future.done() and not ask.future.result().is_ok:
        raise PullGivenUp(ask.future.result().message.removeprefix("rpc error: code = Canceled desc = "))
