# SPDX-License-Identifier: Apache-2.0
"""Lines of a page by columns: the figure of one kind that many rows have. No line is ever an object of its own.

From page to page most columns stay as they are, so they are kept, and with them what was made of them.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import chain, compress, repeat

import msgspec


class FigureColumn(msgspec.Struct, frozen=True, gc=False):
    """Lines that begin alike, each with labels and an end; a row whose end is empty has no line. There are `count`
    lines with `size` bytes."""

    head: bytes
    labels: Sequence[bytes]
    ends: Sequence[bytes]
    count: int
    size: int

    @property
    def text(self) -> bytes:
        labels, ends = self.labels, self.ends
        if self.count < len(ends):
            labels, ends = list(compress(labels, ends)), list(filter(None, ends))
        return b"".join(chain.from_iterable(zip(repeat(self.head), labels, ends, strict=False)))


def column_of(head: bytes, labels: Sequence[bytes], ends: Sequence[bytes]) -> FigureColumn:
    count = len(ends) - ends.count(b"")
    shown = labels if count == len(ends) else compress(labels, ends)
    return FigureColumn(head, labels, ends, count, len(head) * count + sum(map(len, shown)) + sum(map(len, ends)))


class Columns:
    """Of the last page. One that is as it was is the same object."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[Sequence[object], FigureColumn]] = {}

    def of(
        self,
        key: Hashable,
        head: bytes,
        labels: Sequence[bytes],
        figures: Sequence[object],
        write: Callable[[], Sequence[bytes]],
    ) -> FigureColumn:
        """`write` makes the ends of these figures."""
        before, kept = self._kept.get(key, ((), None))
        if kept is None or kept.head != head or before != figures or kept.labels != labels:
            kept = column_of(head, labels, write())
            self._kept[key] = figures, kept
        return kept
