# SPDX-License-Identifier: Apache-2.0
"""Finds devices for all claims of a pod together: depth first, and the first solution is taken.

What it returns depends on its input alone: devices are tried in the order of pools, slices and their lists, and it
gives up after a number of devices that were tried, never after a time.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence

import msgspec

from kepd_devices.manifest.objects import Claim, DeviceClass, Slice
from kepd_devices.plan.constraints import Bond
from kepd_devices.plan.holdings import Holdings
from kepd_devices.plan.offers import Offer
from kepd_devices.plan.pools import DevicePool, PoolNode, gather
from kepd_devices.plan.reasons import CannotAllocate, DeviceId, Reason, Unsatisfied, Verdict, rank
from kepd_devices.plan.shares import Amounts, shortage, taken_amounts
from kepd_devices.plan.wanted import MOST_RESULTS, Alternative, Asked, Reader

MOST_TRIED = 200_000


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """`claims` are those of one pod that have nothing yet; `existing` all that have something. Devices that somebody
    has to bind first are given only where `may_bind`, which nobody does on a node by itself."""

    node: PoolNode
    slices: tuple[Slice, ...]
    classes: Mapping[str, DeviceClass]
    existing: tuple[Claim, ...] = ()
    claims: tuple[Claim, ...] = ()
    takes_lists: bool = False
    # By what their drivers tell.
    unhealthy: frozenset[DeviceId] = frozenset()
    may_bind: bool = False


class Given(msgspec.Struct, frozen=True):
    """One device for one request; amounts where it is a share."""

    alternative: Alternative
    offer: Offer
    amounts: Amounts


class SearchAnswer(msgspec.Struct, frozen=True):
    """For each claim what it gets, or where the search got stuck; and how many devices it tried."""

    given: tuple[tuple[Given, ...], ...] | None
    asked: tuple[Asked, ...]
    stuck: Unsatisfied | None
    tried: int


class _TooMany(Exception):
    """A claim would have more devices than it can: another alternative may need fewer."""


Step = Generator["Step", bool, bool]
"""It asks for further ones, whose answers it gets: a pod may ask for more devices than calls can lie in each other."""


def _driven(first: Step) -> bool:
    steps: list[Step] = [first]
    answer: bool | None = None
    failure: Exception | None = None
    while steps:
        try:
            if failure is not None:
                made = steps[-1].throw(failure)
            else:
                made = next(steps[-1]) if answer is None else steps[-1].send(answer)
        except StopIteration as end:
            steps.pop()
            answer, failure = bool(end.value), None
        except (_TooMany, CannotAllocate) as error:
            steps.pop()
            failure = error
        else:
            steps.append(made)
            answer, failure = None, None
    if failure is not None:
        raise failure
    return bool(answer)


def search(question: Question) -> SearchAnswer:
    """Raises CannotAllocate."""
    pools = gather(question.slices, question.node)
    reader = Reader(pools, question.classes, question.node, takes_lists=question.takes_lists)
    asked = tuple(reader.read(claim) for claim in question.claims)
    return _Search(question, pools, asked).run()


class _Search:
    def __init__(self, question: Question, pools: Sequence[DevicePool], asked: tuple[Asked, ...]) -> None:
        self._question = question
        self._pools = pools
        self._asked = asked
        self._holdings = Holdings(question.existing, pools)
        self._flat = [(pool, offer) for pool in pools if not pool.missing and not pool.invalid for offer in pool.offers]
        self._bonds = [
            [
                Bond(one, number, takes_lists=question.takes_lists)
                for number, one in enumerate(each.claim.spec.devices.constraints)
            ]
            for each in asked
        ]
        self._given: list[list[Given]] = [[] for _ in asked]
        self._tried = 0
        self._deepest = (-1, -1, -1)
        self._stuck: Unsatisfied | None = None

    def run(self) -> SearchAnswer:
        try:
            is_done = _driven(self._claim(0))
        except _TooMany:
            text = f"a claim can have {MOST_RESULTS} devices at most, and every way to satisfy it needs more"
            raise CannotAllocate(text) from None
        if is_done:
            return SearchAnswer(tuple(map(tuple, self._given)), self._asked, None, self._tried)
        for pool in self._pools:
            if pool.invalid:
                raise CannotAllocate(f"nothing fits, and pool {pool} is invalid: {pool.invalid}", is_of_node=True)
        return SearchAnswer(None, self._asked, self._stuck, self._tried)

    def _claim(self, claim: int) -> Step:
        if claim == len(self._asked):
            return True
        return (yield self._request(claim, 0))

    def _request(self, claim: int, request: int) -> Step:
        if request == len(self._asked[claim].requests):
            try:
                return (yield self._claim(claim + 1))
            except _TooMany:
                return False
        alternatives = self._asked[claim].requests[request]
        has_room = False
        for one in alternatives:
            try:
                if (yield self._devices(claim, request, one, 0, 0)):
                    return True
                has_room = True
            except _TooMany:
                if len(alternatives) == 1:
                    raise
        if not has_room:
            raise _TooMany
        return False

    def _devices(self, claim: int, request: int, wanted: Alternative, have: int, begin: int) -> Step:
        """From `begin` in the order on: the devices of a request are a combination."""
        if wanted.wish.is_all and not wanted.all:
            self._note_stuck((claim, request, 0), wanted, 0, [])
            return False
        if have == wanted.count:
            return (yield self._request(claim, request + 1))
        if len(self._given[claim]) + wanted.count - have > MOST_RESULTS:
            raise _TooMany
        if wanted.wish.is_all:
            places = range(have, have + 1)
            candidates = wanted.all
        else:
            places = range(begin, len(self._flat))
            candidates = self._flat
        verdicts: list[Verdict] = []
        for place in places:
            pool, offer = candidates[place]
            reason = self._refusal(claim, wanted, pool, offer)
            if reason is not None:
                verdicts.append(Verdict(wanted.claim.key, wanted.name, offer.id, reason))
                continue
            onward = self._devices(claim, request, wanted, have + 1, place + 1)
            if (yield self._with(claim, wanted, offer, onward)):
                return True
        if (claim, request, have) > self._deepest and not wanted.wish.is_all:
            verdicts = [*self._before(claim, wanted, begin), *verdicts]
        self._note_stuck((claim, request, have), wanted, have, verdicts)
        return False

    def _before(self, claim: int, wanted: Alternative, begin: int) -> Iterator[Verdict]:
        """Why those were not taken that the combination has passed already; the limit does not count this."""
        tried = self._tried
        for pool, offer in self._flat[:begin]:
            reason = self._refusal(claim, wanted, pool, offer)
            if reason is not None and not any(one.offer is offer for one in self._given[claim]):
                yield Verdict(wanted.claim.key, wanted.name, offer.id, reason)
            self._tried = tried

    def _with(self, claim: int, wanted: Alternative, offer: Offer, onward: Step) -> Step:
        bonds = [one for one in self._bonds[claim] if one.concerns(wanted.request, wanted.part)]
        amounts = taken_amounts(offer, wanted.amounts) if offer.is_shared else {}
        self._holdings.take(offer, claim, amounts)
        for bond in bonds:
            bond.add(offer)
        self._given[claim].append(Given(wanted, offer, amounts))
        is_done = False
        try:
            is_done = yield onward
        finally:
            if not is_done:
                self._given[claim].pop()
                for bond in bonds:
                    bond.take_back()
                self._holdings.give_back(offer, amounts)
        return is_done

    def _refusal(self, claim: int, wanted: Alternative, pool: DevicePool, offer: Offer) -> Reason | None:
        """Raises CannotAllocate."""
        self._tried += 1
        if self._tried > MOST_TRIED:
            raise CannotAllocate(f"too many combinations: {MOST_TRIED} devices were tried, last for {wanted.where}")
        holdings = self._holdings
        if wanted.is_admin and holdings.is_wanted_by(offer.id, claim):
            return Reason("in-use", "this claim")
        if not wanted.is_admin and (holder := holdings.holder(offer.id)):
            return Reason("in-use", holder)
        refused = wanted.refuses(offer, self._question.node, takes_lists=self._question.takes_lists)
        if refused is None and offer.device.binding_conditions and not self._question.may_bind:
            refused = Reason("binding")
        if refused is None and offer.id in self._question.unhealthy and not wanted.is_admin:
            refused = Reason("unhealthy")
        refused = refused or shortage(offer, wanted.amounts, holdings.given(offer.id) if offer.is_shared else {})
        refused = refused or holdings.counter_shortage(offer, pool) or wanted.untolerated(offer)
        return refused or self._broken_bond(claim, wanted, offer)

    def _broken_bond(self, claim: int, wanted: Alternative, offer: Offer) -> Reason | None:
        for bond in self._bonds[claim]:
            why = bond.refuses(offer) if bond.concerns(wanted.request, wanted.part) else ""
            if why and wanted.wish.is_all:
                raise CannotAllocate(f"{wanted.where}: wants all devices, but {offer.id} breaks constraint {why}")
            if why:
                return Reason("constraint", why)
        return None

    def _note_stuck(self, point: tuple[int, int, int], wanted: Alternative, have: int, verdicts: list[Verdict]) -> None:
        """What failed nearer to the end tells more."""
        if point > self._deepest:
            self._deepest = point
            pool_verdicts = [
                Verdict(wanted.claim.key, wanted.name, offer.id, _reason_of(pool))
                for pool in self._pools
                if pool.missing or pool.invalid
                for offer in pool.offers
            ]
            told = rank((*verdicts, *pool_verdicts))
            self._stuck = Unsatisfied(wanted.claim.key, wanted.name, have, wanted.count, told)


def _reason_of(pool: DevicePool) -> Reason:
    return Reason("pool-incomplete", pool.missing) if pool.missing else Reason("pool-invalid", pool.invalid)
