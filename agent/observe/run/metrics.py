# SPDX-License-Identifier: Apache-2.0
"""What observation costs and what it left out, for /metrics; no names of pods there."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from agent.model.histogram import Histogram, counter_family, gauge_family

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
        text = "Series of a page at its last scrape."
        yield gauge_family("kepd_observe_series", text, ("page",), sorted(self._series.items()))
        text = "Series left out because there were too many."
        yield counter_family("kepd_observe_dropped_series", text, ("group",), sorted(self._dropped.items()))
        text = "Kills for want of memory since kepd began, by where."
        yield counter_family("kepd_node_oom_kills", text, ("scope",), self.node_kills().items())
        text = "Figures that could not be read."
        yield counter_family("kepd_observe_errors", text, ("source",), sorted(self.errors.items()))
