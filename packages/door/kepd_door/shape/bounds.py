# SPDX-License-Identifier: Apache-2.0
"""How much a body may be: bytes, values, levels. A text is counted before it becomes values, for each of those costs
far more than the letters that it is written in. Pure."""

from typing import Any

import msgspec

from kepd_door.shape.statuses import Failure

MOST_BYTES = 3 << 20
MOST_VALUES = 20_000
# What a cluster keeps of one object.
MOST_OBJECT_BYTES = 3 << 19
DEEPEST = 64


def check_text(body: bytes, most: int = MOST_VALUES) -> None:
    """JSON, by what stands outside of its strings. Raises Failure."""
    if sum(map(body.count, (b",", b"[", b"{"))) <= most:
        return
    body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if body.count(b'"') // 4 > most:
        raise _too_many(most)
    outside = b"".join(body.split(b'"')[::2])
    if sum(map(outside.count, (b",", b"[", b"{"))) > most:
        raise _too_many(most)


def check_value(value: Any, most: int = MOST_VALUES) -> None:  # noqa: ANN401  # JSON
    """Level by level, so that depth costs no stack. Raises Failure."""
    level, count = [value], 0
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        count += len(inner)
        if count > most:
            raise _too_many(most)
        if not inner:
            return
        level = inner
    raise Failure(400, f"the body is nested deeper than {DEEPEST} levels; nothing was written")


def check_object(made: Any) -> None:  # noqa: ANN401  # JSON
    """What is to be written, for a patch may make more of little. Raises Failure."""
    check_value(made)
    if (size := len(msgspec.json.encode(made))) > MOST_OBJECT_BYTES:
        raise Failure(413, f"the object would have {size} bytes; at most {MOST_OBJECT_BYTES} are kept; divide it")


def _too_many(most: int) -> Failure:
    return Failure(413, f"the object has more than {most} values; nothing was written; divide it")
