# SPDX-License-Identifier: Apache-2.0
"""Answers by question, in bounded room.

Two rings of entries, negative and other, stand in the order in which their hand comes to them. Who was used since then
gets a second chance (CLOCK); who is past its time goes. An insertion moves the hands at most 256 steps, and what finds
no room then is not kept: nothing here takes a time that grows with the cache. An entry changes in place when
its question is answered again, so each stands in one ring once; one that has become negative, or the reverse, changes
rings when the hand meets it. Changed by its owner alone, which is the loop of kepd-dns.
"""

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from kepd_dns.cache.entry import ENTRY_BYTES, NXDOMAIN, STALE_TTL_S, Entry, entry_of
from kepd_dns.wire.answer import FilteredAnswer
from kepd_dns.wire.names import is_within
from kepd_dns.wire.question import IN, Question

MOST_STEPS = 256
NEGATIVE_SHARE = 4
MOST_KEPT_RECORDS, MOST_KEPT_BYTES = 128, 16384
ANY_TYPE = b"\0\0"
TYPES_OF_NAME = (b"\0\1", b"\0\x1c", b"\0\x21", b"\0\5", b"\0\x0c", b"\0\x10")
MOST_FAILURES = 4096
# Entries that are looked at in one go, and hits beyond which all are alike, where the most wanted ones are chosen.
PORTION, MOST_HITS = 256, 4096
SIGNED = 1
"""The mark in a key that says so."""
FIRST_FAILURE_S, LONGEST_FAILURE_S = 1.0, 30.0
# An entry that is asked for often is asked again before it ends.
PREFETCH_HITS, PREFETCH_SHARE = 3, 0.1


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How long answers of a zone are kept, in seconds."""

    least_s: int = 1
    most_s: int = 3600
    least_negative_s: int = 1
    most_negative_s: int = 900
    stale_s: float = 3600.0
    stale_ttl_s: int = STALE_TTL_S
    gives_stale_early: bool = True
    """Before the last server has failed."""


class Failure(msgspec.Struct, gc=False):
    until_s: float
    life_s: float
    note: int


class Counts(msgspec.Struct):
    evictions: int = 0
    negative_evictions: int = 0
    refused: int = 0


def shared_key(key: bytes) -> bytes:
    """Of NXDOMAIN, which holds for every type of a name."""
    return key[:-5] + ANY_TYPE + key[-3:]


class Cache:
    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.entries: dict[bytes, Entry] = {}
        self.failures: dict[bytes, Failure] = {}
        self.bytes = self.negative_bytes = self.negatives = 0
        self.has_signed = False
        """Whether an answer with signatures was ever kept."""
        self.counts = Counts()
        self._ring: deque[Entry] = deque()
        self._negative_ring: deque[Entry] = deque()

    def get(self, key: bytes, now_s: float) -> Entry | None:
        """A fresh one, whose use is noted."""
        entry = self.entries.get(key)
        if entry is None or entry.until_s <= now_s:
            entry = self.entries.get(key[:-5] + ANY_TYPE + key[-3:])
            if entry is None or entry.until_s <= now_s:
                return None
        entry.hits += 1
        entry.last_s = now_s
        entry.is_used = True
        return entry

    def signed(self, question: Question, now_s: float) -> Entry | None:
        """What a question gets that wants signatures and is else the same."""
        if question.is_dnssec or not self.has_signed:
            return None
        return self.get(question.key[:-1] + bytes((question.key[-1] | SIGNED,)), now_s)

    def put_unsigned(
        self, question: Question, signed: Entry, kept: FilteredAnswer, bounds: Bounds, now_s: float
    ) -> Entry:
        """`kept` is what of the signed one was asked for; it ends with that."""
        entry = self.put(question.key, kept, bounds, now_s, signed.zone)
        entry.marks = signed.marks
        entry.until_s, entry.keep_s = min(entry.until_s, signed.until_s), min(entry.keep_s, signed.keep_s)
        return entry

    def denied_above(self, question: Question, zone: bytes, now_s: float) -> Entry | None:
        """RFC 8020: a name of the zone above this one that does not exist."""
        key, at = question.key, 0
        while key[at]:
            at += key[at] + 1
            name = key[at:-5]
            if not name.endswith(zone) or name == zone:
                return None
            entry = self.entries.get(name + ANY_TYPE + key[-3:])
            if entry is not None and entry.until_s > now_s:
                return entry
        return None

    def stale(self, key: bytes, now_s: float) -> Entry | None:
        """One that has ended and may still be sent."""
        for one in (key, shared_key(key)):
            entry = self.entries.get(one)
            if entry is not None and entry.until_s <= now_s < entry.keep_s:
                return entry
        return None

    def wants_refresh(self, entry: Entry, now_s: float) -> bool:
        left_s, life_s = entry.until_s - now_s, entry.until_s - entry.stored_s
        return entry.hits >= PREFETCH_HITS and left_s < max(1.0, PREFETCH_SHARE * life_s) and life_s > 1.0

    def put(self, key: bytes, kept: FilteredAnswer, bounds: Bounds, now_s: float, zone: int = 0) -> Entry:
        """The entry of an answer, which is kept if it may be: with `until_s` at `now_s` it is for those who wait."""
        life_s = kept.life_s
        if kept.is_negative:
            least_s, most_s = bounds.least_negative_s, bounds.most_negative_s
        else:
            least_s, most_s = bounds.least_s, bounds.most_s
        is_kept = True
        if life_s is None:
            life_s = least_s = most_s = 1
        elif not life_s or kept.records > MOST_KEPT_RECORDS or len(kept.tail) > MOST_KEPT_BYTES:
            is_kept = False
        elif life_s < least_s:
            life_s = least_s
        elif life_s > most_s:
            life_s = most_s
        denied = shared_key(key)
        if kept.code == NXDOMAIN and not kept.answers:
            key = denied
        else:
            other = self.entries.get(denied)
            if other is not None:
                # The name has come to exist.
                other.until_s = other.keep_s = now_s
                other.changes += 1
        if self.failures:
            self.failures.pop(key, None)
        if not is_kept:
            return entry_of(key, kept, 0, (0, most_s), now_s, zone=zone, stale_s=0.0)
        entry = entry_of(key, kept, life_s, (least_s, most_s), now_s, zone=zone, stale_s=bounds.stale_s)
        entry.stale_ttl_s = bounds.stale_ttl_s
        return self._keep(entry, now_s)

    def _keep(self, entry: Entry, now_s: float) -> Entry:
        key = entry.key
        before = self.entries.get(key)
        if before is not None:
            self._account(before, -before.size)
            for name in ENTRY_FIELDS:
                setattr(before, name, getattr(entry, name))
            before.changes += 1
            before.hits = 0
            entry = before
        if entry.code == NXDOMAIN:
            self._end_staleness(entry, now_s)
        size = ENTRY_BYTES + len(key) + len(entry.tail)
        is_tight = entry.is_negative or self.bytes + size > self.most_bytes
        if is_tight and not self._make_room(entry, size, now_s):
            self.counts.refused += 1
            if before is not None:
                self.entries.pop(entry.key, None)
                entry.is_gone = True
                entry.changes += 1
            return entry
        if before is None:
            (self._negative_ring if entry.is_negative else self._ring).append(entry)
        self.entries[key] = entry
        if key[-1] & SIGNED:
            self.has_signed = True
        if entry.is_negative:
            self._account(entry, size)
        else:
            self.bytes += size
        return entry

    def _end_staleness(self, entry: Entry, now_s: float) -> None:
        """What a name had before it stopped to exist is not sent any more."""
        self._end(entry.key[:-5], entry.key[-3:], TYPES_OF_NAME, now_s)

    def _end(self, name: bytes, marks: bytes, kinds: Iterable[bytes], now_s: float) -> None:
        for kind in kinds:
            other = self.entries.get(name + kind + marks)
            if other is not None:
                other.until_s = min(other.until_s, now_s)
                other.keep_s = now_s
                other.changes += 1

    def displace(self, names: Iterable[bytes], now_s: float) -> None:
        """What servers said of names that have become ours."""
        for name in names:
            for marks in range(4):
                self._end(name, IN.to_bytes(2, "big") + bytes((marks,)), (ANY_TYPE, *TYPES_OF_NAME), now_s)

    def _account(self, entry: Entry, size: int) -> None:
        """`size` below 0: it goes."""
        self.bytes += size
        if entry.is_negative:
            self.negative_bytes += size
            self.negatives += 1 if size > 0 else -1

    def _make_room(self, entry: Entry, size: int, now_s: float) -> bool:
        steps = MOST_STEPS
        while entry.is_negative and self.negative_bytes + size > self.most_bytes // NEGATIVE_SHARE:
            if not steps or not self._negative_ring:
                return False
            self._step(self._negative_ring, entry, now_s)
            steps -= 1
        while self.bytes + size > self.most_bytes:
            # Negative ones have their quarter; the rest is for what is there.
            ring = self._ring or self._negative_ring
            if not steps or not ring:
                return False
            self._step(ring, entry, now_s)
            steps -= 1
        return True

    def _step(self, ring: deque[Entry], spared: Entry, now_s: float) -> None:
        one = ring.popleft()
        if one.is_gone:
            return
        home = self._negative_ring if one.is_negative else self._ring
        if home is not ring:
            home.append(one)
        elif one is spared or (one.is_used and one.keep_s > now_s):
            one.is_used = False
            home.append(one)
        else:
            self._remove(one)
            if one.is_negative:
                self.counts.negative_evictions += 1
            else:
                self.counts.evictions += 1

    def _remove(self, entry: Entry) -> None:
        if self.entries.get(entry.key) is entry:
            del self.entries[entry.key]
            self._account(entry, -entry.size)
        entry.is_gone = True
        entry.changes += 1

    def fail(self, key: bytes, note: int, now_s: float) -> None:
        """RFC 9520: what failed is not asked again at once."""
        before = self.failures.pop(key, None)
        life_s = FIRST_FAILURE_S if before is None else min(LONGEST_FAILURE_S, 2 * before.life_s)
        if len(self.failures) >= MOST_FAILURES:
            del self.failures[next(iter(self.failures))]
        self.failures[key] = Failure(now_s + life_s, life_s, note)

    def failure(self, key: bytes, now_s: float) -> Failure | None:
        found = self.failures.get(key)
        return found if found is not None and found.until_s > now_s else None

    def flush(self, *, name: bytes | None = None, zone: bytes | None = None) -> int:
        """Forget all, a name, or a zone; how many entries that were. For people, so it may take its time."""
        gone = [
            one
            for one in self.entries.values()
            if (name is None or one.key[:-5] == name) and (zone is None or is_within(one.key[:-5], zone))
        ]
        for one in gone:
            self._remove(one)
        self.failures.clear()
        if name is None and zone is None:
            self._ring.clear()
            self._negative_ring.clear()
        return len(gone)

    def about(self, name: bytes) -> Iterable[Entry]:
        """All entries of a name, for people."""
        return [one for one in self.entries.values() if one.key[:-5] == name]

    def hottest(self, most_bytes: int) -> Iterator[list[Entry]]:
        """Those with most hits, within so many bytes, in portions, some empty, after each of which others may
        have their turn."""
        listed = list(self.entries.values())
        if self.bytes <= most_bytes:
            yield from (listed[first : first + PORTION] for first in range(0, len(listed), PORTION))
            return
        sizes = [0] * (MOST_HITS + 1)
        for first in range(0, len(listed), PORTION):
            for one in listed[first : first + PORTION]:
                if one.hits:
                    sizes[min(one.hits, MOST_HITS)] += one.size
            yield []
        # Those that nobody asked for again are not worth it.
        least, room = MOST_HITS, most_bytes
        while least > 1 and sizes[least] <= room:
            room -= sizes[least]
            least -= 1
        for first in range(0, len(listed), PORTION):
            chosen = []
            for one in listed[first : first + PORTION]:
                hits = min(one.hits, MOST_HITS)
                if hits == least:
                    room -= one.size
                if hits > least or (hits == least and room >= 0):
                    chosen.append(one)
            yield chosen

    def restore(self, entries: Iterable[Entry], now_s: float) -> int:
        """Entries of an earlier process that are still worth something."""
        count = 0
        for one in entries:
            if one.keep_s > now_s and one.key not in self.entries:
                self._keep(one, now_s)
                count += 1
        return count


ENTRY_FIELDS = (
    "zone",
    "code",
    "marks",
    "answers",
    "authority",
    "tail",
    "ttls",
    "values",
    "is_negative",
    "stored_s",
    "until_s",
    "keep_s",
    "turn",
)
