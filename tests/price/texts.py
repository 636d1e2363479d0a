# SPDX-License-Identifier: Apache-2.0
"""A text that somebody sends, with one part of it as often as asked: each item of each list and map of JSON, each line,
each word, and the whole."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

Grow = Callable[[int], bytes]
MOST_PARTS = 12
WORD = re.compile(rb"[\w.:/+-]+")


def growing(seed: bytes) -> Iterator[tuple[str, Grow]]:
    yield "the whole", lambda size: seed * size
    try:
        made = msgspec.json.decode(seed)
    except (msgspec.DecodeError, UnicodeDecodeError):
        parts = [*seed.splitlines(keepends=True)[:MOST_PARTS], *(each[0] for each in WORD.finditer(seed))]
        for part in dict.fromkeys(parts[:MOST_PARTS]):
            before, _, after = seed.partition(part)
            yield f"{part[:20]!r}", lambda size, b=before, p=part, a=after: b + p * size + a  # type: ignore[misc]
        return
    for path in _lists(made):
        yield ".".join(map(str, path)) or "top", lambda size, p=path: msgspec.json.encode(_grown(made, p, size))  # type: ignore[misc]


def _lists(made: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(made, dict | list | str) and made:
        yield at
    for key, value in made.items() if isinstance(made, dict) else enumerate(made[:1] if isinstance(made, list) else ()):
        yield from _lists(value, (*at, key))


def _grown(made: Any, path: tuple[Any, ...], size: int) -> Any:
    if path:
        inner = {**made} if isinstance(made, dict) else [*made]
        inner[path[0]] = _grown(made[path[0]], path[1:], size)
        return inner
    if isinstance(made, list):
        return [_named(made[0], number) for number in range(size)]
    if isinstance(made, str):
        return made * size
    value = next(iter(made.values()))
    return {**made, **{f"k{number}": value for number in range(size)}}


def _named(made: Any, number: int) -> Any:
    """Another one, where a name makes it so."""
    if isinstance(made, dict) and isinstance(made.get("name"), str):
        return {**made, "name": f"{made['name']}{number}"}
    return made
