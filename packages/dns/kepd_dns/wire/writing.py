# SPDX-License-Identifier: Apache-2.0
"""Writes messages: questions to servers, answers from records or from bytes that are kept.

Source of behaviour: RFC 1035, 6891, 8914; DNS-50, DNS-54, DNS-59.
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from kepd_dns.wire.answer import POINTER_TO_QUESTION
from kepd_dns.wire.question import (
    AA,
    AD,
    CD,
    DO,
    HEADER,
    IN,
    MOST_UDP,
    OPCODE,
    OPT,
    QR,
    RA,
    RD,
    RECORD,
    TC,
    Question,
)

OPTIONS = Struct(">BHHIH")
EDE = 15
ANSWERED, REPEATED, ASKED = QR | RA, RD | CD, RD | AD | CD
# RFC 8914.
STALE, STALE_NXDOMAIN, BLOCKED, NO_UPSTREAM, NETWORK_ERROR = 3, 19, 15, 22, 23


class WrittenRecord(NamedTuple):
    """A record of our own."""

    owner: bytes
    type: int
    ttl: int
    data: bytes
    klass: int = IN


def options(*, is_dnssec: bool = False, extended: int = 0, note: int | None = None) -> bytes:
    """Our OPT record. `note` is an extended error."""
    data = b"" if note is None else EDE.to_bytes(2, "big") + b"\0\2" + note.to_bytes(2, "big")
    return OPTIONS.pack(0, OPT, MOST_UDP, extended << 24 | (DO if is_dnssec else 0), len(data)) + data


PLAIN_OPTIONS, SIGNED_OPTIONS = options(), options(is_dnssec=True)


def answer_bytes(
    question: Question,
    code: int,
    tail: bytes | bytearray,
    answers: int,
    authority: int,
    extra: int = 0,
    *,
    marks: int = 0,
    note: int | None = None,
) -> bytes:
    """`tail` fits behind the question. `marks`: AA and AD."""
    if marks and not question.flags & AD and not question.is_dnssec:
        marks &= ~AD
    flags = ANSWERED | question.flags & REPEATED | marks | code & 0xF
    has_options = question.has_options
    text = HEADER.pack(question.id, flags, 1, answers, authority, extra + has_options) + question.section + tail
    if not has_options:
        return text
    if note is None:
        return text + (SIGNED_OPTIONS if question.is_dnssec else PLAIN_OPTIONS)
    return text + options(is_dnssec=question.is_dnssec, note=note)


def error_bytes(question: Question, code: int, note: int | None = None) -> bytes:
    return answer_bytes(question, code, b"", 0, 0, note=note)


def refusal_bytes(id_: int, flags: int, code: int, section: bytes = b"") -> bytes:
    """For what is no question that we could read."""
    kept = QR | RA | flags & (OPCODE | RD | CD) | code & 0xF
    extended = options(extended=code >> 4) if code > 0xF else b""
    return HEADER.pack(id_, kept, bool(section), 0, 0, bool(extended)) + section + extended


def cut_bytes(question: Question, marks: int = 0) -> bytes:
    """The question alone with TC: ask again by TCP (DNS-59)."""
    return answer_bytes(question, 0, b"", 0, 0, marks=TC | marks & AA)


def records_bytes(name: bytes, records: Iterable[WrittenRecord]) -> tuple[bytes, tuple[int, ...]]:
    """Records behind a question for that name, and where their TTLs are."""
    out = bytearray()
    ttls = []
    for one in records:
        out += POINTER_TO_QUESTION if one.owner == name else one.owner
        ttls.append(len(out) + 4)
        out += RECORD.pack(one.type, one.klass, one.ttl, len(one.data)) + one.data
    return bytes(out), tuple(ttls)


def question_bytes(id_: int, section: bytes, flags: int, *, has_options: bool, is_dnssec: bool = False) -> bytes:
    """To a server. Nothing a client sent goes with it but the question and its flags (DNS-46, DNS-47)."""
    text = HEADER.pack(id_, flags & ASKED, 1, 0, 0, has_options) + section
    return text + (SIGNED_OPTIONS if is_dnssec else PLAIN_OPTIONS) if has_options else text


def spelled(section: bytes, dice: int) -> bytes:
    """The question with letters in other cases by the bits of a number (0x20 of RFC 5452)."""
    out = bytearray(section)
    at = 0
    while length := out[at]:
        for place in range(at + 1, at + 1 + length):
            if 0x41 <= out[place] & 0xDF <= 0x5A:
                if dice & 1:
                    out[place] ^= 0x20
                dice >>= 1
        at += length + 1
    return bytes(out)
