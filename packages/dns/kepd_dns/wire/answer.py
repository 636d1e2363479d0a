# SPDX-License-Identifier: Apache-2.0
"""Reads what servers answer, and keeps what was asked for: the chain that begins at the question, and why it is empty.

What is kept are the server's own bytes where possible; names in them may point back into the question, so they fit
behind the same question in any spelling. Pointers lead strictly backwards, so that no name costs more than its length
(DNS-91). Source of behaviour: RFC 1035, 2308, 5452; DNS-52, DNS-54, DNS-91, DNS-92.
"""

from collections.abc import Iterable, Mapping
from struct import error as struct_error
from typing import NamedTuple

import msgspec

from kepd_dns.wire.names import MOST_NAME, Malformed, is_within
from kepd_dns.wire.question import (
    AD,
    ANY,
    CNAME,
    DNAME,
    DS,
    HEADER,
    MX,
    NOERROR,
    NS,
    NSEC,
    NSEC3,
    NXDOMAIN,
    OPT,
    PTR,
    RECORD,
    RRSIG,
    SOA,
    SRV,
    Question,
)

MOST_POINTERS = 16
MOST_RECORDS = 1024
LONGEST_CHAIN = 16
# Of records that have names in their data: where these begin, and how many they are.
NAMES_AT: Mapping[int, tuple[int, int]] = {NS: (0, 1), CNAME: (0, 1), SOA: (0, 2), PTR: (0, 1), MX: (2, 1), SRV: (6, 1)}
POINTER_TO_QUESTION = b"\xc0\x0c"


class Record(NamedTuple):
    """Where a record lies. `owner` is in lower case."""

    owner: bytes
    type: int
    klass: int
    ttl: int
    start: int
    data_at: int
    end: int


class ReadAnswer(msgspec.Struct, frozen=True, gc=False):
    id: int
    flags: int
    section: bytes
    """The question as the server repeats it; empty: it does not."""
    answers: tuple[Record, ...]
    authority: tuple[Record, ...]
    extended_code: int = 0

    @property
    def code(self) -> int:
        return self.extended_code << 4 | self.flags & 0xF


class FilteredAnswer(msgspec.Struct, frozen=True, gc=False):
    """What is left of an answer. `tail` follows a question, `ttls` are where in it its TTLs lie, `values` what they are
    worth. `life_s` is the least of them, of a negative answer by its SOA; None: a negative one without."""

    code: int
    is_authentic: bool
    answers: int
    authority: int
    tail: bytes
    ttls: tuple[int, ...]
    values: tuple[int, ...]
    life_s: int | None
    is_negative: bool
    target: bytes
    """The last name of the chain."""
    records: int = 0


def read_name(data: bytes, at: int, known: dict[int, bytes]) -> tuple[bytes, int]:
    """The name in lower case, and where what follows it begins. `known`: names by their places, and this one after."""
    if data[at] >= 0xC0:
        place = (data[at] & 0x3F) << 8 | data[at + 1]
        if place in known and place < at:
            return known[place], at + 2
    begin, end, limit, jumps, size = at, 0, at, 0, 1
    parts = []
    while length := data[at]:
        if length < 64:
            part = data[at : at + length + 1]
            if len(part) <= length:
                raise Malformed("name cut")
            parts.append(part)
            size += length + 1
            at += length + 1
            if size > MOST_NAME:
                raise Malformed("name too long")
        elif length >= 0xC0:
            place = (length & 0x3F) << 8 | data[at + 1]
            end = end or at + 2
            jumps += 1
            if place >= limit or place < 12 or jumps > MOST_POINTERS:
                raise Malformed("pointer")
            limit = at = place
        else:
            raise Malformed("label")
    name = known[begin] = b"".join(parts).lower() + b"\0"
    return name, end or at + 1


def read_answer(data: bytes) -> ReadAnswer:
    """Raises Malformed, never anything else."""
    try:
        return _read_answer(data)
    except (IndexError, struct_error):
        raise Malformed("cut") from None


def _read_answer(data: bytes) -> ReadAnswer:
    id_, flags, questions, answers, authority, additional = HEADER.unpack_from(data)
    if questions > 1 or answers + authority + additional > MOST_RECORDS:
        raise Malformed("counts")
    at = 12
    known: dict[int, bytes] = {}
    section = b""
    if questions:
        _, end = read_name(data, at, known)
        section = data[12 : end + 4]
        at = end + 4
        if at > len(data):
            raise Malformed("cut")
    found: list[Record] = []
    for _ in range(answers + authority):
        record = _read_record(data, at, known)
        found.append(record)
        at = record.end
    extended = 0
    for _ in range(additional):
        record = _read_record(data, at, known)
        at = record.end
        if record.type == OPT:
            extended = record.ttl >> 24
    return ReadAnswer(id_, flags, section, tuple(found[:answers]), tuple(found[answers:]), extended)


def _read_record(data: bytes, at: int, known: dict[int, bytes]) -> Record:
    start = at
    owner, at = read_name(data, at, known)
    kind, klass, ttl, length = RECORD.unpack_from(data, at)
    data_at, end = at + 10, at + 10 + length
    if end > len(data):
        raise Malformed("record cut")
    places = NAMES_AT.get(kind)
    if places is not None:
        name_at = data_at + places[0]
        for _ in range(places[1]):
            _, name_at = read_name(data, name_at, known)
        if name_at > end or (kind == SOA and end - name_at != 20):
            raise Malformed("record data")
    return Record(owner, kind, klass, 0 if ttl > 0x7FFFFFFF else ttl, start, data_at, end)


def keep(data: bytes, answer: ReadAnswer, question: Question) -> FilteredAnswer:
    """What of an answer was asked for (DNS-92)."""
    chosen, target, is_positive = _chain(data, answer.answers, question)
    above = () if is_positive else tuple(_reasons(answer.authority, target, question))
    soa = next((one for one in above if one.type == SOA), None)
    is_negative = not is_positive and answer.code in (NOERROR, NXDOMAIN)
    life_s = min((one.ttl for one in (*chosen, *above)), default=0)
    if is_negative:
        negative_s = None if soa is None else min(soa.ttl, int.from_bytes(data[soa.end - 4 : soa.end], "big"))
        life_s = 0 if negative_s is None else min(life_s, negative_s)
    kept = (*chosen, *above)
    begin = 12 + len(question.section)
    if _is_whole(kept, begin) and answer.section:
        tail = data[begin : kept[-1].end] if kept else b""
        ttls = tuple(one.data_at - 6 - begin for one in kept)
    else:
        tail, ttls = _rewritten(data, kept, question.name)
    return FilteredAnswer(
        answer.code,
        bool(answer.flags & AD),
        len(chosen),
        len(above),
        tail,
        ttls,
        tuple(one.ttl for one in kept),
        None if is_negative and soa is None else life_s,
        is_negative,
        target,
        len(kept),
    )


def _chain(data: bytes, records: Iterable[Record], question: Question) -> tuple[list[Record], bytes, bool]:
    """Records of the chain, its last name, and whether the asked type is there."""
    chosen: list[Record] = []
    name, names = question.name, {question.name}
    is_positive = False
    for one in records:
        if one.klass != question.klass:
            continue
        if one.owner == name and (one.type == question.type or question.type == ANY):
            chosen.append(one)
            is_positive = True
        elif one.owner == name and one.type == CNAME and not is_positive and len(names) <= LONGEST_CHAIN:
            chosen.append(one)
            name = read_name(data, one.data_at, {})[0]
            names.add(name)
        elif question.is_dnssec and (
            (one.type == RRSIG and one.owner in names) or (one.type == DNAME and is_within(name, one.owner))
        ):
            chosen.append(one)
    return chosen, name, is_positive


def _reasons(records: Iterable[Record], name: bytes, question: Question) -> Iterable[Record]:
    """Of a negative answer: who says so."""
    for one in records:
        if one.klass != question.klass:
            continue
        if one.type in (SOA, NS):
            if is_within(name, one.owner):
                yield one
        elif question.is_dnssec and one.type in (RRSIG, NSEC, NSEC3, DS):
            yield one


def _is_whole(kept: Iterable[Record], at: int) -> bool:
    """Whether nothing lies before or between them that has to go."""
    for one in kept:
        if one.start != at:
            return False
        at = one.end
    return True


def _rewritten(data: bytes, kept: Iterable[Record], name: bytes) -> tuple[bytes, tuple[int, ...]]:
    """The records one after the other, without compression."""
    out = bytearray()
    ttls = []
    for one in kept:
        out += POINTER_TO_QUESTION if one.owner == name else one.owner
        ttls.append(len(out) + 4)
        payload = plain_data(data, one)
        out += RECORD.pack(one.type, one.klass, one.ttl, len(payload)) + payload
    return bytes(out), tuple(ttls)


def plain_data(data: bytes, record: Record) -> bytes:
    """The data of a record with its names written out."""
    places = NAMES_AT.get(record.type)
    if places is None:
        return data[record.data_at : record.end]
    at = record.data_at + places[0]
    found = [data[record.data_at : at]]
    for _ in range(places[1]):
        name, at = read_name(data, at, {})
        found.append(name)
    return b"".join((*found, data[at : record.end]))
