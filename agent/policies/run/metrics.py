# SPDX-License-Identifier: Apache-2.0
"""Figures of the policies plane for /metrics."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.model.histogram import Histogram, counter_family

APPLY_BOUNDS = (0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1, 5)


class PolicyMetrics:
    def __init__(self) -> None:
        self.policies = self.policed = self.refused = self.ended_flows = 0
        self._applies = Histogram(APPLY_BOUNDS)
        self._denied: dict[str, int] = {}
        self._last: dict[str, int] = {}

    def applied(self, seconds: float) -> None:
        self._applies.observe((), seconds)

    def counted(self, way: str, packets: int) -> None:
        """As the table has it, which begins at 0 with each that is loaded whole."""
        before = self._last.get(way, 0)
        self._denied[way] = self._denied.get(way, 0) + (packets - before if packets >= before else packets)
        self._last[way] = packets

    def families(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("kepd_policies", "NetworkPolicies in force.", self.policies)
        yield GaugeMetricFamily("kepd_policies_pods", "Addresses of pods that policies select.", self.policed)
        yield self._applies.family("kepd_policies_apply_duration_seconds", "Duration of a change in the kernel.", ())
        yield CounterMetricFamily("kepd_policies_refused", "Changes that the kernel did not take.", self.refused)
        yield CounterMetricFamily("kepd_policies_ended_flows", "Flows that a change ended.", self.ended_flows)
        denied = sorted(self._denied.items())
        yield counter_family("kepd_policies_denied_packets", "Packets that were dropped.", ("direction",), denied)
