# SPDX-License-Identifier: Apache-2.0
"""Names the first error of a JSON text, in the words of programs written in Go.

Never: repeats more than one sign of the text, for it may be a Secret. Source: Go `encoding/json/scanner.go`.
"""

import json
import re

BLANKS = " \t\r\n"
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
WORDS = ("true", "false", "null")
DEEPEST = 10_000


class JsonInvalid(ValueError):
    """The text is no JSON."""


def read_json(content: bytes) -> object:
    """The value in a JSON text. Raises JsonInvalid."""
    text = content.decode("utf-8", "replace")
    scanner = _Scanner(text)
    try:
        scanner.value(0)
    except RecursionError:
        # Python's own depth comes before Go's.
        raise JsonInvalid("exceeded max depth") from None
    scanner.skip_blanks()
    if scanner.at < len(text):
        raise scanner.wrong("after top-level value")
    value: object = json.loads(text)
    return value


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def wrong(self, context: str) -> JsonInvalid:
        if self.at >= len(self.text):
            return JsonInvalid("unexpected end of JSON input")
        sign = self.text[self.at]
        shown = {"'": "'\\''", '"': "'\"'"}.get(sign) or (f"'{sign}'" if sign.isprintable() else f"'{sign!r}'"[1:-1])
        return JsonInvalid(f"invalid character {shown} {context}")

    def peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def skip_blanks(self) -> None:
        while self.peek() and self.peek() in BLANKS:
            self.at += 1

    def value(self, depth: int) -> None:
        self.skip_blanks()
        if depth > DEEPEST:
            raise JsonInvalid("exceeded max depth")
        match self.peek():
            case "{":
                self.members(depth, "}")
            case "[":
                self.members(depth, "]")
            case '"':
                self.string()
            case sign if sign and (sign == "-" or sign in "0123456789"):
                self.number()
            case sign if sign and sign in "tfn":
                self.word(next(word for word in WORDS if word[0] == sign))
            case _:
                raise self.wrong("looking for beginning of value")

    def members(self, depth: int, closing: str) -> None:
        is_object = closing == "}"
        self.at += 1
        self.skip_blanks()
        if self.peek() == closing:
            self.at += 1
            return
        while True:
            if is_object:
                self.key()
            self.value(depth + 1)
            self.skip_blanks()
            sign = self.peek()
            if sign not in (",", closing):
                raise self.wrong("after object key:value pair" if is_object else "after array element")
            self.at += 1
            if sign == closing:
                return

    def key(self) -> None:
        self.skip_blanks()
        if self.peek() != '"':
            raise self.wrong("looking for beginning of object key string")
        self.string()
        self.skip_blanks()
        if self.peek() != ":":
            raise self.wrong("after object key")
        self.at += 1

    def string(self) -> None:
        self.at += 1
        while (sign := self.peek()) != '"':
            if not sign or sign < " ":
                raise self.wrong("in string literal")
            self.at += 1
            if sign == "\\":
                self.escape()
        self.at += 1

    def escape(self) -> None:
        sign = self.peek()
        if not sign or sign not in '"\\/bfnrtu':
            raise self.wrong("in string escape code")
        self.at += 1
        for _ in range(4 if sign == "u" else 0):
            if not self.peek() or self.peek() not in "0123456789abcdefABCDEF":
                raise self.wrong("in \\u hexadecimal character escape")
            self.at += 1

    def number(self) -> None:
        found = NUMBER.match(self.text, self.at)
        if found is None:
            self.at += 1
            raise self.wrong("in numeric literal")
        self.at = found.end()
        sign = self.peek()
        if sign == "." and "." not in found[0] and "e" not in found[0].lower():
            self.at += 1
            raise self.wrong("after decimal point in numeric literal")
        if sign and sign in "eE" and "e" not in found[0].lower():
            self.at += 1
            self.at += self.peek() in ("+", "-")
            raise self.wrong("in exponent of numeric literal")

    def word(self, word: str) -> None:
        for sign in word:
            if self.peek() != sign:
                raise self.wrong(f"in literal {word} (expecting '{sign}')")
            self.at += 1
