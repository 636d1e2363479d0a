# SPDX-License-Identifier: Apache-2.0
"""How a kind is shown: what is asked of the daemon, and what its answers are as objects and rows.

The module of a kind has one `SHOWN`. It asks nobody itself: kepctl asks over its socket, and a door of the daemon could
ask inside of it.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

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


class Shown(msgspec.Struct, frozen=True):
    """`asks`: the first answer has the objects; `listing` has None for an answer that may fail and did. A kind without
    `watch` is looked at again and again."""

    asks: Callable[[Kind, How], Sequence[Ask]]
    listing: Callable[[Kind, Sequence[Any]], AnyListing]
    watch: Callable[[How], Watch] | None = None


def shown_of(kind: Kind) -> Shown:
    found: Shown = import_module(f"agent.kinds.{FOLDERS[kind]}.{kind.module or kind.plural}").SHOWN
    return found


def shown_by(method: str, request: "Message", answer: type[Answer], listing: Callable[[Answer], AnyListing]) -> Shown:
    """What one plain call lists."""
    return Shown(lambda _kind, _how: (Ask(method, request, answer),), lambda _kind, answers: listing(answers[0]))
