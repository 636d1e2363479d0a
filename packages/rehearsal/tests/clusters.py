# SPDX-License-Identifier: Apache-2.0
"""Clusters as `kubectl get -o json` would give them, small and made up."""

from collections.abc import Sequence
from typing import Any

from agent.topology.manifest.objects import Document
from kepd_rehearsal.plan.cluster import Cluster
from kepd_rehearsal.plan.reading import read_cluster

Object = dict[str, Any]


def node(name: str, zone: str, cpu: str = "4", **spec: Any) -> Object:
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}
    status = {
        "allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "20"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": status,
    }


def template(name: str, cpu: str = "500m", skew: int | None = 1) -> Object:
    labels = {"app": name}
    spec: Object = {
        "containers": [{"name": "m", "image": "i", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}]
    }
    if skew is not None:
        spec["topologySpreadConstraints"] = [
            {"maxSkew": skew, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
             "labelSelector": {"matchLabels": labels}}
        ]  # fmt: skip
    return {"metadata": {"labels": labels}, "spec": spec}


def deployment(name: str, nodes: Sequence[str], **more: Any) -> list[Object]:
    """With a ReplicaSet between it and its pods, one on each of the nodes."""
    made = template(name, **more)
    selector = {"matchLabels": {"app": name}}
    owned = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": "d", "controller": True}
    by = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{name}-1", "uid": "r", "controller": True}
    spec = {"replicas": len(nodes), "selector": selector, "template": made}
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec},
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": f"{name}-1", "ownerReferences": [owned]},
         "spec": spec},
        *(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{name}-1-{place}", "labels": {"app": name},
             "ownerReferences": [by]}, "spec": {"nodeName": where, **made["spec"]}, "status": ready}
            for place, where in enumerate(nodes)
        ),
    ]  # fmt: skip


def service(name: str, mode: str = "Auto", **spec: Any) -> Object:
    annotations = {"service.kubernetes.io/topology-mode": mode} if mode else {}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "annotations": annotations},
            "spec": {"selector": {"app": name}, "ports": [{"port": 80}], **spec}}  # fmt: skip


def budget(name: str, **spec: Any) -> Object:
    made = {"selector": {"matchLabels": {"app": name}}, **spec}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": made}


def documents(*objects: Object) -> list[Document]:
    return [Document("dump.json", {"apiVersion": "v1", "kind": "List", "items": list(objects)})]


def cluster(*objects: Object) -> Cluster:
    reading = read_cluster(documents(*objects))
    assert reading.errors == ()
    return reading.cluster


SIX = [node(f"n{place}", "abc"[place % 3]) for place in range(6)]
WEB = [*SIX, *deployment("web", [f"n{place}" for place in range(6)]), service("web")]
