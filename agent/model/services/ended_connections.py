# SPDX-License-Identifier: Apache-2.0
"""Connections that were ended by hand, or that would be."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from agent.model.services.flow import Flow, endpoint_text


class ConnectionReport(msgspec.Struct, frozen=True, kw_only=True):
    family: str
    client: str
    target: str
    endpoint: str


class EndedConnections(msgspec.Struct, frozen=True, kw_only=True):
    """`connections` are the first of `total`. `entries` of connection tracking, `sockets` of this host were ended."""

    connections: tuple[ConnectionReport, ...] = ()
    total: int = 0
    entries: int = 0
    sockets: int = 0

    def with_more(self, flows: Sequence[Flow], most: int) -> "EndedConnections":
        shown = tuple(map(_report, flows[: max(0, most - len(self.connections))]))
        return replace(self, connections=(*self.connections, *shown), total=self.total + len(flows))

    def ended(self, sockets: int, entries: int) -> "EndedConnections":
        return replace(self, sockets=self.sockets + sockets, entries=self.entries + entries)


def _report(one: Flow) -> ConnectionReport:
    return ConnectionReport(
        family=one.family,
        client=endpoint_text(one.source, one.source_port),
        target=endpoint_text(one.destination, one.destination_port),
        endpoint=endpoint_text(one.reply_source, one.reply_port),
    )
