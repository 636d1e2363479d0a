# SPDX-License-Identifier: Apache-2.0
"""What the claims of a pod ask for, with the classes that they name."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from kepd_devices.cel.program import Judgement, program
from kepd_devices.cel.tree import Unreadable
from kepd_devices.cel.values import EvaluationFailed
from kepd_devices.manifest.objects import Claim, DeviceClass, DeviceRequest, Toleration, Wish
from kepd_devices.plan.offers import Offer
from kepd_devices.plan.pools import DevicePool, PoolNode, is_device_for
from kepd_devices.plan.reasons import CannotAllocate, Reason
from kepd_devices.plan.shares import Amounts, read_amounts, shortage

MOST_RESULTS = 32
# Of the selectors of one search, for all devices: other pods' searches wait for it.
MOST_STEPS = 10_000_000


class _SeenDevice:
    """A device by what it is, not by what it says: slices stay the same objects until others are published."""

    def __init__(self, offer: Offer, *, takes_lists: bool) -> None:
        self.offer, self._key = offer, (id(offer.slice), id(offer.device), takes_lists)
        self.takes_lists = takes_lists

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        # Each keeps its offer, so no other object has its id.
        return isinstance(other, _SeenDevice) and other._key == self._key  # of its own kind


@lru_cache(maxsize=4096)
def _judged(expression: str, seen: _SeenDevice) -> Judgement:
    """Remembered over searches, which are repeated as long as a pod waits."""
    try:
        return program(expression).judge(seen.offer.seen(takes_lists=seen.takes_lists))
    except (EvaluationFailed, Unreadable) as error:
        return Judgement(False, 0, str(error))


class DevicePace:
    """What the selectors of one search have taken."""

    steps = 0


class Alternative:
    """One way to satisfy a request; most requests have one. `all` are the devices that it wants, where it wants all."""

    def __init__(
        self, claim: Claim, request: DeviceRequest, wish: Wish, device_class: DeviceClass, pace: DevicePace
    ) -> None:
        self.claim = claim
        self._pace = pace
        self.request = request.name
        self.part = wish.name
        self.wish = wish
        self.device_class = device_class
        self.amounts: Amounts = read_amounts(wish.amounts)
        self.is_admin = bool(wish.admin_access)
        self.all: list[tuple[DevicePool, Offer]] = []
        self.count = wish.wanted
        self._fits: dict[int, Reason | None] = {}

    @property
    def name(self) -> str:
        return f"{self.request}/{self.part}" if self.part else self.request

    @property
    def where(self) -> str:
        return f"claim {self.claim.key}, request {self.name}"

    def refuses(self, offer: Offer, node: PoolNode, *, takes_lists: bool) -> Reason | None:
        """Why the device is not meant, whoever has it; each is asked about once. Raises CannotAllocate."""
        if id(offer) not in self._fits:
            self._fits[id(offer)] = self._judged(offer, node, takes_lists=takes_lists)
        return self._fits[id(offer)]

    def _is_true(self, owner: str, number: int, expression: str, seen: _SeenDevice) -> bool:
        judgement = _judged(expression, seen)
        if judgement.failure:
            text = f"{owner}: selector {number} fails for device {seen.offer.id}: {judgement.failure}; expression: "
            raise CannotAllocate(text + expression + _guard(judgement.failure))
        self._pace.steps += judgement.steps
        if self._pace.steps > MOST_STEPS:
            text = f"{owner}: the selectors of this search take more than {MOST_STEPS} steps for the devices of the "
            raise CannotAllocate(text + "node; one that asks for device.driver first, or is shorter, takes fewer")
        return judgement.is_true

    def _judged(self, offer: Offer, node: PoolNode, *, takes_lists: bool) -> Reason | None:
        own, seen = self.device_class, _SeenDevice(offer, takes_lists=takes_lists)
        parts = (
            ("class-selector", f"class {own.metadata.name}", own.spec.selectors),
            ("request-selector", f"claim {self.claim.key}", self.wish.selectors),
        )
        for word, owner, selectors in parts:
            for number, one in enumerate(selectors):
                if not self._is_true(owner, number, one.cel.expression if one.cel else "", seen):
                    return Reason(word, str(number))
        if offer.slice.spec.per_device_node_selection and not is_device_for(offer.device, node):
            return Reason("other-node")
        return None

    def untolerated(self, offer: Offer) -> Reason | None:
        for taint in offer.taints:
            if taint.effect in ("NoSchedule", "NoExecute") and not any(
                _tolerates(one, taint.key, taint.value, taint.effect) for one in self.wish.tolerations
            ):
                return Reason("taint", f"{taint.key}={taint.value}:{taint.effect}")
        return None


def _guard(failure: str) -> str:
    """What to write so that devices without an attribute are passed over."""
    _, is_key, name = failure.partition("no such key: ")
    return f'; ask first: "{name}" in device.attributes["DOMAIN"]' if is_key else ""


def _tolerates(one: Toleration, key: str, value: str, effect: str) -> bool:
    is_meant = one.effect in ("", effect) and one.key in ("", key)
    return is_meant and (one.operator == "Exists" or one.value == value)


class Asked:
    """A claim with its requests, each a list of alternatives."""

    def __init__(self, claim: Claim, requests: list[list[Alternative]]) -> None:
        self.claim = claim
        self.requests = requests


class Reader:
    """Makes Asked of claims: whatever can be known without a search is found here."""

    def __init__(
        self, pools: Sequence[DevicePool], classes: Mapping[str, DeviceClass], node: PoolNode, *, takes_lists: bool
    ) -> None:
        self._pools = pools
        self._classes = classes
        self._node = node
        self._takes_lists = takes_lists
        self._pace = DevicePace()

    def read(self, claim: Claim) -> Asked:
        """Raises CannotAllocate."""
        requests = [self._request(claim, one) for one in claim.spec.devices.requests]
        least = sum(min(one.count for one in alternatives) for alternatives in requests)
        if least > MOST_RESULTS:
            raise CannotAllocate(
                f"claim {claim.key}: asks for {least} devices; a claim can have {MOST_RESULTS} at most"
            )
        return Asked(claim, requests)

    def _request(self, claim: Claim, request: DeviceRequest) -> list[Alternative]:
        wishes = request.first_available or ((request.exactly,) if request.exactly is not None else ())
        found = [self._alternative(claim, request, wish) for wish in wishes]
        if not found:
            raise CannotAllocate(f"claim {claim.key}, request {request.name}: asks for nothing")
        return found

    def _alternative(self, claim: Claim, request: DeviceRequest, wish: Wish) -> Alternative:
        known = self._classes.get(wish.device_class_name)
        if known is None:
            text = f"claim {claim.key}, request {request.name}: DeviceClass {wish.device_class_name} is not there"
            raise CannotAllocate(text)
        found = Alternative(claim, request, wish, known, self._pace)
        if wish.is_all:
            found.all = self._all(found)
            found.count = len(found.all)
        return found

    def _all(self, wanted: Alternative) -> list[tuple[DevicePool, Offer]]:
        found: list[tuple[DevicePool, Offer]] = []
        for pool in self._pools:
            if pool.missing or pool.invalid:
                why = f"has {pool.missing} slices" if pool.missing else f"is invalid: {pool.invalid}"
                raise CannotAllocate(f"{wanted.where}: asks for all devices, but pool {pool} {why}")
            for offer in pool.offers:
                is_meant = wanted.refuses(offer, self._node, takes_lists=self._takes_lists) is None
                if is_meant and shortage(offer, wanted.amounts, {}) is None:
                    found.append((pool, offer))
        return found
