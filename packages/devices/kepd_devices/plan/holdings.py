# SPDX-License-Identifier: Apache-2.0
"""What is given of the devices of a node: to claims that have it, and in the search to those that may get it.

Everything is booked last and taken back in the opposite order, so that a branch that fails leaves nothing behind.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from agent.model.quantity import ZERO, Quantity
from kepd_devices.manifest.objects import Claim
from kepd_devices.plan.offers import Offer
from kepd_devices.plan.pools import DevicePool
from kepd_devices.plan.reasons import DeviceId, Reason
from kepd_devices.plan.shares import Amounts, read_amounts

Counters = dict[tuple[str, str], Quantity]


class Holdings:
    def __init__(self, claims: Iterable[Claim], pools: Sequence[DevicePool]) -> None:
        # Who has a whole device.
        self._holders: dict[DeviceId, str] = {}
        self._given: dict[DeviceId, dict[str, Quantity]] = {}
        self._shares: dict[DeviceId, int] = defaultdict(int)
        # Which claims of this pod, by their places, may get a device.
        self._wanted_by: dict[DeviceId, list[int]] = defaultdict(list)
        self._consumed: dict[tuple[str, str], Counters] = {}
        for claim in claims:
            self._note(claim)
        for pool in pools:
            consumed: Counters = defaultdict(lambda: ZERO)
            self._consumed[pool.driver, pool.name] = consumed
            for offer in (*pool.offers, *pool.elsewhere):
                if offer.id in self._holders or self._shares.get(offer.id):
                    _book(consumed, offer)

    def _note(self, claim: Claim) -> None:
        """An administrator's look at a device takes nothing from others."""
        allocation = claim.status.allocation
        for one in allocation.devices.results if allocation is not None else ():
            device = DeviceId(one.driver, one.pool, one.device)
            if one.admin_access:
                continue
            if one.share_id:
                self._shares[device] += 1
                self._give(device, read_amounts(one.consumed_capacity), 1)
            else:
                self._holders[device] = claim.key

    def _give(self, device: DeviceId, amounts: Amounts, sign: int) -> None:
        known = self._given.setdefault(device, {})
        for name, amount in amounts.items():
            known[name] = Quantity(nanos=known.get(name, ZERO).nanos + sign * amount.nanos)

    def given(self, device: DeviceId) -> Mapping[str, Quantity]:
        return self._given.get(device, {})

    def holder(self, device: DeviceId) -> str:
        """Which claim has it, of this pod or of others; nothing where it is free, or shared."""
        return self._holders.get(device, "") or ("a claim of this pod" if self._wanted_by.get(device) else "")

    def is_wanted_by(self, device: DeviceId, claim: int) -> bool:
        return claim in self._wanted_by.get(device, ())

    def counter_shortage(self, offer: Offer, pool: DevicePool) -> Reason | None:
        """A share of a device whose counters are consumed already consumes none."""
        if offer.is_shared and self._shares.get(offer.id):
            return None
        consumed = self._consumed[pool.driver, pool.name]
        for kind, name, amount in offer.counters:
            left = Quantity(nanos=pool.counters[kind, name].nanos - consumed[kind, name].nanos)
            if amount > left:
                return Reason("counter", f"{kind}/{name} {amount} of {left}")
        return None

    def take(self, offer: Offer, claim: int, amounts: Amounts) -> None:
        """Amounts are of a share, and of no meaning for a whole device."""
        consumed = self._consumed[offer.id.driver, offer.id.pool]
        if not offer.is_shared:
            self._wanted_by[offer.id].append(claim)
            _book(consumed, offer)
            return
        if not self._shares.get(offer.id):
            _book(consumed, offer)
        self._shares[offer.id] += 1
        self._give(offer.id, amounts, 1)

    def give_back(self, offer: Offer, amounts: Amounts) -> None:
        consumed = self._consumed[offer.id.driver, offer.id.pool]
        if not offer.is_shared:
            self._wanted_by[offer.id].pop()
            _book(consumed, offer, -1)
            return
        self._shares[offer.id] -= 1
        self._give(offer.id, amounts, -1)
        if not self._shares[offer.id]:
            _book(consumed, offer, -1)


def _book(consumed: Counters, offer: Offer, sign: int = 1) -> None:
    for kind, name, amount in offer.counters:
        known = consumed.get((kind, name), ZERO)
        consumed[kind, name] = Quantity(nanos=known.nanos + sign * amount.nanos)
