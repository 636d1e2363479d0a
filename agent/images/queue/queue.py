# SPDX-License-Identifier: Apache-2.0
"""The pull queue: which requests wait, which run, and which share a pull.

Changed by its puller alone, in one task, without waiting.
Never: decides which flight is next (plan.py).
"""

from collections.abc import Callable, Mapping
from itertools import count

import msgspec

from agent.images.queue.flights import FlightKey, FlightMember, SharedPull
from agent.images.queue.plan import Gates, PullPlan, plan_pulls
from agent.images.queue.rules import QueueRules, StartTokens
from agent.model.images.pull import PullPolicy


class PullQueue:
    def __init__(self, rules: QueueRules) -> None:
        self._rules = rules
        self._numbers = count(1)
        self._flights: dict[int, SharedPull] = {}
        self._homes: dict[str, int] = {}
        self._latest: dict[FlightKey, int] = {}
        self._buckets: Mapping[str, StartTokens] = {}
        self._holds: dict[str, float] = {}

    def __repr__(self) -> str:
        running = sum(flight.is_running for flight in self._flights.values())
        return f"PullQueue(running={running}, waiting={len(self._flights) - running})"

    @property
    def rules(self) -> QueueRules:
        return self._rules

    @property
    def flights(self) -> Mapping[int, SharedPull]:
        return self._flights

    def home(self, member_id: str) -> SharedPull | None:
        number = self._homes.get(member_id)
        return None if number is None else self._flights[number]

    def set_rules(self, rules: QueueRules, now_s: float) -> None:
        """Other limits from now on. Running flights finish; tokens earned so far stay."""
        self._buckets = plan_pulls((), self._rules, Gates(self._buckets, {}), now_s).buckets
        self._rules = rules

    def hold(self, scope: str, until_s: float) -> None:
        self._holds[scope] = max(until_s, self._holds.get(scope, until_s))

    @property
    def holds(self) -> Mapping[str, float]:
        """Until when, by registry; `NODE` is the node's own."""
        return self._holds

    def release(self, scope: str) -> bool:
        return self._holds.pop(scope, None) is not None

    def arrive(self, member: FlightMember, key: FlightKey, registry: str, size_bytes: int | None = None) -> SharedPull:
        flight = self._joinable(member, key)
        if flight is None:
            flight = SharedPull.of(next(self._numbers), key, registry, member, size_bytes)
            self._latest[key] = flight.number
        else:
            flight = flight.with_member(member, size_bytes)
        self._flights[flight.number] = flight
        self._homes[member.id] = flight.number
        return flight

    def _joinable(self, member: FlightMember, key: FlightKey) -> SharedPull | None:
        flight = self._flights.get(self._latest.get(key, 0)) if self._rules.is_shared else None
        if flight is None or flight.started_s is None:
            return flight
        # What a tag means may have changed since an older flight asked the registry.
        wants_fresh = member.policy is PullPolicy.ALWAYS and "@" not in key.reference
        is_young = member.arrived_s - flight.started_s <= self._rules.always_join_max_age_s
        return None if wants_fresh and not is_young else flight

    def leave(self, member_id: str, now_s: float, done_share: float = 0.0) -> SharedPull | None:
        """A request is given up. Answers with the running flight that has to be stopped for it, if any."""
        number = self._homes.pop(member_id, None)
        if number is None:
            return None
        flight = self._flights[number].without(frozenset((member_id,)))
        if flight.members:
            self._flights[number] = flight
            return None
        if not flight.is_running:
            self._drop(number)
            return None
        is_kept = done_share >= self._rules.cancel_keep_share
        if self._rules.cancel_grace_s > 0 or is_kept:
            self._flights[number] = msgspec.structs.replace(flight, orphaned_s=now_s, is_kept=is_kept)
            return None
        self._drop(number)
        return flight

    def end(self, number: int) -> SharedPull | None:
        return self._drop(number) if number in self._flights else None

    def set_size(self, number: int, size_bytes: int) -> None:
        self._flights[number] = msgspec.structs.replace(self._flights[number], size_bytes=size_bytes)

    def drop_present(self, is_proven: Callable[[FlightKey], bool]) -> list[FlightMember]:
        """Take those out that wait for what is there by now and need no check."""
        served: list[FlightMember] = []
        for number, flight in list(self._flights.items()):
            if flight.is_running:
                continue
            ready = [one for one in flight.members if one.policy is PullPolicy.IF_NOT_PRESENT]
            if not ready or not is_proven(flight.key):
                continue
            served += ready
            gone = frozenset(one.id for one in ready)
            for member_id in gone:
                del self._homes[member_id]
            self._flights[number] = flight.without(gone)
            if not self._flights[number].members:
                self._drop(number)
        return served

    def plan(self, now_s: float) -> PullPlan:
        """What would happen now; changes nothing."""
        return plan_pulls(self._flights.values(), self._rules, Gates(self._buckets, self._holds), now_s)

    def dispatch(self, now_s: float) -> PullPlan:
        """Plan, and take the plan as done. The caller starts, stops and refuses what it says."""
        plan = self.plan(now_s)
        self._buckets = plan.buckets
        self._holds = {scope: until_s for scope, until_s in self._holds.items() if until_s > now_s}
        for number in plan.starts:
            self._flights[number] = msgspec.structs.replace(self._flights[number], started_s=now_s)
        for number in plan.cancels:
            self._drop(number)
        return plan

    def _drop(self, number: int) -> SharedPull:
        flight = self._flights.pop(number)
        for member in flight.members:
            self._homes.pop(member.id, None)
        if self._latest.get(flight.key) == number:
            del self._latest[flight.key]
        return flight
