# SPDX-License-Identifier: Apache-2.0
"""What kepd-dns counts. Names are in none of it but the short list of the most asked ones, which never leaves memory
but for readers of the API."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable

import msgspec

BUCKETS_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
TYPES = {1: "A", 28: "AAAA", 33: "SRV", 12: "PTR", 16: "TXT"}
MOST_TOP = 256
FAMILIES = ("ipv4", "ipv6")


class Histogram(msgspec.Struct):
    """What was read together took equally long, so that equal times in a row are put into a bucket once."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0
    _last_s: float = 0.0
    _times: int = 0

    def note(self, seconds: float, times: int = 1) -> None:
        if seconds != self._last_s:
            self.settle()
            self._last_s = seconds
        self._times += times

    def settle(self) -> None:
        """Whoever reads does this before."""
        if self._times:
            self.counts[bisect_left(BUCKETS_S, self._last_s)] += self._times
            self.sum_s += self._last_s * self._times
            self._times = 0


class Top:
    """The most frequent of many, with bounded counters: a new one costs all others one when there is no room."""

    def __init__(self) -> None:
        self.counts: dict[Hashable, int] = {}

    def note(self, what: Hashable) -> None:
        if what in self.counts or len(self.counts) < MOST_TOP:
            self.counts[what] = self.counts.get(what, 0) + 1
            return
        self.counts = {one: count - 1 for one, count in self.counts.items() if count > 1}

    def most(self, number: int) -> list[tuple[Hashable, int]]:
        return sorted(self.counts.items(), key=lambda one: -one[1])[:number]


class Counters:
    """`answers`: protocol, family, zone, type, code, source. `ready`: zone, type, code, source of answers by UDP that
    were there as bytes, with one count for IPv4 and one for IPv6."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, str, str, str, int, str]] = Counter()
        self.ready: dict[tuple[str, str, int, str], list[int]] = {}
        self.durations: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.malformed: Counter[str] = Counter()
        self.overload: Counter[str] = Counter()
        self.failures: Counter[tuple[str, str]] = Counter()
        self.upstream_times: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.prefetches = self.merged = self.spoofed = self.limited = 0
        self.names, self.sources = Top(), Top()

    def tally(self, zone: str, kind: int, code: int, source: str) -> list[int]:
        return self.ready.setdefault((zone, TYPES.get(kind, "other"), code, source), [0, 0])

    def all_answers(self) -> Counter[tuple[str, str, str, str, int, str]]:
        found = Counter(self.answers)
        for key, counts in self.ready.items():
            for family, count in zip(FAMILIES, counts, strict=True):
                found["udp", family, *key] += count
        return +found
