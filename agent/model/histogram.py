# SPDX-License-Identifier: Apache-2.0
"""Counts per bucket and label values, for planes whose figures end in a scrape.

A bucket may name the trace of the last operation that fell into it, for a while.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, Exemplar, GaugeMetricFamily, HistogramMetricFamily, Metric

from agent.model.span import SpanRef

EXEMPLAR_S = 600.0
Row = tuple[str, float] | tuple[str, float, Exemplar]
Figures = Iterable[tuple[str | tuple[str, ...], float]]
"""By label values, or by the value of the one label."""


def counter_family(name: str, text: str, labels: Sequence[str], figures: Figures) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), figures)


def gauge_family(name: str, text: str, labels: Sequence[str], figures: Figures) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), figures)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, figures: Figures) -> Metric:
    for values, figure in figures:
        family.add_metric([values] if isinstance(values, str) else list(values), figure)
    return family


class Exemplars:
    """The last one of each bucket."""

    def __init__(self, wall_s: Callable[[], float] = time.time) -> None:
        self._wall_s = wall_s
        self._kept: dict[tuple[tuple[str, ...], int], tuple[SpanRef, float, float]] = {}

    def note(self, labels: tuple[str, ...], bucket: int, value: float, span: SpanRef) -> None:
        self._kept[labels, bucket] = span, value, self._wall_s()

    def row(self, labels: tuple[str, ...], bucket: int, bound: str, count: float) -> Row:
        """As a family takes it. One that is too old is forgotten."""
        found = self._kept.get((labels, bucket))
        if found is None:
            return bound, count
        span, value, at_s = found
        if at_s < self._wall_s() - EXEMPLAR_S:
            del self._kept[labels, bucket]
            return bound, count
        return bound, count, Exemplar(span.labels, value, at_s)


class Histogram:
    """Bounds are inclusive, as Prometheus has them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        self._exemplars = Exemplars()

    def observe(self, labels: tuple[str, ...], value: float, span: SpanRef | None = None) -> None:
        counts = self._counts.setdefault(labels, [0] * (len(self._bounds) + 1))
        bucket = bisect_left(self._bounds, value)
        counts[bucket] += 1
        self._sums[labels] = self._sums.get(labels, 0.0) + value
        if span is not None:
            self._exemplars.note(labels, bucket, value, span)

    def number(self, labels: tuple[str, ...]) -> int:
        return sum(self._counts.get(labels, ()))

    def quantile(self, labels: tuple[str, ...], share: float) -> float:
        """The upper bound of the bucket in which that share is reached; the lower one of the last bucket."""
        wanted, seen = share * self.number(labels), 0
        counts = self._counts.get(labels) or [0] * len(self._bounds)
        for bound, count in zip(self._bounds, counts, strict=False):
            seen += count
            if seen >= wanted:
                return bound
        return self._bounds[-1]

    def family(self, name: str, text: str, labels: Sequence[str]) -> Metric:
        family = HistogramMetricFamily(name, text, labels=labels)
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for values, counts in sorted(self._counts.items()):
            rows: list[Row] = []
            total = 0
            for place, (bound, count) in enumerate(zip(bounds, counts, strict=True)):
                total += count
                rows.append(self._exemplars.row(values, place, bound, total))
            family.add_metric(list(values), rows, sum_value=self._sums[values])
        return family
