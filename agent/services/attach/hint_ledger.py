# SPDX-License-Identifier: Apache-2.0
"""The state of the zone hints that kepd computes for Services from manifests; one log line per transition."""

from collections import Counter
from collections.abc import Iterable, Iterator

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.topology.hints.standalone import FilledHints, HintStatus, told_transition

log = structlog.get_logger(plane="services")

COMPUTED = ("active", "refused")


class HintLedger:
    def __init__(self) -> None:
        self.states: dict[tuple[str, str], HintStatus] = {}
        """Service as NS/NAME, family."""
        self._refusals: Counter[str] = Counter()

    def take(self, hints: Iterable[tuple[str, FilledHints]]) -> None:
        before, self.states = self.states, {(key, one.family): one.status for key, one in hints}
        for place, status in self.states.items():
            self._tell(place, before.get(place), status)

    def _tell(self, place: tuple[str, str], before: HintStatus | None, after: HintStatus) -> None:
        transition = told_transition(before, after)
        if transition is None or {after.state, before.state if before else ""}.isdisjoint(COMPUTED):
            return
        service, family = place
        log.info("service_hints_changed", service=service, family=family, change=transition)
        if after.reason is not None:
            self._refusals[after.reason] += 1

    def families(self, *, has_services: bool) -> Iterator[Metric]:
        """`has_services`: also a series for each Service that asks for hints in proportion."""
        counts = Counter((status.state, family) for (_, family), status in self.states.items())
        states = GaugeMetricFamily("kepd_services_hints", "Services by state of hints.", labels=["state", "family"])
        for labels, count in sorted(counts.items()):
            states.add_metric(list(labels), count)
        yield states
        refusals = CounterMetricFamily("kepd_services_hints_refusals", "Refusals of hints.", labels=["reason"])
        for reason, count in sorted(self._refusals.items()):
            refusals.add_metric([reason], count)
        yield refusals
        if not has_services:
            return
        names = ["namespace", "service", "family"]
        active = GaugeMetricFamily("kepd_service_hints_active", "Whether computed hints are in force.", labels=names)
        for (service, family), status in sorted(self.states.items()):
            if status.state in COMPUTED:
                active.add_metric([*service.split("/", 1), family], status.state == "active")
        yield active
