# SPDX-License-Identifier: Apache-2.0
"""Reads what clients send. Nothing of a packet is believed but the id in its header (DNS-90).

Source of behaviour: RFC 1035, 6891; DNS-46, DNS-47, DNS-50, DNS-59, DNS-90.
"""

from functools import lru_cache
from struct import Struct

import msgspec

from kepd_dns.wire.names import MOST_NAME, Malformed

HEADER = Struct(">HHHHHH")
RECORD = Struct(">HHIH")
"""Type, class, TTL and length of a record, after its owner."""
QR, OPCODE, AA, TC, RD, RA, AD, CD = 0x8000, 0x7800, 0x0400, 0x0200, 0x0100, 0x0080, 0x0020, 0x0010
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, BADVERS = 0, 1, 2, 3, 4, 5, 16
A, NS, CNAME, SOA, PTR, HINFO, MX, TXT, AAAA, SRV, DNAME, OPT, DS = 1, 2, 5, 6, 12, 13, 15, 16, 28, 33, 39, 41, 43
RRSIG, NSEC, NSEC3, IXFR, AXFR, ANY = 46, 47, 50, 251, 252, 255
IN, CH = 1, 3
DO = 0x8000
OPTIONS_HEAD = b"\0\0\x29"
LEAST_UDP, MOST_UDP = 512, 1232
LARGEST_QUESTION = 4096
MOST_LABEL = 63
# What followed the first labels of late, which few domains do; none is longer than a question by UDP.
MOST_RESTS, LONGEST_REST = 1024, 300


class Dropped(Malformed):
    """A packet that gets no answer at all; its text names why, as metrics do."""


class BadQuestion(Malformed):
    """Answered with `code`; `section` is the question as far as there is one."""

    def __init__(self, id: int, flags: int, code: int, reason: str, section: bytes = b"") -> None:  # noqa: A002
        super().__init__(reason)
        self.id, self.flags, self.code, self.section = id, flags, code, section


class Question(msgspec.Struct, frozen=True, gc=False):
    """One question. `section` is as the client spelled it, `name` in lower case, `key` what answers are kept under.
    `size` is what the client takes by UDP; `has_options` whether it knows of EDNS at all."""

    id: int
    flags: int
    name: bytes
    section: bytes
    key: bytes
    type: int
    klass: int
    size: int = LEAST_UDP
    has_options: bool = False
    is_dnssec: bool = False


def key_of(name: bytes, kind: int, klass: int = IN, marks: int = 0) -> bytes:
    """`marks`: 1 for DO, 2 for CD."""
    return name + bytes((kind >> 8, kind & 0xFF, klass >> 8, klass & 0xFF, marks))


def read_question(data: bytes) -> Question:
    """Raises Dropped or BadQuestion. Names differ by their first labels mostly, so what follows these is read once."""
    size = len(data)
    if 13 < size < LONGEST_REST and 0 < (length := data[12]) <= MOST_LABEL:
        behind = 13 + length
        try:
            flags, name, section, key, kind, klass, room, has_options, is_dnssec = _rest(data[2:12], data[behind:])
        except Malformed:
            return read_whole(data)
        if length + len(name) < MOST_NAME:
            label = data[12:behind]
            low = label.lower()
            id_ = data[0] << 8 | data[1]
            return Question(
                id_, flags, low + name, label + section, low + key, kind, klass, room, has_options, is_dnssec
            )
    return read_whole(data)


@lru_cache(MOST_RESTS)
def _rest(head: bytes, behind: bytes) -> tuple[int, bytes, bytes, bytes, int, int, int, bool, bool]:
    """Of a question, by its header without the id and by what is behind its first label, for which a letter stands."""
    one = read_whole(b"\0\0" + head + b"\1x" + behind)
    name, section, key = one.name[2:], one.section[2:], one.key[2:]
    return one.flags, name, section, key, one.type, one.klass, one.size, one.has_options, one.is_dnssec


def read_whole(data: bytes) -> Question:
    """The same, byte by byte."""
    if len(data) < 12:
        raise Dropped("short")
    id_, flags, questions, answers, authority, additional = HEADER.unpack_from(data)
    if flags & QR:
        raise Dropped("answer")
    if flags & OPCODE:
        raise BadQuestion(id_, flags, NOTIMP, "opcode")
    if questions != 1 or answers or authority:
        raise BadQuestion(id_, flags, FORMERR, "counts")
    at = 12
    try:
        while length := data[at]:
            if length > 63:
                raise BadQuestion(id_, flags, FORMERR, "label")
            at += length + 1
        end = at + 5
        if end > len(data):
            raise BadQuestion(id_, flags, FORMERR, "cut")
        if at - 11 > MOST_NAME:
            raise BadQuestion(id_, flags, FORMERR, "name")
        size, has_options, is_dnssec, version = LEAST_UDP, False, False, 0
        if additional == 1 and len(data) == end + 11 and data[end : end + 3] == OPTIONS_HEAD and data[-2:] == b"\0\0":
            # As nearly all resolvers have it: options without any.
            size, at, has_options = data[end + 3] << 8 | data[end + 4], end + 11, True
            is_dnssec, version = bool(data[end + 7] & 0x80), data[end + 6]
        elif additional:
            at, found = _read_additional(data, end, additional)
            if found is not None:
                (size, has_options), is_dnssec, version = (found[0], True), bool(found[1] & DO), (found[1] >> 16) & 0xFF
        else:
            at = end
    except (IndexError, OverflowError):
        raise BadQuestion(id_, flags, FORMERR, "cut") from None
    except Malformed as error:
        if isinstance(error, BadQuestion):
            raise
        raise BadQuestion(id_, flags, FORMERR, str(error)) from None
    section = data[12:end]
    if at != len(data):
        raise BadQuestion(id_, flags, FORMERR, "trailing", section)
    if version:
        raise BadQuestion(id_, flags, BADVERS, "version", section)
    name = section[:-4].lower()
    marks = (1 if is_dnssec else 0) | (2 if flags & CD else 0)
    return Question(
        id_,
        flags,
        name,
        section,
        name + section[-4:] + bytes((marks,)),
        section[-4] << 8 | section[-3],
        section[-2] << 8 | section[-1],
        min(max(size, LEAST_UDP), MOST_UDP),
        has_options,
        is_dnssec,
    )


def _read_additional(data: bytes, at: int, count: int) -> tuple[int, tuple[int, int] | None]:
    """Where it ends, and size and TTL field of the OPT record. Other records say nothing to us."""
    found: tuple[int, int] | None = None
    for _ in range(count):
        is_root = data[at] == 0
        while length := data[at]:
            if length > 63:
                raise Malformed("label")
            at += length + 1
        at += 1
        if at + 10 > len(data):
            raise Malformed("cut")
        kind, klass, ttl, length = RECORD.unpack_from(data, at)
        at += 10 + length
        if at > len(data):
            raise Malformed("cut")
        if kind == OPT:
            if found is not None or not is_root:
                raise Malformed("options")
            _check_options(data, at - length, at)
            found = klass, ttl
    return at, found


def _check_options(data: bytes, at: int, end: int) -> None:
    """All are dropped, but they have to be some (DNS-47)."""
    while at < end:
        if at + 4 > end:
            raise Malformed("options")
        at += 4 + (data[at + 2] << 8 | data[at + 3])
    if at != end:
        raise Malformed("options")
