# SPDX-License-Identifier: Apache-2.0
"""What a plane reports of what only kepd has, as an object: a name, and the fields of the report as its status.

A time, which is in seconds since 1970, is a text as Kubernetes has it, and left out where it is not; other seconds are
numbers and have their unit in the name.
"""

from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from agent.kinds.table import Object
from agent.model.pods.wall_clock import stamp

if TYPE_CHECKING:
    from google.protobuf.message import Message

TIMES = frozenset({"since_s", "failed_s", "first_seen_s", "last_seen_s", "last_used_s"})
RATE = "_bytes_s"


def own_object(kind: str, name: str, report: object, *, namespace: str = "", labels: Mapping[str, str] = {}) -> Object:
    metadata: Object = {"name": name} | ({"namespace": namespace} if namespace else {})
    if labels:
        metadata["labels"] = dict(labels)
    return {"kind": kind, "metadata": metadata, "status": fields_of(report)}


def fields_of_message(message: "Message") -> Object:
    """Of what a call answers with, under the same names; large numbers are texts."""
    from google.protobuf.json_format import MessageToDict

    fields: Object = MessageToDict(message, always_print_fields_with_no_presence=True)
    return fields


def fields_of(report: object) -> Object:
    fields: Object = {}
    for attribute, name, is_time in _fields(type(report)):  # type: ignore[arg-type]  # mypy: no class is hashable
        value = getattr(report, attribute)
        if type(value) is str or type(value) is int:
            fields[name] = value
        elif value is None or (is_time and not value):
            continue
        else:
            fields[name] = stamp(value) if is_time else _shown(value)
    return fields


def _shown(value: object) -> object:
    if isinstance(value, tuple | list):
        return [_shown(inner) for inner in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, dict):
        return {name: _shown(inner) for name, inner in value.items()}
    if isinstance(value, Enum):
        return value.value
    return fields_of(value) if isinstance(value, msgspec.Struct) else value


@cache
def _fields(kind: type) -> list[tuple[str, str, bool]]:
    """Each attribute, the name that it is shown by, and whether it is a time."""
    return [(field, *_name(field)) for field in kind.__struct_fields__]  # type: ignore[attr-defined]  # of a Struct


def _name(field: str) -> tuple[str, bool]:
    is_time = field in TIMES or field.endswith("_at_s")
    word = field
    if is_time:
        word = word.removesuffix("_s")
    elif word.endswith(RATE):
        word = f"{word.removesuffix('_s')}_per_second"
    elif word.endswith("_s"):
        word = f"{word.removesuffix('_s')}_seconds"
    first, *others = word.split("_")
    return first + "".join(part.capitalize() for part in others), is_time
