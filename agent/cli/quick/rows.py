# SPDX-License-Identifier: Apache-2.0
"""The rows of a kind without protobuf's library: what `get` and completion need of them, under the same names.

The import of that library and of the generated messages costs more than the whole rest of a short command. Fields that
are not named here are skipped. Whatever is not as expected is None, and the caller asks in the usual way.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from agent.cli.quick.call import quick_call
from agent.kinds.selection import Scope
from agent.kinds.table import Table

if TYPE_CHECKING:
    from agent.kinds.kind import Kind

TABLE = "kepd.v1.ObjectService/Table"
MOST_BYTES = 16 << 20
VARINT, EIGHT_BYTES, TEXT, FOUR_BYTES = 0, 1, 2, 5
MOST_VARINT_BITS = 70
KIND, NAMESPACE, SELECTOR, IS_WIDE, WITH_ENDED = 2, 3, 4, 5, 7
"""Numbers of fields of the request."""

Fields = Mapping[int, tuple[str, Any]]
"""The name of each number, and a value's default: of a message its fields, in a list if there may be several."""

COLUMN: Fields = MappingProxyType({1: ("title", "")})
ROW: Fields = MappingProxyType({
    1: ("cells", [""]), 2: ("shown", ""), 3: ("namespace", ""), 4: ("name", ""), 5: ("short", ""),
})  # fmt: skip
PAGE: Fields = MappingProxyType({1: ("next_page_token", "")})
ANSWER: Fields = MappingProxyType({
    1: ("meta", PAGE), 2: ("kind", ""), 3: ("columns", [COLUMN]), 4: ("rows", [ROW]), 7: ("notes", [""]),
})  # fmt: skip


def quick_rows(
    path: str, kind: "Kind", scope: Scope, timeout_s: float, *, is_wide: bool = False, with_ended: bool = True
) -> Table | None:
    """All of them, or None if they are to be had in the usual way only. Raises TimeoutError."""
    texts = {KIND: kind.plural, NAMESPACE: scope.namespace, SELECTOR: scope.selector}
    try:
        request = b"".join(_text(number, text) for number, text in texts.items() if text)
        flags = {IS_WIDE: is_wide, WITH_ENDED: with_ended}
        request += b"".join(bytes((number << 3, 1)) for number, is_set in flags.items() if is_set)
        body = quick_call(path, TABLE, request, timeout_s, MOST_BYTES)
        answer = None if body is None else decoded(body, ANSWER)
    except (ValueError, IndexError):
        return None
    if answer is None or answer.meta.next_page_token:
        return None
    return Table(answer.kind, answer.columns, answer.rows, notes=answer.notes)


def _text(number: int, text: str) -> bytes:
    """Raises ValueError for one whose length would take two bytes."""
    data = text.encode()
    if len(data) > 127:
        raise ValueError(text)
    return bytes((number << 3 | TEXT, len(data))) + data


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
            found[name].append(value.decode() if isinstance(kind[0], str) else decoded(value, kind[0]))
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
