# SPDX-License-Identifier: Apache-2.0
"""Values of what has figures as they are written, kept from page to page: a group that does nothing keeps its figures,
and so what is written of it."""

from collections.abc import Iterable
from functools import lru_cache
from itertools import compress
from operator import attrgetter, ne

from agent.observe.kernel.group_text import GroupFigures
from agent.observe.pages.exposition import end
from agent.observe.pages.families import FAMILIES

Values = tuple[bytes, ...]
"""The ends of the lines of one row, for each variant of each family; empty where the group has no such figure."""
VARIANTS = tuple(variant for one in FAMILIES for variant in one.variants)
FIELDS = attrgetter(*(one.field for one in VARIANTS))
UNITS = tuple(one.unit for one in VARIANTS)


class RowValues:
    """Of the last page alone, so a group that left is not kept."""

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[GroupFigures, Values]] = {}

    def of(self, rows: Iterable[tuple[bytes, GroupFigures]]) -> list[tuple[bytes, Values]]:
        """In their order: rows are their labels and figures."""
        before, now, found = self._kept, dict[bytes, tuple[GroupFigures, Values]](), list[tuple[bytes, Values]]()
        for labels, figures in rows:
            kept = before.get(labels)
            if kept is None:
                kept = figures, tuple(map(_end, FIELDS(figures), UNITS))
            elif kept[0] is not figures:
                kept = figures, _changed(*kept, figures)
            now[labels] = kept
            found.append((labels, kept[1]))
        self._kept = now
        return found


def _changed(before: GroupFigures, values: Values, figures: GroupFigures) -> Values:
    """Of a group that does something most figures are those of before as well."""
    now, found = FIELDS(figures), list(values)
    for place in compress(range(len(now)), map(ne, FIELDS(before), now)):
        found[place] = _end(now[place], UNITS[place])
    return tuple(found)


@lru_cache(maxsize=512)
def _end(figure: int | None, unit: float | None) -> bytes:
    """Most are nothing, zero or somebody's limit."""
    return b"" if figure is None else end(figure / unit if unit else figure)
