# SPDX-License-Identifier: Apache-2.0
"""The words of the command line that select objects of the kinds there are.

    kepctl VERB KIND [NAME…]      kepctl VERB KIND/NAME…      kepctl VERB KIND,KIND

Imports nothing heavy, for completion waits for it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from agent.cli.objects import foreign
from agent.cli.session import CommandFailed
from agent.kinds import selection, selectors
from agent.kinds.kind import DEFAULT_NAMESPACE, Kind, Named
from agent.kinds.registry import BY_WORD, KINDS
from agent.kinds.selection import nearest
from agent.kinds.selectors import Test
from agent.model.exit_codes import NOT_FOUND, USAGE
from agent.model.refused import Refused

SHORTEST_GUESS = 4
"""Of a shorter word nearly any other is a near one."""


def kind_of(word: str, what: str = "list") -> Kind:
    """By any of its names, whatever their case. Raises with the nearest name."""
    found = BY_WORD.get(word.lower())
    if found is not None:
        return found
    if known := foreign.in_place_of(word, foreign.KINDS):
        raise CommandFailed(f'no kind "{word}" here{known}', USAGE)
    close = ""
    if len(word) >= SHORTEST_GUESS:
        close = nearest(word.lower(), [kind.plural for kind in KINDS]) or nearest(word.lower(), BY_WORD)
    hint = f'did you mean "{close}"?' if close else f"kinds are {', '.join(kind.plural for kind in KINDS)}"
    raise CommandFailed(f'no {what} of "{word}"; {hint}', USAGE)


class Wanted(msgspec.Struct, frozen=True):
    """Objects of one kind. Without names: all of them."""

    kind: Kind
    names: tuple[str, ...] = ()


def parse_wanted(words: Sequence[str], default: str = "") -> tuple[Wanted, ...]:
    """What the words of a command select. A first word that is no kind is a name of the kind `default`, if there is
    one."""
    if not words:
        raise CommandFailed(f"no kind is named; kinds are {', '.join(kind.plural for kind in KINDS)}", USAGE)
    for kind, slash, _ in (word.partition("/") for word in words):
        if slash and kind.lower() in foreign.KINDS:
            kind_of(kind)
    if all(_is_typed(word) for word in words):
        return tuple(Wanted(kind_of(kind), (name,)) for kind, _, name in (word.partition("/") for word in words))
    first = words[0]
    if default and not all(one.lower() in BY_WORD or one.lower() in foreign.KINDS for one in first.split(",")):
        return (Wanted(BY_WORD[default], tuple(words)),)
    kinds = tuple(kind_of(one) for one in first.split(",") if one)
    if len(kinds) > 1 and len(words) > 1:
        raise CommandFailed(f'"{first}" are several kinds; name objects of them as KIND/NAME', USAGE)
    if mixed := next((word for word in words[1:] if _is_typed(word) and kind_of(word.partition("/")[0])), ""):
        raise CommandFailed(f'"{mixed}" names its kind, and so does "{first}"; name it once', USAGE)
    return tuple(Wanted(kind, tuple(words[1:])) for kind in kinds)


def _is_typed(word: str) -> bool:
    kind, slash, name = word.partition("/")
    return bool(slash and name) and kind.lower() in BY_WORD


def without_kind(word: str, kind: str) -> str:
    """`pod/web` where only a pod can be meant."""
    first, slash, rest = word.partition("/")
    return rest if slash and rest and BY_WORD.get(first.lower()) is BY_WORD[kind] else word


def qualified(word: str, kind: str, namespace: str) -> str:
    """`namespace/name` for what the daemon looks up itself: a kind before it goes, and `-n` or `default` comes."""
    given, name = split_name(without_kind(word, kind), namespace)
    return f"{given or DEFAULT_NAMESPACE}/{name}"


@contextmanager
def failing() -> Iterator[None]:
    """What is refused in here fails the command."""
    try:
        yield
    except Refused as error:
        raise CommandFailed(str(error), NOT_FOUND if error.kind == "no_object" else USAGE) from error


def parse_selector(text: str) -> Test:
    with failing():
        return selectors.parse_selector(text)


def split_name(text: str, namespace: str = "") -> tuple[str, str]:
    with failing():
        return selection.split_name(text, namespace)


def find_named(kind: Kind, text: str, known: Iterable[Named], namespace: str = "", *, elsewhere: bool = True) -> Named:
    with failing():
        return selection.find_named(kind, text, known, namespace, elsewhere=elsewhere)
