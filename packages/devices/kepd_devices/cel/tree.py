# SPDX-License-Identifier: Apache-2.0
"""What an expression is made of. `at` is where it begins in the text; `depth` how many lie in each other."""

from typing import Any

import msgspec

DEEPEST = 64


class Unreadable(ValueError):
    """No expression, or one that can never be evaluated; the message says where and why."""

    def __init__(self, at: int, text: str) -> None:
        super().__init__(f"at {at + 1}: {text}")
        self.at = at
        self.text = text


class SyntaxNode(msgspec.Struct, frozen=True, kw_only=True):
    at: int
    depth: int = 1


class Literal(SyntaxNode, frozen=True, kw_only=True):
    value: Any


class Name(SyntaxNode, frozen=True, kw_only=True):
    name: str


class Select(SyntaxNode, frozen=True, kw_only=True):
    """`of.field`; a test asks whether it is there, a soft one gives an optional."""

    of: SyntaxNode
    field: str
    is_test: bool = False
    is_soft: bool = False


class Call(SyntaxNode, frozen=True, kw_only=True):
    """An operator, a function, or with `of` a function of a value."""

    function: str
    arguments: tuple[SyntaxNode, ...]
    of: SyntaxNode | None = None


class Logic(SyntaxNode, frozen=True, kw_only=True):
    """Several with `&&` or `||` between them."""

    is_and: bool
    parts: tuple[SyntaxNode, ...]


class Choice(SyntaxNode, frozen=True, kw_only=True):
    condition: SyntaxNode
    yes: SyntaxNode
    no: SyntaxNode


class ListOf(SyntaxNode, frozen=True, kw_only=True):
    """Soft items are optionals, and left out where they have no value."""

    items: tuple[SyntaxNode, ...]
    soft: frozenset[int] = frozenset()


class MapOf(SyntaxNode, frozen=True, kw_only=True):
    entries: tuple[tuple[SyntaxNode, SyntaxNode], ...]
    soft: frozenset[int] = frozenset()


class Each(SyntaxNode, frozen=True, kw_only=True):
    """`of.all(name, body)` and its kin; `body` is what `map` makes of those for which `only` holds."""

    macro: str
    of: SyntaxNode
    name: str
    body: SyntaxNode
    only: SyntaxNode | None = None


class Bind(SyntaxNode, frozen=True, kw_only=True):
    """`cel.bind(name, value, body)`."""

    name: str
    value: SyntaxNode
    body: SyntaxNode


class WithValue(SyntaxNode, frozen=True, kw_only=True):
    """`of.optMap(name, body)`: nothing where there is nothing; a flat one has an optional as its body."""

    of: SyntaxNode
    name: str
    body: SyntaxNode
    is_flat: bool


def deeper(at: int, *below: SyntaxNode) -> int:
    """One more than the deepest of these. Raises Unreadable."""
    depth = 1 + max((one.depth for one in below), default=0)
    if depth > DEEPEST:
        raise Unreadable(at, f"more than {DEEPEST} expressions lie in each other")
    return depth
