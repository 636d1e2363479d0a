# SPDX-License-Identifier: Apache-2.0
"""What signs do: arithmetic that tells when it overflows, order, membership, and the ways into lists and maps."""

import math
from typing import Any

from kepd_devices.cel.signatures import SignatureTable
from kepd_devices.cel.values import (
    Domains,
    Duration,
    EvaluationFailed,
    Optional,
    Timestamp,
    Uint,
    equal,
    keyed,
)

SMALLEST, LARGEST, LARGEST_UNSIGNED = -(2**63), 2**63 - 1, 2**64 - 1
operators = SignatureTable()


def whole(value: int) -> int:
    """Raises EvaluationFailed for what is no int of 64 bits."""
    if not SMALLEST <= value <= LARGEST:
        raise EvaluationFailed("integer overflow")
    return value


def unsigned(value: int) -> Uint:
    if not 0 <= value <= LARGEST_UNSIGNED:
        raise EvaluationFailed("unsigned integer overflow")
    return Uint(value)


def _number(one: Any, value: float) -> Any:
    """Of the kind that the operands have."""
    if type(one) is float:
        return value
    return unsigned(int(value)) if type(one) is Uint else whole(int(value))


@operators.says("==(A, A) -> bool")
def same(one: Any, other: Any) -> bool:
    return equal(one, other)


@operators.says("!=(A, A) -> bool")
def different(one: Any, other: Any) -> bool:
    return not equal(one, other)


@operators.says("!(bool) -> bool")
def negation(one: bool) -> bool:
    return not one


NUMERIC = ("int, int", "uint, uint", "double, double")
ORDERED = (
    *NUMERIC, "int, uint", "int, double", "uint, int", "uint, double", "double, int", "double, uint", "string, string",
    "bytes, bytes", "bool, bool", "timestamp, timestamp", "duration, duration",
)  # fmt: skip


@operators.says(*(f"<({pair}) -> bool" for pair in ORDERED))
def less(one: Any, other: Any) -> bool:
    return bool(one < other)


@operators.says(*(f"<=({pair}) -> bool" for pair in ORDERED))
def at_most(one: Any, other: Any) -> bool:
    return bool(one <= other)


@operators.says(*(f">({pair}) -> bool" for pair in ORDERED))
def more(one: Any, other: Any) -> bool:
    return bool(one > other)


@operators.says(*(f">=({pair}) -> bool" for pair in ORDERED))
def at_least(one: Any, other: Any) -> bool:
    return bool(one >= other)


@operators.says("+(int, int) -> int", "+(uint, uint) -> uint", "+(double, double) -> double")
def add(one: Any, other: Any) -> Any:
    return _number(one, one + other)


@operators.says("+(string, string) -> string", "+(bytes, bytes) -> bytes", "+(list(A), list(A)) -> list(A)")
def joined(one: Any, other: Any) -> Any:
    return one + other


@operators.says("+(timestamp, duration) -> timestamp")
def later(one: Timestamp, other: Duration) -> Timestamp:
    return Timestamp(one.nanos + other.nanos)


@operators.says("+(duration, timestamp) -> timestamp")
def from_then(one: Duration, other: Timestamp) -> Timestamp:
    return Timestamp(one.nanos + other.nanos)


@operators.says("+(duration, duration) -> duration")
def longer(one: Duration, other: Duration) -> Duration:
    return Duration(whole(one.nanos + other.nanos))


@operators.says("-(int, int) -> int", "-(uint, uint) -> uint", "-(double, double) -> double")
def subtract(one: Any, other: Any) -> Any:
    return _number(one, one - other)


@operators.says("-(timestamp, timestamp) -> duration", "-(duration, duration) -> duration")
def between(one: Any, other: Any) -> Duration:
    return Duration(whole(one.nanos - other.nanos))


@operators.says("-(timestamp, duration) -> timestamp")
def earlier(one: Timestamp, other: Duration) -> Timestamp:
    return Timestamp(one.nanos - other.nanos)


@operators.says("*(int, int) -> int", "*(uint, uint) -> uint", "*(double, double) -> double")
def multiply(one: Any, other: Any) -> Any:
    return _number(one, one * other)


@operators.says("/(int, int) -> int", "/(uint, uint) -> uint")
def divide(one: int, other: int) -> int:
    """Towards zero."""
    if other == 0:
        raise EvaluationFailed("division by zero")
    value = abs(one) // abs(other)
    return int(_number(one, value if (one < 0) == (other < 0) else -value)) if type(one) is int else Uint(value)


@operators.says("/(double, double) -> double")
def fraction(one: float, other: float) -> float:
    if other:
        return one / other
    return math.nan if one == 0 or math.isnan(one) else math.copysign(math.inf, one) * math.copysign(1, other)


@operators.says("%(int, int) -> int", "%(uint, uint) -> uint")
def remainder(one: int, other: int) -> int:
    """With the sign of the first."""
    if other == 0:
        raise EvaluationFailed("modulus by zero")
    value = abs(one) % abs(other)
    return Uint(value) if type(one) is Uint else value if one >= 0 else -value


@operators.says("-_(int) -> int", "-_(double) -> double")
def minus(one: Any) -> Any:
    return _number(one, -one)


@operators.says("-_(duration) -> duration")
def backwards(one: Duration) -> Duration:
    return Duration(whole(-one.nanos))


@operators.says("in(A, list(A)) -> bool")
def is_item(one: Any, among: list[Any]) -> bool:
    return any(equal(one, other) for other in among)


@operators.says("in(A, map(A, B)) -> bool")
def is_key(one: Any, among: dict[Any, Any]) -> bool:
    return type(one) in (str, bool, int, Uint, float) and keyed(one) in among


@operators.says("[](list(A), int) -> A", "[](list(A), uint) -> A", "[](list(A), double) -> A")
def item(among: list[Any], place: float) -> Any:
    if not float(place).is_integer() or not 0 <= place < len(among):
        raise EvaluationFailed(f"index out of bounds: {place}")
    return among[int(place)]


@operators.says("[](map(A, B), A) -> B")
def entry(among: dict[Any, Any], key: Any) -> Any:
    found = among.get(keyed(key), missing)
    if found is missing:
        if type(among) is Domains:
            return {}
        raise EvaluationFailed(f"no such key: {key}")
    return found


missing = object()


@operators.says("[?](list(A), int) -> optional(A)")
def soft_item(among: list[Any], place: int) -> Optional:
    return Optional(True, among[place]) if 0 <= place < len(among) else Optional()


@operators.says("[?](map(A, B), A) -> optional(B)")
def soft_entry(among: dict[Any, Any], key: Any) -> Optional:
    return Optional(True, entry(among, key)) if keyed(key) in among else Optional()


@operators.says("[](optional(map(A, B)), A) -> optional(B)", "[?](optional(map(A, B)), A) -> optional(B)")
def entry_of_optional(among: Optional, key: Any) -> Optional:
    return soft_entry(among.value, key) if among.has else among


@operators.says("[](optional(list(A)), int) -> optional(A)", "[?](optional(list(A)), int) -> optional(A)")
def item_of_optional(among: Optional, place: int) -> Optional:
    return soft_item(among.value, place) if among.has else among
