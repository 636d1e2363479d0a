# SPDX-License-Identifier: Apache-2.0
"""Reads the answers that nearly all are: addresses for the very question, or one SOA that says there is nothing.

These have no part that has to go, so one walk over them does for what `answer` reads, compares and keeps in three. None
of what is in doubt is decided here: it is left to that. Source of behaviour: DNS-91, DNS-92.
"""

from struct import Struct
from struct import error as struct_error

from kepd_dns.wire.answer import POINTER_TO_QUESTION, FilteredAnswer, read_name
from kepd_dns.wire.names import Malformed
from kepd_dns.wire.question import HEADER, NXDOMAIN, OPT, SOA, Question

MOST_ANSWERS = 16
SIZES = {b"\0\1\0\1": b"\0\4", b"\0\x1c\0\1": b"\0\x10"}
"""Of addresses, by type and class."""
ADDRESS = Struct(">6sI2s")
"""Owner, type and class of a record, its TTL and its length."""
ONE = {kind: (POINTER_TO_QUESTION + kind, size, 12 + size[1]) for kind, size in SIZES.items()}
"""How a record of each begins, what its length is as it says, and how long it is."""
TYPE_SOA = SOA.to_bytes(2, "big")
FIRST_TTL = (6,)
"""Behind a pointer, a type and a class; that of one record."""
TYPE_OPT = b"\0" + OPT.to_bytes(2, "big")


def read_plain(data: bytes, section: bytes, question: Question) -> FilteredAnswer | None:
    """What is kept of it, if it answers the question as it was spelled and is as plain as that."""
    if data[2] & 0xFA != 0x80 or not data.startswith(section, 12):
        return None
    _, flags, questions, answers, authority, additional = HEADER.unpack_from(data)
    if questions != 1 or additional > 1:
        return None
    try:
        if answers == 1 and not flags & 0xF and not authority:
            return _address(data, section, question, additional)
        if answers and not flags & 0xF and not authority and answers <= MOST_ANSWERS:
            return _addresses(data, section, question, answers, additional)
        if not answers and authority == 1 and flags & 0xF in (0, NXDOMAIN):
            return _nothing(data, section, question, additional)
    except (IndexError, Malformed, struct_error):
        pass
    return None


def _address(data: bytes, section: bytes, question: Question, additional: int) -> FilteredAnswer | None:
    """As below for one, which most answers have."""
    one = ONE.get(section[-4:])
    if one is None:
        return None
    head, length, step = one
    begin = 12 + len(section)
    tail = data[begin : begin + step]
    found, ttl, size = ADDRESS.unpack_from(tail)
    if found != head or size != length or ttl > 0x7FFFFFFF or not _ends(data, begin + step, additional):
        return None
    return FilteredAnswer(0, bool(data[3] & 0x20), 1, 0, tail, FIRST_TTL, (ttl,), ttl, False, question.name, 1)


def _addresses(data: bytes, section: bytes, question: Question, count: int, additional: int) -> FilteredAnswer | None:
    kind = section[-4:]
    length = SIZES.get(kind)
    if length is None:
        return None
    begin = at = 12 + len(section)
    step = 12 + length[1]
    head, life_s, values = POINTER_TO_QUESTION + kind, 0x7FFFFFFF, []
    for _ in range(count):
        found, ttl, size = ADDRESS.unpack_from(data, at)
        if found != head or size != length or ttl > 0x7FFFFFFF:
            return None
        if ttl < life_s:
            life_s = ttl
        values.append(ttl)
        at += step
    if not _ends(data, at, additional):
        return None
    ttls = FIRST_TTL if count == 1 else tuple(range(6, step * count, step))
    is_authentic = bool(data[3] & 0x20)
    return FilteredAnswer(
        0, is_authentic, count, 0, data[begin:at], ttls, tuple(values), life_s, False, question.name, count,
    )  # fmt: skip


def _nothing(data: bytes, section: bytes, question: Question, additional: int) -> FilteredAnswer | None:
    begin = 12 + len(section)
    at = _behind_ancestor(data, begin)
    if not at or data[at : at + 4] != TYPE_SOA + section[-2:]:
        return None
    ttl, end = int.from_bytes(data[at + 4 : at + 8], "big"), at + 10 + (data[at + 8] << 8 | data[at + 9])
    known: dict[int, bytes] = {}
    _, next_at = read_name(data, at + 10, known)
    _, next_at = read_name(data, next_at, known)
    if end - next_at != 20 or ttl > 0x7FFFFFFF or not _ends(data, end, additional):
        return None
    life_s = min(ttl, int.from_bytes(data[end - 4 : end], "big"))
    code, is_authentic = data[3] & 0xF, bool(data[3] & 0x20)
    ttls = (at + 4 - begin,)
    return FilteredAnswer(code, is_authentic, 0, 1, data[begin:end], ttls, (ttl,), life_s, True, question.name, 1)


def _behind_ancestor(data: bytes, at: int) -> int:
    """Of an owner that is the root, or a pointer to a label of the question; 0: it is neither."""
    if not data[at]:
        return at + 1
    place, label = (data[at] & 0x3F) << 8 | data[at + 1], 12
    while label < place and data[label]:
        label += data[label] + 1
    return at + 2 if data[at] >= 0xC0 and label == place else 0


def _ends(data: bytes, at: int, additional: int) -> bool:
    """Whether that is all, but for options that say nothing of an error."""
    if not additional:
        return at == len(data)
    is_options = data[at : at + 3] == TYPE_OPT and data[at + 5] == 0
    return is_options and at + 11 + (data[at + 9] << 8 | data[at + 10]) == len(data)
