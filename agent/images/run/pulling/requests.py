# SPDX-License-Identifier: Apache-2.0
"""Who waits for which pull, and the feed in which everybody can follow the pulls. Changed by the puller alone."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import count, islice
from operator import is_

import msgspec
from msgspec.structs import replace

from agent.images.prefetch.plan import Skip
from agent.images.queue.errors import ERR_PULL
from agent.images.queue.flights import FlightMember, SharedPull
from agent.images.queue.plan import WaitingFlight
from agent.images.queue.rules import QueueRules
from agent.images.run.metrics import ImageMetrics
from agent.images.run.pulling.intake import NeededPull
from agent.images.view.progress import PullProgress
from agent.images.view.texts import ImageEvent, Sentence
from agent.images.view.view import over, pull_id, queued_state, requesters_of, running_state, skipped_state
from agent.model.clock import Clock
from agent.model.feed import Feed
from agent.model.images.pull import ErrorClass, PullClass, PullOutcome, PullRequest, PullResult
from agent.model.images.state import PullStage, PullState

# A place in the line changes with each pull that ends, of all that wait: it is shown so often at most, of so many at
# the front, and of the others when somebody looks.
PLACES_S, FRONT = 1.0, 20
KEPT_S = 600.0
MOST_KEPT = 200


class PullAsk(msgspec.Struct):
    id: str
    request: PullRequest
    ready: NeededPull
    member: FlightMember
    future: asyncio.Future[PullOutcome]
    go: asyncio.Event | None = None
    """Set when its flight has a slot, for those who carry the pull out themselves."""

    @property
    def pull_class(self) -> PullClass:
        if self.request.is_prefetch:
            return PullClass.PREFETCH
        return PullClass.CRITICAL if self.member.is_critical else PullClass.POD


class PullRequests:
    def __init__(self, metrics: ImageMetrics, events: Callable[[ImageEvent], None] | None, *, clock: Clock) -> None:
        self.pulls: Feed[PullState] = Feed(lambda pull: pull.image)
        self._metrics = metrics
        self._events = events
        self._clock = clock
        self._asks: dict[str, PullAsk] = {}
        self._indexes = count(1)
        self._shown: dict[int, tuple[WaitingFlight, SharedPull]] = {}
        self._places_s = -PLACES_S
        self._over_s: dict[str, float] = {}
        """Since when pulls are known to be over."""
        self._looked: dict[int, tuple[object, ...]] = {}

    def __len__(self) -> int:
        return len(self._asks)

    def open(
        self,
        request: PullRequest,
        ready: NeededPull,
        *,
        arrived_s: float | None = None,
        is_pulled_by_caller: bool = False,
    ) -> PullAsk:
        """A request begins to wait; `arrived_s` is for one that has waited before."""
        index = next(self._indexes)
        ask_id = f"r{index}"
        member = FlightMember(
            ask_id,
            index,
            self._clock.now_s() if arrived_s is None else arrived_s,
            request.pod.uid or ask_id,
            request.priority,
            request.policy,
            request.is_prefetch,
        )
        go = asyncio.Event() if is_pulled_by_caller else None
        ask = PullAsk(ask_id, request, ready, member, asyncio.get_running_loop().create_future(), go)
        self._asks[ask_id] = ask
        return ask

    def ask(self, ask_id: str) -> PullAsk | None:
        return self._asks.get(ask_id)

    def asks(self, members: Iterable[FlightMember]) -> list[PullAsk]:
        return [ask for member in members if (ask := self._asks.get(member.id)) is not None]

    def all_asks(self, pod_uid: str | None = None) -> Sequence[PullAsk]:
        return tuple(ask for ask in self._asks.values() if pod_uid in (None, ask.request.pod.uid))

    def close(self, ask: PullAsk, outcome: PullOutcome, sentences: tuple[Sentence, ...] = ()) -> None:
        self._asks.pop(ask.id, None)
        self._metrics.request_ended(outcome.result, ask.pull_class)
        self.tell(ask.request, sentences)
        if not ask.future.done():
            ask.future.set_result(outcome)

    def cancel(self, ask: PullAsk, why: str, code: str = "Canceled") -> None:
        self.close(ask, cancelled(ask.request, why, code))

    def forget(self, ask: PullAsk) -> None:
        self._asks.pop(ask.id, None)
        self._metrics.request_ended(PullResult.CANCELLED, ask.pull_class)

    def tell(self, request: PullRequest, sentences: tuple[Sentence, ...]) -> None:
        if self._events is not None and (request.pod.uid or request.is_prefetch):
            for sentence in sentences:
                self._events(ImageEvent(request.pod, request.container, sentence))

    def tell_all(self, members: Iterable[FlightMember], sentences: tuple[Sentence, ...]) -> None:
        for ask in self.asks(members):
            self.tell(ask.request, sentences)

    # the feed

    def show_waiting(
        self,
        flights: dict[int, SharedPull],
        line: Sequence[WaitingFlight],
        rules: QueueRules,
        rate_bytes_s: float,
        *,
        is_look: bool = False,
    ) -> None:
        """Bring what waits up to date: places, reasons, rough times. What did not change is not built anew.
        `is_look`: somebody looks at all places."""
        ahead_s, now_s = 0.0, self._clock.now_s()
        shows_front = now_s - self._places_s >= PLACES_S
        for waiting in line:
            flight = flights[waiting.flight]
            eta_s = ahead_s / max(1, rules.max_parallel or 1) if rate_bytes_s > 0 else None
            size = flight.size_bytes
            ahead_s += size / rate_bytes_s if size is not None and rate_bytes_s > 0 else rules.size_unknown_s
            shown, known = (waiting, flight), self._shown.get(flight.number)
            if known == shown:
                continue
            is_placed = is_look or (shows_front and waiting.position <= FRONT)
            if known is not None and not is_placed and known[0].why == waiting.why and known[1] == flight:
                continue
            self._shown[flight.number] = shown
            asks = self.asks(flight.members)
            if asks:
                people = requesters_of(flight, {ask.id: ask.request for ask in asks}, self._epoch_s())
                rough_s = round(eta_s, 1) if eta_s is not None else None
                state = queued_state(flight, asks[0].ready.reference, people, waiting, rough_s)
                self.pulls.put(state.id, state)
        if shows_front:
            self._places_s = now_s

    def show_running(self, flight: SharedPull, stage: PullStage, progress: PullProgress | None, attempts: int) -> None:
        """The same for what runs: whenever one of a hundred pulls moves, all are brought here."""
        before = self.pulls.items.get(pull_id(flight))
        looked = (flight, stage, progress, attempts)
        known = self._looked.get(flight.number)
        if before is not None and known is not None and all(map(is_, known, looked)):
            return
        asks = self.asks(flight.members)
        if before is None and not asks:
            return
        self._looked[flight.number] = looked
        people = requesters_of(flight, {ask.id: ask.request for ask in asks}, self._epoch_s())
        base = before or queued_state(flight, asks[0].ready.reference, people, None, None)
        started_s = self._epoch_s() + (flight.started_s or 0.0)
        current = replace(base, requesters=people, pull_class=flight.pull_class, started_at_s=started_s)
        self.pulls.put(base.id, running_state(current, stage, progress, attempts))

    def show_over(
        self,
        flight: SharedPull,
        stage: PullStage,
        *,
        image_id: str = "",
        error: str = "",
        error_class: ErrorClass | None = None,
    ) -> None:
        """A pull is over; it stays in the feed for a while."""
        self._shown.pop(flight.number, None)
        self._looked.pop(flight.number, None)
        before = self.pulls.items.get(pull_id(flight))
        if before is not None:
            self.pulls.put(before.id, over(before, stage, self._clock.wall_s(), image_id, error, error_class))

    def tidy(self, present: Iterable[int]) -> None:
        known = set(present)
        self._shown = {number: shown for number, shown in self._shown.items() if number in known}
        self._looked = {number: looked for number, looked in self._looked.items() if number in known}
        ended = (PullStage.DONE, PullStage.FAILED, PullStage.CANCELLED)
        over_now: list[PullState] = []
        under_way: list[PullState] = []
        for state in self.pulls.items.values():
            (over_now if state.stage in ended else under_way).append(state)
        if len(under_way) > len(known):
            names = {f"p{number}" for number in known}
            for state in under_way:
                if not state.stage.is_over and state.id not in names:
                    self.pulls.put(state.id, over(state, PullStage.CANCELLED, self._clock.wall_s()))
        now_s, surplus = self._clock.now_s(), len(over_now) - MOST_KEPT
        self._over_s = {state.id: self._over_s.get(state.id, now_s) for state in over_now}
        for position, (pull, over_s) in enumerate(sorted(self._over_s.items(), key=lambda known: known[1])):
            if position < surplus or over_s < now_s - KEPT_S:
                self.pulls.remove(pull)

    def show_skips(self, skips: Iterable[Skip]) -> None:
        """What is not fetched ahead, for as long as it is not."""
        shown = {f"s-{skip.image}": skip for skip in islice(skips, MOST_KEPT)}
        for state in list(self.pulls.items.values()):
            if state.stage is PullStage.SKIPPED and state.id not in shown:
                self.pulls.remove(state.id)
        for state_id, skip in shown.items():
            before = self.pulls.items.get(state_id)
            if before is None or before.wait_text != skip.why:
                since_s = before.queued_at_s if before is not None else self._clock.wall_s()
                self.pulls.put(state_id, skipped_state(state_id, skip, since_s))

    def _epoch_s(self) -> float:
        return self._clock.wall_s() - self._clock.now_s()


def cancelled(request: PullRequest, why: str, code: str = "Canceled") -> PullOutcome:
    return PullOutcome(
        result=PullResult.CANCELLED,
        image=request.image,
        reason=ERR_PULL,
        message=f"rpc error: code = {code} desc = {why}",
        error_class=ErrorClass.CANCELLED,
    )
