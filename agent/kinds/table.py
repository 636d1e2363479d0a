# SPDX-License-Identifier: Apache-2.0
"""Objects of a kind as rows: what stands in which column, and what each row is called."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

Item = TypeVar("Item")
Object = dict[str, Any]
FACTS = "kepd"
"""Beside what Kubernetes has of an object: what only kepd knows of it. Who may write it back gets it without."""


def names_of(made: Object) -> tuple[str, str]:
    """Namespace, which may be empty, and name."""
    return str(made["metadata"].get("namespace") or ""), str(made["metadata"]["name"])


def without_facts(made: Object) -> Object:
    return {name: value for name, value in made.items() if name != FACTS}


class Column(msgspec.Struct, Generic[Item], frozen=True):
    """One column; those for `wide` are left out of `table`."""

    title: str
    cell: Callable[[Item], str]
    wide: bool = False


Columns = Sequence[Column[Item]]


class Listing(msgspec.Struct, Generic[Item], frozen=True):
    """Messages of one kind, as an answer has them. `name` is what `-o name` prints."""

    kind: str
    items: Sequence[Item]
    columns: Columns[Item]
    name: Callable[[Item], str]
    empty: str = ""
    notes: Sequence[str] = msgspec.field(default=())


class Row(msgspec.Struct):
    """What a row shows, and what it is called. `shown` is what `-o name` prints; `object` is JSON, and `rows_back` says
    how many rows before this it stands, where rows share one."""

    cells: Sequence[str]
    shown: str
    namespace: str
    name: str
    short: str = ""
    object: bytes = b""
    rows_back: int = 0


class HasTitle(Protocol):
    """A column, whoever decoded it."""

    @property
    def title(self) -> str: ...


class Table(msgspec.Struct):
    """Rows as they come from the daemon. `kind` is that of an object."""

    kind: str
    columns: Sequence[HasTitle]
    rows: Sequence[Row]
    is_kubernetes: bool = False
    empty: str = ""
    notes: Sequence[str] = ()


def table_of(listing: Listing[Item], *, is_wide: bool = False, with_objects: bool = False) -> Table:
    columns = [column for column in listing.columns if is_wide or not column.wide]
    rows = []
    for item in listing.items:
        shown = listing.name(item)
        made = _as_json(item) if with_objects else b""
        rows.append(Row([column.cell(item) for column in columns], shown, "", shown.rpartition("/")[2], object=made))
    return Table(listing.kind, columns, rows, empty=listing.empty, notes=listing.notes)


def _as_json(message: object) -> bytes:
    from google.protobuf.json_format import MessageToDict

    return msgspec.json.encode(MessageToDict(message))  # type: ignore[arg-type]  # messages alone are listed


class Paragraph(msgspec.Struct, frozen=True):
    text: str


class Grid(msgspec.Struct, frozen=True):
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
