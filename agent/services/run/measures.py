# SPDX-License-Identifier: Apache-2.0
"""Counts and times the syncs, and the ports whose local traffic finds no endpoint; metrics.py names the numbers."""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from agent.model.histogram import Histogram
from agent.model.services.nft_table import Family
from agent.model.services.service import ServiceKey
from agent.services.routes.frontends import PortPlan, ServicePlan
from agent.services.ruleset import SyncReport

SYNC_BOUNDS = tuple(0.001 * 2**power for power in range(15))
PROGRAMMING_BOUNDS = (
    0.01, 0.02, 0.05, 0.1, 0.25, 0.5, *map(float, range(1, 60)), *map(float, range(60, 120, 5)),
    *map(float, range(120, 301, 30)),
)  # fmt: skip


class Tally:
    """Services without such a port take no place here."""

    def __init__(self) -> None:
        self.ports: Counter[str] = Counter(internal=0, external=0)
        self._of: dict[ServiceKey, Counter[str]] = {}

    def follow(self, changed: Mapping[ServiceKey, ServicePlan | None]) -> None:
        for key, plan in changed.items():
            before = self._of.pop(key, None)
            if before is not None:
                self.ports.subtract(before)
            found = Counter([policy for port in plan.ports for policy in _without_local(port)]) if plan else None
            if found:
                self._of[key] = found
                self.ports.update(found)


def _without_local(port: PortPlan) -> set[str]:
    """Policies by which this port would have to find an endpoint here, while there are some elsewhere."""
    if not port.selection.has_any or port.selection.local:
        return set()
    return {
        "internal" if frontend.kind == "clusterIP" else "external"
        for frontend in port.frontends
        if frontend.is_local_policy
    }


class Measures(msgspec.Struct):
    """Changed by the plane alone."""

    durations: Histogram = msgspec.field(default_factory=lambda: Histogram(SYNC_BOUNDS))
    """By family, and whether it was a full sync."""
    durations_by_kind: dict[str, Histogram] = msgspec.field(
        default_factory=lambda: {kind: Histogram(SYNC_BOUNDS) for kind in ("full", "partial", "")}
    )
    """The same by family alone; the last is for both kinds."""
    programming: Histogram = msgspec.field(default_factory=lambda: Histogram(PROGRAMMING_BOUNDS))
    elements: Counter[str] = msgspec.field(default_factory=Counter)
    transactions: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    repairs: Counter[str] = msgspec.field(default_factory=Counter)
    last_s: dict[str, float] = msgspec.field(default_factory=dict)
    partial_failures: Counter[str] = msgspec.field(default_factory=Counter)
    """Syncs of what changed alone that failed, and had everything read again."""
    tallies: dict[Family, Tally] = msgspec.field(default_factory=dict)
    flow_rounds: Histogram = msgspec.field(default_factory=lambda: Histogram(SYNC_BOUNDS))
    flows_deleted: Counter[str] = msgspec.field(default_factory=Counter)
    ended: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """Connections to endpoints that are gone, by family and by what was ended: entry, socket."""
    affinity_clients: dict[Family, int] = msgspec.field(default_factory=dict)
    affinity_trimmed: Counter[str] = msgspec.field(default_factory=Counter)
    answers: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """Health page, status code → how often."""

    def synced(self, family: Family, report: SyncReport, now_s: float) -> None:
        self.durations.observe((family, str(report.is_full).lower()), report.duration_s)
        for kind in ("full" if report.is_full else "partial", ""):
            self.durations_by_kind[kind].observe((family,), report.duration_s)
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
        self.flow_rounds.observe((family,), took_s)
        self.flows_deleted[family] += deleted

    def repaired(self, family: str) -> None:
        self.repairs[family] += 1

    def programmed(self, family: Family, delays_s: Iterable[float]) -> None:
        for delay_s in delays_s:
            self.programming.observe((family,), max(0.0, delay_s))
