# SPDX-License-Identifier: Apache-2.0
"""Functions of lists, of maps as far as they are counted, of sets, and of what may be there or not."""

from itertools import pairwise
from typing import Any

from kepd_devices.cel.operators import add, less, whole
from kepd_devices.cel.signatures import SignatureTable
from kepd_devices.cel.values import Duration, EvaluationFailed, Optional, equal, kind_name

lists = SignatureTable()
ZEROS: tuple[Any, ...] = (0, False, "", b"", [], {})
ORDERED = ("int", "uint", "double", "bool", "string", "bytes", "timestamp", "duration")


@lists.says(
    *(f"size({kind}) -> int" for kind in ("string", "bytes", "list(A)", "map(A, B)")),
    *(f"{kind}:size() -> int" for kind in ("string", "bytes", "list(A)", "map(A, B)")),
)
def size(of: Any) -> int:
    return len(of)


@lists.says("dyn:includes(dyn) -> bool")
def includes(of: Any, wanted: Any) -> bool:
    """An attribute that has one value is as a list of it."""
    return any(equal(one, wanted) for one in of) if isinstance(of, list) else equal(of, wanted)


@lists.says(*(f"list({kind}):isSorted() -> bool" for kind in ORDERED))
def is_sorted(of: list[Any]) -> bool:
    _alike(of)
    return all(not less(after, before) for before, after in pairwise(of))


@lists.says(*(f"list({kind}):sum() -> {kind}" for kind in ("int", "uint", "double", "duration")))
def total(of: list[Any]) -> Any:
    _alike(of)
    if not of:
        return 0
    if type(of[0]) is Duration:
        return Duration(whole(sum(one.nanos for one in of)))
    found = of[0]
    for one in of[1:]:
        found = add(found, one)
    return found


@lists.says(*(f"list({kind}):min() -> {kind}" for kind in ORDERED))
def smallest(of: list[Any]) -> Any:
    _alike(of)
    return min(_some(of))


@lists.says(*(f"list({kind}):max() -> {kind}" for kind in ORDERED))
def largest(of: list[Any]) -> Any:
    _alike(of)
    return max(_some(of))


def _some(of: list[Any]) -> list[Any]:
    if not of:
        raise EvaluationFailed("the list is empty")
    return of


def _alike(of: list[Any]) -> None:
    if len({kind_name(one) for one in of}) > 1:
        raise EvaluationFailed("no such overload: a list of several kinds")


@lists.says("list(A):indexOf(A) -> int")
def index_of(of: list[Any], wanted: Any) -> int:
    return next((place for place, one in enumerate(of) if equal(one, wanted)), -1)


@lists.says("list(A):lastIndexOf(A) -> int")
def last_index_of(of: list[Any], wanted: Any) -> int:
    return next((place for place in reversed(range(len(of))) if equal(of[place], wanted)), -1)


@lists.says("list(list(A)):flatten() -> list(A)", "list(dyn):flatten() -> list(dyn)")
def flatten(of: list[Any]) -> list[Any]:
    found: list[Any] = []
    for one in of:
        found += one if isinstance(one, list) else [one]
    return found


@lists.says("sets.contains(list(A), list(A)) -> bool")
def has_all(of: list[Any], wanted: list[Any]) -> bool:
    return all(any(equal(one, other) for other in of) for one in wanted)


@lists.says("sets.equivalent(list(A), list(A)) -> bool")
def are_equivalent(of: list[Any], other: list[Any]) -> bool:
    return has_all(of, other) and has_all(other, of)


@lists.says("sets.intersects(list(A), list(A)) -> bool")
def intersect(of: list[Any], other: list[Any]) -> bool:
    return any(equal(one, another) for one in of for another in other)


@lists.says("optional.of(A) -> optional(A)")
def optional_of(value: Any) -> Optional:
    return Optional(True, value)


@lists.says("optional.ofNonZeroValue(A) -> optional(A)")
def optional_of_some(value: Any) -> Optional:
    is_zero = value is None or any(equal(value, zero) for zero in ZEROS)
    return Optional() if is_zero else Optional(True, value)


@lists.says("optional.none() -> optional(A)")
def nothing() -> Optional:
    return Optional()


@lists.says("optional(A):hasValue() -> bool")
def has_value(of: Optional) -> bool:
    return of.has


@lists.says("optional(A):value() -> A")
def value(of: Optional) -> Any:
    if not of.has:
        raise EvaluationFailed("optional.none() has no value")
    return of.value


@lists.says("optional(A):orValue(A) -> A")
def value_or(of: Optional, other: Any) -> Any:
    return of.value if of.has else other


@lists.says("optional(A):or(optional(A)) -> optional(A)")
def this_or(of: Optional, other: Optional) -> Optional:
    return of if of.has else other
