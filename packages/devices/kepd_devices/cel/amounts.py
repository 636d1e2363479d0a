# SPDX-License-Identifier: Apache-2.0
"""Quantities and versions in expressions."""

from agent.model.quantity import NANOS_PER_UNIT, Quantity, QuantityError, parse_quantity
from kepd_devices.cel.operators import LARGEST
from kepd_devices.cel.signatures import SignatureTable
from kepd_devices.cel.values import EvaluationFailed, Semver, read_semver

amounts = SignatureTable()


@amounts.says("quantity(string) -> quantity")
def quantity(text: str) -> Quantity:
    try:
        return parse_quantity(text)
    except QuantityError as error:
        raise EvaluationFailed(str(error)) from error


@amounts.says("isQuantity(string) -> bool")
def is_quantity(text: str) -> bool:
    try:
        parse_quantity(text)
    except QuantityError:
        return False
    return True


def _order(one: int, other: int) -> int:
    return (one > other) - (one < other)


@amounts.says("quantity:compareTo(quantity) -> int")
def compare_quantities(one: Quantity, other: Quantity) -> int:
    return _order(one.nanos, other.nanos)


@amounts.says("quantity:isGreaterThan(quantity) -> bool")
def is_greater(one: Quantity, other: Quantity) -> bool:
    return one > other


@amounts.says("quantity:isLessThan(quantity) -> bool")
def is_less(one: Quantity, other: Quantity) -> bool:
    return one < other


@amounts.says("quantity:add(quantity) -> quantity", "quantity:add(int) -> quantity")
def add(one: Quantity, other: Quantity | int) -> Quantity:
    return Quantity(nanos=one.nanos + _nanos(other))


@amounts.says("quantity:sub(quantity) -> quantity", "quantity:sub(int) -> quantity")
def subtract(one: Quantity, other: Quantity | int) -> Quantity:
    return Quantity(nanos=one.nanos - _nanos(other))


def _nanos(amount: Quantity | int) -> int:
    return amount * NANOS_PER_UNIT if isinstance(amount, int) else amount.nanos


@amounts.says("quantity:sign() -> int")
def sign(one: Quantity) -> int:
    return _order(one.nanos, 0)


@amounts.says("quantity:isInteger() -> bool")
def is_integer(one: Quantity) -> bool:
    return one.nanos % NANOS_PER_UNIT == 0 and abs(one.nanos) <= LARGEST * NANOS_PER_UNIT


@amounts.says("quantity:asInteger() -> int")
def as_integer(one: Quantity) -> int:
    if not is_integer(one):
        raise EvaluationFailed(f"{one} is no whole number of 64 bits")
    return one.nanos // NANOS_PER_UNIT


@amounts.says("quantity:asApproximateFloat() -> double")
def as_float(one: Quantity) -> float:
    return one.nanos / NANOS_PER_UNIT


@amounts.says("semver(string) -> semver", "semver(string, bool) -> semver")
def semver(text: str, normalise: bool = False) -> Semver:  # as expressions give it
    found = read_semver(text, normalise=normalise)
    if found is None:
        raise EvaluationFailed(f"{text[:80]!r} is no version; expected MAJOR.MINOR.PATCH as semver 2.0.0 says")
    return found


@amounts.says("isSemver(string) -> bool", "isSemver(string, bool) -> bool")
def is_semver(text: str, normalise: bool = False) -> bool:
    return read_semver(text, normalise=normalise) is not None


@amounts.says("semver:compareTo(semver) -> int")
def compare_versions(one: Semver, other: Semver) -> int:
    return (one.order > other.order) - (one.order < other.order)


@amounts.says("semver:isGreaterThan(semver) -> bool")
def is_later(one: Semver, other: Semver) -> bool:
    return one.order > other.order


@amounts.says("semver:isLessThan(semver) -> bool")
def is_earlier(one: Semver, other: Semver) -> bool:
    return one.order < other.order


@amounts.says("semver:major() -> int")
def major(one: Semver) -> int:
    return one.major


@amounts.says("semver:minor() -> int")
def minor(one: Semver) -> int:
    return one.minor


@amounts.says("semver:patch() -> int")
def patch(one: Semver) -> int:
    return one.patch
