# SPDX-License-Identifier: Apache-2.0
"""Cuts an expression into words, numbers, texts and signs."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from kepd_devices.cel.tree import Unreadable
from kepd_devices.cel.values import Uint

LARGEST, LARGEST_UNSIGNED = 2**63 - 1, 2**64 - 1

SHAPES = re.compile(
    r"""(?P<space>[ \t\r\n\f]+|//[^\n]*)
    |(?P<text>(?P<prefix>[rR][bB]?|[bB][rR]?)?(?P<quote>\"\"\"|'''|"|'))
    |(?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    |(?P<int>(?:0x[0-9a-fA-F]+|[0-9]+)[uU]?)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<escaped>`[A-Za-z0-9_.\-/ ]+`)
    |(?P<sign>&&|\|\||<=|>=|==|!=|[-+*/%<>!?:.,()\[\]{}])""",
    re.VERBOSE,
)
SHORT_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "?": "?", '"': '"', "'": "'", "`": "`",
}  # fmt: skip
NUMBERED = re.compile(r"[xX](?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|(?P<o>[0-3][0-7]{2})")
RESERVED = frozenset((
    "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package",
    "namespace", "return", "var", "void", "while",
))  # fmt: skip


class Token(msgspec.Struct, frozen=True):
    """`kind` is word, field, literal, sign or end; a word may be a keyword."""

    kind: str
    text: str
    at: int
    value: Any = None


def tokens(text: str) -> Iterator[Token]:
    """All of them, an end last. Raises Unreadable."""
    place = 0
    while place < len(text):
        found = SHAPES.match(text, place)
        if found is None:
            raise Unreadable(place, f"unexpected {text[place]!r}")
        at, place = place, found.end()
        match found.lastgroup:
            case "quote" | "text":
                value, place = _quoted(text, at, found["prefix"] or "", found["quote"], place)
                yield Token("literal", text[at:place], at, value)
            case "float":
                yield Token("literal", found[0], at, float(found[0]))
            case "int":
                yield Token("literal", found[0], at, _integer(found[0], at))
            case "word":
                yield Token("word", found[0], at)
            case "escaped":
                yield Token("field", found[0][1:-1], at)
            case "sign":
                yield Token("sign", found[0], at)
    yield Token("end", "the end", len(text))


def _integer(text: str, at: int) -> int:
    """2^63 is too large but as what follows a minus, which the parser sees."""
    is_unsigned = text[-1] in "uU"
    digits = text[:-1] if is_unsigned else text
    value = int(digits, 16) if digits[:2] == "0x" else int(digits) if len(digits) < 40 else LARGEST_UNSIGNED + 1
    if value > (LARGEST_UNSIGNED if is_unsigned else LARGEST + 1):
        raise Unreadable(at, f"{text} is too large a number")
    return Uint(value) if is_unsigned else value


def _quoted(text: str, at: int, prefix: str, quote: str, place: int) -> tuple[str | bytes, int]:
    is_raw, is_bytes = "r" in prefix.lower(), "b" in prefix.lower()
    signs: list[str] = []
    content = bytearray()
    while not text.startswith(quote, place):
        if place >= len(text) or (len(quote) == 1 and text[place] in "\r\n"):
            raise Unreadable(at, "a text without an end")
        piece, place, is_byte = (text[place], place + 1, False) if is_raw else _sign(text, place, is_bytes=is_bytes)
        if is_bytes:
            content += bytes([ord(piece)]) if is_byte else piece.encode()
        else:
            signs.append(piece)
    return bytes(content) if is_bytes else "".join(signs), place + len(quote)


def _sign(text: str, place: int, *, is_bytes: bool) -> tuple[str, int, bool]:
    """One sign, where the next begins, and whether a byte is meant by it."""
    if text[place] != "\\":
        return text[place], place + 1, False
    short = text[place + 1 : place + 2]
    if short in SHORT_ESCAPES:
        return SHORT_ESCAPES[short], place + 2, False
    found = NUMBERED.match(text, place + 1)
    if found is None or (is_bytes and (found["u"] or found["U"])):
        raise Unreadable(place, f"\\{short} is no escape")
    number = int(found["o"], 8) if found["o"] else int(found["x"] or found["u"] or found["U"], 16)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise Unreadable(place, f"{found[0]} is no sign")
    return chr(number), found.end(), is_bytes
