# SPDX-License-Identifier: Apache-2.0
"""Objects of a kind as rows: what stands in which column, and what each row is called."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from agent.kinds.registry import Named

if TYPE_CHECKING:
    from google.protobuf.message import Message

Item = TypeVar("Item", bound="Message")
Object = dict[str, Any]


class Column(msgspec.Struct, Generic[Item], frozen=True):
    """One column; those for `wide` are left out of `table`."""

    title: str
    cell: Callable[[Item], str]
    wide: bool = False


Columns = Sequence[Column[Item]]


class Listing(msgspec.Struct, Generic[Item], frozen=True):
    """Objects of one kind. `name` is what `-o name` prints."""

    kind: str
    items: Sequence[Item]
    columns: Columns[Item]
    name: Callable[[Item], str]
    empty: str = ""
    notes: Sequence[str] = msgspec.field(default=())
    whole: "Message | None" = None
    """What programs get in place of the items, where those are a part of it."""
    named: Callable[[Item], Named] | None = None
    """What an item may be called; without it, the last part of `name` is all."""
    labels: Callable[[Item], Mapping[str, str]] | None = None
    objects: Callable[[Sequence[Item]], list[Object]] | None = None
    """What programs get of items that Kubernetes has as well, one of each."""
    grouped: Callable[[Sequence[Item]], list[tuple[Object, list[int]]]] | None = None
    """In its place, where several items are one object: each with the places of its items."""

    ended: Callable[[Item], bool] | None = None
    """What is over, and shown only on request."""

    @property
    def is_kubernetes(self) -> bool:
        return self.objects is not None or self.grouped is not None


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


def named(listing: Listing[Item], item: Item) -> Named:
    if listing.named is not None:
        return listing.named(item)
    return Named("", listing.name(item).rpartition("/")[2])


def columns_of(listing: Listing[Item], *, is_wide: bool) -> Columns[Item]:
    return [one for one in listing.columns if is_wide or not one.wide]


def rows_of(listing: Listing[Item], *, is_wide: bool = False, with_objects: bool = False) -> list[Row]:
    columns = columns_of(listing, is_wide=is_wide)
    rows = []
    for item in listing.items:
        one = named(listing, item)
        cells = [column.cell(item) for column in columns]
        rows.append(Row(cells, listing.name(item), one.namespace, one.name, one.short))
    if with_objects and listing.grouped is not None:
        for made, places in listing.grouped(listing.items):
            rows[places[0]].object = msgspec.json.encode(made)
            for place in places[1:]:
                rows[place].rows_back = place - places[0]
    elif with_objects:
        for row, made in zip(rows, _objects(listing), strict=True):
            row.object = msgspec.json.encode(made)
    return rows


def _objects(listing: Listing[Item]) -> Sequence[Object]:
    if listing.objects is not None:
        return listing.objects(listing.items)
    from google.protobuf.json_format import MessageToDict

    return [MessageToDict(item) for item in listing.items]


class HasTitle(Protocol):
    """A column, whoever decoded it."""

    @property
    def title(self) -> str: ...


class Table(msgspec.Struct):
    """Rows as they come from the daemon. `kind` is that of an object; `whole` is JSON that programs get instead of
    objects."""

    kind: str
    columns: Sequence[HasTitle]
    rows: Sequence[Row]
    is_kubernetes: bool = False
    empty: str = ""
    notes: Sequence[str] = ()
    whole: bytes = b""


def table_of(listing: Listing[Item], *, is_wide: bool = False, with_objects: bool = False) -> Table:
    return Table(
        listing.kind,
        columns_of(listing, is_wide=is_wide),
        rows_of(listing, is_wide=is_wide, with_objects=with_objects),
        listing.is_kubernetes,
        listing.empty,
        listing.notes,
        whole_of(listing) if with_objects else b"",
    )


def whole_of(listing: Listing[Item]) -> bytes:
    if listing.whole is None:
        return b""
    from google.protobuf.json_format import MessageToDict

    return msgspec.json.encode(MessageToDict(listing.whole))


class Paragraph(msgspec.Struct, frozen=True):
    text: str


class Grid(msgspec.Struct, frozen=True):
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
