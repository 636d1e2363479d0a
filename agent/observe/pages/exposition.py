# SPDX-License-Identifier: Apache-2.0
"""Pages in Prometheus' text format and in OpenMetrics.

A writer of our own: on a page of ten thousand lines the library takes twenty times as long, for it copies every label
of every line. Here the label text of an instance is made once and is used by all its lines. The library's parser reads
the pages in tests.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from agent.observe.pages.columns import Columns, FigureColumn, column_of

MOST_LABEL_BYTES = 1024
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPEN_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
COUNTER, GAUGE = "counter", "gauge"
TOTAL = "_total"

# A label text as `labels` makes it, and a value; then, where the page has times, the time in milliseconds.
Sample = tuple[bytes, float | int]


class RenderedFamily(msgspec.Struct, frozen=True):
    """One family. Its lines are made of its columns once they are wanted, so a large page is never there as a whole
    before it is packed. `group` says when it may be left out."""

    name: str
    head: bytes
    columns: tuple[FigureColumn, ...]
    group: str = ""

    @property
    def series(self) -> int:
        return sum(one.count for one in self.columns)

    @property
    def size(self) -> int:
        """In bytes, without its head."""
        return sum(one.size for one in self.columns)

    @property
    def text(self) -> bytes:
        """As it stands on the page."""
        return b"".join((self.head, *(one.text for one in self.columns))) if self.series else b""


def labels(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Without braces; a value that is empty stands there as well, which Prometheus reads as no label."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs).encode("utf-8", "replace")


def _escaped(value: str) -> str:
    if len(value) > MOST_LABEL_BYTES // 4:
        value = value.encode("utf-8", "replace")[:MOST_LABEL_BYTES].decode("utf-8", "ignore")
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def family(
    name: str,
    kind: str,
    text: str,
    samples: Sequence[Sample],
    *,
    is_open: bool,
    at: str = "",
    group: str = "",
    known: Columns | None = None,
) -> RenderedFamily:
    """`at` is put behind each value: a time, where the page has some. `known` has this family of the page before."""
    head, (named, figures) = f"{name}{{".encode(), zip(*samples, strict=True) if samples else ((), ())

    def ends() -> list[bytes]:
        return [end(one, at) for one in figures]

    column = known.of(name, head, named, figures, ends) if known else column_of(head, named, ends())
    return RenderedFamily(name, head_of(name, kind, text, is_open=is_open), (column,), group)


def end(value: float, at: str = "") -> bytes:
    """What stands behind the labels of a line."""
    return f"}} {value}{at}\n".encode()


def head_of(name: str, kind: str, text: str, *, is_open: bool) -> bytes:
    shown, type_name = name, kind
    if is_open and kind == COUNTER:
        # OpenMetrics knows counters by their ending, and has another word for those of old without it.
        shown, type_name = (name.removesuffix(TOTAL), kind) if name.endswith(TOTAL) else (name, "unknown")
    return f"# HELP {shown} {text}\n# TYPE {shown} {type_name}\n".encode()


def page(families: Iterable[RenderedFamily], *, is_open: bool) -> Iterator[bytes]:
    """In pieces, each made when it is taken."""
    yield from (one.text for one in families if one.series)
    yield end_of(is_open=is_open)


def end_of(*, is_open: bool) -> bytes:
    return b"# EOF\n" if is_open else b""


def fitted(
    families: Sequence[RenderedFamily], most: int, order: Sequence[str], most_bytes: int = 1 << 62
) -> tuple[list[RenderedFamily], dict[str, int]]:
    """Families without those that are too much, whole ones in this order of their groups; and how many series
    of each group are left out."""
    count, size = sum(one.series for one in families), sum(one.size for one in families)
    dropped: dict[str, int] = {}
    for group in order:
        if count <= most and size <= most_bytes:
            break
        of_group = [one for one in families if one.group == group]
        if series := sum(one.series for one in of_group):
            dropped[group] = series
            count, size = count - series, size - sum(one.size for one in of_group)
    return [one for one in families if one.group not in dropped], dropped


def wants_open(accept: str) -> bool:
    return "application/openmetrics-text" in accept
