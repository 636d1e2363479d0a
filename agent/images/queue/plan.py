# SPDX-License-Identifier: Apache-2.0
"""Decides which pulls start now, in which order, and why each of the others waits.

Invariant: after a plan has been carried out, no pull waits that could start, and of those that compete for the same
room the one with the lowest score has it. Planning again gives an empty plan with the same reasons.

Why one walk from the lowest score up is enough, where a search over all orders would be expected:

- Starting a pull only takes room. No limit (slots, registry, pod, large images, tokens) gets looser by a start, so a
  pull that was refused earlier in the walk is still refused at its end, and need not be tried again.
- Starting a pull only raises scores: a pod that got one has had more of its share. A score that has grown since the
  line was sorted is put back among the later ones before it is looked at, so each pull is judged by the score it has
  at its turn.
- Two walks, ordinary pulls before those fetched ahead, keep the second kind from ever taking room of the first.

A reason is asked for again where a start came after it, so that what people read is what holds a pull now.

Owns: eligibility, scores, the reasons. Never: keeps state or reads a clock. The queue applies what comes out.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

import msgspec

from agent.images.queue.flights import FlightMember, SharedPull
from agent.images.queue.rules import QueueRules, StartTokens

NODE = ""
# A pull that was called short and still runs after this many times what was allowed for it is none.
LEND_PATIENCE = 10


class WaitReason(StrEnum):
    SLOT = "slot"
    SAME_IMAGE = "same-image"
    REGISTRY = "registry"
    REGISTRY_HOLD = "registry-hold"
    NODE_HOLD = "node-hold"
    RESERVE = "critical-reserve"
    POD = "pod-share"
    LARGE = "large-images"
    PREFETCH = "prefetch"
    RATE = "rate"
    TURN = "turn"


TEXTS = {
    WaitReason.SLOT: "{slots} slots busy",
    WaitReason.SAME_IMAGE: "the same image is being pulled with other credentials or for an older check",
    WaitReason.REGISTRY: "{slots} pulls from {scope} running",
    WaitReason.REGISTRY_HOLD: "{scope} asked kepd to slow down",
    WaitReason.NODE_HOLD: "the disk is full; images are being removed",
    WaitReason.RESERVE: "{slots} slots for pods that are not critical busy",
    WaitReason.POD: "{slots} slots of its pod busy",
    WaitReason.LARGE: "{slots} slots for large images busy",
    WaitReason.PREFETCH: "{slots} prefetches running, or pods come first",
    WaitReason.RATE: "rate limit of {scope}",
    WaitReason.TURN: "its turn is next",
}


class Hindrance(msgspec.Struct, frozen=True, gc=False):
    reason: WaitReason
    busy: int = 0
    limit: int = 0
    scope: str = ""

    def __str__(self) -> str:
        return TEXTS[self.reason].format(slots=f"{self.busy} of {self.limit}", scope=self.scope or "this node")


class WaitingFlight(msgspec.Struct, frozen=True, gc=False):
    flight: int
    position: int
    why: Hindrance

    def __str__(self) -> str:
        return f"flight {self.flight} waits at {self.position}: {self.why}"


SAME_IMAGE = Hindrance(WaitReason.SAME_IMAGE)
HELD_NODE = Hindrance(WaitReason.NODE_HOLD)
TURN = Hindrance(WaitReason.TURN)


class Gates(msgspec.Struct, frozen=True):
    """What depends on time: token buckets and pauses by registry; `NODE` is the node's own."""

    buckets: Mapping[str, StartTokens]
    holds: Mapping[str, float]


class PullPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Flights by number. `wake_at_s` is when time alone will change the plan."""

    cancels: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    refusals: tuple[int, ...] = ()
    waiting: tuple[WaitingFlight, ...] = ()
    wake_at_s: float | None = None
    buckets: Mapping[str, StartTokens] = msgspec.field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.cancels or self.starts or self.refusals)

    def __str__(self) -> str:
        lines = [f"cancel flight {number}" for number in self.cancels]
        lines += [f"start flight {number}" for number in self.starts]
        lines += [f"refuse flight {number}" for number in self.refusals]
        return "\n".join((*lines, *map(str, self.waiting)))


class _Load:
    """What runs, counted; grows while a plan is made."""

    def __init__(self, running: Iterable[SharedPull], rules: QueueRules, now_s: float) -> None:
        self.rules = rules
        self.now_s = now_s
        self.total = self.ordinary = self.large = self.prefetches = self.lasting = 0
        self.registries: Counter[str] = Counter()
        self.pods: Counter[str] = Counter()
        self.images: set[tuple[str, str]] = set()
        self._head_starts: dict[int, float] = {}
        for flight in running:
            self.add(flight)

    def add(self, flight: SharedPull) -> None:
        self.total += 1
        self.ordinary += not flight.is_critical
        self.large += self._is_large(flight)
        self.prefetches += flight.is_prefetch
        self.lasting += not self._is_short(flight)
        self.registries[self.rules.registry_group(flight.registry)] += 1
        self.pods.update({member.pod for member in flight.members})
        self.images.add(flight.key.image)

    def _is_large(self, flight: SharedPull) -> bool:
        large = self.rules.large_bytes
        return large is not None and flight.size_bytes is not None and flight.size_bytes >= large

    def _is_short(self, flight: SharedPull) -> bool:
        rules = self.rules
        if not (rules.lend_s and rules.size_rate) or flight.size_bytes is None:
            return False
        is_overdue = flight.started_s is not None and self.now_s - flight.started_s > LEND_PATIENCE * rules.lend_s
        return flight.size_bytes / rules.size_rate <= rules.lend_s and not is_overdue

    def _is_lent(self, flight: SharedPull) -> bool:
        """Whether it may have a reserved slot: whoever critical comes then has one of those slots in a moment."""
        return not self.lasting and not flight.is_prefetch and self._is_short(flight)

    def score(self, flight: SharedPull) -> tuple[float, int]:
        """When its turn is, and the arrival index that breaks ties."""
        members = flight.counting_members
        time_s, index = self._claim(members[0]) if len(members) == 1 else min(map(self._claim, members))
        return time_s + self.rules.size_term_s(flight.size_bytes), index

    def _claim(self, member: FlightMember) -> tuple[float, int]:
        start_s = self._head_starts.get(member.priority)
        if start_s is None:
            start_s = self._head_starts[member.priority] = self.rules.head_start_s(member.priority)
        busy = self.pods.get(member.pod)
        penalty_s = self.rules.fair_share_s * busy if busy else 0
        return member.arrived_s - start_s + penalty_s, member.index

    def obstacle(self, flight: SharedPull) -> Hindrance | None:
        """The first limit in its way; the order is that of most use to whoever asks why."""
        rules = self.rules
        if rules.is_one_per_reference and flight.key.image in self.images:
            return SAME_IMAGE
        if rules.max_parallel and self.total >= rules.max_parallel:
            return Hindrance(WaitReason.SLOT, self.total, rules.max_parallel)
        group = rules.registry_group(flight.registry)
        limit = rules.registry_limit(group)
        if limit is not None and self.registries[group] >= limit:
            return Hindrance(WaitReason.REGISTRY, self.registries[group], limit, group)
        if not flight.is_critical and (waiting := self._ordinary_obstacle(flight)):
            return waiting
        if rules.large_max is not None and self._is_large(flight) and self.large >= rules.large_max:
            return Hindrance(WaitReason.LARGE, self.large, rules.large_max)
        if flight.is_prefetch and self.prefetches >= rules.prefetch_max:
            return Hindrance(WaitReason.PREFETCH, self.prefetches, rules.prefetch_max)
        return None

    def _ordinary_obstacle(self, flight: SharedPull) -> Hindrance | None:
        rules = self.rules
        ordinary_max = rules.max_parallel - rules.critical_reserve
        if rules.max_parallel and self.ordinary >= ordinary_max and not self._is_lent(flight):
            return Hindrance(WaitReason.RESERVE, self.ordinary, ordinary_max)
        if rules.per_pod_max is not None:
            least = min(self.pods[member.pod] for member in flight.members)
            if least >= rules.per_pod_max:
                return Hindrance(WaitReason.POD, least, rules.per_pod_max)
        return None


class _Gatekeeper:
    def __init__(self, gates: Gates, rules: QueueRules, now_s: float) -> None:
        self._rules = rules
        self._now_s = now_s
        self._holds = {scope: until_s for scope, until_s in gates.holds.items() if until_s > now_s}
        rates = {NODE: rules.rate, **rules.registry_rates}
        self.buckets = {
            scope: gates.buckets.get(scope, StartTokens.full(rate, now_s)).refilled(rate, now_s)
            for scope, rate in rates.items()
            if rate.per_s
        }
        self.wake_times = list(self._holds.values())

    def held(self, flight: SharedPull) -> Hindrance | None:
        if NODE in self._holds:
            return HELD_NODE
        if flight.registry in self._holds:
            return Hindrance(WaitReason.REGISTRY_HOLD, scope=flight.registry)
        return None

    def out_of_tokens(self, flight: SharedPull) -> Hindrance | None:
        for scope in (NODE, flight.registry):
            bucket = self.buckets.get(scope)
            if bucket is not None and bucket.tokens < 1:
                rate = self._rules.rate if scope == NODE else self._rules.registry_rates[scope]
                self.wake_times.append(bucket.next_token_s(rate))
                return Hindrance(WaitReason.RATE, scope=scope)
        return None

    def take(self, flight: SharedPull) -> None:
        for scope in (NODE, flight.registry):
            if scope in self.buckets:
                self.buckets[scope] = self.buckets[scope].without_one()


def plan_pulls(flights: Iterable[SharedPull], rules: QueueRules, gates: Gates, now_s: float) -> PullPlan:
    """What to do now. Planning again after doing it gives an empty plan with the same reasons."""
    waiting: list[SharedPull] = []
    running: list[SharedPull] = []
    cancels: list[int] = []
    wake_times: list[float] = []
    for flight in flights:
        if flight.started_s is None:
            waiting.append(flight)
            continue
        expires_s = _orphan_expiry(flight, rules)
        if expires_s is not None and expires_s <= now_s:
            cancels.append(flight.number)
        else:
            running.append(flight)
            wake_times += [expires_s] if expires_s is not None else []
    load = _Load(running, rules, now_s)
    keeper = _Gatekeeper(gates, rules, now_s)
    walk = _QueueWalk(load, keeper)
    walk.over(flight for flight in waiting if not flight.is_prefetch)
    walk.over(flight for flight in waiting if flight.is_prefetch)
    times = [time_s for time_s in (*wake_times, *keeper.wake_times) if time_s > now_s]
    return PullPlan(
        cancels=tuple(cancels),
        starts=tuple(walk.starts),
        refusals=tuple(walk.refusals),
        waiting=tuple(walk.line()),
        wake_at_s=min(times, default=None),
        buckets=keeper.buckets,
    )


Turn = tuple[float, int, int, SharedPull]


class _QueueWalk:
    """Takes flights in the order of their turns; keeps what starts and what is held by what."""

    def __init__(self, load: _Load, keeper: _Gatekeeper) -> None:
        self._load = load
        self._keeper = keeper
        self.starts: list[int] = []
        self.refusals: list[int] = []
        self._busier: set[str] = set()
        """Pods for which something was started in this plan: only their scores have grown."""
        self._held: list[tuple[SharedPull, Hindrance, int]] = []

    def over(self, flights: Iterable[SharedPull]) -> None:
        held: list[tuple[float, int, int, SharedPull, Hindrance, int]] = []
        for entry in self._turns(sorted((*self._load.score(flight), flight.number, flight) for flight in flights)):
            flight = entry[3]
            why = self._hindrance(flight)
            if why is None:
                self._keeper.take(flight)
                self._load.add(flight)
                self.starts.append(flight.number)
                self._busier.update(member.pod for member in flight.members)
            elif why.reason is WaitReason.RATE and self._load.rules.is_refused_by_rate:
                self.refusals.append(flight.number)
            else:
                held.append((*entry, why, len(self.starts)))
        held.sort()
        self._held += [entry[3:] for entry in held]

    def _turns(self, line: list[Turn]) -> Iterator[Turn]:
        """The entries from the lowest score up; one whose score has grown since is put back among the later ones."""
        if not self._load.rules.fair_share_s:
            yield from line
            return
        late: list[Turn] = []
        at = 0
        while at < len(line) or late:
            if late and (at == len(line) or late[0] < line[at]):
                entry = heapq.heappop(late)
            else:
                entry = line[at]
                at += 1
            flight = entry[3]
            score = self._load.score(flight) if self._is_busier(flight) else entry[:2]
            if score > entry[:2]:
                heapq.heappush(late, (*score, *entry[2:]))
            else:
                yield entry

    def _is_busier(self, flight: SharedPull) -> bool:
        members = flight.members
        if len(members) == 1:
            return members[0].pod in self._busier
        return any(member.pod in self._busier for member in members)

    def _hindrance(self, flight: SharedPull) -> Hindrance | None:
        return self._keeper.held(flight) or self._load.obstacle(flight) or self._keeper.out_of_tokens(flight)

    def line(self) -> Iterable[WaitingFlight]:
        """The waiting ones; who was held before the last start is asked again what holds it now."""
        starts = len(self.starts)
        for position, (flight, why, seen_starts) in enumerate(self._held, 1):
            now = why if seen_starts == starts else self._hindrance(flight) or TURN
            yield WaitingFlight(flight.number, position, now)


def _orphan_expiry(flight: SharedPull, rules: QueueRules) -> float | None:
    if flight.orphaned_s is None or flight.is_kept:
        return None
    return flight.orphaned_s + rules.cancel_grace_s
