# SPDX-License-Identifier: Apache-2.0
"""One answer that is kept, and the message that a client gets of it.

No record is decoded on the way: the bytes get the client's id and spelling, and TTLs that have aged. Within a
second the aged bytes are the same for everybody.
"""

import msgspec

from kepd_dns.wire.answer import FilteredAnswer
from kepd_dns.wire.question import AAAA, A, Question
from kepd_dns.wire.writing import STALE, STALE_NXDOMAIN, answer_bytes

ENTRY_BYTES = 500
"""What the values around the bytes take, about, with the last message and the places in dictionary and ring."""
STALE_TTL_S = 30
NO_TURN = (0, 0, 0)
NXDOMAIN = 3


class Entry(msgspec.Struct, gc=False):
    """Times are monotonic seconds. `until_s`: fresh; `keep_s`: may be sent stale. Changed by the cache alone."""

    key: bytes
    zone: int
    code: int
    marks: int
    answers: int
    authority: int
    tail: bytes
    ttls: tuple[int, ...]
    values: tuple[int, ...]
    is_negative: bool
    stored_s: float
    until_s: float
    keep_s: float
    extra: int = 0
    turn: tuple[int, int, int] = (0, 0, 0)
    """Records of addresses that may be turned: where they begin, how long one is, how many."""
    hits: int = 0
    last_s: float = 0.0
    is_used: bool = False
    is_gone: bool = False
    stale_ttl_s: int = STALE_TTL_S
    changes: int = 0
    """How often it changed: who made something of it sees by this that it is right no more."""

    @property
    def size(self) -> int:
        return ENTRY_BYTES + len(self.key) + len(self.tail)

    def answer(self, question: Question, now_s: float) -> bytes:
        """The whole message; the caller cuts it where a client takes less."""
        tail = self.tail if now_s == self.stored_s and not self.turn[2] else self.shown(now_s)
        return answer_bytes(question, self.code, tail, self.answers, self.authority, self.extra, marks=self.marks)

    def shown(self, now_s: float) -> bytes | bytearray:
        """The tail with its TTLs as they are now, and its addresses in turn."""
        tail: bytes | bytearray = self.tail
        age_s = int(now_s - self.stored_s)
        if age_s and self.ttls:
            tail = bytearray(tail)
            for place, ttl in zip(self.ttls, self.values, strict=True):
                tail[place : place + 4] = (ttl - age_s if ttl > age_s else 0).to_bytes(4, "big")
        begin, step, count = self.turn
        if count:
            first, end = begin + step * (self.hits % count), begin + step * count
            tail = tail[:begin] + tail[first:end] + tail[begin:first] + tail[end:]
        return tail

    def shown_until_s(self, now_s: float) -> float:
        """How long that is right."""
        if self.turn[2]:
            return now_s
        return min(self.until_s, self.stored_s + int(now_s - self.stored_s) + 1) if self.ttls else self.until_s

    def stale_answer(self, question: Question) -> bytes:
        """RFC 8767, with the extended error that says so."""
        tail = bytearray(self.tail)
        for place in self.ttls:
            tail[place : place + 4] = self.stale_ttl_s.to_bytes(4, "big")
        note = STALE_NXDOMAIN if self.code == NXDOMAIN else STALE
        return answer_bytes(question, self.code, bytes(tail), self.answers, self.authority, marks=self.marks, note=note)


def turn_of(tail: bytes, ttls: tuple[int, ...], answers: int) -> tuple[int, int, int]:
    """Records of addresses at the end of the answers, all of one length, whose order says nothing."""
    begin, step, count = 0, 0, 0
    for ttl in ttls[:answers][::-1]:
        kind, size = tail[ttl - 4] << 8 | tail[ttl - 3], tail[ttl + 4] << 8 | tail[ttl + 5]
        # A pointer of two bytes as owner, so that one record's length tells where the one before it ends.
        is_address = (kind, size) in ((A, 4), (AAAA, 16)) and ttl >= 6 and tail[ttl - 6] >= 0xC0
        if not is_address or (step and (size + 12 != step or ttl + step != begin + 6)):
            break
        step, begin, count = size + 12, ttl - 6, count + 1
    return (begin, step, count) if count > 1 else (0, 0, 0)


def entry_of(
    key: bytes, kept: FilteredAnswer, life_s: int, shown_s: tuple[int, int], now_s: float, *, zone: int, stale_s: float
) -> Entry:
    """`shown_s`: within what TTLs are shown."""
    least_s, most_s = shown_s
    tail, values = kept.tail, kept.values
    # One that is 0 may be so for what cannot be one.
    if len(values) == 1:
        value = values[0]
        if not 0 < least_s <= value <= most_s:
            value = least_s if value < least_s else min(value, most_s)
            values, place = (value,), kept.ttls[0]
            tail = tail[:place] + value.to_bytes(4, "big") + tail[place + 4 :]
    elif values and not 0 < least_s <= min(values) <= max(values) <= most_s:
        values = tuple([min(max(one, least_s), most_s) for one in values])
        for place, value in zip(kept.ttls, values, strict=True):
            tail = tail[:place] + value.to_bytes(4, "big") + tail[place + 4 :]
    until_s = now_s + life_s
    return Entry(
        key,
        zone,
        kept.code & 0xF,
        0x20 if kept.is_authentic else 0,
        kept.answers,
        kept.authority,
        tail,
        kept.ttls,
        values,
        kept.is_negative,
        now_s,
        until_s,
        until_s + stale_s,
        turn=turn_of(tail, kept.ttls, kept.answers) if kept.answers > 1 else NO_TURN,
    )
