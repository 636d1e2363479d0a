# SPDX-License-Identifier: Apache-2.0
"""A Deployment, ReplicaSet, DaemonSet, StatefulSet or Job in full: what it wants, how far it has come, its pods."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent.kinds.ages import age
from agent.kinds.described import entries_of, grid, joined, moment
from agent.kinds.parts import items, part
from agent.kinds.pods.pod_parts import created, is_ready, name_of, own
from agent.model.finding import printable

Made = Mapping[str, Any]
TITLES = {
    "Deployment": ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas"),
    "ReplicaSet": ("replicas", "readyReplicas", "availableReplicas"),
    "ReplicationController": ("replicas", "readyReplicas", "availableReplicas"),
    "DaemonSet": ("desiredNumberScheduled", "currentNumberScheduled", "updatedNumberScheduled", "numberAvailable"),
    "StatefulSet": ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"),
    "Job": ("active", "ready", "terminating", "succeeded", "failed"),
}
ASKED = (
    ("Replicas", "replicas"), ("Min Ready Seconds", "minReadySeconds"), ("Parallelism", "parallelism"),
    ("Completions", "completions"), ("Backoff Limit", "backoffLimit"),
    ("Active Deadline", "activeDeadlineSeconds"), ("Suspend", "suspend"), ("Paused", "paused"),
    ("Service", "serviceName"), ("Pod Management", "podManagementPolicy"),
)  # fmt: skip


def workload_lines(kind: str, made: Made, pods: Sequence[Made]) -> Iterator[str]:
    yield from entries_of("", _head(kind, made))
    conditions = items(made, "status", "conditions")
    yield "Conditions:" if conditions else "Conditions:  <none>"
    rows = [
        tuple(printable(str(one.get(name, ""))) for name in ("type", "status", "reason", "message"))
        for one in conditions
    ]
    yield from grid(("Type", "Status", "Reason", "Message"), rows)
    yield "Pods:" if pods else "Pods:  <none>"
    listed = sorted(pods, key=name_of)
    rows = [(name_of(pod), own(pod, "status"), str(is_ready(pod)), age(created(pod))) for pod in listed]
    yield from grid(("Name", "Status", "Ready", "Age"), rows)


def _head(kind: str, made: Made) -> Iterator[tuple[str, str]]:
    metadata, spec, status = (part(made, name) for name in ("metadata", "spec", "status"))
    yield "Name", printable(str(metadata.get("name", "")))
    yield "Namespace", printable(str(metadata.get("namespace", "default")))
    yield "Created", moment(created(made))
    yield "Labels", printable(joined(part(metadata, "labels")))
    owners = items(metadata, "ownerReferences")
    yield "Controlled By", printable(", ".join(f"{one.get('kind')}/{one.get('name')}" for one in owners))
    yield "Selector", printable(joined(part(spec, "selector", "matchLabels")))
    for title, name in ASKED:
        if spec.get(name) is not None:
            yield title, printable(str(spec[name]))
    strategy = part(spec, "strategy") or part(spec, "updateStrategy")
    yield "Strategy", printable(str(strategy.get("type", "RollingUpdate"))) if kind != "Job" else ""
    for claim in items(spec, "volumeClaimTemplates"):
        size = part(claim, "spec", "resources", "requests").get("storage", "")
        yield "Claim", printable(f"{part(claim, 'metadata').get('name', '')}, asks for {size}, which nothing enforces")
    containers = items(spec, "template", "spec", "containers")
    yield "Images", printable(", ".join(str(one.get("image", "")) for one in containers))
    yield "Status", ", ".join(f"{status.get(name, 0)} {name}" for name in TITLES[kind])
    yield "Started", str(status.get("startTime", ""))
    yield "Completed", str(status.get("completionTime", ""))
