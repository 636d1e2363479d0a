# SPDX-License-Identifier: Apache-2.0
"""What each noun of `kepctl get` lists, and in which columns: node, planes, pods, containers."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from agent.cli import pod_columns
from agent.cli.client import Client
from agent.cli.kinds import DEFAULT_NAMESPACE, Named
from agent.cli.kube_objects import event_object, pod_object
from agent.cli.plain_rows import age
from agent.cli.table import Column, Columns, Listing
from agent.model.image_text import bytes_text
from agent.wire.kepd.v1 import node_pb2, pod_pb2


def list_nodes(daemon: Client) -> Listing[node_pb2.Node]:
    answer = daemon.call("kepd.v1.NodeService/GetNode", node_pb2.GetNodeRequest(), node_pb2.GetNodeResponse)
    columns: Columns[node_pb2.Node] = (
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
    return Listing("Node", [answer.node], columns, lambda node: f"node/{node.name}")


def list_planes(daemon: Client) -> Listing[node_pb2.Plane]:
    answer = daemon.call("kepd.v1.NodeService/ListPlanes", node_pb2.ListPlanesRequest(), node_pb2.ListPlanesResponse)
    columns: Columns[node_pb2.Plane] = (
        Column("PLANE", lambda plane: plane.name),
        Column("STATE", lambda plane: node_pb2.PlaneState.Name(plane.state).removeprefix("PLANE_STATE_").lower()),
        Column("SINCE", lambda plane: age(plane.since)),
        Column("RESTARTS", lambda plane: str(plane.restarts)),
        Column("MESSAGE", lambda plane: plane.message),
    )
    return Listing("Plane", answer.planes, columns, lambda plane: f"plane/{plane.name}")


def list_checkpoints(daemon: Client) -> Listing[pod_pb2.Checkpoint]:
    method = "kepd.v1.PodService/ListCheckpoints"
    answer = daemon.call(method, pod_pb2.ListCheckpointsRequest(), pod_pb2.ListCheckpointsResponse)
    columns: Columns[pod_pb2.Checkpoint] = (
        Column("NAME", lambda one: one.name),
        Column("STATE", lambda one: one.state),
        Column("SIZE", lambda one: bytes_text(one.size_bytes)),
        Column("AGE", lambda one: age(one.made_at)),
        Column("IMAGE", lambda one: one.image or "-"),
        Column("CRIU", lambda one: one.criu or "-"),
    )
    return Listing("Checkpoint", answer.checkpoints, columns, lambda one: f"checkpoint/{one.name}", "none is there")


def list_filesystems(daemon: Client, *, with_use: bool = False) -> Listing[node_pb2.Filesystem]:
    method = "kepd.v1.NodeService/ListFilesystems"
    request = node_pb2.ListFilesystemsRequest(with_use=with_use)
    answer = daemon.call(method, request, node_pb2.ListFilesystemsResponse)
    columns: Columns[node_pb2.Filesystem] = (
        Column("MOUNT", lambda one: one.mount),
        Column("DEVICE", lambda one: one.device),
        Column("TYPE", lambda one: one.type),
        Column("ROLES", lambda one: ",".join(one.roles)),
        Column("SIZE", lambda one: bytes_text(one.size_bytes) if one.size_bytes else "-"),
        Column("USED", lambda one: bytes_text(one.used_bytes) if one.size_bytes else "-"),
        Column("AVAIL", lambda one: bytes_text(one.available_bytes) if one.size_bytes else "-"),
        Column("USE%", lambda one: _share(one.used_bytes, one.used_bytes + one.available_bytes)),
        Column("IUSE%", lambda one: _share(one.inodes - one.inodes_free, one.inodes)),
        Column("HIGH", lambda one: f"{one.collects_at}%" if one.collects_at else "-"),
        Column("STATE", lambda one: one.state),
        Column("NEXT", lambda one: one.next or "-"),
        Column("MESSAGE", lambda one: one.message),
        Column("USED BY", lambda one: _used_by(one.used_by), wide=True),
        Column("PATHS", lambda one: ",".join(one.paths), wide=True),
    )
    return Listing("Filesystem", answer.filesystems, columns, lambda one: f"filesystem/{one.mount}", "none is known")


def _used_by(parts: Iterable[node_pb2.SpaceUse]) -> str:
    return ", ".join(f"{one.what} {bytes_text(one.bytes)}" for one in parts) or "-"


def list_features(daemon: Client) -> Listing[node_pb2.Feature]:
    method = "kepd.v1.NodeService/ListFeatures"
    answer = daemon.call(method, node_pb2.ListFeaturesRequest(), node_pb2.ListFeaturesResponse)
    columns: Columns[node_pb2.Feature] = (
        Column("KEP", lambda one: one.keps or "-"),
        Column("WHAT", lambda one: one.what),
        Column("STATE", lambda one: one.state),
        Column("WHY", lambda one: one.why),
    )
    return Listing("Feature", answer.features, columns, lambda one: f"feature/{one.keps or one.what}", "none is known")


def _share(part: int, whole: int) -> str:
    return f"{part / whole * 100:.0f}%" if whole else "-"


def list_pods(daemon: Client, *, with_spec: bool = False) -> Listing[pod_pb2.Pod]:
    request = pod_pb2.ListPodsRequest(with_spec=with_spec)
    return pod_listing(daemon.call("kepd.v1.PodService/ListPods", request, pod_pb2.ListPodsResponse).pods)


def pod_listing(pods: Sequence[pod_pb2.Pod]) -> Listing[pod_pb2.Pod]:
    return replace(pod_columns.pod_listing(pods), objects=lambda pods: [pod_object(pod) for pod in pods])


def list_containers(daemon: Client) -> Listing[pod_pb2.Container]:
    answer = daemon.call("kepd.v1.PodService/ListPods", pod_pb2.ListPodsRequest(), pod_pb2.ListPodsResponse)
    containers = [one for pod in answer.pods for one in pod.containers]
    columns: Columns[pod_pb2.Container] = (
        Column("CONTAINER", lambda one: one.id[:13]),
        Column("NAME", lambda one: one.name),
        Column("STATE", lambda one: one.state),
        Column("REASON", lambda one: one.reason),
        Column("IMAGE", lambda one: one.image),
        Column("AGE", lambda one: age(one.started_at)),
        Column("POD", lambda one: one.pod_name),
        Column("EXIT", lambda one: str(one.exit_code) if one.state == "Terminated" else "", wide=True),
    )
    return Listing(
        "Container", containers, columns, lambda one: f"container/{one.id}", "no containers",
        named=lambda one: Named(one.pod_namespace, one.name),
    )  # fmt: skip


def _object_of(event: node_pb2.Event) -> str:
    if not event.object_name:
        return "node"
    kind = f"{event.object_kind.lower()}/" if event.object_kind else ""
    return f"{kind}{event.namespace}/{event.object_name}"


EVENT_COLUMNS: Columns[node_pb2.Event] = (
    Column("LAST SEEN", lambda event: age(event.last_seen)),
    Column("TYPE", lambda event: event.type),
    Column("REASON", lambda event: event.reason),
    Column("OBJECT", _object_of),
    Column("MESSAGE", lambda event: f"{event.message} (x{event.count})" if event.count > 1 else event.message),
    Column("CONTAINER", lambda event: event.container, wide=True),
    Column("FIRST SEEN", lambda event: age(event.first_seen), wide=True),
    Column("PLANE", lambda event: event.plane, wide=True),
)


def event_name(event: node_pb2.Event) -> str:
    return f"event/{event.id}"


def list_events(daemon: Client) -> Listing[node_pb2.Event]:
    answer = daemon.call("kepd.v1.NodeService/ListEvents", node_pb2.ListEventsRequest(), node_pb2.ListEventsResponse)
    return event_listing(answer.events)


def event_listing(events: Sequence[node_pb2.Event]) -> Listing[node_pb2.Event]:
    return Listing(
        "Event", events, EVENT_COLUMNS, event_name, "no events",
        named=lambda one: Named(one.namespace or DEFAULT_NAMESPACE, one.id),
        objects=lambda events: [event_object(one) for one in events],
    )  # fmt: skip
