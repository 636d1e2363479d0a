# SPDX-License-Identifier: Apache-2.0
"""Counts per bucket and label values, for planes whose figures end in a scrape."""

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.core import HistogramMetricFamily, Metric


class Histogram:
    """Bounds are inclusive, as Prometheus has them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def observe(self, labels: tuple[str, ...], value: float) -> None:
        counts = self._counts.setdefault(labels, [0] * (len(self._bounds) + 1))
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[labels] = self._sums.get(labels, 0.0) + value

    def family(self, name: str, text: str, labels: Sequence[str]) -> Metric:
        family = HistogramMetricFamily(name, text, labels=labels)
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for values, counts in sorted(self._counts.items()):
            rows, total = [], 0
            for bound, count in zip(bounds, counts, strict=True):
                total += count
                rows.append((bound, total))
            family.add_metric(list(values), rows, sum_value=self._sums[values])
        return family
