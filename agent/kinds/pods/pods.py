# SPDX-License-Identifier: Apache-2.0
"""Pods."""

from collections.abc import Sequence

from agent.kinds.ages import age
from agent.kinds.described import Described, events_of
from agent.kinds.kube_shape import pod_object
from agent.kinds.pods.described_pod import pod_lines
from agent.kinds.registry import Kind, Named
from agent.kinds.selection import find_named
from agent.kinds.shown import Ask, Describing, How, Shown, Watch
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import pod_pb2

PODS = "kepd.v1.PodService"


def _counted(pod: pod_pb2.Pod) -> list[pod_pb2.Container]:
    return [one for one in pod.containers if one.kind not in ("init", "ephemeral")]


POD_COLUMNS: Columns[pod_pb2.Pod] = (
    Column("NAMESPACE", lambda pod: pod.namespace),
    Column("NAME", lambda pod: pod.name),
    Column("READY", lambda pod: f"{sum(one.ready for one in _counted(pod))}/{len(_counted(pod))}"),
    Column("STATUS", lambda pod: pod.status or pod.phase),
    Column("RESTARTS", lambda pod: str(sum(one.restart_count for one in pod.containers))),
    Column("AGE", lambda pod: age(pod.created_at)),
    Column("IP", lambda pod: pod.ip),
    Column("DNS", lambda pod: pod.name_servers, wide=True),
    Column("UID", lambda pod: pod.uid, wide=True),
    Column("MESSAGE", lambda pod: pod.cause or pod.message, wide=True),
)


def _listing(pods: Sequence[pod_pb2.Pod]) -> Listing[pod_pb2.Pod]:
    return Listing(
        "Pod",
        pods,
        POD_COLUMNS,
        lambda pod: f"pod/{pod.namespace}/{pod.name}",
        "no pods; put a Pod manifest into the manifest directory",
        named=lambda pod: Named(pod.namespace, pod.name, pod.manifest_name),
        labels=lambda pod: pod.labels,
        objects=lambda pods: [pod_object(pod) for pod in pods],
    )


def _asks(_kind: Kind, how: How) -> Sequence[Ask]:
    request = pod_pb2.ListPodsRequest(with_spec=how.with_objects)
    return (Ask(f"{PODS}/ListPods", request, pod_pb2.ListPodsResponse),)


def _watch(how: How) -> Watch:
    request = pod_pb2.WatchPodsRequest(with_spec=how.with_objects)
    ask = Ask(f"{PODS}/WatchPods", request, pod_pb2.WatchPodsResponse)
    return Watch(ask, "pod", pod_pb2.ListPodsResponse, "pods", shows_last=True)


SHOWN = Shown(_asks, lambda _kind, answers: _listing(answers[0].pods), _watch)


def describe(kind: Kind, namespace: str, name: str) -> Describing:
    listed = yield _asks(kind, How())[0]
    known = [Named(one.namespace, one.name, one.manifest_name) for one in listed.pods]
    found = find_named(kind, name, known, namespace)
    which = {"namespace": found.namespace, "name": found.name}
    asked = pod_pb2.GetPodRequest(**which, with_spec=True)
    pod = (yield Ask(f"{PODS}/GetPod", asked, pod_pb2.GetPodResponse)).pod
    why = yield Ask(f"{PODS}/ExplainPod", pod_pb2.ExplainPodRequest(**which), pod_pb2.ExplainPodResponse)
    return Described(tuple(pod_lines(pod, why)), (events_of(found.namespace, found.name, ""),))
