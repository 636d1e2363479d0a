# SPDX-License-Identifier: Apache-2.0
"""Objects of a cluster without what no rehearsal looks at, so that a big one fits into the memory of a laptop.

Pods are most of it. Who wrote which field, variables, mounts, probes and the state of containers go; parts that pods of
one template have alike are kept once. Templates of workloads stay whole, so that an edit can be compared with them: a
value of a variable there may be a secret, and no rehearsal shows one.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from agent.model.text.json_text import decode_json

Plain = dict[str, Any]
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
OF_METADATA = ("managedFields", "selfLink", "generateName", "finalizers")
OF_CONTAINER = (
    "env", "envFrom", "command", "args", "volumeMounts", "volumeDevices", "livenessProbe", "readinessProbe",
    "startupProbe", "terminationMessagePath", "terminationMessagePolicy", "securityContext",
)  # fmt: skip
KEPT_VOLUMES = frozenset({"image", "persistentVolumeClaim", "ephemeral"})
KEPT_STATUS = frozenset({
    "phase", "conditions", "allocatable", "capacity", "images", "podIP", "podIPs", "loadBalancer", "replicas",
    "observedGeneration",
})  # fmt: skip
KEPT_OF_CONDITION = ("type", "status")
# Whoever applies another template has to see all that is different in it.
EDITED = frozenset({"Deployment", "StatefulSet", "DaemonSet"})
CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
SHARED = (
    *CONTAINERS, "tolerations", "topologySpreadConstraints", "affinity", "nodeSelector", "volumes", "ownerReferences",
    "conditions", "capacity", "allocatable", "securityContext", "labels", "annotations",
)  # fmt: skip


class Shedding:
    """For the objects of one cluster; it remembers the parts that it has seen."""

    def __init__(self) -> None:
        self._known: dict[bytes, object] = {}

    def object(self, whole: Plain) -> Plain:
        """The same object, with less in it."""
        metadata = whole.get("metadata")
        if isinstance(metadata, dict):
            _without(metadata, OF_METADATA)
            if isinstance(annotations := metadata.get("annotations"), dict):
                annotations.pop(LAST_APPLIED, None)
            self._share(metadata)
        if isinstance(status := whole.get("status"), dict):
            _without(status, [name for name in status if name not in KEPT_STATUS])
            if isinstance(conditions := status.get("conditions"), list):
                status["conditions"] = [_condition(one) for one in conditions]
            if isinstance(images := status.get("images"), list):
                # Nodes have much the same ones.
                status["images"] = [self._same(one) for one in images]
            self._share(status)
        is_edited = str(whole.get("kind")) in EDITED
        for spec in _pod_specs(whole):
            for name in CONTAINERS if not is_edited else ():
                for container in _maps(spec.get(name)):
                    _without(container, OF_CONTAINER)
            if isinstance(volumes := spec.get("volumes"), list) and not is_edited:
                spec["volumes"] = [one for one in volumes if not isinstance(one, dict) or KEPT_VOLUMES & one.keys()]
            self._share(spec)
        return whole

    def _share(self, holder: Plain) -> None:
        for name in SHARED:
            if holder.get(name):
                holder[name] = self._same(holder[name])

    def _same(self, found: Any) -> Any:  # noqa: ANN401  # whatever it is
        """One that was seen before and is alike, if there is one."""
        return self._known.setdefault(msgspec.json.encode(found), found)


def is_of_the_past(whole: Mapping[str, Any]) -> bool:
    """A ReplicaSet that a Deployment keeps for going back: it has no pods, and most of a cluster's are such."""
    spec, status = whole.get("spec"), whole.get("status")
    if whole.get("kind") != "ReplicaSet" or not isinstance(spec, dict) or not isinstance(status, dict):
        return False
    return spec.get("replicas") == 0 and not status.get("replicas")


def _without(holder: Plain, names: tuple[str, ...] | list[str]) -> None:
    for name in names:
        holder.pop(name, None)


def _condition(one: object) -> object:
    return {name: one[name] for name in KEPT_OF_CONDITION if name in one} if isinstance(one, dict) else one


def _maps(found: object) -> Iterator[Plain]:
    if isinstance(found, list):
        yield from (one for one in found if isinstance(one, dict))


def _pod_specs(whole: Plain) -> Iterator[Plain]:
    """Of the pod itself, or of a template."""
    spec = whole.get("spec")
    if not isinstance(spec, dict):
        return
    template = spec.get("template")
    inner = template.get("spec") if isinstance(template, dict) else None
    yield from (one for one in (spec, inner) if isinstance(one, dict))


def shed_dump(content: bytes) -> Plain:
    """An object, or a list of them, out of JSON: only one of a list is there whole at a time. Raises
    msgspec.MsgspecError and UnicodeError."""
    outer = decode_json(content.removeprefix(BYTE_ORDER_MARK), dict[str, msgspec.Raw])
    raw = outer.pop("items", None)
    whole: Plain = {name: decode_json(bytes(one), Any) for name, one in outer.items()}
    shedding = Shedding()
    if raw is None:
        return shedding.object(whole)
    if not bytes(raw).lstrip().startswith(b"["):
        return {**whole, "items": decode_json(bytes(raw), Any)}
    found = (decode_json(bytes(one), Any) for one in decode_json(bytes(raw), list[msgspec.Raw]))
    return {**whole, "items": [shedding.object(one) if isinstance(one, dict) else one for one in found]}
