# SPDX-License-Identifier: Apache-2.0
"""Numbers in the kernel's files. A text that is not what it should be gives nothing for that figure, never a 0.

Files may be cut off, empty or absurd: whoever reads them goes on with what is left.
"""

from collections.abc import Mapping

# No figure of the kernel has more digits; a longer one is rubbish and would cost time.
MOST_DIGITS = 20
# Version 1 has no word for "no limit", just a number near the largest.
NO_LIMIT = 1 << 62


def number(text: bytes) -> int | None:
    """A whole number by itself."""
    text = text.strip()
    return int(text) if text.isdigit() and len(text) <= MOST_DIGITS else None


def limit(text: bytes) -> int | None:
    """0 where there is none."""
    if text.strip() in (b"max", b"-1"):
        return 0
    found = number(text)
    return 0 if found is not None and found >= NO_LIMIT else found


def pairs(text: bytes) -> dict[bytes, bytes]:
    """`key number` lines. Values stay bytes, for of forty a reader wants a dozen."""
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=False))


_places: dict[tuple[int, int], tuple[tuple[str, bytes, int], ...]] = {}
MOST_PLACES = 64


def chosen(text: bytes, keys: Mapping[str, bytes]) -> dict[str, int | None]:
    """Some figures of a long file of `key number` lines, by names of our own. A kernel writes its lines in one order,
    so where each stood the last time is looked at first."""
    words = text.split()
    known = _places.get((id(keys), len(words)))
    if known is None or not all(words[place] == key if place >= 0 else key not in words for _, key, place in known):
        where = {word: place for place, word in enumerate(words[:-1]) if place % 2 == 0}
        if len(_places) >= MOST_PLACES:
            _places.clear()
        known = _places[id(keys), len(words)] = tuple((name, key, where.get(key, -1)) for name, key in keys.items())
    return {name: number(words[place + 1]) if place >= 0 else None for name, _, place in known}


def one_of(found: dict[bytes, bytes], key: bytes) -> int | None:
    text = found.get(key)
    return None if text is None else number(text)


def count_lines(text: bytes) -> int:
    return text.count(b"\n")
