# SPDX-License-Identifier: Apache-2.0
"""Values of what has figures as they are written, kept from page to page: a group that does nothing keeps its figures,
and so what is written of it."""

from collections.abc import Iterable
from functools import lru_cache

from agent.observe.kernel.group_text import GroupFigures
from agent.observe.pages.exposition import end
from agent.observe.pages.families import FAMILIES

Values = tuple[bytes, ...]
"""The ends of the lines of one row, for each variant of each family; empty where the group has no such figure."""
VARIANTS = tuple(value for one in FAMILIES for _, value in one.variants)


class RowValues:
    """Of the last page alone, so a group that left is not kept."""

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[GroupFigures, Values]] = {}

    def of(self, rows: Iterable[tuple[bytes, GroupFigures]]) -> list[tuple[bytes, Values]]:
        """In their order: rows are their labels and figures."""
        before, now, found = self._kept, dict[bytes, tuple[GroupFigures, Values]](), list[tuple[bytes, Values]]()
        for labels, figures in rows:
            kept = before.get(labels)
            if kept is None or kept[0] is not figures:
                kept = figures, tuple(_end(value(figures)) for value in VARIANTS)
            now[labels] = kept
            found.append((labels, kept[1]))
        self._kept = now
        return found


@lru_cache(maxsize=512, typed=True)
def _end(value: float | None) -> bytes:
    """Most are nothing, zero or somebody's limit."""
    return b"" if value is None else end(value)
