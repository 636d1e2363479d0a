# SPDX-License-Identifier: Apache-2.0
"""The pods of a node without protobuf's library: what `get pods` and completion need of them, under the same names.

The import of that library and of the generated messages costs more than the whole rest of a short command. Fields that
are not named here are skipped. Whatever is not as expected is None, and the caller asks in the usual way.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

from agent.cli.quick.call import quick_call

LIST_PODS = "kepd.v1.PodService/ListPods"
MOST_BYTES = 16 << 20
VARINT, EIGHT_BYTES, TEXT, FOUR_BYTES = 0, 1, 2, 5
MOST_VARINT_BITS = 70

Fields = Mapping[int, tuple[str, Any]]
"""The name of each number, and a value's default: of a message its fields, in a list if there may be several."""

STAMP: Fields = MappingProxyType({1: ("seconds", 0)})
CONTAINER: Fields = MappingProxyType({8: ("restart_count", 0), 11: ("kind", ""), 12: ("ready", False)})
LABEL: Fields = MappingProxyType({1: ("key", ""), 2: ("value", "")})
POD: Fields = MappingProxyType({
    1: ("namespace", ""), 2: ("name", ""), 3: ("uid", ""), 4: ("phase", ""), 5: ("message", ""), 6: ("ip", ""),
    7: ("containers", [CONTAINER]), 9: ("created_at", STAMP), 10: ("status", ""), 17: ("labels", [LABEL]),
    20: ("manifest_name", ""), 34: ("name_servers", ""),
})  # fmt: skip
PAGE: Fields = MappingProxyType({1: ("next_page_token", "")})
ANSWER: Fields = MappingProxyType({1: ("pods", [POD]), 2: ("meta", PAGE)})


def quick_pods(path: str, timeout_s: float) -> Sequence[Any] | None:
    """All pods, or None if they are to be had in the usual way only. Raises TimeoutError."""
    try:
        body = quick_call(path, LIST_PODS, b"", timeout_s, MOST_BYTES)
        answer = None if body is None else decoded(body, ANSWER)
    except (ValueError, IndexError):
        return None
    if answer is None or answer.meta.next_page_token:
        return None
    for pod in answer.pods:
        pod.labels = {label.key: label.value for label in pod.labels}
    pods: Sequence[Any] = answer.pods
    return pods


def decoded(data: bytes, fields: Fields) -> SimpleNamespace:
    """Raises ValueError or IndexError for what is no such message."""
    found = {name: [] if isinstance(kind, list) else kind for name, kind in fields.values()}
    for number, wire, value in _values(data):
        name, kind = fields.get(number, ("", None))
        if not name:
            continue
        if (wire == VARINT) != isinstance(kind, int):
            raise ValueError(name)
        if isinstance(kind, list):
            found[name].append(decoded(value, kind[0]))
        elif isinstance(kind, Mapping):
            found[name] = decoded(value, kind)
        else:
            found[name] = value.decode() if isinstance(kind, str) else type(kind)(value)
    for name, kind in fields.values():
        if isinstance(kind, Mapping) and found[name] is kind:
            found[name] = decoded(b"", kind)
    return SimpleNamespace(**found)


def _values(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Number, kind on the wire and value of each field."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == TEXT:
            size, at = _varint(data, at)
        elif wire in (EIGHT_BYTES, FOUR_BYTES):
            size = 8 if wire == EIGHT_BYTES else 4
        else:
            raise ValueError(wire)
        if at + size > len(data):
            raise ValueError(number)
        yield number, wire, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at]
    if value < 128:
        return value, at + 1
    value &= 127
    for shift in range(7, MOST_VARINT_BITS, 7):
        at += 1
        value |= (data[at] & 127) << shift
        if data[at] < 128:
            return value, at + 1
    raise ValueError(at)
