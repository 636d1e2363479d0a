# SPDX-License-Identifier: Apache-2.0
"""Why a device was given or not, as values from which every text about it is made."""

from collections import Counter
from collections.abc import Iterable

import msgspec


class DeviceId(msgspec.Struct, frozen=True, order=True):
    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


class Reason(msgspec.Struct, frozen=True, order=True):
    """`word` is one of a fixed list; `detail` is what it is about."""

    word: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.word} {self.detail}".rstrip()


class Verdict(msgspec.Struct, frozen=True):
    """What became of one device for one request."""

    claim: str
    request: str
    device: DeviceId
    reason: Reason


class Unsatisfied(msgspec.Struct, frozen=True):
    """The deepest point that a search reached: so many of so many, and why each other device was not the next."""

    claim: str
    request: str
    have: int
    wanted: int
    verdicts: tuple[Verdict, ...] = ()

    def __str__(self) -> str:
        counted = Counter(str(one.reason) for one in self.verdicts)
        told = ", ".join(
            f"{count} {text}" for text, count in sorted(counted.items(), key=lambda one: (-one[1], one[0]))
        )
        return f"{self.have} of {self.wanted} for {self.claim}/{self.request}: {told or 'no devices'}"


class CannotAllocate(Exception):
    """Not that nothing fits now: something is wrong, and a person has to mend it."""

    def __init__(self, text: str, *, is_of_node: bool = False) -> None:
        super().__init__(text)
        self.is_of_node = is_of_node


def rank(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """In the order of devices, whatever the search did."""
    return tuple(sorted(verdicts, key=lambda one: one.device))
