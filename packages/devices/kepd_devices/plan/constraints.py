# SPDX-License-Identifier: Apache-2.0
"""What the devices of a claim must have in common, or must not."""

from kepd_devices.manifest.objects import Constraint
from kepd_devices.plan.offers import Offer, Values, values_of


class Bond:
    """One constraint while a search goes on: devices are added, and taken back in the opposite order."""

    def __init__(self, one: Constraint, number: int, *, takes_lists: bool) -> None:
        self.number = number
        self.name = one.match_attribute or one.distinct_attribute or ""
        self._is_distinct = one.match_attribute is None
        self._requests = one.requests
        self._takes_lists = takes_lists
        # Of each device what it has; where all must match, what all up to it have in common.
        self._kept: list[Values] = []

    def concerns(self, request: str, alternative: str) -> bool:
        return not self._requests or request in self._requests or f"{request}/{alternative}" in self._requests

    def refuses(self, offer: Offer) -> str:
        """Why this device cannot be added; nothing where it can."""
        values = self._values(offer)
        if not values:
            return f"{self.number} {self.name} wants a value, has none"
        if self._is_distinct and any(values & one for one in self._kept):
            return f"{self.number} {self.name} wants another, has {_told(values)}"
        if not self._is_distinct and self._kept and not values & self._kept[-1]:
            return f"{self.number} {self.name} wants {_told(self._kept[-1])}, has {_told(values)}"
        return ""

    def add(self, offer: Offer) -> None:
        values = self._values(offer)
        self._kept.append(values & self._kept[-1] if self._kept and not self._is_distinct else values)

    def take_back(self) -> None:
        self._kept.pop()

    def _values(self, offer: Offer) -> Values:
        attribute = offer.attribute(self.name)
        return values_of(attribute, takes_lists=self._takes_lists) if attribute is not None else frozenset()


def _told(values: Values) -> str:
    return "|".join(sorted(str(value) for _, value in values))
