# SPDX-License-Identifier: Apache-2.0
"""From one kind of value to another, and times, which are read from texts."""

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from kepd_devices.cel.operators import LARGEST, SMALLEST, unsigned, whole
from kepd_devices.cel.signatures import SignatureTable
from kepd_devices.cel.values import (
    TYPE_NAMES,
    Duration,
    EvaluationFailed,
    Timestamp,
    TypeOf,
    Uint,
    kind_name,
)

conversions = SignatureTable()
BILLION = 10**9
UNITS = {"h": 3600 * BILLION, "m": 60 * BILLION, "s": BILLION, "ms": 10**6, "us": 1000, "µs": 1000, "ns": 1}
PART = re.compile(r"(\d{1,12})(?:\.(\d{0,9})\d*)?(h|ms|m|s|us|µs|ns)", re.ASCII)
MOMENT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII)
INTEGER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@conversions.says("dyn(A) -> dyn")
def dyn(value: Any) -> Any:
    return value


@conversions.says("type(A) -> type")
def type_of(value: Any) -> TypeOf:
    name = kind_name(value)
    return TypeOf(TYPE_NAMES.get(name, name))


@conversions.says("bool(bool) -> bool", "bool(string) -> bool")
def truth(value: Any) -> bool:
    if type(value) is bool:
        return value
    if value in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if value in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise EvaluationFailed(f"{value[:80]!r} is neither true nor false")


@conversions.says(*(f"int({kind}) -> int" for kind in ("int", "uint", "double", "string", "timestamp")))
def integer(value: Any) -> int:
    if isinstance(value, str):
        if not INTEGER.fullmatch(value):
            raise EvaluationFailed(f"{value[:80]!r} is no whole number")
        return whole(int(value))
    if isinstance(value, Timestamp):
        return value.nanos // BILLION
    if isinstance(value, float) and not SMALLEST < value < LARGEST:
        raise EvaluationFailed("integer overflow")
    return whole(int(value))


@conversions.says(*(f"uint({kind}) -> uint" for kind in ("int", "uint", "double", "string")))
def unsigned_integer(value: Any) -> Uint:
    if isinstance(value, str):
        if not INTEGER.fullmatch(value) or value[0] in "+-":
            raise EvaluationFailed(f"{value[:80]!r} is no whole number without a sign")
        return unsigned(int(value))
    if isinstance(value, float) and not 0 <= value < 2**64:
        raise EvaluationFailed("unsigned integer overflow")
    return unsigned(int(value))


@conversions.says(*(f"double({kind}) -> double" for kind in ("int", "uint", "double", "string")))
def double(value: Any) -> float:
    try:
        if isinstance(value, str) and (value != value.strip() or "_" in value):
            raise ValueError
        return float(value)
    except ValueError:
        raise EvaluationFailed(f"{str(value)[:80]!r} is no number") from None


@conversions.says(
    *(f"string({kind}) -> string" for kind in ("bool", "int", "uint", "double", "string", "bytes")),
    "string(timestamp) -> string",
    "string(duration) -> string",
)
def text(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError as error:
                raise EvaluationFailed("the bytes are no UTF-8") from error
        case float():
            return _fraction(value)
        case Timestamp():
            return _moment(value)
        case Duration():
            return f"{_fraction(value.nanos / BILLION)}s"
    return str(value)


def _fraction(value: float) -> str:
    if math.isinf(value) or math.isnan(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e21 else repr(value)


def _moment(value: Timestamp) -> str:
    seconds, nanos = divmod(value.nanos, BILLION)
    shown = (EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    return shown + (f".{nanos:09}".rstrip("0") if nanos else "") + "Z"


@conversions.says("bytes(string) -> bytes", "bytes(bytes) -> bytes")
def content(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


@conversions.says("timestamp(string) -> timestamp", "timestamp(timestamp) -> timestamp", "timestamp(int) -> timestamp")
def timestamp(value: Any) -> Timestamp:
    if isinstance(value, Timestamp):
        return value
    if isinstance(value, int):
        if not -62135596800 <= value <= 253402300799:
            raise EvaluationFailed(f"{value} is no time between the years 1 and 9999")
        return Timestamp(value * BILLION)
    found = MOMENT.fullmatch(value)
    try:
        if found is None:
            raise ValueError
        since = datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00")) - EPOCH
    except (ValueError, OverflowError):
        raise EvaluationFailed(f"{value[:80]!r} is no time such as 2026-01-31T12:00:00Z") from None
    return Timestamp((since.days * 86400 + since.seconds) * BILLION + int((found[2] or "0").ljust(9, "0")))


@conversions.says("duration(string) -> duration", "duration(duration) -> duration")
def duration(value: Any) -> Duration:
    if isinstance(value, Duration):
        return value
    is_negative = value.startswith("-")
    left = value[1:] if value[:1] in ("+", "-") else value
    nanos, place = 0, 0
    while (found := PART.match(left, place)) is not None:
        unit = UNITS[found[3]]
        nanos += int(found[1]) * unit + int((found[2] or "").ljust(9, "0")) * unit // BILLION
        place = found.end()
    if left != "0" and (place < len(left) or not left):
        raise EvaluationFailed(f"{value[:80]!r} is no duration such as 1h30m or 500ms")
    return Duration(whole(-nanos if is_negative else nanos))


PARTS: dict[str, Callable[[datetime], int]] = {
    "getFullYear": lambda at: at.year,
    "getMonth": lambda at: at.month - 1,
    "getDate": lambda at: at.day,
    "getDayOfMonth": lambda at: at.day - 1,
    "getDayOfWeek": lambda at: at.isoweekday() % 7,
    "getDayOfYear": lambda at: at.timetuple().tm_yday - 1,
    "getHours": lambda at: at.hour,
    "getMinutes": lambda at: at.minute,
    "getSeconds": lambda at: at.second,
}


def _part(name: str) -> None:
    take = PARTS[name]

    @conversions.says(f"timestamp:{name}() -> int")
    def part(of: Timestamp) -> int:
        return int(take(EPOCH + timedelta(seconds=of.nanos // BILLION)))


for _name in PARTS:
    _part(_name)


@conversions.says("timestamp:getMilliseconds() -> int", "duration:getMilliseconds() -> int")
def milliseconds(of: Timestamp | Duration) -> int:
    return of.nanos // 10**6 if isinstance(of, Duration) else of.nanos % BILLION // 10**6


@conversions.says("duration:getHours() -> int")
def hours(of: Duration) -> int:
    return int(of.nanos / UNITS["h"])


@conversions.says("duration:getMinutes() -> int")
def minutes(of: Duration) -> int:
    return int(of.nanos / UNITS["m"])


@conversions.says("duration:getSeconds() -> int")
def seconds(of: Duration) -> int:
    return int(of.nanos / BILLION)
