# SPDX-License-Identifier: Apache-2.0
"""Judges the flows that there are again, after the kernel has the rules; never holds up a change or the event loop."""

import asyncio
from collections.abc import Callable

import structlog

from agent.model.services.flow import Flows, FlowsUnavailable
from agent.model.services.nft_table import Family
from agent.model.services.service import Protocol
from agent.policies.ports import NodeAddresses
from agent.policies.rules.ending import refused_flows
from agent.policies.rules.table import NO_TABLE, Table
from agent.policies.run.metrics import PolicyMetrics

log = structlog.get_logger(plane="policies")

FAMILIES: tuple[Family, ...] = ("IPv4", "IPv6")
PROTOCOLS: tuple[Protocol, ...] = ("TCP", "UDP", "SCTP")
# Among 100 000 flows a look costs much CPU, whatever changed; with pauses so many times as long it is 5 % of a core.
PAUSES = 19


class FlowEnder:
    def __init__(self, flows: Flows, node: NodeAddresses, metrics: PolicyMetrics) -> None:
        self._flows, self._node, self._metrics = flows, node, metrics
        self._wake = asyncio.Event()

    def look(self) -> None:
        """Rules have changed."""
        self._wake.set()

    async def run(self, table: Callable[[], Table]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            began_s = loop.time()
            try:
                await self.end(table())
            except FlowsUnavailable as error:
                log.warning("refused_flows_kept", error=str(error), effect="tried again after the next change")
            await asyncio.sleep(PAUSES * (loop.time() - began_s))

    async def end(self, table: Table) -> None:
        if table is NO_TABLE:
            return
        node = frozenset(await self._node())
        for family in FAMILIES:
            flows = await self._flows.flows(family, PROTOCOLS)
            refused = await asyncio.to_thread(lambda found=flows: list(refused_flows(found, table, node)))  # type: ignore[misc]
            if count := await self._flows.delete(refused):
                self._metrics.ended_flows += count
                log.info("refused_flows_ended", family=family, flows=count)
