# SPDX-License-Identifier: Apache-2.0
"""The most wanted answers, over a restart. Its times are of the wall clock; a broken file is no file."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kepd_dns.cache.cache import ENTRY_FIELDS, Cache
from kepd_dns.cache.entry import Entry

MOST_BYTES = 1 << 20
FORMAT = 1


class Hot(msgspec.Struct, array_like=True):
    format: int
    entries: list[Entry]


def save(path: Path, cache: Cache, now_s: float) -> None:
    """At once, for who ends."""
    for _ in saving(path, cache, now_s):
        pass


def saving(path: Path, cache: Cache, now_s: float) -> Iterator[None]:
    """A step at a time, of a millisecond at most but the last. What goes meanwhile is stored as it was, or not."""
    shift_s = time.time() - now_s
    kept: list[Entry] = []
    for portion in cache.hottest(MOST_BYTES):
        kept += [_moved(one, shift_s) for one in portion if not one.is_gone]
        yield
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(msgspec.msgpack.encode(Hot(FORMAT, kept)))
    draft.replace(path)


def load(path: Path, cache: Cache, now_s: float, complain: Callable[[str], None]) -> int:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return 0
    except OSError as error:
        complain(f"{path}: {error.strerror}; the cache begins empty")
        return 0
    try:
        found = msgspec.msgpack.decode(content[: 8 * MOST_BYTES], type=Hot)
        if found.format != FORMAT:
            raise ValueError(f"format {found.format}; expected {FORMAT}")
        shift_s = now_s - time.time()
        return cache.restore([_moved(one, shift_s) for one in found.entries if _is_sound(one)], now_s)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        complain(f"{path}: {error}; the cache begins empty")
        return 0


def _moved(entry: Entry, shift_s: float) -> Entry:
    moved = Entry(**{name: getattr(entry, name) for name in ("key", *ENTRY_FIELDS)})
    moved.stored_s += shift_s
    moved.until_s += shift_s
    moved.keep_s += shift_s
    moved.hits = entry.hits
    return moved


def _is_sound(entry: Entry) -> bool:
    end = len(entry.tail) - 4
    return len(entry.key) >= 6 and len(entry.ttls) == len(entry.values) and all(0 <= one <= end for one in entry.ttls)
