# SPDX-License-Identifier: Apache-2.0
"""How a kind is shown: whose objects they are, and what they are as rows.

The module of a kind has one `SHOWN`, and `describe` where an object has more to tell than its row. It asks nobody
itself: `api/services/kinds.py` does, inside of the daemon.
"""

from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from agent.kinds.described import Described
from agent.kinds.kind import Kind, Named
from agent.kinds.table import Column, Columns, Object, names_of
from agent.model.placed import Walk

if TYPE_CHECKING:
    from google.protobuf.message import Message


class How(msgspec.Struct, frozen=True):
    """`with_objects`: with what only programs read; `is_wide`: with what costs more to find."""

    with_objects: bool = False
    is_wide: bool = False


class Offer(msgspec.Struct, frozen=True):
    """What a plane shows of one kind: `walk` gives what is behind a place, each object with a name in its metadata.
    `follow` tells each FeedChange, beginning with all there is, where the plane knows of changes; `notes` is what
    stands below a table of them."""

    walk: Callable[[How, str], Walk[Object]]
    follow: Callable[[], AsyncIterator[Any]] | None = None
    notes: Callable[[], Sequence[str]] | None = None


class Objects(msgspec.Struct, frozen=True):
    """All objects that a service offers of a kind, such as pods of `kepd.v1.PodService`. `may_fail`: where its plane is
    off, others have the answer."""

    service: str
    kind: str
    may_fail: bool = False


class Ask(msgspec.Struct, frozen=True):
    """One call, such as `kepd.v1.PodService/ExplainPod`. `may_fail`: where its plane is off, others have the answer."""

    method: str
    request: "Message"
    answer: "type[Message]"
    may_fail: bool = False


Describing = Generator[Ask | Objects, Any, Described]
"""Yields what to ask, and is sent the answers; None for one that may fail and does."""
Describe = Callable[[Kind, str, str], Describing]
"""Of an object by its namespace (empty: not said) and its name, in full or for short."""


class Shown(msgspec.Struct, frozen=True):
    """`services` offer the objects; of several, those that run here. `columns` are of all, or by the names that kinds
    have in manifests."""

    services: tuple[str, ...]
    columns: Columns[Object] | Mapping[str, Columns[Object]]
    kind: str = ""
    """What a table is of; empty: as manifests call it."""
    empty: str = ""
    called: Callable[[Object], str] | None = None
    """What `-o name` prints."""
    short: Callable[[Object], str] | None = None
    """Other names of an object, with spaces between."""
    grouped: Callable[[Sequence[Object]], list[tuple[Object, list[int]]]] | None = None
    """Several of what is offered are one object for programs: each with the places of its parts."""
    first: Callable[[Object], Object] | None = None
    """Of what is made of several, that which its one row shows where an object has no more."""
    joined: Callable[[Object, Object], Object] | None = None
    """For programs, with what its manifest says of it, which is empty for one that has none."""
    ended: Callable[[Object], bool] | None = None
    """It is over, and shown only on request."""
    note: Callable[[Sequence[Object]], Sequence[str]] | None = None
    """What stands below those that are shown."""
    has_labels: bool = True
    is_kubernetes: bool = True
    is_watched: bool = False
    shows_last: bool = True
    """What is deleted is shown once more."""

    def named(self, made: Object) -> Named:
        return Named(*names_of(made), self.short(made) if self.short is not None else "")

    def name(self, kind: Kind, made: Object) -> str:
        if self.called is not None:
            return self.called(made)
        return f"{kind.singular}/{Named(*names_of(made)).key}"

    def columns_of(self, kind: Kind, *, is_wide: bool) -> list[Column[Object]]:
        columns = self.columns[kind.api] if isinstance(self.columns, Mapping) else self.columns
        return [column for column in columns if is_wide or not column.wide]


def own_kind(service: str, kind: str, empty: str, columns: Columns[Object], **more: Any) -> Shown:  # noqa: ANN401
    """What only kepd has."""
    return Shown((f"kepd.v1.{service}",), columns, kind, empty, has_labels=False, is_kubernetes=False, **more)


def _module(kind: Kind) -> Any:  # noqa: ANN401  # each has what its kind can
    return import_module(kind.module)


def shown_of(kind: Kind) -> Shown:
    shown: Shown = _module(kind).SHOWN
    return shown


def described_by(kind: Kind) -> Describe | None:
    """None for a kind that has no more to tell than its row."""
    found: Describe | None = getattr(_module(kind), "describe", None)
    return found


def labels_of(made: Object) -> Mapping[str, str]:
    return {name: str(value) for name, value in (made["metadata"].get("labels") or {}).items()}
