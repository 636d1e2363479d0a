# SPDX-License-Identifier: Apache-2.0
"""What a command returns: messages for programs, rows for people."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from google.protobuf.message import Message

Item = TypeVar("Item", bound=Message)


@dataclass(frozen=True, slots=True)
class Column(Generic[Item]):
    """One column; those for `wide` are left out of `table`."""

    title: str
    cell: Callable[[Item], str]
    wide: bool = False


Columns = Sequence[Column[Item]]


@dataclass(frozen=True, slots=True)
class Listing(Generic[Item]):
    """Objects of one kind. `name` is what `-o name` prints."""

    kind: str
    items: Sequence[Item]
    columns: Columns[Item]
    name: Callable[[Item], str]
    empty: str = ""
    notes: Sequence[str] = field(default=())
    whole: Message | None = None
    """What programs get in place of the items, where those are a part of it."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class Grid:
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
