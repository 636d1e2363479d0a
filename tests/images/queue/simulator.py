# SPDX-License-Identifier: Apache-2.0
"""A node that pulls in virtual, exact time: the production queue on one side, a model of link and disk on the other.

Owns: what a pull costs (fixed times, or a shared link and shared unpacking), the order of things at one instant
(IMG-S25), and the habits of a kubelet as a requester: one image of a pod after the other, no giving up.
Never: decides what starts. All three modes ask `PullQueue`.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count

from msgspec.structs import replace

from agent.images.queue.flights import FlightKey, FlightMember, SharedPull
from agent.images.queue.queue import PullQueue
from agent.images.queue.rules import QueueRules, Rate
from agent.model.images.pull import PullPolicy

__all__ = ["KEPD", "KUBELET_PARALLEL", "KUBELET_SERIAL", "MODES", "Simulation", "exact", "read_rules"]

KUBELET_SERIAL = "kubelet_serial"
KUBELET_PARALLEL = "kubelet_parallel"
KEPD = "kepd"
MODES = (KUBELET_SERIAL, KUBELET_PARALLEL, KEPD)
PUBLIC = "public"

RULE_NAMES = {
    "max_parallel": "max_parallel",
    "per_registry": "per_registry",
    "per_registry_default": "per_registry_default",
    "per_pod_max": "per_pod_max",
    "critical_reserve": "critical_reserve",
    "large_bytes": "large_bytes",
    "large_max": "large_max",
    "prefetch_max": "prefetch_max",
    "fair_share_s": "fair_share_s",
    "head_start_negative": "head_start_negative_s",
    "size_rate_bps": "size_rate",
    "size_cap_s": "size_cap_s",
    "size_unknown_s": "size_unknown_s",
    "dedupe": "is_shared",
    "recheck": "is_rechecked",
    "always_join_max_age_s": "always_join_max_age_s",
    "cancel_grace_s": "cancel_grace_s",
}


def exact(value):
    """A JSON number as a fraction; other values unchanged."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return Fraction(str(value))


def read_rules(config: dict, rules: QueueRules | None = None) -> QueueRules:
    """The rules with the settings of a case in place."""
    rules = rules or QueueRules(size_cap_s=Fraction(120), size_unknown_s=Fraction(10))
    changes = {RULE_NAMES[name]: exact(value) for name, value in config.items() if name in RULE_NAMES}
    if "head_start" in config:
        changes["head_start"] = tuple((int(low), exact(start)) for low, start in config["head_start"])
    if "qps" in config or "burst" in config:
        qps = exact(config.get("qps", rules.rate.per_s)) or 0
        changes["rate"] = Rate(qps, exact(config.get("burst", rules.rate.burst)))
    unknown = set(config) - set(RULE_NAMES) - {"head_start", "qps", "burst"}
    assert not unknown, f"settings that no rule knows: {sorted(unknown)}"
    return replace(rules, **changes)


@dataclass
class Ask:
    """One arrival of a case and what became of it."""

    id: str
    index: int
    t: Fraction
    key: FlightKey
    registry: str
    pod: str
    priority: int
    policy: PullPolicy
    size: Fraction | None
    is_prefetch: bool
    start: Fraction | None = None
    finish: Fraction | None = None
    status: str = ""
    joined: str = ""
    is_pod_deleted: bool = False

    @property
    def is_over(self) -> bool:
        return self.finish is not None


@dataclass
class Pull:
    """A flight that runs: its phase and what is left of it."""

    flight: SharedPull
    began: Fraction
    phase: str
    left: Fraction
    leader: int | None = None
    rate: Fraction = Fraction(1)


@dataclass
class Simulation:
    """One case in one mode. `run` fills `asks` and `start_order`."""

    case: dict
    mode: str
    now: Fraction = Fraction(0)
    start_order: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        rules = read_rules(self.case.get("config", {}))
        if self.mode != KEPD:
            rules = rules.as_kubelet(is_serial=self.mode == KUBELET_SERIAL)
        self.queue = PullQueue(rules)
        self.service = self.case["service"]
        self.images = self.case["images"]
        self.asks = [self._ask(index, arrival) for index, arrival in enumerate(self.case["arrivals"])]
        if self.mode != KEPD:
            self.asks = [ask for ask in self.asks if not ask.is_prefetch]
        self.by_id = {ask.id: ask for ask in self.asks}
        self.pending = list(self.asks)
        self.events = sorted(self.case.get("events", ()), key=lambda event: exact(event["t"]))
        self.proofs: dict[tuple[str, str], set[str]] = {}
        for entry in self.case.get("present", ()):
            self.proofs[entry["ref"], entry.get("handler", "")] = set(entry.get("creds", (PUBLIC,)))
        self.pulls: dict[int, Pull] = {}
        self.peak = 0

    @staticmethod
    def _ask(index: int, given: dict) -> Ask:
        return Ask(
            id=given["id"],
            index=index,
            t=exact(given["t"]),
            key=FlightKey(given["ref"], given.get("handler", ""), given.get("creds", PUBLIC)),
            registry=given.get("registry", ""),
            pod=given.get("pod", ""),
            priority=given.get("priority", 0),
            policy=PullPolicy(given.get("policy", "IfNotPresent")),
            size=exact(given.get("size")),
            is_prefetch=given.get("class") == "prefetch",
        )

    # the loop

    def run(self) -> "Simulation":
        for _step in count():
            self._complete()
            self._happen()
            self._issue()
            wake = self._dispatch()
            times = [*self._next_times(), *((wake,) if wake is not None else ())]
            if not times:
                return self
            assert _step < 100_000, "the simulation does not come to an end"
            self._advance(min(times))
        return self

    def _next_times(self) -> list[Fraction]:
        self._share()
        times = [self.now + pull.left / pull.rate for pull in self.pulls.values() if pull.rate > 0]
        times += [exact(event["t"]) for event in self.events[:1]]
        times += [max(self.now, time) for ask in self.pending if (time := self._issue_time(ask)) is not None]
        return times

    def _advance(self, moment: Fraction) -> None:
        for pull in self.pulls.values():
            pull.left -= (moment - self.now) * pull.rate
        self.now = moment

    # the model of link and disk

    def _share(self) -> None:
        """How fast every pull is just now."""
        phases = [pull.phase for pull in self.pulls.values()]
        for pull in self.pulls.values():
            if pull.phase == "download":
                pull.rate = Fraction(exact(self.service["bandwidth_bps"]), phases.count("download"))
                if cap := self.service.get("per_pull_cap_bps"):
                    pull.rate = min(pull.rate, exact(cap))
            elif pull.phase == "unpack":
                slots = Fraction(exact(self.service.get("unpack_slots", 1)), phases.count("unpack"))
                pull.rate = exact(self.service["unpack_bps"]) * min(Fraction(1), slots)
            elif pull.phase == "follow":
                pull.rate = Fraction(0)
            else:
                pull.rate = Fraction(1)

    def _begin(self, flight: SharedPull) -> Pull:
        image = self.images.get(flight.key.reference, {})
        is_present = flight.key.image in self.proofs
        leader = next(
            (
                number
                for number, pull in self.pulls.items()
                if pull.leader is None and pull.flight.key.image == flight.key.image
            ),
            None,
        )
        if self.service["model"] == "shared":
            latency = exact(self.service.get("latency_s", 0))
            phase = "check" if is_present or leader is not None else "latency"
            return Pull(flight, self.now, phase, latency, leader)
        revalidate = exact(self.service.get("revalidate_s", 0))
        if is_present or leader is not None:
            return Pull(flight, self.now, "check", revalidate, leader)
        return Pull(flight, self.now, "work", exact(image["service_s"]))

    def _next_phase(self, pull: Pull) -> bool:
        """Go on to the next phase that takes time. False: it is done."""
        image = self.images.get(pull.flight.key.reference, {})
        if pull.phase == "latency":
            pull.phase, pull.left = "download", exact(image.get("size") or 0)
        elif pull.phase == "download" and "unpack_bps" in self.service:
            pull.phase, pull.left = "unpack", exact(image.get("unpacked") or 0)
        elif pull.phase == "check" and pull.leader in self.pulls:
            pull.phase, pull.left = "follow", Fraction(0)
        else:
            return pull.phase == "follow" and pull.leader in self.pulls
        return pull.left > 0 or self._next_phase(pull)

    # one instant

    def _complete(self) -> None:
        while True:
            done = [number for number, pull in self.pulls.items() if pull.left <= 0 and not self._next_phase(pull)]
            if not done:
                return
            for number in sorted(done, key=lambda one: self._first_index(self.pulls[one].flight)):
                self._finish(number)

    def _first_index(self, flight: SharedPull) -> int:
        return min((member.index for member in self.queue.flights[flight.number].members), default=-1)

    def _finish(self, number: int) -> None:
        del self.pulls[number]
        flight = self.queue.end(number)
        has_failed = bool(self.images.get(flight.key.reference, {}).get("fail"))
        if not has_failed:
            self.proofs.setdefault(flight.key.image, set()).add(flight.key.fingerprint)
        for member in flight.members:
            ask = self.by_id[member.id]
            ask.start = max(flight.started_s, ask.t if self.mode == KEPD else member.arrived_s)
            ask.joined = "" if member.id == flight.members[0].id else flight.members[0].id
            self._end(ask, "failed" if has_failed else "pulled")

    def _end(self, ask: Ask, status: str) -> None:
        ask.finish, ask.status = self.now, status

    def _happen(self) -> None:
        while self.events and exact(self.events[0]["t"]) <= self.now:
            event = self.events.pop(0)
            if "set" in event:
                if self.mode == KEPD:
                    self.queue.set_rules(read_rules(event["set"], self.queue.rules), self.now)
            elif event["cancel"] in self.by_id:
                self._cancel(self.by_id[event["cancel"]])

    def _cancel(self, ask: Ask) -> None:
        if self.mode != KEPD:
            ask.is_pod_deleted = True
            return
        flight = self.queue.home(ask.id)
        if flight is None:
            return
        if flight.is_running:
            ask.start = max(flight.started_s, ask.t)
            ask.joined = "" if ask.id == flight.members[0].id else flight.members[0].id
        self._end(ask, "cancelled")
        stopped = self.queue.leave(ask.id, self.now)
        if stopped is not None:
            del self.pulls[stopped.number]

    def _issue_time(self, ask: Ask) -> Fraction | None:
        """When a request comes in; a kubelet asks for one image of a pod at a time."""
        if self.mode == KEPD:
            return ask.t
        before = [other for other in self.asks if other.pod == ask.pod and other.index < ask.index]
        if any(not other.is_over for other in before):
            return None
        return max([ask.t, *(other.finish for other in before)])

    def _issue(self) -> None:
        while True:
            due = [ask for ask in self.pending if (t := self._issue_time(ask)) is not None and t <= self.now]
            if not due:
                return
            ask = min(due, key=lambda one: one.index)
            self.pending.remove(ask)
            self._admit(ask)

    def _is_proven(self, key: FlightKey) -> bool:
        proof = self.proofs.get(key.image)
        return proof is not None and (PUBLIC in proof or key.fingerprint in proof)

    def _admit(self, ask: Ask) -> None:
        is_proven = self._is_proven(ask.key)
        if ask.policy is PullPolicy.NEVER:
            ask.start = self.now if is_proven else None
            self._end(ask, "present" if is_proven else "ErrImageNeverPull")
        elif ask.policy is PullPolicy.IF_NOT_PRESENT and is_proven:
            ask.start = self.now
            self._end(ask, "present")
        else:
            member = FlightMember(ask.id, ask.index, self.now, ask.pod, ask.priority, ask.policy, ask.is_prefetch)
            self.queue.arrive(member, ask.key, ask.registry, ask.size)

    def _dispatch(self) -> Fraction | None:
        if self.queue.rules.is_rechecked:
            for member in self.queue.drop_present(self._is_proven):
                ask = self.by_id[member.id]
                ask.start = self.now
                self._end(ask, "present")
        plan = self.queue.dispatch(self.now)
        for number in plan.cancels:
            self.pulls.pop(number, None)
        for number in sorted((*plan.starts, *plan.refusals), key=self._dispatch_rank(plan)):
            flight = self.queue.flights[number]
            self.start_order.append(flight.members[0].id)
            if number in plan.refusals:
                self._refuse(number)
            else:
                self.pulls[number] = self._begin(flight)
        self.peak = max(self.peak, len(self.pulls))
        return self.now if plan.refusals else plan.wake_at_s

    @staticmethod
    def _dispatch_rank(plan):
        order = {number: rank for rank, number in enumerate((*plan.starts, *plan.refusals))}
        return order.__getitem__

    def _refuse(self, number: int) -> None:
        for member in self.queue.end(number).members:
            ask = self.by_id[member.id]
            ask.start = self.now
            self._end(ask, "failed: pull QPS exceeded")
