# SPDX-License-Identifier: Apache-2.0
"""What a command returns: messages for programs, rows for people."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from agent.kinds.registry import Named

if TYPE_CHECKING:
    from google.protobuf.message import Message

Item = TypeVar("Item", bound="Message")


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
    objects: Callable[[Sequence[Item]], list[dict[str, Any]]] | None = None
    """What programs get of items that Kubernetes has as well."""


class Paragraph(msgspec.Struct, frozen=True):
    text: str


class Grid(msgspec.Struct, frozen=True):
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
