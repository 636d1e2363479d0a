# SPDX-License-Identifier: Apache-2.0
"""Counts and times the syncs (HL-7, SY-9); metrics.py names and renders the numbers."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from agent.model.nft_table import Family
from agent.services.routes.tally import Tally
from agent.services.run.family_sync import SyncReport

SYNC_BOUNDS = tuple(0.001 * 2**power for power in range(15))
PROGRAMMING_BOUNDS = (
    0.01, 0.02, 0.05, 0.1, 0.25, 0.5, *map(float, range(1, 60)), *map(float, range(60, 120, 5)),
    *map(float, range(120, 301, 30)),
)  # fmt: skip


class SyncHistogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def plus(self, other: "SyncHistogram") -> "SyncHistogram":
        found = SyncHistogram(self.bounds)
        found.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        found.sum = self.sum + other.sum
        return found

    def cumulative(self) -> list[tuple[str, float]]:
        """As Prometheus wants it."""
        found, total = [], 0
        for bound, count in zip((*map(repr, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class Measures(msgspec.Struct):
    """Changed by the plane alone."""

    durations: dict[tuple[Family, bool], SyncHistogram] = msgspec.field(default_factory=dict)
    """Family, whether it was a full sync → how long they took."""
    programming: dict[Family, SyncHistogram] = msgspec.field(default_factory=dict)
    elements: Counter[str] = msgspec.field(default_factory=Counter)
    transactions: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    repairs: Counter[str] = msgspec.field(default_factory=Counter)
    last_s: dict[str, float] = msgspec.field(default_factory=dict)
    partial_failures: Counter[str] = msgspec.field(default_factory=Counter)
    """Syncs of what changed alone that failed, and had everything read again."""
    tallies: dict[Family, Tally] = msgspec.field(default_factory=dict)
    flow_rounds: dict[Family, SyncHistogram] = msgspec.field(default_factory=dict)
    flows_deleted: Counter[str] = msgspec.field(default_factory=Counter)
    affinity_clients: dict[Family, int] = msgspec.field(default_factory=dict)
    affinity_trimmed: Counter[str] = msgspec.field(default_factory=Counter)
    answers: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """Health page, status code → how often."""

    def synced(self, family: Family, report: SyncReport, now_s: float) -> None:
        histogram = self.durations.setdefault((family, report.is_full), SyncHistogram(SYNC_BOUNDS))
        histogram.observe(report.duration_s)
        self.elements[family] += report.elements
        self.transactions[family, "ok"] += 1
        self.last_s[family] = now_s
        self.tallies.setdefault(family, Tally()).follow(report.changed)

    def answered(self, page: str, status: int) -> None:
        self.answers[page, str(status)] += 1

    def failed(self, family: str, *, is_full: bool) -> None:
        self.transactions[family, "failed"] += 1
        self.partial_failures[family] += not is_full

    def flows_looked_at(self, family: Family, deleted: int, took_s: float) -> None:
        self.flow_rounds.setdefault(family, SyncHistogram(SYNC_BOUNDS)).observe(took_s)
        self.flows_deleted[family] += deleted

    def repaired(self, family: str) -> None:
        self.repairs[family] += 1

    def programmed(self, family: Family, delays_s: Iterable[float]) -> None:
        for delay_s in delays_s:
            self.programming.setdefault(family, SyncHistogram(PROGRAMMING_BOUNDS)).observe(max(0.0, delay_s))
