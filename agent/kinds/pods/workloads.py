# SPDX-License-Identifier: Apache-2.0
"""Deployments, DaemonSets, StatefulSets and Jobs, in kubectl's columns."""

from collections.abc import Sequence
from datetime import UTC, datetime

from agent.kinds.described import Described, events_of
from agent.kinds.pods.described_workload import workload_lines
from agent.kinds.pods.manifests import AGE, NAMES, SOURCE, Made, found_object, read_made, shown_objects
from agent.kinds.pods.parts import items, part
from agent.kinds.registry import Kind, Named
from agent.kinds.shown import Ask, Describing
from agent.kinds.table import Column, Columns
from agent.wire.kepd.v1 import object_pb2 as pb
from agent.wire.kepd.v1 import pod_pb2


def _status(one: pb.Object, name: str) -> int:
    return int(part(read_made(one), "status").get(name, 0))


def _replicas(one: pb.Object) -> str:
    return str(part(read_made(one), "spec").get("replicas", 1))


def _images(one: pb.Object) -> str:
    return ",".join(
        str(each.get("image", "")) for each in items(read_made(one), "spec", "template", "spec", "containers")
    )


def job_state(made: Made) -> str:
    """The word of its condition; Running where it has none yet. Of one that is not carried out nothing is known."""
    held = (str(one.get("type")) for one in items(made, "status", "conditions") if one.get("status") == "True")
    return next(held, "Running" if part(made, "status") else "Unknown")


def _completions(one: pb.Object) -> str:
    spec = part(read_made(one), "spec")
    succeeded = _status(one, "succeeded")
    if spec.get("completions") is None and spec.get("parallelism") is not None:
        return f"{succeeded}/1 of {spec['parallelism']}"
    return f"{succeeded}/{spec.get('completions', 1)}"


def _duration(one: pb.Object) -> str:
    status = part(read_made(one), "status")
    if not status.get("startTime"):
        return ""
    end = datetime.fromisoformat(status["completionTime"]) if status.get("completionTime") else datetime.now(UTC)
    seconds = int((end - datetime.fromisoformat(status["startTime"])).total_seconds())
    return f"{seconds // 60}m{seconds % 60}s" if seconds >= 60 else f"{seconds}s"


WIDE: Columns[pb.Object] = (Column("IMAGES", _images, wide=True), SOURCE)
COLUMNS: dict[str, Columns[pb.Object]] = {
    "Deployment": (
        *NAMES,
        Column("READY", lambda one: f"{_status(one, 'readyReplicas')}/{_replicas(one)}"),
        Column("UP-TO-DATE", lambda one: str(_status(one, "updatedReplicas"))),
        Column("AVAILABLE", lambda one: str(_status(one, "availableReplicas"))),
        AGE,
        *WIDE,
    ),
    "DaemonSet": (
        *NAMES,
        Column("DESIRED", lambda one: str(_status(one, "desiredNumberScheduled"))),
        Column("CURRENT", lambda one: str(_status(one, "currentNumberScheduled"))),
        Column("READY", lambda one: str(_status(one, "numberReady"))),
        Column("UP-TO-DATE", lambda one: str(_status(one, "updatedNumberScheduled"))),
        Column("AVAILABLE", lambda one: str(_status(one, "numberAvailable"))),
        AGE,
        *WIDE,
    ),
    "StatefulSet": (
        *NAMES,
        Column("READY", lambda one: f"{_status(one, 'readyReplicas')}/{_replicas(one)}"),
        AGE,
        *WIDE,
    ),
    "Job": (
        *NAMES,
        Column("STATUS", lambda one: job_state(read_made(one))),
        Column("COMPLETIONS", _completions),
        Column("FAILED", lambda one: str(_status(one, "failed"))),
        Column("DURATION", _duration),
        AGE,
        *WIDE,
    ),
}


SHOWN = shown_objects(COLUMNS)


def describe(kind: Kind, namespace: str, name: str) -> Describing:
    found = yield from found_object(kind, namespace, name)
    made = read_made(found)
    request = pod_pb2.ListPodsRequest()
    listed = yield Ask("kepd.v1.PodService/ListPods", request, pod_pb2.ListPodsResponse, may_fail=True)
    named = Named(found.namespace, found.name)
    pods = pods_of(kind, named, made, listed.pods if listed else ())
    events = [events_of(found.namespace, found.name, kind.api)]
    return Described(
        tuple(workload_lines(kind.api, made, pods)), [*events, *(events_of(one.namespace, one.name) for one in pods)]
    )


ADDED = {
    "Deployment": "pod-template-hash",
    "DaemonSet": "controller-revision-hash",
    "StatefulSet": "statefulset.kubernetes.io/pod-name",
}


def pods_of(kind: Kind, found: Named, made: Made, pods: Sequence[pod_pb2.Pod]) -> list[pod_pb2.Pod]:
    """By the labels that it selects."""
    wanted = {"job-name": found.name[:63].rstrip("-.")}
    # What kepd adds tells pods of one kind from those of others with the same labels.
    added = ADDED.get(kind.api, "")
    if added:
        wanted = part(made, "spec", "selector", "matchLabels")
    return [
        pod
        for pod in pods
        if pod.namespace == found.namespace
        and pod.name.startswith(f"{found.name}-")
        and wanted.items() <= dict(pod.labels).items()
        and (not added or added in pod.labels)
    ]
