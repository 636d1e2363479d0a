# SPDX-License-Identifier: Apache-2.0
"""Numbers of the proxy: counts where they arise, families only for a scrape, rows for people.

No label per pod, container or image. A client can make up any path: what is no method of CRI counts as `other`.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from agent.model.histogram import Exemplars, Row
from agent.model.rpc import code_name
from agent.model.span import SpanRef
from agent.wire.cri import runtime_v1_pb2 as pb

ADDED_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.01, 0.05, 0.25, 1.0)
HOLD_BUCKETS_S = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)
OTHER = "other"
SERVICES = pb.DESCRIPTOR.services_by_name.values()
METHODS = {f"/{service.full_name}/{name}": name for service in SERVICES for name in service.methods_by_name}


def _method_name(path: str) -> str:
    """The label of a path; the methods of v1alpha2 had the names they have in v1."""
    return METHODS.get(path.replace("/runtime.v1alpha2.", "/runtime.v1.", 1), OTHER)


class Times:
    __slots__ = ("_bounds", "counts", "total_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0

    def add(self, duration_s: float) -> int:
        """The bucket into which it falls."""
        bucket = bisect_left(self._bounds, duration_s)
        self.counts[bucket] += 1
        self.total_s += duration_s
        return bucket

    @property
    def number(self) -> int:
        return sum(self.counts)

    def quantile_s(self, share: float) -> float:
        """The upper bound of the bucket in which that share is reached; the lower one of the last bucket."""
        wanted, seen = share * self.number, 0
        for bound, count in zip(self._bounds, self.counts, strict=False):
            seen += count
            if seen >= wanted:
                return bound
        return self._bounds[-1]

    def rows(self) -> list[tuple[str, float]]:
        """Cumulative, for a scrape."""
        rows, seen = [], 0
        for bound, count in zip((*map(float, self._bounds), "+Inf"), self.counts, strict=True):
            seen += count
            rows.append((str(bound), float(seen)))
        return rows


class MethodFigures(msgspec.Struct):
    codes: Counter[str] = msgspec.field(default_factory=Counter)
    added: Times = msgspec.field(default_factory=lambda: Times(ADDED_BUCKETS_S))
    held_s: float = 0.0
    held: int = 0
    exemplars: Exemplars = msgspec.field(default_factory=Exemplars)

    def added_rows(self) -> list[Row]:
        return [self.exemplars.row((), place, *row) for place, row in enumerate(self.added.rows())]


class Figures:
    def __init__(self) -> None:
        self.methods: dict[str, MethodFigures] = {}
        self.holds: dict[tuple[str, str], Times] = {}
        self.policy_errors: Counter[str] = Counter()

    def method(self, path: str) -> MethodFigures:
        return self.methods.setdefault(_method_name(path), MethodFigures())

    def called(self, path: str, code: int | None, added_s: float, span: SpanRef | None = None) -> None:
        """A call is over. `added_s` is without the time it was held."""
        found = self.method(path)
        found.codes[code_name(code)] += 1
        bucket = found.added.add(added_s)
        if span is not None:
            found.exemplars.note((), bucket, added_s, span)

    def held(self, path: str, reason: str, duration_s: float) -> None:
        found = self.method(path)
        found.held += 1
        found.held_s += duration_s
        key = (_method_name(path), reason)
        self.holds.setdefault(key, Times(HOLD_BUCKETS_S)).add(duration_s)

    def families(self, holds_now: Iterable[str], oldest_s: float, links: int) -> Iterable[Metric]:
        requests = CounterMetricFamily("kepd_proxy_requests", "Calls through the proxy.", labels=["method", "code"])
        added = HistogramMetricFamily(
            "kepd_proxy_added_seconds", "Time that calls spent in the proxy, without holds.", labels=["method"]
        )
        for name, figures in self.methods.items():
            for code, number in figures.codes.items():
                requests.add_metric([name, code], number)
            added.add_metric([name], figures.added_rows(), sum_value=figures.added.total_s)
        held = HistogramMetricFamily(
            "kepd_proxy_hold_seconds", "How long calls were held.", labels=["method", "reason"]
        )
        for (name, reason), times in self.holds.items():
            held.add_metric([name, reason], times.rows(), sum_value=times.total_s)
        present = GaugeMetricFamily("kepd_proxy_holds", "Calls held now.", labels=["reason"])
        for reason, number in Counter(holds_now).items():
            present.add_metric([reason], number)
        errors = CounterMetricFamily("kepd_proxy_policy_errors", "Calls that passed because kepd could not decide.")
        errors.add_metric([], sum(self.policy_errors.values()))
        connections = GaugeMetricFamily("kepd_proxy_connections", "Open connections of clients.")
        connections.add_metric([], links)
        oldest = GaugeMetricFamily("kepd_proxy_oldest_hold_seconds", "Age of the oldest held call.")
        oldest.add_metric([], oldest_s)
        return (requests, added, held, present, oldest, errors, connections)
