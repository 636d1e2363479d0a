# SPDX-License-Identifier: Apache-2.0
"""Why the claims of a pod get the devices that they get, or none: a reason for each device and request.

It searches as an allocation does and gives nothing away; the same input gives the same bytes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from kepd_devices.manifest.objects import Claim
from kepd_devices.plan.constraints import Bond
from kepd_devices.plan.holdings import Holdings
from kepd_devices.plan.offers import Offer
from kepd_devices.plan.pools import DevicePool, gather
from kepd_devices.plan.reasons import CannotAllocate, DeviceId, Reason, Verdict
from kepd_devices.plan.search import Question, SearchAnswer, search
from kepd_devices.plan.shares import shortage
from kepd_devices.plan.wanted import Alternative, Asked, Reader

MOST_CHANGES = 10
# What would have to change, by the word of a reason.
CHANGES: Mapping[str, str] = {
    "in-use": "the pods of {detail} would have to end",
    "shares-full": "a claim that has a share would have to go: {detail} left",
    "class-selector": "selector {detail} of the class would have to select other devices",
    "request-selector": "selector {detail} of the request would have to select other devices",
    "selector-error": "{detail}",
    "taint": "the request would have to tolerate {detail}, or the driver to take that taint away",
    "counter": "what consumes {detail} would have to go",
    "no-capacity": "the request would have to do without {detail}, which these devices do not have",
    "amount": "the request would have to ask for less: {detail}",
    "constraint": "the claim would have to do without constraint {detail}",
    "pool-incomplete": "the driver would have to publish the rest of its slices: {detail}",
    "pool-invalid": "the driver would have to mend its pool: {detail}",
    "old-generation": "the driver would have to publish the slice with the newest generation of its pool",
    "other-node": "the pod would have to run where the device is",
    "unhealthy": "their driver would have to tell that they are well",
    "binding": "a cluster would be needed: nobody binds such devices on a node by itself",
}


class RequestExplained(msgspec.Struct, frozen=True):
    """`name` is REQUEST, or REQUEST/PART of one with alternatives."""

    name: str
    wants: str
    verdicts: tuple[Verdict, ...]


class ClaimExplained(msgspec.Struct, frozen=True):
    key: str
    requests: tuple[RequestExplained, ...] = ()


class Explanation(msgspec.Struct, frozen=True):
    """`outcome` is allocated, waits or error; `end` how the search ended."""

    outcome: str
    end: str
    claims: tuple[ClaimExplained, ...] = ()
    changes: tuple[str, ...] = ()
    tried: int = 0


def explain(question: Question) -> Explanation:
    pools = gather(question.slices, question.node)
    try:
        answer = search(question)
    except CannotAllocate as error:
        asked = list(_asked(question, pools))
        claims = _claims(question, pools, asked, None)
        return Explanation("error", str(error), claims)
    claims = _claims(question, pools, answer.asked, answer)
    if answer.given is not None:
        count = sum(map(len, answer.given))
        end = f"{count} of {count} devices, after {answer.tried} were tried"
        return Explanation("allocated", end, claims, tried=answer.tried)
    verdicts = answer.stuck.verdicts if answer.stuck is not None else ()
    return Explanation("waits", str(answer.stuck), claims, tuple(_changes(verdicts)), answer.tried)


def explained(given: bytes) -> bytes:
    """The same as work for a desk."""
    return msgspec.msgpack.encode(explain(msgspec.msgpack.decode(given, type=Question)))


def _asked(question: Question, pools: Sequence[DevicePool]) -> Iterator[Asked]:
    """As far as claims can be read at all."""
    reader = Reader(pools, question.classes, question.node, takes_lists=question.takes_lists)
    for claim in question.claims:
        try:
            yield reader.read(claim)
        except CannotAllocate:
            yield Asked(claim, [])


def _changes(verdicts: Iterable[Verdict]) -> Iterator[str]:
    counted = Counter(one.reason for one in verdicts)
    for reason, count in sorted(counted.items(), key=lambda one: (-one[1], one[0]))[:MOST_CHANGES]:
        text = CHANGES.get(reason.word)
        if text is not None:
            devices = "1 device" if count == 1 else f"{count} devices"
            yield f"for {devices}, {text.format(detail=reason.detail)}"
    if not counted:
        yield "a driver would have to publish devices for this node"


def _claims(
    question: Question, pools: Sequence[DevicePool], asked: Sequence[Asked], answer: SearchAnswer | None
) -> tuple[ClaimExplained, ...]:
    judge = _Judge(question, pools, asked, answer)
    return tuple(
        ClaimExplained(
            one.claim.key,
            tuple(
                RequestExplained(wanted.name, _wants(wanted), tuple(judge.verdicts(place, wanted)))
                for alternatives in one.requests
                for wanted in alternatives
            ),
        )
        for place, one in enumerate(asked)
    )


def _wants(wanted: Alternative) -> str:
    count = "all devices" if wanted.wish.is_all else "1 device" if wanted.count == 1 else f"{wanted.count} devices"
    return f"{count} of class {wanted.device_class.metadata.name}"


class _Judge:
    def __init__(
        self, question: Question, pools: Sequence[DevicePool], asked: Sequence[Asked], answer: SearchAnswer | None
    ) -> None:
        self._question = question
        self._pools = {(one.driver, one.name): one for one in pools}
        self._offers = {(one.id, id(one.slice)): (pool, one) for pool in pools for one in pool.offers}
        self._holdings = Holdings(question.existing, pools)
        self._given = answer.given if answer is not None and answer.given is not None else tuple(() for _ in asked)
        self._asked = asked
        stuck = answer.stuck if answer is not None else None
        self._stuck = {(one.claim, one.request, one.device): one for one in (stuck.verdicts if stuck else ())}
        self._chosen = {
            (place, one.alternative.name, one.offer.id) for place, given in enumerate(self._given) for one in given
        }
        for place, given in enumerate(self._given):
            for one in given:
                if not one.alternative.is_admin:
                    self._holdings.take(self._here(one.offer), place, one.amounts)

    def _here(self, offer: Offer) -> Offer:
        """The search gathered devices of its own."""
        return self._offers.get((offer.id, id(offer.slice)), (None, offer))[1]

    def verdicts(self, place: int, wanted: Alternative) -> Iterator[Verdict]:
        newest: dict[tuple[str, str], int] = {}
        for one in self._question.slices:
            pool = one.spec.driver, one.spec.pool.name
            newest[pool] = max(newest.get(pool, 0), one.spec.pool.generation)
        ordered = sorted(
            self._question.slices, key=lambda one: (one.spec.driver, one.spec.pool.name, one.metadata.name)
        )
        for one in ordered:
            key = one.spec.driver, one.spec.pool.name
            for device in one.spec.devices or ():
                found = DeviceId(*key, device.name)
                known = self._offers.get((found, id(one)))
                if one.spec.pool.generation < newest[key]:
                    reason = Reason("old-generation")
                else:
                    reason = self._of_pool(key) or (
                        self._reason(place, wanted, *known) if known is not None else Reason("other-node")
                    )
                yield Verdict(wanted.claim.key, wanted.name, found, reason)

    def _of_pool(self, key: tuple[str, str]) -> Reason | None:
        pool = self._pools.get(key)
        if pool is None:
            return Reason("other-node")
        if pool.missing:
            return Reason("pool-incomplete", pool.missing)
        return Reason("pool-invalid", pool.invalid) if pool.invalid else None

    def _reason(self, place: int, wanted: Alternative, pool: DevicePool, offer: Offer) -> Reason:
        if (place, wanted.name, offer.id) in self._chosen:
            return Reason("chosen")
        stuck = self._stuck.get((wanted.claim.key, wanted.name, offer.id))
        if stuck is not None:
            return stuck.reason
        try:
            refused = wanted.refuses(offer, self._question.node, takes_lists=self._question.takes_lists)
        except CannotAllocate as error:
            return Reason("selector-error", str(error))
        holder = "" if wanted.is_admin else self._holdings.holder(offer.id)
        if refused is None and holder:
            return Reason("in-use", holder)
        if refused is None and offer.device.binding_conditions and not self._question.may_bind:
            return Reason("binding")
        if refused is None and offer.id in self._question.unhealthy and not wanted.is_admin:
            return Reason("unhealthy")
        given = self._holdings.given(offer.id) if offer.is_shared else {}
        refused = refused or shortage(offer, wanted.amounts, given)
        refused = refused or self._holdings.counter_shortage(offer, pool) or wanted.untolerated(offer)
        return refused or self._broken_bond(place, wanted, offer) or Reason("not-needed")

    def _broken_bond(self, place: int, wanted: Alternative, offer: Offer) -> Reason | None:
        """In the place of those that this request got."""
        for number, one in enumerate(wanted.claim.spec.devices.constraints):
            bond = Bond(one, number, takes_lists=self._question.takes_lists)
            if not bond.concerns(wanted.request, wanted.part):
                continue
            for given in self._given[place]:
                other = given.alternative
                if other.name != wanted.name and bond.concerns(other.request, other.part):
                    bond.add(given.offer)
            if why := bond.refuses(offer):
                return Reason("constraint", why)
        return None


def existing_in(claims: Iterable[Claim], wanted: Iterable[Claim]) -> tuple[Claim, ...]:
    """Claims that have devices already, other than those that are asked about."""
    asked = {one.metadata.uid for one in wanted}
    return tuple(one for one in claims if one.status.allocation is not None and one.metadata.uid not in asked)
