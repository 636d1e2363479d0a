# SPDX-License-Identifier: Apache-2.0
"""Tracked flows in memory.

Never: deletes a flow that began anew under the same ports: as the kernel, it compares the number.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import count

import msgspec

from agent.config.sections.services import ConntrackSection
from agent.model.services.flow import UDP_ALONE, Answerers, Flow, FlowsUnavailable
from agent.model.services.nft_table import Family
from agent.model.services.service import Protocol


class FakeConntrack:
    def __init__(self) -> None:
        self.deleted: list[Flow] = []
        self.limits: list[ConntrackSection] = []
        self.is_loose = True
        self.failures: list[FlowsUnavailable] = []
        """Raised by the next calls, one each."""
        self._flows: dict[tuple[object, ...], Flow] = {}
        self._numbers = count(1)

    def begin(self, flow: Flow) -> Flow:
        """A flow appears; one between the same ports is gone with that."""
        tracked = msgspec.structs.replace(flow, identity=next(self._numbers))
        self._flows[_ports(flow)] = tracked
        return tracked

    async def flows(
        self, family: Family, protocols: Collection[Protocol] = UDP_ALONE, unless: Answerers | None = None
    ) -> Sequence[Flow]:
        self._fail()
        found = [flow for flow in self._flows.values() if flow.family == family and flow.protocol in protocols]
        return [flow for flow in found if unless is None or flow.is_answered_by_others(unless)]

    async def delete(self, flows: Iterable[Flow]) -> int:
        self._fail()
        gone = [flow for flow in flows if self._flows.get(_ports(flow)) == flow]
        for flow in gone:
            del self._flows[_ports(flow)]
        self.deleted += gone
        return len(gone)

    async def apply_limits(self, limits: ConntrackSection) -> None:
        self.limits.append(limits)

    async def follows_midstream(self) -> bool:
        return self.is_loose

    async def close(self) -> None:
        """Nothing to let go of."""

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


def _ports(flow: Flow) -> tuple[object, ...]:
    return flow.protocol, flow.source, flow.source_port, flow.destination, flow.destination_port, flow.zone
