# SPDX-License-Identifier: Apache-2.0
"""Values that expressions compute with, and what is equal. Truths, whole numbers, fractions, texts, bytes, lists and
maps are those of Python; a whole number without sign is a Uint. Keys of maps are written by `keyed`."""

import re
from typing import Any

import msgspec

from agent.model.quantity import Quantity


class Uint(int):
    __slots__ = ()


class EvaluationFailed(Exception):
    """An expression has no value for this device."""


class Semver(msgspec.Struct, frozen=True):
    """A version by semver 2.0.0; what stands behind `+` decides nothing."""

    major: int
    minor: int
    patch: int
    before: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[Any, ...]:
        """A version comes after those that prepare it; numbers come before words."""
        words = tuple((0, int(one), "") if one.isdecimal() else (1, 0, one) for one in self.before)
        return (self.major, self.minor, self.patch, not self.before, words)


class Optional(msgspec.Struct, frozen=True):
    has: bool = False
    value: Any = None


class TypeOf(msgspec.Struct, frozen=True):
    name: str


class Timestamp(msgspec.Struct, frozen=True, order=True):
    nanos: int


class Duration(msgspec.Struct, frozen=True, order=True):
    nanos: int


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device as selectors see it: attributes and capacities by domain, then by name."""

    driver: str
    attributes: "Domains"
    capacity: "Domains"
    allowMultipleAllocations: bool = False  # noqa: N815  # the name that expressions use


class Domains(dict[str, dict[str, Any]]):
    """A domain without attributes reads as an empty map."""


NUMBER = r"(0|[1-9][0-9]*)"
STRICT = re.compile(rf"{NUMBER}\.{NUMBER}\.{NUMBER}(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z.-]+))?", re.ASCII)
LOOSE = re.compile(r"([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?([-+].*)?", re.ASCII | re.DOTALL)


def read_semver(text: str, *, normalise: bool = False) -> Semver | None:
    """Raises nothing; None for what is no version."""
    if normalise:
        loose = LOOSE.fullmatch(text.removeprefix("v"))
        if loose is None or len(text) > 256:
            return None
        text = ".".join(str(int(part or 0)) for part in loose.group(1, 2, 3)) + (loose[4] or "")
    found = STRICT.fullmatch(text) if len(text) <= 256 else None
    if found is None:
        return None
    before, build = (tuple(part.split(".")) if part is not None else () for part in found.group(4, 5))
    has_zeros = any(one.isdecimal() and one != "0" and one[0] == "0" for one in before)
    if "" in (*before, *build) or has_zeros:
        return None
    return Semver(int(found[1]), int(found[2]), int(found[3]), before)


NAMES: dict[type, str] = {
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null",
    list: "list",
    dict: "map",
    Domains: "map",
    Quantity: "quantity",
    Semver: "semver",
    Timestamp: "timestamp",
    Duration: "duration",
    Optional: "optional",
    TypeOf: "type",
    Device: "device",
}
NUMBERS = (int, Uint, float)
TYPE_NAMES = {"null": "null_type", "timestamp": "google.protobuf.Timestamp", "duration": "google.protobuf.Duration"}


def kind_name(value: object) -> str:
    return NAMES.get(type(value)) or type(value).__name__.lower()


def equal(one: Any, other: Any) -> bool:
    """Numbers by their value; else values of two kinds are never equal."""
    if type(one) in NUMBERS and type(other) in NUMBERS:
        return bool(one == other)
    if kind_name(one) != kind_name(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, Optional):
        return one.has == other.has and (not one.has or equal(one.value, other.value))
    return bool(one == other)


def keyed(key: object) -> Any:
    """As a key of a map: to Python True and 1 are the same. Raises EvaluationFailed."""
    if type(key) is bool:
        return ("bool", key)
    if type(key) is float and not key.is_integer():
        raise EvaluationFailed(f"no such key: {key}")
    if type(key) not in (str, *NUMBERS):
        raise EvaluationFailed(f"a key of a map is no {kind_name(key)}")
    return key


def unkeyed(key: Any) -> Any:
    return key[1] if isinstance(key, tuple) else key
