# SPDX-License-Identifier: Apache-2.0
"""Pods. Its columns work for a pod whoever decoded it, and its import costs nothing that a short command feels."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agent.kinds.ages import age
from agent.kinds.registry import Kind, Named
from agent.kinds.shown import Ask, How, Shown, Watch
from agent.kinds.table import Column, Columns, Listing

if TYPE_CHECKING:
    from agent.wire.kepd.v1 import pod_pb2


def _counted(pod: "pod_pb2.Pod") -> "list[pod_pb2.Container]":
    return [one for one in pod.containers if one.kind not in ("init", "ephemeral")]


POD_COLUMNS: "Columns[pod_pb2.Pod]" = (
    Column("NAMESPACE", lambda pod: pod.namespace),
    Column("NAME", lambda pod: pod.name),
    Column("READY", lambda pod: f"{sum(one.ready for one in _counted(pod))}/{len(_counted(pod))}"),
    Column("STATUS", lambda pod: pod.status or pod.phase),
    Column("RESTARTS", lambda pod: str(sum(one.restart_count for one in pod.containers))),
    Column("AGE", lambda pod: age(pod.created_at)),
    Column("IP", lambda pod: pod.ip),
    Column("DNS", lambda pod: pod.name_servers, wide=True),
    Column("UID", lambda pod: pod.uid, wide=True),
    Column("MESSAGE", lambda pod: pod.message, wide=True),
)


def _objects(pods: "Sequence[pod_pb2.Pod]") -> list[dict[str, Any]]:
    from agent.kinds.kube_shape import pod_object

    return [pod_object(pod) for pod in pods]


def pod_listing(pods: "Sequence[pod_pb2.Pod]") -> "Listing[pod_pb2.Pod]":
    return Listing(
        "Pod",
        pods,
        POD_COLUMNS,
        lambda pod: f"pod/{pod.namespace}/{pod.name}",
        "no pods; put a Pod manifest into the manifest directory",
        named=lambda pod: Named(pod.namespace, pod.name, pod.manifest_name),
        labels=lambda pod: pod.labels,
        objects=_objects,
    )


def _asks(_kind: Kind, how: How) -> Sequence[Ask]:
    from agent.wire.kepd.v1 import pod_pb2

    request = pod_pb2.ListPodsRequest(with_spec=how.with_objects)
    return (Ask("kepd.v1.PodService/ListPods", request, pod_pb2.ListPodsResponse),)


def _watch(how: How) -> Watch:
    from agent.wire.kepd.v1 import pod_pb2

    request = pod_pb2.WatchPodsRequest(with_spec=how.with_objects)
    ask = Ask("kepd.v1.PodService/WatchPods", request, pod_pb2.WatchPodsResponse)
    return Watch(ask, "pod", pod_pb2.ListPodsResponse, "pods", shows_last=True)


SHOWN = Shown(_asks, lambda _kind, answers: pod_listing(answers[0].pods), _watch)
