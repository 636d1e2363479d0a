# SPDX-License-Identifier: Apache-2.0
"""Which flows that the kernel tracks are no longer allowed.

Their senders are stopped by the table. Yet whoever answers could go on, so the kernel has to forget the flow: of TCP
nothing that begins in the middle comes to a pod with policies, and what skipped the hooks comes back to them.
"""

from collections.abc import Collection, Iterable, Iterator
from ipaddress import ip_address

from agent.model.services.flow import Flow
from agent.policies.rules.judging import Packet, is_let_through
from agent.policies.rules.table import Table


def refused_flows(flows: Iterable[Flow], table: Table, node: Collection[bytes]) -> Iterator[Flow]:
    """`node`: addresses of the node, whose own traffic policies do not limit."""
    policed = frozenset(ip_address(one).packed for one in table.policed)
    for one in flows:
        ends = (one.source, one.reply_source)
        if not policed.isdisjoint(ends) and not any(end in node for end in ends):
            source, answerer = (str(ip_address(end)) for end in ends)
            if not is_let_through(table, Packet(source, answerer, one.protocol.lower(), one.reply_port)):
                yield one
