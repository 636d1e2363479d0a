# SPDX-License-Identifier: Apache-2.0
"""Deployments, DaemonSets, StatefulSets and Jobs, in kubectl's columns."""

from collections.abc import Sequence
from datetime import UTC, datetime

from agent.kinds.described import Described, events_of_object
from agent.kinds.pods.described_workload import workload_lines
from agent.kinds.pods.manifests import AGE, NAMES, SOURCE, Made, found_object, shown_objects
from agent.kinds.pods.parts import items, part
from agent.kinds.pods.pod_parts import labels_of, name_of, namespace_of
from agent.kinds.registry import Kind
from agent.kinds.shown import Describing, Objects
from agent.kinds.table import Column, Columns, Object, names_of

PODS = "kepd.v1.PodService"


def _status(one: Object, name: str) -> int:
    return int(part(one, "status").get(name, 0))


def _replicas(one: Object) -> str:
    return str(part(one, "spec").get("replicas", 1))


def _images(one: Object) -> str:
    return ",".join(str(each.get("image", "")) for each in items(one, "spec", "template", "spec", "containers"))


def job_state(made: Made) -> str:
    """The word of its condition; Running where it has none yet. Of one that is not carried out nothing is known."""
    held = (str(one.get("type")) for one in items(made, "status", "conditions") if one.get("status") == "True")
    return next(held, "Running" if part(made, "status") else "Unknown")


def _completions(one: Object) -> str:
    spec = part(one, "spec")
    succeeded = _status(one, "succeeded")
    if spec.get("completions") is None and spec.get("parallelism") is not None:
        return f"{succeeded}/1 of {spec['parallelism']}"
    return f"{succeeded}/{spec.get('completions', 1)}"


def _duration(one: Object) -> str:
    status = part(one, "status")
    if not status.get("startTime"):
        return ""
    end = datetime.fromisoformat(status["completionTime"]) if status.get("completionTime") else datetime.now(UTC)
    seconds = int((end - datetime.fromisoformat(status["startTime"])).total_seconds())
    return f"{seconds // 60}m{seconds % 60}s" if seconds >= 60 else f"{seconds}s"


WIDE: Columns[Object] = (Column("IMAGES", _images, wide=True), SOURCE)
COLUMNS: dict[str, Columns[Object]] = {
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
        Column("STATUS", job_state),
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
    listed = yield Objects(PODS, "pods", may_fail=True)
    pods = pods_of(kind, found, listed or ())
    events = [events_of_object(found, kind.api), *map(events_of_object, pods)]
    return Described(tuple(workload_lines(kind.api, found, pods)), events)


ADDED = {
    "Deployment": "pod-template-hash",
    "DaemonSet": "controller-revision-hash",
    "StatefulSet": "statefulset.kubernetes.io/pod-name",
}


def pods_of(kind: Kind, made: Made, pods: Sequence[Object]) -> list[Object]:
    """By the labels that it selects."""
    namespace, name = names_of(made)
    wanted = {"job-name": name[:63].rstrip("-.")}
    # What kepd adds tells pods of one kind from those of others with the same labels.
    added = ADDED.get(kind.api, "")
    if added:
        wanted = part(made, "spec", "selector", "matchLabels")
    return [
        pod
        for pod in pods
        if namespace_of(pod) == namespace
        and name_of(pod).startswith(f"{name}-")
        and wanted.items() <= labels_of(pod).items()
        and (not added or added in labels_of(pod))
    ]
