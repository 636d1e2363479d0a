# SPDX-License-Identifier: Apache-2.0
"""The node itself."""

from collections.abc import Iterator, Sequence

from agent.kinds.ages import age
from agent.kinds.described import Described, entries_of, events_of, grid, joined, moment
from agent.kinds.registry import Kind
from agent.kinds.shown import AnyListing, Ask, Describing, shown_by
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import node_pb2 as pb
from agent.wire.kepd.v1 import pod_pb2

NODE = "kepd.v1.NodeService"


def _drained(node: pb.Node) -> str:
    done = "cordoned" if node.drain.keeps_pods else "drained"
    return f"{done} by {node.drain.by}" if node.HasField("drain") else ""


COLUMNS: Columns[pb.Node] = (
    Column("NAME", lambda node: node.name),
    Column("RUNTIME", lambda node: f"{node.runtime.name or 'none'} {node.runtime.version}".rstrip()),
    Column("CONNECTED", lambda node: "yes" if node.runtime.is_connected else "no"),
    Column("KEPD", lambda node: node.kepd_version),
    Column("DRAINED", lambda node: _drained(node) or "no"),
    Column("CONDITIONS", lambda node: ",".join(node.conditions) or "none"),
    Column("AGE", lambda node: age(node.started_at)),
    Column("KERNEL", lambda node: node.kernel_version, wide=True),
    Column("CGROUP", lambda node: f"v{node.cgroup_version}", wide=True),
    Column("EVENTS", lambda node: node.runtime.event_source or "none", wide=True),
    Column("ENDPOINT", lambda node: node.runtime.endpoint, wide=True),
)


def _listing(answer: pb.GetNodeResponse) -> AnyListing:
    return Listing("Node", [answer.node], COLUMNS, lambda node: f"node/{node.name}")


SHOWN = shown_by(f"{NODE}/GetNode", pb.GetNodeRequest(), pb.GetNodeResponse, _listing)


def describe(_kind: Kind, _namespace: str, _name: str) -> Describing:
    node = (yield Ask(f"{NODE}/GetNode", pb.GetNodeRequest(), pb.GetNodeResponse)).node
    planes = (yield Ask(f"{NODE}/ListPlanes", pb.ListPlanesRequest(), pb.ListPlanesResponse)).planes
    # The pods plane is off on nodes whose pods are a kubelet's.
    request = pod_pb2.ListPodsRequest()
    listed = yield Ask("kepd.v1.PodService/ListPods", request, pod_pb2.ListPodsResponse, may_fail=True)
    return Described(tuple(node_lines(node, planes, listed.pods if listed else ())), (events_of("", ""),))


def node_lines(node: pb.Node, planes: Sequence[pb.Plane], pods: Sequence[pod_pb2.Pod]) -> Iterator[str]:
    runtime = f"{node.runtime.name} {node.runtime.version}".strip() if node.runtime.is_connected else "away"
    head = (
        ("Name", node.name),
        ("Labels", joined(node.labels)),
        ("Addresses", ", ".join(node.addresses)),
        ("Unschedulable", _drained(node) or "false"),
        ("Conditions", ", ".join(node.conditions) or "none"),
        ("Kernel", node.kernel_version),
        ("Cgroups", f"v{node.cgroup_version}"),
        ("Runtime", f"{runtime} at {node.runtime.endpoint}"),
        ("kepd", f"{node.kepd_version}, pid {node.pid}, since {moment(node.started_at)}"),
    )
    yield from entries_of("", iter(head))
    yield "Planes:"
    states = [
        (one.name, pb.PlaneState.Name(one.state).removeprefix("PLANE_STATE_").lower(), one.message) for one in planes
    ]
    yield from grid(("Name", "State", "Message"), states)
    yield "Pods:" if pods else "Pods:  <none>"
    rows = [(one.namespace, one.name, one.status or one.phase, one.qos_class, age(one.created_at)) for one in pods]
    yield from grid(("Namespace", "Name", "Status", "QoS", "Age"), rows)
