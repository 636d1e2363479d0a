# SPDX-License-Identifier: Apache-2.0
"""Deletes stale flows after the rules are in, one round at a time, always for the latest state.

Only flows to Services that changed are looked at. A list that fails is tried again after the next sync.
Never: holds up a sync or the event loop, and never deletes before the kernel has the rules.
"""

import asyncio
from collections.abc import Collection, Iterable

import structlog

from agent.model.services.flow import UDP_ALONE, Answerers, Flow, Flows, FlowsUnavailable
from agent.model.services.nft_table import Family
from agent.model.services.service import Protocol
from agent.services.routes.stale_flows import FlowCheck, FlowIndex, FlowOwner, serving_endpoints
from agent.services.ruleset import SyncReport
from agent.services.run.plane import ServicesPlane

log = structlog.get_logger(plane="services")

# Changes come in bursts; one look at the flows serves those that are close together.
SETTLE_S = 0.02
# Among 100 000 flows a look costs much CPU, whatever changed; with pauses so many times as long it is 2 % of a core.
PAUSES = 49
MOST_AT_ONCE = 100


class FlowCleaner:
    def __init__(self, plane: ServicesPlane, flows: Flows, protocols: Collection[Protocol] = UDP_ALONE) -> None:
        self._plane = plane
        self._flows = flows
        self._protocols = tuple(protocols)
        self._indices = {family: FlowIndex(protocols) for family in plane.families}
        self._rests_until_s = 0.0
        self._wake = asyncio.Event()

    def follow(self, family: Family, report: SyncReport) -> None:
        if self._indices[family].follow(report.changed, report.gone, report.looked):
            self._wake.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            await asyncio.sleep(max(SETTLE_S, self._rests_until_s - loop.time()))
            self._wake.clear()
            took_s = 0.0
            for family, index in self._indices.items():
                if index.is_due:
                    took_s += await self._clean(family, index)
            self._rests_until_s = loop.time() + PAUSES * took_s

    async def _clean(self, family: Family, index: FlowIndex) -> float:
        """Returns how long it took."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        check = index.take()
        try:
            expected = await self._expected(family, check)
            flows = await self._flows.flows(family, self._protocols, expected)
            # Endpoints that came meanwhile may have got flows already.
            expected = await self._expected(family, check) if flows else {}
            stale = await asyncio.to_thread(_stale, flows, expected)
            count = await self._flows.delete(stale)
        except FlowsUnavailable as error:
            log.warning("stale_flows_kept", family=family, error=str(error), effect="tried again after the next sync")
            index.give_back(check)
            return 0.0
        took_s = loop.time() - began_s
        self._plane.measures.flows_looked_at(family, count, took_s)
        if count:
            log.info("stale_flows_deleted", family=family, flows=count)
        return took_s

    async def _expected(self, family: Family, check: FlowCheck) -> Answerers:
        """Who may answer, with a breath between so many."""
        desired = self._plane.families[family].desired
        owners = self._indices[family].owners(check, self._plane.own_addresses(family))
        serving: dict[FlowOwner | None, frozenset[bytes]] = {None: frozenset()}
        for owner in {one for one in owners.values() if one is not None}:
            serving[owner] = serving_endpoints(desired.fold.backends(owner.service, desired.family, owner.port))
            if len(serving) % MOST_AT_ONCE == 0:
                await asyncio.sleep(0)
        return {target: serving[owner] for target, owner in owners.items()}


def _stale(flows: Iterable[Flow], expected: Answerers) -> list[Flow]:
    return [one for one in flows if one.is_answered_by_others(expected)]
