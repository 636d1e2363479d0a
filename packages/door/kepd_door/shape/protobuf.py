# SPDX-License-Identifier: Apache-2.0
"""Objects in protobuf, as newer clients send those of Kubernetes' own types, and the JSON that they stand for.

`fields.tsv` has the numbers and types of what may be sent: `s` a string, `b` true or false, `i` a number, `y` bytes,
`T` a time, `Q` a quantity, `I` a number or a string, `-` what only a server writes; `!` what is not carried out; `*`
before it a list, `%` a map. Source: generated.proto of Kubernetes' API.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

from agent.model.pods.wall_clock import stamp
from kepd_door.shape.bounds import MOST_VALUES
from kepd_door.shape.statuses import Failure

Object = dict[str, Any]
MAGIC = b"k8s\0"
DEEPEST = 40
# Of Go's embedded structs the fields stand beside those of the whole.
INLINE = ("localObjectReference", "volumeSource", "persistentVolumeSource", "handler")
# What is absent where it is not meant: zero then says something. Of all others zero is the same as nothing.
MEANT = frozenset({
    "activeDeadlineSeconds", "allowPrivilegeEscalation", "automountServiceAccountToken", "backoffLimit", "completions",
    "defaultMode", "enableServiceLinks", "failedJobsHistoryLimit", "fsGroup", "gracePeriodSeconds", "hostUsers",
    "immutable", "mode", "optional", "parallelism", "priority", "privileged", "readOnlyRootFilesystem", "replicas",
    "revisionHistoryLimit", "runAsGroup", "runAsNonRoot", "runAsUser", "shareProcessNamespace",
    "startingDeadlineSeconds", "storageClassName", "successfulJobsHistoryLimit", "suspend",
    "terminationGracePeriodSeconds", "tolerationSeconds", "ttlSecondsAfterFinished",
})  # fmt: skip


@cache
def all_types() -> dict[str, dict[int, tuple[str, str, str]]]:
    """The name, the mark and the type of each field."""
    found = {}
    for line in (files(__package__) / "fields.tsv").read_text().splitlines():
        name, _, fields = line.partition("\t")
        rows = [field.split(" ") for field in fields.split("; ")]
        found[name] = {
            int(number): (field, code[0] if code[0] in "*%" else "", code.lstrip("*%")) for number, field, code in rows
        }
    return found


class _Left:
    """How many more fields are read."""

    def __init__(self, most: int) -> None:
        self.most = self.count = most

    def take(self) -> None:
        self.count -= 1
        if self.count < 0:
            raise Failure(413, f"the object has more than {self.most} values; nothing was written; divide it")


def decoded_protobuf(body: bytes, most: int = MOST_VALUES) -> Object:
    """An object with its kind. Raises Failure."""
    left = _Left(most)
    if not body.startswith(MAGIC):
        raise Failure(400, "the body is no protobuf of Kubernetes")
    try:
        version = kind = ""
        raw = b""
        for number, value in _parts(body[len(MAGIC) :], left):
            if number == 1 and isinstance(value, bytes):
                said = {inner: text.decode() for inner, text in _parts(value, left) if isinstance(text, bytes)}
                version, kind = said.get(1, ""), said.get(2, "")
            elif number == 2 and isinstance(value, bytes):
                raw = value
        if kind not in all_types():
            raise Failure(415, f"a {kind[:60] or 'body'} is not read as protobuf here; send application/json")
        return {"apiVersion": version, "kind": kind, **_message(kind, raw, kind, DEEPEST, left)}
    except (ValueError, IndexError, UnicodeError) as error:
        raise Failure(400, "the body is no whole protobuf") from error


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError(place)


def _parts(data: bytes, left: _Left) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    while place < len(data):
        left.take()
        tag, place = _varint(data, place)
        if tag & 7 == 0:
            value, place = _varint(data, place)
            yield tag >> 3, value
            continue
        if tag & 7 != 2:
            raise ValueError(tag)
        size, place = _varint(data, place)
        if place + size > len(data):
            raise IndexError(place)
        yield tag >> 3, data[place : place + size]
        place += size


def _message(kind: str, data: bytes, path: str, deepest: int, left: _Left) -> Object:
    if not deepest:
        raise ValueError(path)
    made: Object = {}
    for number, value in _parts(data, left):
        if number not in all_types()[kind]:
            if not value:
                continue
            text = f"{path}: field {number} is not read as protobuf here; send it as JSON, as `kubectl apply -f` does"
            raise Failure(422, text)
        name, mark, code = all_types()[kind][number]
        if code == "-":
            continue
        if code == "!":
            raise Failure(422, f"{path}.{name}: is not carried out here")
        if mark == "%":
            entry = dict(_parts(_bytes(value), left))
            key = _bytes(entry.get(1, b"")).decode()
            made.setdefault(name, {})[key] = _value(code, entry.get(2, b""), path, deepest, left)
        elif mark == "*":
            made.setdefault(name, []).append(_value(code, value, f"{path}.{name}", deepest, left))
        else:
            read = _value(code, value, f"{path}.{name}", deepest, left)
            if name in INLINE and isinstance(read, dict):
                made |= read
            elif read or (name in MEANT and read is not None) or isinstance(read, dict):
                made[name] = read
    # An empty map that is always sent says nothing.
    return {
        name: value for name, value in made.items() if value != {} or name not in ("metadata", "resources", "strategy")
    }


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError(value)
    return value


def _value(code: str, value: int | bytes, path: str, deepest: int, left: _Left) -> Any:  # noqa: ANN401  # JSON
    if code in ("b", "i"):
        if not isinstance(value, int):
            raise ValueError(path)
        return bool(value) if code == "b" else value - (1 << 64) if value >> 63 else value
    data = _bytes(value)
    if code == "s":
        return data.decode()
    if code == "y":
        return b64encode(data).decode()
    if code == "Q":
        return next((_bytes(text).decode() for number, text in _parts(data, left) if number == 1), "0")
    if code == "T":
        seconds = next((number for place, number in _parts(data, left) if place == 1 and isinstance(number, int)), 0)
        return stamp(seconds) if seconds else None
    if code == "I":
        parts = dict(_parts(data, left))
        return _bytes(parts.get(3, b"")).decode() if parts.get(1) else parts.get(2, 0)
    return _message(code, data, path, deepest - 1, left)


def encoded_protobuf(kind: str, made: Mapping[str, Any]) -> bytes:
    """A message of that type, of the fields that the table has."""
    parts = []
    for number, (name, mark, code) in all_types()[kind].items():
        if name in INLINE:
            inner = encoded_protobuf(code, made)
            parts += [field(number, inner)] if inner else []
        elif (value := made.get(name)) is None or code in ("-", "!"):
            continue
        elif mark == "*":
            parts += [_encoded(number, code, one) for one in value]
        elif mark == "%":
            parts += [field(number, _encoded(1, "s", key) + _encoded(2, code, one)) for key, one in value.items()]
        else:
            parts.append(_encoded(number, code, value))
    return b"".join(parts)


def _encoded(number: int, code: str, value: Any) -> bytes:  # noqa: ANN401  # JSON
    if code in ("b", "i"):
        return tag(number, 0) + varint(int(value) & (1 << 64) - 1)
    return field(number, _content(code, value))


def _content(code: str, value: Any) -> bytes:  # noqa: ANN401  # JSON
    if code == "s":
        return str(value).encode()
    if code == "y":
        return b64decode(value)
    if code == "Q":
        return _encoded(1, "s", value)
    if code == "T":
        return _encoded(1, "i", datetime.fromisoformat(value).timestamp())
    if code == "I":
        return _encoded(2, "i", value) if isinstance(value, int) else _encoded(1, "i", 1) + _encoded(3, "s", value)
    return encoded_protobuf(code, value)


def field(number: int, content: bytes) -> bytes:
    return tag(number, 2) + varint(len(content)) + content


def tag(number: int, kind: int) -> bytes:
    return varint(number << 3 | kind)


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)
