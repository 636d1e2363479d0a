# SPDX-License-Identifier: Apache-2.0
"""Text as a terminal lays it out: in cells, of which some signs take two and some none.

All text that is shown goes through `span`, so nothing from outside can steer the terminal.
"""

import unicodedata
from collections.abc import Iterable

import msgspec

from agent.model.finding import printable

MOST_SIGNS_PER_CELL = 4
"""Marks take no cell; without a bound one name could carry thousands."""


class Span(msgspec.Struct, frozen=True):
    """A piece of a line. `style` is one word of `painting.STYLES`, or empty."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


def span(text: str, style: str = "") -> Span:
    return Span(printable(text), style)


def width_of(text: str) -> int:
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(sign: str) -> int:
    if unicodedata.category(sign) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in ("W", "F") else 1


def cut(text: str, width: int) -> str:
    """At most that wide; what is missing is an ellipsis."""
    if text.isascii() and len(text) <= width:
        return text
    text = text[: max(width, 0) * MOST_SIGNS_PER_CELL]
    if width_of(text) <= width:
        return text
    kept, used = "", 0
    for sign in text:
        used += _width(sign)
        if used > width - 1:
            break
        kept += sign
    return kept + "…" if width > 0 else ""


def fit(text: str, width: int) -> str:
    """Exactly that wide."""
    kept = cut(printable(text), width)
    return kept + " " * (width - width_of(kept))


def cut_line(line: Iterable[Span], width: int) -> Line:
    """A line of spans, at most that wide."""
    left, kept = width, []
    for one in line:
        if left <= 0:
            break
        text = cut(one.text, left)
        kept.append(one if text is one.text else Span(text, one.style))
        left -= width_of(text)
    return tuple(kept)


def line_width(line: Iterable[Span]) -> int:
    return sum(width_of(one.text) for one in line)
