# SPDX-License-Identifier: Apache-2.0
"""The daemon's values as messages, field by field.

A field `x` of a message is filled from `x`, `x_s` or `is_x`, and `x_seconds` from `x_s`; seconds become Timestamps and
Durations where the message has those, values inside become the messages inside, and those of maps become texts. None,
and a time that is 0, leave a field unset. What corresponds by no name must be given.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from typing import TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

M = TypeVar("M", bound=Message)
Converter = Callable[[object], object]


def to_message(kind: type[M], value: object, **given: object) -> M:
    sources = _sources(kind, type(value), frozenset(given))  # type: ignore[arg-type]  # mypy: no class is hashable
    return kind(**{name: convert(getattr(value, source)) for name, source, convert in sources}, **given)


def timestamp(wall_s: float | None) -> Timestamp | None:
    """Seconds since 1970; nothing and zero are no point in time."""
    if not wall_s:
        return None
    stamp = Timestamp()
    stamp.FromNanoseconds(int(wall_s * 1e9))
    return stamp


def _duration(seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


@cache
def _sources(kind: type[Message], value: type, given: frozenset[str]) -> Sequence[tuple[str, str, Converter]]:
    """Each field of a message that is not given, the attribute it comes from, and how it is converted."""
    return [
        (field.name, _attribute(field.name, value), _converter(field.message_type, is_repeated=field.is_repeated))
        for field in kind.DESCRIPTOR.fields
        if field.name not in given
    ]


def _attribute(name: str, value: object) -> str:
    candidates = (name, f"{name}_s", f"is_{name}", name.replace("per_second", "s"), name.replace("seconds", "s"))
    return next(known for known in candidates if hasattr(value, known))


def _converter(inner: object, *, is_repeated: bool) -> Converter:
    if inner is None:
        return lambda value: value.value if isinstance(value, Enum) else value
    if inner.GetOptions().map_entry:  # type: ignore[attr-defined]  # stubs of protobuf lack it
        return lambda values: {name: str(one) for name, one in cast("dict[str, object]", values).items()}
    kind = GetMessageClass(cast("Descriptor", inner))
    if kind in (Timestamp, Duration):
        return cast("Converter", timestamp if kind is Timestamp else _duration)
    if is_repeated:
        return lambda values: [to_message(kind, one) for one in cast("tuple[object, ...]", values)]
    return lambda one: None if one is None else to_message(kind, one)
