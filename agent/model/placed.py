# SPDX-License-Identifier: Apache-2.0
"""What is listed, each with its place: a text, by which lists are ordered and a page finds where to go on.

A place is made of words with SEPARATOR behind each but the last, so that the order of texts is that of the words.
"""

from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar

One = TypeVar("One")
Placed = tuple[str, One]
Walk = AsyncGenerator[Placed[One], None]
"""What is behind a place, in the order of places."""
SEPARATOR = "\0"


def begins(*words: str) -> str:
    """How the places of all begin that these words lead to."""
    return "".join(f"{word}{SEPARATOR}" for word in words)


def is_over(begin: str, after: str) -> bool:
    """Whether every place that begins so is at `after` or before it."""
    return begin < after and not after.startswith(begin)


def within(begin: str, after: str) -> str:
    """What is left of `after` behind this beginning; empty: all that begins so is still to come."""
    return after.removeprefix(begin) if after.startswith(begin) else ""


def to_come(ordered: Sequence[One], begin: Callable[[One], str], after: str) -> Sequence[One]:
    """Those of the ordered whose places are not all over."""
    return ordered[bisect_left(ordered, True, key=lambda one: not is_over(begin(one), after)) :]
