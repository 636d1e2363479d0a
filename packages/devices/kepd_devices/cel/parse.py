# SPDX-License-Identifier: Apache-2.0
"""Makes a tree of an expression, macros included. Never: knows what names mean."""

from kepd_devices.cel.tokens import LARGEST, RESERVED, Token, tokens
from kepd_devices.cel.tree import (
    DEEPEST,
    Bind,
    Call,
    Choice,
    Each,
    ListOf,
    Literal,
    Logic,
    MapOf,
    Name,
    Select,
    SyntaxNode,
    Unreadable,
    WithValue,
    deeper,
)
from kepd_devices.cel.values import Uint

LONGEST = 10 * 1024
CONSTANTS = {"true": True, "false": False, "null": None}
RELATIONS = frozenset({"<", "<=", ">", ">=", "==", "!=", "in"})
MACROS = {"all": 2, "exists": 2, "exists_one": 2, "existsOne": 2, "filter": 2, "map": 2}


def parse(text: str) -> SyntaxNode:
    """Raises Unreadable."""
    if len(text.encode(errors="replace")) > LONGEST:
        raise Unreadable(0, f"is longer than {LONGEST} bytes")
    reader = _Reader(list(tokens(text)))
    found = reader.expression()
    reader.take_end()
    return found


class _Reader:
    def __init__(self, words: list[Token]) -> None:
        self._words = words
        self._place = 0
        self._nesting = 0

    @property
    def _next(self) -> Token:
        return self._words[self._place]

    def _take(self) -> Token:
        self._place += 1
        return self._words[self._place - 1]

    def _has(self, *signs: str) -> bool:
        """A keyword counts as a sign."""
        return self._next.kind in ("sign", "word") and self._next.text in signs

    def _taken(self, sign: str) -> bool:
        if self._has(sign):
            self._take()
            return True
        return False

    def _expect(self, sign: str) -> Token:
        if not self._has(sign):
            raise Unreadable(self._next.at, f"{self._next.text} where {sign} was expected")
        return self._take()

    def take_end(self) -> None:
        if self._next.kind != "end":
            raise Unreadable(self._next.at, f"{self._next.text} where the end was expected")

    def expression(self) -> SyntaxNode:
        self._nesting += 1
        if self._nesting > DEEPEST:
            raise Unreadable(self._next.at, f"more than {DEEPEST} expressions lie in each other")
        condition = self._logic("||")
        if self._taken("?"):
            yes = self._logic("||")
            self._expect(":")
            no = self.expression()
            depth = deeper(condition.at, condition, yes, no)
            condition = Choice(at=condition.at, depth=depth, condition=condition, yes=yes, no=no)
        self._nesting -= 1
        return condition

    def _logic(self, sign: str) -> SyntaxNode:
        parts = [self._logic("&&") if sign == "||" else self._relation()]
        while self._taken(sign):
            parts.append(self._logic("&&") if sign == "||" else self._relation())
        if len(parts) == 1:
            return parts[0]
        return Logic(at=parts[0].at, depth=deeper(parts[0].at, *parts), is_and=sign == "&&", parts=tuple(parts))

    def _relation(self) -> SyntaxNode:
        left = self._sum()
        while self._next.text in RELATIONS and self._next.kind in ("sign", "word"):
            sign = self._take()
            left = _called(sign.at, sign.text, left, self._sum())
        return left

    def _sum(self) -> SyntaxNode:
        left = self._product()
        while self._has("+", "-"):
            sign = self._take()
            left = _called(sign.at, sign.text, left, self._product())
        return left

    def _product(self) -> SyntaxNode:
        left = self._unary()
        while self._has("*", "/", "%"):
            sign = self._take()
            left = _called(sign.at, sign.text, left, self._unary())
        return left

    def _unary(self) -> SyntaxNode:
        if self._has("!"):
            return self._signs("!", "!")
        if self._has("-"):
            after = self._words[self._place + 1]
            if after.kind == "literal" and isinstance(after.value, int | float) and not isinstance(after.value, Uint):
                return self._negative()
            return self._signs("-", "-_")
        return self._member(self._primary())

    def _signs(self, sign: str, function: str) -> SyntaxNode:
        """Two undo each other."""
        first, count = self._next, 0
        while self._taken(sign):
            count += 1
        of = self._member(self._primary())
        for _ in range(count if count < 3 else 2 - count % 2):
            of = _called(first.at, function, of)
        return of

    def _negative(self) -> SyntaxNode:
        first = self._take()
        return self._member(Literal(at=first.at, value=-self._take().value))

    def _primary(self) -> SyntaxNode:
        word = self._take()
        if word.kind == "literal":
            if type(word.value) is int and word.value > LARGEST:
                raise Unreadable(word.at, f"{word.text} is too large a number")
            return Literal(at=word.at, value=word.value)
        if word.kind == "word" and word.text in CONSTANTS:
            return Literal(at=word.at, value=CONSTANTS[word.text])
        if word.text == "(" and word.kind == "sign":
            inside = self.expression()
            self._expect(")")
            return inside
        if word.text == "[" and word.kind == "sign":
            return self._list(word.at)
        if word.text == "{" and word.kind == "sign":
            return self._map(word.at)
        if word.text == "." and word.kind == "sign":
            word = self._take()
        if word.kind != "word" or word.text in RESERVED or word.text == "in":
            raise Unreadable(word.at, f"{word.text} where a value was expected")
        if self._taken("("):
            return self._function(word, self._arguments())
        return Name(at=word.at, name=word.text)

    def _function(self, word: Token, arguments: tuple[SyntaxNode, ...]) -> SyntaxNode:
        if word.text != "has":
            return _called(word.at, word.text, *arguments)
        if len(arguments) != 1 or not isinstance(arguments[0], Select) or arguments[0].is_soft:
            raise Unreadable(word.at, "has() takes one field, such as has(a.b)")
        found = arguments[0]
        return Select(at=found.at, depth=found.depth, of=found.of, field=found.field, is_test=True)

    def _arguments(self) -> tuple[SyntaxNode, ...]:
        found: list[SyntaxNode] = []
        while not self._taken(")"):
            if found:
                self._expect(",")
            found.append(self.expression())
        return tuple(found)

    def _member(self, of: SyntaxNode) -> SyntaxNode:
        while True:
            if self._taken("."):
                of = self._field(of)
            elif self._has("["):
                at = self._take().at
                function = "[?]" if self._taken("?") else "[]"
                inside = self.expression()
                self._expect("]")
                of = _called(at, function, of, inside)
            else:
                return of

    def _field(self, of: SyntaxNode) -> SyntaxNode:
        is_soft = self._taken("?")
        word = self._take()
        if word.kind not in ("word", "field") or word.text == "in":
            raise Unreadable(word.at, f"{word.text} where a field was expected")
        if is_soft or word.kind == "field" or not self._taken("("):
            return Select(at=word.at, depth=deeper(word.at, of), of=of, field=word.text, is_soft=is_soft)
        arguments = self._arguments()
        made = _macro(word, of, arguments)
        if made is not None:
            return made
        depth = deeper(word.at, of, *arguments)
        return Call(at=word.at, depth=depth, function=word.text, arguments=arguments, of=of)

    def _list(self, at: int) -> SyntaxNode:
        items: list[SyntaxNode] = []
        soft: set[int] = set()
        while not self._taken("]"):
            if items:
                self._expect(",")
                if self._taken("]"):
                    break
            if self._taken("?"):
                soft.add(len(items))
            items.append(self.expression())
        return ListOf(at=at, depth=deeper(at, *items), items=tuple(items), soft=frozenset(soft))

    def _map(self, at: int) -> SyntaxNode:
        entries: list[tuple[SyntaxNode, SyntaxNode]] = []
        soft: set[int] = set()
        while not self._taken("}"):
            if entries:
                self._expect(",")
                if self._taken("}"):
                    break
            if self._taken("?"):
                soft.add(len(entries))
            key = self.expression()
            self._expect(":")
            entries.append((key, self.expression()))
        depth = deeper(at, *(one for entry in entries for one in entry))
        return MapOf(at=at, depth=depth, entries=tuple(entries), soft=frozenset(soft))


def _called(at: int, function: str, *arguments: SyntaxNode) -> SyntaxNode:
    return Call(at=at, depth=deeper(at, *arguments), function=function, arguments=arguments)


def _macro(word: Token, of: SyntaxNode, arguments: tuple[SyntaxNode, ...]) -> SyntaxNode | None:
    """What is no function, since it gives names to things."""
    depth = deeper(word.at, of, *arguments)
    if word.text == "bind" and isinstance(of, Name) and of.name == "cel" and len(arguments) == 3:
        return Bind(at=word.at, depth=depth, name=_name(arguments[0]), value=arguments[1], body=arguments[2])
    if word.text in ("optMap", "optFlatMap") and len(arguments) == 2:
        is_flat = word.text == "optFlatMap"
        name, body = _name(arguments[0]), arguments[1]
        return WithValue(at=word.at, depth=depth, of=of, name=name, body=body, is_flat=is_flat)
    if word.text == "map" and len(arguments) == 3:
        first, only, body = arguments
        return Each(at=word.at, depth=depth, macro="map", of=of, name=_name(first), body=body, only=only)
    if MACROS.get(word.text) == len(arguments):
        macro = "exists_one" if word.text == "existsOne" else word.text
        return Each(at=word.at, depth=depth, macro=macro, of=of, name=_name(arguments[0]), body=arguments[1])
    return None


def _name(node: SyntaxNode) -> str:
    if not isinstance(node, Name):
        raise Unreadable(node.at, "a name was expected")
    return node.name
