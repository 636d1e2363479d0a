# SPDX-License-Identifier: Apache-2.0
"""Pods."""

from agent.kinds.ages import age
from agent.kinds.described import Described, events_of
from agent.kinds.kind import BY_PODS, Kind, proxy_of, status_of
from agent.kinds.pods.described_pod import pod_lines
from agent.kinds.pods.pod_parts import (
    containers,
    created,
    name_of,
    namespace_of,
    own,
    status_word,
    told,
    uid_of,
)
from agent.kinds.selection import find_named
from agent.kinds.shown import Ask, Describing, Objects, Shown
from agent.kinds.table import Column, Columns, Object

KIND = Kind(
    "pods",
    "pod",
    ("po",),
    "Pod",
    read_by=BY_PODS,
    pod_path=("spec",),
    turn=2,
    is_in_all=True,
    subresources=(
        ("attach", "PodAttachOptions", ("create", "get")),
        ("binding", "Binding", ("create",)),
        ("ephemeralcontainers", "Pod", ("get", "patch", "update")),
        ("eviction", "Eviction", ("create",)),
        ("exec", "PodExecOptions", ("create", "get")),
        ("log", "Pod", ("get",)),
        ("resize", "Pod", ("get", "patch", "update")),
        ("portforward", "PodPortForwardOptions", ("create", "get")),
        proxy_of("PodProxyOptions"),
        status_of("Pod"),
    ),
)

PODS = "kepd.v1.PodService"


def _ready(pod: Object) -> str:
    counted = [status for kind, status in containers(pod) if kind in ("main", "sidecar")]
    return f"{sum(bool(status.get('ready')) for status in counted)}/{len(counted)}"


def _restarts(pod: Object) -> str:
    return str(sum(int(status.get("restartCount", 0)) for _, status in containers(pod)))


POD_COLUMNS: Columns[Object] = (
    Column("NAMESPACE", namespace_of),
    Column("NAME", name_of),
    Column("READY", _ready),
    Column("STATUS", status_word),
    Column("RESTARTS", _restarts),
    Column("AGE", lambda pod: age(created(pod))),
    Column("IP", lambda pod: told(pod, "podIP")),
    Column("DNS", lambda pod: own(pod, "nameServers"), wide=True),
    Column("UID", uid_of, wide=True),
    Column("MESSAGE", lambda pod: own(pod, "cause") or told(pod, "message"), wide=True),
)


SHOWN = Shown(
    (PODS,),
    POD_COLUMNS,
    empty="no pods; put a Pod manifest into the manifest directory",
    short=lambda pod: own(pod, "manifestName"),
    is_watched=True,
)


def describe(kind: Kind, namespace: str, name: str) -> Describing:
    from agent.wire.kepd.v1 import pod_pb2

    pods = yield Objects(PODS, kind.plural)
    known = [SHOWN.named(pod) for pod in pods]
    named = find_named(kind, name, known, namespace)
    request = pod_pb2.ExplainPodRequest(namespace=named.namespace, name=named.name)
    why = yield Ask(f"{PODS}/ExplainPod", request, pod_pb2.ExplainPodResponse)
    lines = tuple(pod_lines(pods[known.index(named)], why))
    return Described(lines, (events_of(named.namespace, named.name, ""),))
