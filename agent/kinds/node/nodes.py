# SPDX-License-Identifier: Apache-2.0
"""The node itself."""

from collections.abc import Iterator, Sequence

from agent.kinds.ages import age
from agent.kinds.described import Described, entries_of, events_of, grid, joined, moment
from agent.kinds.kind import BY_SERVICES, Kind, status_of
from agent.kinds.parts import part
from agent.kinds.pods.pod_parts import created, name_of, namespace_of, own, told
from agent.kinds.shown import Describing, Objects, Shown
from agent.kinds.table import FACTS, Column, Columns, Object

KIND = Kind(
    "nodes",
    "node",
    ("no",),
    has_namespace=False,
    observed_as="Node",
    read_by=BY_SERVICES,
    subresources=(status_of("Node"),),
)

NODE = "kepd.v1.NodeService"


def _drained(facts: Object) -> str:
    drain = facts.get("drain")
    if not drain:
        return ""
    return f"{'cordoned' if drain.get('keepsPods') else 'drained'} by {drain.get('by', '')}"


def _runtime(facts: Object, name: str) -> str:
    return str(part(facts, "runtime").get(name) or "")


COLUMNS: Columns[Object] = (
    Column("NAME", lambda node: node["metadata"]["name"]),
    Column(
        "RUNTIME",
        lambda node: f"{_runtime(node[FACTS], 'name') or 'none'} {_runtime(node[FACTS], 'version')}".rstrip(),
    ),
    Column("CONNECTED", lambda node: "yes" if _runtime(node[FACTS], "isConnected") else "no"),
    Column("KEPD", lambda node: node[FACTS].get("kepdVersion", "")),
    Column("DRAINED", lambda node: _drained(node[FACTS]) or "no"),
    Column("CONDITIONS", lambda node: ",".join(node[FACTS].get("conditions", ())) or "none"),
    Column("AGE", lambda node: age(node[FACTS].get("startedAt", ""))),
    Column("KERNEL", lambda node: node[FACTS].get("kernelVersion", ""), wide=True),
    Column("CGROUP", lambda node: f"v{node[FACTS].get('cgroupVersion', 0)}", wide=True),
    Column("EVENTS", lambda node: _runtime(node[FACTS], "eventSource") or "none", wide=True),
    Column("ENDPOINT", lambda node: _runtime(node[FACTS], "endpoint"), wide=True),
)


SHOWN = Shown((NODE,), COLUMNS, kind="Node")


def describe(_kind: Kind, _namespace: str, _name: str) -> Describing:
    nodes = yield Objects(NODE, "nodes")
    planes = yield Objects(NODE, "planes")
    # The pods plane is off on nodes whose pods are a kubelet's.
    pods = yield Objects("kepd.v1.PodService", "pods", may_fail=True)
    return Described(tuple(node_lines(nodes[0], planes, pods or ())), (events_of("", ""),))


def node_lines(node: Object, planes: Sequence[Object], pods: Sequence[Object]) -> Iterator[str]:
    facts = node[FACTS]
    named = f"{_runtime(facts, 'name')} {_runtime(facts, 'version')}".strip()
    runtime = named if _runtime(facts, "isConnected") else "away"
    head = (
        ("Name", node["metadata"]["name"]),
        ("Labels", joined(facts.get("labels", {}))),
        ("Addresses", ", ".join(facts.get("addresses", ()))),
        ("Unschedulable", _drained(facts) or "false"),
        ("Conditions", ", ".join(facts.get("conditions", ())) or "none"),
        ("Kernel", facts.get("kernelVersion", "")),
        ("Cgroups", f"v{facts.get('cgroupVersion', 0)}"),
        ("Runtime", f"{runtime} at {_runtime(facts, 'endpoint')}"),
        (
            "kepd",
            f"{facts.get('kepdVersion', '')}, pid {facts.get('pid', 0)}, since {moment(facts.get('startedAt', ''))}",
        ),
    )
    yield from entries_of("", iter(head))
    yield "Planes:"
    states = [(plane["metadata"]["name"], plane["status"]["state"], plane["status"]["message"]) for plane in planes]
    yield from grid(("Name", "State", "Message"), states)
    yield "Pods:" if pods else "Pods:  <none>"
    rows = [
        (namespace_of(pod), name_of(pod), own(pod, "status"), told(pod, "qosClass"), age(created(pod))) for pod in pods
    ]
    yield from grid(("Namespace", "Name", "Status", "QoS", "Age"), rows)
