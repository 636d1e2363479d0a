# SPDX-License-Identifier: Apache-2.0
"""How a kind is shown: what is asked of the daemon, and what its answers are as objects and rows.

The module of a kind has one `SHOWN`, and `describe` where an object has more to tell than its row. It asks nobody
itself: `api/services/kinds.py` does, inside of the daemon.
"""

from collections.abc import Callable, Generator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from agent.kinds.described import Described
from agent.kinds.registry import FOLDERS, Kind
from agent.kinds.table import Listing

if TYPE_CHECKING:
    from google.protobuf.message import Message

AnyListing = Listing[Any]
Answer = TypeVar("Answer", bound="Message")


class How(msgspec.Struct, frozen=True):
    """`with_objects`: with what only programs read; `is_wide`: with what costs more to find."""

    with_objects: bool = False
    is_wide: bool = False


class Ask(msgspec.Struct, frozen=True):
    """One call, such as `kepd.v1.NodeService/GetNode`. `may_fail`: where its plane is off, others have the answer."""

    method: str
    request: "Message"
    answer: "type[Message]"
    may_fail: bool = False


class Watch(msgspec.Struct, frozen=True):
    """A stream of changes. Each has one `item`, which is shown as an answer with it among its `items`. `shows_last`:
    what is deleted is shown once more."""

    ask: Ask
    item: str
    listed: "type[Message]"
    items: str
    shows_last: bool = False


Describing = Generator[Ask, Any, Described]
"""Yields what to ask, and is sent the answers; None for one that may fail and does."""
Describe = Callable[[Kind, str, str], Describing]
"""Of an object by its namespace (empty: not said) and its name, in full or for short."""


class Shown(msgspec.Struct, frozen=True):
    """`asks`: the first answer has the objects; `listing` has None for an answer that may fail and did. A kind without
    `watch` is looked at again and again."""

    asks: Callable[[Kind, How], Sequence[Ask]]
    listing: Callable[[Kind, Sequence[Any]], AnyListing]
    watch: Callable[[How], Watch] | None = None


def _module(kind: Kind) -> Any:  # noqa: ANN401  # each has what its kind can
    return import_module(f"agent.kinds.{FOLDERS[kind]}.{kind.module or kind.plural}")


def shown_of(kind: Kind) -> Shown:
    found: Shown = _module(kind).SHOWN
    return found


def described_by(kind: Kind) -> Describe | None:
    """None for a kind that has no more to tell than its row."""
    found: Describe | None = getattr(_module(kind), "describe", None)
    return found


def shown_by(method: str, request: "Message", answer: type[Answer], listing: Callable[[Answer], AnyListing]) -> Shown:
    """What one plain call lists."""
    return Shown(lambda _kind, _how: (Ask(method, request, answer),), lambda _kind, answers: listing(answers[0]))
