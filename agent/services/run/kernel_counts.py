# SPDX-License-Identifier: Apache-2.0
"""Caches what the kernel counts of Services, for a metrics page that cannot wait for the kernel.

The series with labels of a Service exist only on demand, and the busiest have their own while all others share one, so
that a node with many Services cannot flood the store of metrics. Never: reads on behalf of a scrape; a scraper must not
be able to keep the kernel busy.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric

from agent.model.clock import Clock
from agent.model.histogram import counter_family
from agent.model.services.nft_table import Family
from agent.model.services.service import ServiceKey
from agent.services.routes.frontends import Claim, claim_of
from agent.services.ruleset import RulesView
from agent.services.run.plane import ServicesPlane

PERIOD_S = 15.0
MOST_SERIES = 1000
LABELS = ("namespace", "service", "port", "frontend", "family")
REST = ("", "", "", "", "")

Series = tuple[str, str, str, str, str]


class KernelCounts:
    """`is_exported` is asked each time: whether connections of single Services are wanted."""

    def __init__(
        self, plane: ServicesPlane, rules: Mapping[Family, RulesView], clock: Clock, is_exported: Callable[[], bool]
    ) -> None:
        self._plane = plane
        self._rules = rules
        self._clock = clock
        self._is_exported = is_exported
        self.race_drops: dict[Family, int] = {}
        self.connections: dict[Series, int] = {}

    async def run(self) -> None:
        while True:
            await self.look()
            await self._clock.sleep(PERIOD_S)

    async def look(self) -> None:
        counted: dict[Family, Mapping[Claim, int]] = {}
        for family, view in self._rules.items():
            self.race_drops[family] = await view.race_drops()
            if self._is_exported():
                counted[family] = await view.connections()
        self.connections = dict(_busiest(self._series(counted))) if counted else {}

    def _series(self, counted: Mapping[Family, Mapping[Claim, int]]) -> Iterator[tuple[Series, int]]:
        for family, claims in counted.items():
            for key in self._plane.intake.fold.services:
                yield from self._of_service(key, family, claims)

    def _of_service(self, key: ServiceKey, family: Family, claims: Mapping[Claim, int]) -> Iterator[tuple[Series, int]]:
        plan = self._plane.families[family].desired.plan_of(key)
        for port in plan.ports if plan is not None else ():
            totals: dict[str, int] = {}
            for frontend in port.frontends:
                totals[frontend.kind] = totals.get(frontend.kind, 0) + claims.get(claim_of(frontend), 0)
            name = port.port.name or str(port.port.port)
            for kind, total in totals.items():
                yield (key.namespace, key.name, name, kind, family), total

    def families(self) -> Iterator[Metric]:
        text = "Packets dropped because their endpoint vanished between two lookups."
        yield counter_family("kepd_services_race_drops", text, ("family",), self.race_drops.items())
        if self._is_exported():
            text = "New connections by Service; the series without names sums all but the busiest."
            yield counter_family("kepd_service_connections", text, LABELS, sorted(self.connections.items()))


def _busiest(series: Iterator[tuple[Series, int]]) -> Iterator[tuple[Series, int]]:
    ordered = sorted(series, key=lambda one: (-one[1], one[0]))
    yield from ordered[:MOST_SERIES]
    if len(ordered) > MOST_SERIES:
        yield REST, sum(count for _, count in ordered[MOST_SERIES:])
