# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities, held exactly, with the one rounding step that hints need: up to a whole milli.

Never: goes through binary floating point; a quantity is a whole number of billionths.
Source of behaviour: k8s.io/apimachinery `pkg/api/resource`. What is finer than one billionth rounds away from zero and
what is larger than 2^63-1 is cut to that, as its documentation says.
"""

import re
from functools import lru_cache

import msgspec

NANOS_PER_UNIT = 10**9
NANOS_PER_MILLI = 10**6
LARGEST_NANOS = (2**63 - 1) * NANOS_PER_UNIT
LONGEST_TEXT = 128
# Ten to this power, times any non-zero digit, is beyond LARGEST_NANOS: no need to build the number.
HOPELESS_POWER = 30

DECIMAL_POWERS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY_POWERS = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?P<suffix>[^0-9.].*)?", re.DOTALL)
EXPONENT = re.compile(r"[eE](?P<power>[+-]?[0-9]{1,18})")

WHAT_IS_EXPECTED = (
    'a number such as "2", "0.5" or "1e3", with at most one suffix out of '
    "n u m k M G T P E (powers of ten) or Ki Mi Gi Ti Pi Ei (powers of two)"
)


class QuantityError(ValueError):
    """The text is no quantity; the message carries it and says what would be one."""


class Quantity(msgspec.Struct, frozen=True, order=True, kw_only=True):
    nanos: int

    def __add__(self, other: "Quantity") -> "Quantity":
        return Quantity(nanos=self.nanos + other.nanos)

    def milli(self) -> int:
        """Thousandths of the unit, rounded up."""
        return -(-self.nanos // NANOS_PER_MILLI)

    def __str__(self) -> str:
        for suffix, nanos in (("", NANOS_PER_UNIT), ("m", NANOS_PER_MILLI), ("u", 1000)):
            if self.nanos % nanos == 0:
                return f"{self.nanos // nanos}{suffix}"
        return f"{self.nanos}n"


ZERO = Quantity(nanos=0)


def binary_quantity(amount: int) -> str:
    """Bytes as Kubernetes writes them: in the largest unit that divides them."""
    for suffix, power in reversed(BINARY_POWERS.items()):
        if amount and amount % (1 << power) == 0:
            return f"{amount >> power}{suffix}"
    return str(amount)


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Quantity:
    """Reads `text`; raises QuantityError when it is not a quantity."""
    found = NUMBER.fullmatch(text) if len(text) <= LONGEST_TEXT else None
    if found is None or not (found["whole"] or found["fraction"]):
        raise _refused(text)
    fraction = found["fraction"] or ""
    digits = int(found["whole"] + fraction)
    power_of_ten, power_of_two = _powers(text, found["suffix"] or "")
    nanos = _scaled(digits, power_of_ten - len(fraction) + 9, power_of_two)
    return Quantity(nanos=-nanos if found["sign"] == "-" else nanos)


def _powers(text: str, suffix: str) -> tuple[int, int]:
    if suffix in DECIMAL_POWERS:
        return DECIMAL_POWERS[suffix], 0
    if suffix in BINARY_POWERS:
        return 0, BINARY_POWERS[suffix]
    exponent = EXPONENT.fullmatch(suffix)
    if exponent is None:
        raise _refused(text)
    return int(exponent["power"]), 0


def _scaled(digits: int, power_of_ten: int, power_of_two: int) -> int:
    if digits == 0:
        return 0
    if power_of_ten > HOPELESS_POWER:
        return LARGEST_NANOS
    if power_of_ten < -(LONGEST_TEXT + HOPELESS_POWER):
        return 1
    value = digits << power_of_two
    factor = int(10 ** abs(power_of_ten))
    value = -(-value // factor) if power_of_ten < 0 else value * factor
    return min(value, LARGEST_NANOS)


def _refused(text: str) -> QuantityError:
    told = text if len(text) <= LONGEST_TEXT else f"{text[:40]}… ({len(text)} characters)"
    return QuantityError(f"{told!r} is not a quantity; expected {WHAT_IS_EXPECTED}")
