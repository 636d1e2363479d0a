# SPDX-License-Identifier: Apache-2.0
"""Deletes stale flows after the rules are in, one round at a time, always for the latest state.

Owns: one index per family and the task that lists and deletes. A list that fails is tried again after the next sync.
Never: holds up a sync (CT-7), and never deletes before the kernel has the rules (CT-2).
Source of behaviour: CT-2, CT-6, CT-7; SY-8.
"""

import asyncio
from collections.abc import Collection, Iterable

import structlog

from agent.model.flow import UDP_ALONE, FlowsUnavailable
from agent.model.nft_table import Family
from agent.model.service import Backend, PortKey, Protocol, ServiceKey
from agent.services.ports import Flows
from agent.services.routes.stale_flows import FlowIndex
from agent.services.run.family_sync import FamilySync, SyncReport
from agent.services.run.plane import ServicesPlane

__all__ = ["FlowCleaner"]

log = structlog.get_logger(plane="services")

# Changes come in bursts; one list of all flows serves those that are close together.
SETTLE_S = 0.02


class FlowCleaner:
    """A follower of the plane, and a task."""

    def __init__(self, plane: ServicesPlane, flows: Flows, protocols: Collection[Protocol] = UDP_ALONE) -> None:
        self._plane = plane
        self._flows = flows
        self._protocols = tuple(protocols)
        self._indices = {family: FlowIndex(protocols) for family in plane.families}
        self._due: set[Family] = set()
        self._wake = asyncio.Event()

    def follow(self, family: Family, report: SyncReport) -> None:
        """After each sync."""
        index = self._indices[family]
        is_concerned = index.follow(report.changed, report.gone) or any(map(index.knows, report.looked))
        if is_concerned or family in self._due:
            self._due.add(family)
            self._wake.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(SETTLE_S)
            self._wake.clear()
            due, self._due = self._due, set()
            for family in due:
                await self._clean(family)

    async def _clean(self, family: Family) -> None:
        sync, index = self._plane.families[family], self._indices[family]
        began_s = asyncio.get_running_loop().time()
        try:
            flows = await self._flows.flows(family, self._protocols)
            gone = index.gone
            stale = index.stale(flows, _Backends(sync), self._own_addresses(sync))
            count = await self._flows.delete(stale)
        except FlowsUnavailable as error:
            log.warning("stale_flows_kept", family=family, error=str(error), effect="tried again after the next sync")
            self._due.add(family)
            return
        index.forget_gone(gone)
        took_s = asyncio.get_running_loop().time() - began_s
        self._plane.measures.flows_looked_at(family, count, took_s)
        if count:
            log.info("stale_flows_deleted", family=family, flows=count, of=len(flows))

    def _own_addresses(self, sync: FamilySync) -> frozenset[bytes]:
        return frozenset(one.packed for one in (*self._plane.intake.interfaces, *sync.facts.node.node_port_addresses))


class _Backends:
    """Looks up the endpoints of a port."""

    def __init__(self, sync: FamilySync) -> None:
        self._sync = sync

    def __call__(self, key: ServiceKey, port: PortKey) -> Iterable[Backend]:
        return self._sync.desired.fold.backends(key, self._sync.desired.family, port)
