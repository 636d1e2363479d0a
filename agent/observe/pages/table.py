# SPDX-License-Identifier: Apache-2.0
"""Rows of figures as columns of a page: from page to page those in which a row has another value are made anew."""

from collections.abc import Mapping, Sequence
from itertools import compress
from operator import ne

from agent.observe.pages.columns import FigureColumn, column_of
from agent.observe.pages.families import FAMILIES
from agent.observe.pages.row_values import VARIANTS, Values

HEADS = tuple(
    (f"{one.name}{{{variant.labels}," if variant.labels else f"{one.name}{{").encode()
    for one in FAMILIES
    for variant in one.variants
)
EVERY = range(len(VARIANTS))
KINDS = [one.kind for one in FAMILIES for _ in one.variants]

Rows = Sequence[tuple[bytes, Values]]


def columns_of(rows: Rows) -> list[FigureColumn]:
    """Of a few rows, for each variant."""
    labels = [one for one, _ in rows]
    return [column_of(HEADS[place], labels, [of[place] for _, of in rows]) for place in EVERY]


class FigureTable:
    """For variants of one kind of family, by their places."""

    def __init__(self, kind: str) -> None:
        self._places = {place for place in EVERY if KINDS[place] == kind}
        self._kept: tuple[list[bytes], list[Values], dict[int, FigureColumn]] | None = None

    def of(self, rows: Rows) -> Mapping[int, FigureColumn]:
        labels, values = [one for one, _ in rows], [of for _, of in rows]
        changed, columns = self._places, dict[int, FigureColumn]()
        if self._kept is not None and self._kept[0] == labels:
            changed, columns = self._places & _changed(self._kept[1], values), dict(self._kept[2])
        for place in changed:
            columns[place] = column_of(HEADS[place], labels, [of[place] for of in values])
        self._kept = labels, values, columns
        return columns


def _changed(before: Sequence[Values], now: Sequence[Values]) -> set[int]:
    found = set[int]()
    for was, is_now in zip(before, now, strict=True):
        if was is not is_now:
            found.update(compress(EVERY, map(ne, was, is_now)))
    return found
