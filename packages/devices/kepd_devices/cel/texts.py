# SPDX-License-Identifier: Apache-2.0
"""Functions of texts, bytes and patterns."""

import base64
import binascii
from typing import Any

from kepd_devices.cel.pattern import Pattern, PatternRefused, pattern
from kepd_devices.cel.signatures import SignatureTable
from kepd_devices.cel.values import EvaluationFailed

LONGEST_MADE = 1 << 20
texts = SignatureTable()
WHITE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f"
WHITE += "\u205f\u3000"


@texts.says("string:startsWith(string) -> bool")
def starts_with(one: str, other: str) -> bool:
    return one.startswith(other)


@texts.says("string:endsWith(string) -> bool")
def ends_with(one: str, other: str) -> bool:
    return one.endswith(other)


@texts.says("string:contains(string) -> bool")
def contains(one: str, other: str) -> bool:
    return other in one


@texts.says("string:matches(string) -> bool", "matches(string, string) -> bool")
def matches(one: str, expression: str) -> bool:
    return read_pattern(expression).is_in(one)


def read_pattern(expression: str) -> Pattern:
    """Raises EvaluationFailed."""
    try:
        return pattern(expression)
    except PatternRefused as error:
        raise EvaluationFailed(str(error)) from error


def _cased(one: str, *, is_upper: bool) -> str:
    return "".join((sign.upper() if is_upper else sign.lower()) if sign.isascii() else sign for sign in one)


@texts.says("string:lowerAscii() -> string")
def lower(one: str) -> str:
    return _cased(one, is_upper=False)


@texts.says("string:upperAscii() -> string")
def upper(one: str) -> str:
    return _cased(one, is_upper=True)


@texts.says("string:trim() -> string")
def trim(one: str) -> str:
    return one.strip(WHITE)


@texts.says("string:replace(string, string) -> string", "string:replace(string, string, int) -> string")
def replace(one: str, old: str, new: str, most: int = -1) -> str:
    count = one.count(old) if most < 0 else min(one.count(old), most)
    _room(len(one) + count * len(new))
    return one.replace(old, new, most)


@texts.says("string:split(string) -> list(string)", "string:split(string, int) -> list(string)")
def split(one: str, at: str, most: int = -1) -> list[str]:
    if most == 0:
        return []
    if most == 1:
        return [one]
    if at:
        return one.split(at, most - 1 if most > 0 else -1)
    return list(one) if most < 0 or most >= len(one) else [*one[: most - 1], one[most - 1 :]]


@texts.says("list(string):join() -> string", "list(string):join(string) -> string")
def join(parts: list[Any], between: str = "") -> str:
    if not all(type(part) is str for part in parts):
        raise EvaluationFailed("join: not every item is a string")
    _room(sum(map(len, parts)) + len(parts) * len(between))
    return between.join(parts)


def _room(size: int) -> None:
    if size > LONGEST_MADE:
        raise EvaluationFailed(f"a text of {size} signs is longer than {LONGEST_MADE}")


@texts.says("string:substring(int) -> string", "string:substring(int, int) -> string")
def substring(one: str, begin: int, end: int | None = None) -> str:
    end = len(one) if end is None else end
    if not 0 <= begin <= end <= len(one):
        raise EvaluationFailed(f"index out of range: {begin} to {end} of {len(one)}")
    return one[begin:end]


@texts.says("string:charAt(int) -> string")
def char_at(one: str, place: int) -> str:
    if not 0 <= place <= len(one):
        raise EvaluationFailed(f"index out of range: {place}")
    return one[place : place + 1]


@texts.says("string:indexOf(string) -> int", "string:indexOf(string, int) -> int")
def index_of(one: str, other: str, begin: int = 0) -> int:
    if begin and not 0 <= begin < len(one):
        raise EvaluationFailed(f"index out of range: {begin}")
    return one.find(other, begin)


@texts.says("string:lastIndexOf(string) -> int", "string:lastIndexOf(string, int) -> int")
def last_index_of(one: str, other: str, begin: int | None = None) -> int:
    if begin is None:
        return one.rfind(other)
    if not 0 <= begin < len(one):
        raise EvaluationFailed(f"index out of range: {begin}")
    return one.rfind(other, 0, begin + len(other))


@texts.says("base64.encode(bytes) -> string")
def encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


@texts.says("base64.decode(string) -> bytes")
def decode(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise EvaluationFailed(f"no base64: {error}") from error
