# SPDX-License-Identifier: Apache-2.0
"""The node itself."""

from agent.kinds.ages import age
from agent.kinds.shown import AnyListing, shown_by
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import node_pb2 as pb

COLUMNS: Columns[pb.Node] = (
    Column("NAME", lambda node: node.name),
    Column("RUNTIME", lambda node: f"{node.runtime.name or 'none'} {node.runtime.version}".rstrip()),
    Column("CONNECTED", lambda node: "yes" if node.runtime.is_connected else "no"),
    Column("KEPD", lambda node: node.kepd_version),
    Column("DRAINED", lambda node: f"by {node.drain.by}" if node.HasField("drain") else "no"),
    Column("CONDITIONS", lambda node: ",".join(node.conditions) or "none"),
    Column("AGE", lambda node: age(node.started_at)),
    Column("KERNEL", lambda node: node.kernel_version, wide=True),
    Column("CGROUP", lambda node: f"v{node.cgroup_version}", wide=True),
    Column("EVENTS", lambda node: node.runtime.event_source or "none", wide=True),
    Column("ENDPOINT", lambda node: node.runtime.endpoint, wide=True),
)


def _listing(answer: pb.GetNodeResponse) -> AnyListing:
    return Listing("Node", [answer.node], COLUMNS, lambda node: f"node/{node.name}")


SHOWN = shown_by("kepd.v1.NodeService/GetNode", pb.GetNodeRequest(), pb.GetNodeResponse, _listing)
