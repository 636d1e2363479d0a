# SPDX-License-Identifier: Apache-2.0
"""All kinds with their names. A new one is a line here and a module in one of the folders.

Imports nothing heavy, for completion waits for it.
"""

from collections.abc import Mapping

import msgspec

DEFAULT_NAMESPACE = "default"


class Kind(msgspec.Struct, frozen=True):
    """`api` is its name in manifests; empty for what only kepd has. `module`: what shows it, if not its plural."""

    plural: str
    singular: str
    short: tuple[str, ...] = ()
    api: str = ""
    has_namespace: bool = True
    module: str = ""
    is_of_each_daemon: bool = False
    """Where several run on a node, each has some."""

    @property
    def words(self) -> tuple[str, ...]:
        return (self.plural, self.singular, *self.short)


# By the folder of their modules.
KINDS_IN: Mapping[str, tuple[Kind, ...]] = {
    "node": (
        Kind("nodes", "node", ("no",), has_namespace=False),
        Kind("planes", "plane", has_namespace=False),
        Kind("filesystems", "filesystem", ("fs",), has_namespace=False),
        Kind("features", "feature", (), has_namespace=False),
        Kind("events", "event", ("ev",)),
    ),
    "pods": (
        Kind("pods", "pod", ("po",), "Pod"),
        Kind("deployments", "deployment", ("deploy",), "Deployment", module="workloads"),
        Kind("daemonsets", "daemonset", ("ds",), "DaemonSet", module="workloads"),
        Kind("statefulsets", "statefulset", ("sts",), "StatefulSet", module="workloads"),
        Kind("jobs", "job", (), "Job", module="workloads"),
        Kind("cronjobs", "cronjob", ("cj",), "CronJob"),
        Kind("replicasets", "replicaset", ("rs",), "ReplicaSet", module="revisions"),
        Kind("controllerrevisions", "controllerrevision", (), "ControllerRevision", module="revisions"),
        Kind("poddisruptionbudgets", "poddisruptionbudget", ("pdb",), "PodDisruptionBudget", module="budgets"),
        Kind("networkpolicies", "networkpolicy", ("netpol", "policy"), "NetworkPolicy", module="policies"),
        Kind("containers", "container"),
        Kind("checkpoints", "checkpoint", has_namespace=False),
        Kind("configmaps", "configmap", ("cm",), "ConfigMap", module="manifests"),
        Kind("secrets", "secret", (), "Secret", module="manifests"),
        Kind("servicecidrs", "servicecidr", (), "ServiceCIDR", has_namespace=False, module="manifests"),
        Kind(
            "claimtemplates", "claimtemplate", ("resourceclaimtemplates",), "ResourceClaimTemplate", module="manifests"
        ),
        Kind("deviceclasses", "deviceclass", (), "DeviceClass", has_namespace=False, module="manifests"),
        Kind("slices", "slice", ("resourceslices", "resourceslice"), "ResourceSlice", False, module="manifests"),
    ),
    "images": (
        Kind("images", "image", ("im", "img"), has_namespace=False),
        Kind("pulls", "pull", has_namespace=False),
        Kind("mirrors", "mirror", has_namespace=False),
    ),
    "services": (
        Kind("services", "service", ("svc",), "Service"),
        Kind("endpoints", "endpoint", ("ep", "eps", "endpointslices", "endpointslice"), "EndpointSlice"),
        Kind("dns", "name", has_namespace=False),
        Kind("rules", "rule", has_namespace=False),
    ),
    "devices": (
        Kind("devices", "device", ("dev",), has_namespace=False),
        Kind("claims", "claim", ("resourceclaims", "resourceclaim"), "ResourceClaim"),
        Kind("drivers", "driver", has_namespace=False),
        Kind("cdi", "cdidevice", has_namespace=False),
    ),
    "calls": (
        Kind("holds", "hold", has_namespace=False, is_of_each_daemon=True),
        Kind("proxy", "method", has_namespace=False),
    ),
}
KINDS = tuple(kind for kinds in KINDS_IN.values() for kind in kinds)
FOLDERS = {kind: folder for folder, kinds in KINDS_IN.items() for kind in kinds}
BY_WORD = {word: kind for kind in KINDS for word in kind.words}
BY_API = {kind.api: kind for kind in KINDS if kind.api}
# What may stand in a manifest; the others are made here.
MANIFEST_KINDS = (*(kind.api for kind in KINDS if kind.api and kind.module != "revisions"), "Node")
# Groups of Kubernetes that have kinds of the above, and what else is in them: nobody means one of ours by it.
OUR_GROUPS = ("", "apps", "batch", "policy", "networking.k8s.io", "discovery.k8s.io", "resource.k8s.io")
FOREIGN_KINDS: Mapping[str, str] = {
    "Namespace": "objects of any namespace are taken, and it need not be made",
    "ServiceAccount": "pods of this node have no tokens",
    "PersistentVolumeClaim": "volumeClaimTemplates of a StatefulSet, or a hostPath volume, keep data here",
    "PersistentVolume": "volumeClaimTemplates of a StatefulSet, or a hostPath volume, keep data here",
    "ReplicationController": "write a Deployment",
    "ReplicaSet": "write a Deployment",
    "ControllerRevision": "kepd keeps the revisions of workloads itself",
    "Endpoints": "write an EndpointSlice",
    "PodTemplate": "write a Deployment or a Pod",
    "LimitRange": "give each container its resources",
    "ResourceQuota": "pods.maxPods bounds this node",
    "Event": "kepd keeps the events of this node itself",
    "Ingress": "a Deployment of any proxy with hostPorts serves",
    "IngressClass": "a Deployment of any proxy with hostPorts serves",
    "IPAddress": "addresses of Services are given by ServiceCIDRs",
}
"""With what serves instead."""
# Modules that read them; `reading_for` of each takes the configuration. That of a package may be missing.
READ_BY = (
    "agent.pods.manifest.objects",
    "agent.services.attach.manifests",
    "agent.policies.manifest.reading",
    "kepd_devices.manifest.reading",
)
# What makes pods, by its names in manifests.
WORKLOADS = tuple(kind.api for kind in KINDS if kind.module == "workloads")


class Named(msgspec.Struct, frozen=True):
    """An object as names see it: in full, and what else it may be called; several such words have spaces between."""

    namespace: str
    name: str
    short: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name
