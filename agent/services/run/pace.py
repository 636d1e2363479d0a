# SPDX-License-Identifier: Apache-2.0
"""Decides when a family is synced next.

The shortest pause between two syncs grows with their cost.
"""

import msgspec

RETRIES_S = (0.2, 1.0, 5.0, 30.0)
# A change is to be programmed within a second, also after a long sync: this, and the sync itself.
LONGEST_PAUSE_S = 0.6
# Where every sync costs much, fewer of them: the programs of iptables take a whole table.
LONGEST_IPTABLES_PAUSE_S = 0.8
QUARANTINE_S = 300.0
FULL_REST = 2.0


class Periods(msgspec.Struct, frozen=True):
    """`services.minSyncPeriod`, `.syncPeriod`, `.fullSyncPeriod`; 0 for the last: never for that reason alone."""

    min_s: float = 0.05
    retry_s: float = 30.0
    full_s: float = 3600.0
    rest: float = 2.0
    """How many times as long as a sync of changes took to wait before the next one."""
    longest_s: float = LONGEST_PAUSE_S

    def rest_s(self, took_s: float, rest: float | None = None) -> float:
        return max(self.min_s, min(self.longest_s, (self.rest if rest is None else rest) * took_s))


class SyncPace(msgspec.Struct, frozen=True):
    """What the last runs were like. A value: each run makes the next one."""

    ended_s: float = float("-inf")
    took_s: float = 0.0
    failures: int = 0
    full_s: float = float("-inf")
    """When the last full sync ended."""

    def succeeded(self, now_s: float, took_s: float, *, was_full: bool) -> "SyncPace":
        return SyncPace(now_s, took_s, 0, now_s if was_full else self.full_s)

    def failed(self, now_s: float, took_s: float) -> "SyncPace":
        return SyncPace(now_s, took_s, self.failures + 1, self.full_s)

    def earliest_s(self, periods: Periods) -> float:
        """Not before then, whatever happens: so a burst becomes few syncs and a lone change waits for nothing."""
        pause_s = periods.rest_s(self.took_s, FULL_REST if self.ended_s == self.full_s else periods.rest)
        if self.failures:
            pause_s = max(pause_s, self._retry_s(periods))
        return self.ended_s + pause_s

    def latest_s(self, periods: Periods, release_s: float = float("inf")) -> float:
        """Latest time of the next sync. `release_s`: when a Service that was set aside is tried again."""
        if self.failures:
            return self.ended_s + self._retry_s(periods)
        due_s = self.full_s + periods.full_s if periods.full_s else float("inf")
        return min(due_s, release_s)

    def _retry_s(self, periods: Periods) -> float:
        return min(RETRIES_S[min(self.failures, len(RETRIES_S)) - 1], periods.retry_s)
