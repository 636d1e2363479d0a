# SPDX-License-Identifier: Apache-2.0
"""Former and present templates as objects that Kubernetes' clients look for: a ReplicaSet for each of a Deployment's, a
ControllerRevision for each of a StatefulSet's or DaemonSet's. Nobody writes them."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from agent.model.pods.wall_clock import stamp
from agent.pods.workloads.history import CAUSE, History, Revision
from agent.pods.workloads.rollout import OwnedPod
from agent.pods.workloads.workload import Workload

Content = dict[str, Any]
REVISION = "deployment.kubernetes.io/revision"
VERSION = "apps/v1"
REMEMBERED = ("Deployment", "DaemonSet", "StatefulSet")


def revision_objects(history: History, workload: Workload, pods: Sequence[OwnedPod]) -> Iterator[Content]:
    for one in history.revisions if workload.kind in REMEMBERED else ():
        yield (
            _replica_set(one, workload, pods) if workload.kind == "Deployment" else _controller_revision(one, workload)
        )


def _replica_set(one: Revision, workload: Workload, pods: Sequence[OwnedPod]) -> Content:
    own = [pod for pod in pods if pod.revision == one.hash and not pod.is_ending]
    metadata = _metadata(one, workload, "pod-template-hash", one.hash)
    metadata["annotations"] = {REVISION: str(one.number)} | ({CAUSE: one.cause} if one.cause else {})
    template = _template(one)
    inner = template.setdefault("metadata", {})
    inner["labels"] = labels = {**(inner.get("labels") or {}), "pod-template-hash": one.hash}
    counts = {
        "replicas": len(own),
        "readyReplicas": sum(pod.is_ready for pod in own),
        "availableReplicas": sum(pod.is_available for pod in own),
    }
    spec = {"replicas": len(own), "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": VERSION, "kind": "ReplicaSet", "metadata": metadata, "spec": spec, "status": counts}


def _controller_revision(one: Revision, workload: Workload) -> Content:
    metadata = _metadata(one, workload, "controller.kubernetes.io/hash", one.hash)
    if one.cause:
        metadata["annotations"] = {CAUSE: one.cause}
    data = {"spec": {"template": {**_template(one), "$patch": "replace"}}}
    return {
        "apiVersion": VERSION, "kind": "ControllerRevision", "metadata": metadata, "data": data, "revision": one.number,
    }  # fmt: skip


def _metadata(one: Revision, workload: Workload, label: str, value: str) -> Content:
    owner = {
        "apiVersion": VERSION, "kind": workload.kind, "name": workload.name, "uid": workload.uid, "controller": True,
        "blockOwnerDeletion": True,
    }  # fmt: skip
    metadata: Content = {
        "name": f"{workload.name}-{one.hash}",
        "namespace": workload.namespace,
        "labels": {**one.template.metadata.labels, label: value},
        "ownerReferences": [owner],
    }
    if one.created_s:
        metadata["creationTimestamp"] = stamp(one.created_s)
    return metadata


def _template(one: Revision) -> Content:
    made: Content = msgspec.to_builtins(one.template)
    return made
