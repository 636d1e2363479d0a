# SPDX-License-Identifier: Apache-2.0
"""What observation costs and what it left out, for /metrics; no names of pods there."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.model.histogram import Histogram

PASS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class ObserveMetrics:
    def __init__(self) -> None:
        self._passes = Histogram(PASS_BOUNDS)
        self._series: dict[str, int] = {}
        self._dropped: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.files = 0
        self.node_kills: Callable[[], Mapping[str, int]] = dict

    def passed(self, seconds: float, files: int) -> None:
        self._passes.observe((), seconds)
        self.files = files

    def shown(self, page: str, series: int, dropped: dict[str, int]) -> None:
        self._series[page] = series
        for group, count in dropped.items():
            self._dropped[group] += count

    def families(self) -> Iterator[Metric]:
        yield self._passes.family("kepd_observe_pass_seconds", "Duration of a pass over the node's figures.", ())
        yield GaugeMetricFamily("kepd_observe_files", "Files of the kernel that are kept open.", value=self.files)
        series = GaugeMetricFamily("kepd_observe_series", "Series of a page at its last scrape.", labels=("page",))
        for page, count in sorted(self._series.items()):
            series.add_metric((page,), count)
        yield series
        dropped = CounterMetricFamily(
            "kepd_observe_dropped_series", "Series left out because there were too many.", labels=("group",)
        )
        for group, count in sorted(self._dropped.items()):
            dropped.add_metric((group,), count)
        yield dropped
        kills = CounterMetricFamily(
            "kepd_node_oom_kills",
            "Kills for want of memory since kepd began, by where.",
            labels=("scope",),
        )
        for scope, count in self.node_kills().items():
            kills.add_metric((scope,), count)
        yield kills
        errors = CounterMetricFamily("kepd_observe_errors", "Figures that could not be read.", labels=("source",))
        for source, count in sorted(self.errors.items()):
            errors.add_metric((source,), count)
        yield errors
