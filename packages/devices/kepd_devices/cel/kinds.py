# SPDX-License-Identifier: Apache-2.0
"""What kinds of value there are, as far as an expression tells before it is evaluated."""

import re
from functools import cache

import msgspec


class CelType(msgspec.Struct, frozen=True):
    """A capital letter stands for any kind, the same wherever it appears in one signature."""

    name: str
    of: tuple["CelType", ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.of))})" if self.of else self.name

    @property
    def is_free(self) -> bool:
        return len(self.name) == 1


DYN = CelType("dyn")
BOOL, INT, STRING, NULL = CelType("bool"), CelType("int"), CelType("string"), CelType("null")
PIECE = re.compile(r"\s*([A-Za-z]+|[(),])")
Bound = dict[str, CelType]


def list_of(kind: CelType) -> CelType:
    return CelType("list", (kind,))


def map_of(key: CelType, value: CelType) -> CelType:
    return CelType("map", (key, value))


def optional_of(kind: CelType) -> CelType:
    return CelType("optional", (kind,))


@cache
def read_kind(text: str) -> CelType:
    """`map(string, list(A))`."""
    kind, left = _read(PIECE.findall(text))
    if left:
        raise ValueError(f"{text}: {left[0]} is too much")
    return kind


def _read(pieces: list[str]) -> tuple[CelType, list[str]]:
    name, left = pieces[0], pieces[1:]
    of: list[CelType] = []
    if left[:1] == ["("]:
        while left[0] != ")":
            inside, left = _read(left[1:])
            of.append(inside)
        left = left[1:]
    return CelType(name, tuple(of)), left


def fits(given: CelType, wanted: CelType, bound: Bound) -> bool:
    """Whether a value of the one may be where the other is wanted; free kinds of `wanted` are bound by it."""
    if wanted.is_free:
        known = bound.get(wanted.name)
        if known is None or known == DYN:
            bound[wanted.name] = given
            return True
        return fits(given, known, bound)
    if DYN in (given, wanted) or given.is_free:
        return True
    if given.name != wanted.name:
        return False
    return not given.of or not wanted.of or all(fits(*pair, bound) for pair in zip(given.of, wanted.of, strict=True))


def with_bound(kind: CelType, bound: Bound) -> CelType:
    """What is free and was never bound may be anything."""
    if kind.is_free:
        return bound.get(kind.name, DYN)
    return CelType(kind.name, tuple(with_bound(one, bound) for one in kind.of))


def common(kinds: list[CelType]) -> CelType | None:
    """The kind of a list of values of these; None where they differ."""
    known = [one for one in kinds if one != DYN]
    if not known:
        return DYN
    return (known[0] if len(known) == len(kinds) else DYN) if all(fits(one, known[0], {}) for one in known) else None
