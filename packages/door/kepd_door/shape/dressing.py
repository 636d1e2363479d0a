# SPDX-License-Identifier: Apache-2.0
"""Objects as clients of an API server expect them, and back: identities, versions, and what only a server adds."""

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid5

from agent.objects.implied import NAMESPACE_LABEL
from kepd_door.shape.defaults import filled
from kepd_door.shape.resources import Resource

Object = dict[str, Any]
# Identities of what has none on this node: the same after a restart.
OURS = UUID("6f0ff2d5-5f41-4b0c-9d0b-1d1f4f6f0c51")
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# An object's annotations may have 256 KiB.
MOST_COPIED, LONGEST_COPIED = 128 << 10, 253
APPLIED_BY, USUAL_MANAGER = "kepd.dev/applied-by", "kubectl"
# What a server writes, and no manifest has.
ADDED = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink", "deletionTimestamp",
         "deletionGracePeriodSeconds")  # fmt: skip
COUNTED = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")
# What clients ask for that a manifest need not say.
USUAL: dict[str, Object] = {
    "Deployment": {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600},
    "ReplicaSet": {"replicas": 1},
    "ReplicationController": {"replicas": 1},
    "DaemonSet": {"revisionHistoryLimit": 10},
    "CronJob": {
        "concurrencyPolicy": "Allow",
        "suspend": False,
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 1,
    },
    "StatefulSet": {"replicas": 1, "podManagementPolicy": "OrderedReady", "revisionHistoryLimit": 10},
}


def dressed(resource: Resource, made: Object, version: int) -> Object:
    given = made.get("metadata") or {}
    name, namespace = str(given.get("name", "")), str(given.get("namespace", ""))
    metadata: Object = {**given, "name": name, "resourceVersion": str(version)}
    metadata.setdefault("uid", str(uuid5(OURS, f"{resource.object_kind}/{namespace}/{name}")))
    if owners := given.get("ownerReferences"):
        if resource.object_kind == "Pod":
            owners = [_shown_owner(one, given.get("labels") or {}) for one in owners]
        metadata["ownerReferences"] = [_owner(one, namespace) for one in owners]
    if not given.get("creationTimestamp"):
        metadata["creationTimestamp"] = None
    if resource.object_kind == "Namespace":
        metadata["labels"] = {**(given.get("labels") or {}), NAMESPACE_LABEL: name}
    elif isinstance(made.get("spec"), dict):
        metadata.setdefault("generation", 1)
    if not resource.has_namespace:
        metadata.pop("namespace", None)
    elif not namespace:
        metadata["namespace"] = "default"
    return {
        "apiVersion": resource.api_version,
        "kind": resource.object_kind,
        **_body(resource, made),
        "metadata": metadata,
    }


def _shown_owner(reference: Object, labels: Mapping[str, Any]) -> Object:
    """Between a Deployment and its pods stands the ReplicaSet that is shown of their template."""
    template = labels.get("pod-template-hash")
    if reference.get("kind") != "Deployment" or not template:
        return reference
    return {**reference, "kind": "ReplicaSet", "name": f"{reference['name']}-{template}", "uid": ""}


def _owner(reference: Object, namespace: str) -> Object:
    """By the identity that the owner itself is shown with, unless its manifest gives it one."""
    if "-" in str(reference.get("uid", "-")):
        return reference
    return {**reference, "uid": str(uuid5(OURS, f"{reference.get('kind')}/{namespace}/{reference.get('name')}"))}


def _body(resource: Resource, made: Object) -> Object:
    body = {name: value for name, value in made.items() if name not in ("apiVersion", "kind", "metadata")}
    if usual := USUAL.get(resource.object_kind):
        body["spec"] = {**usual, **(body.get("spec") or {})}
    if resource.object_kind == "Job":
        # By that clients find its pods.
        name = str((made.get("metadata") or {}).get("name", ""))[:63].rstrip("-.")
        body["spec"] = {"selector": {"matchLabels": {"job-name": name}}, **(body.get("spec") or {})}
    if resource.object_kind == "DaemonSet":
        # Clients with types of their own miss them in one that has just begun.
        body["status"] = {**dict.fromkeys(COUNTED, 0), **(body.get("status") or {})}
    return filled(resource.object_kind, body)


def written(made: Object) -> Object:
    """What of an object belongs into a manifest."""
    metadata = {name: value for name, value in (made.get("metadata") or {}).items() if name not in ADDED}
    return {name: value for name, value in made.items() if name not in ("status", "metadata")} | {"metadata": metadata}


def last_applied(made: Object, manager: str = "") -> Object:
    """What `manager` applied last, if it was the last who did; what others apply is not its to take away."""
    annotations = (made.get("metadata") or {}).get("annotations") or {}
    text = annotations.get(LAST_APPLIED)
    if manager and manager != annotations.get(APPLIED_BY, USUAL_MANAGER):
        return {}
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def with_last_applied(made: Object, wanted: Object, manager: str) -> Object:
    metadata = made.get("metadata") or {}
    # As kubectl writes it, which then finds nothing to change.
    copied = {**wanted, "metadata": {"annotations": {}, **(wanted.get("metadata") or {})}}
    text = _text(copied)
    if len(text) > MOST_COPIED:
        # Which fields there were tells what is gone later; what they said is in the object itself.
        text = _text(_names(copied))
    annotations = {**(metadata.get("annotations") or {}), LAST_APPLIED: text, APPLIED_BY: manager}
    if manager == USUAL_MANAGER:
        del annotations[APPLIED_BY]
    return {**made, "metadata": {**metadata, "annotations": annotations}}


def _text(made: Object) -> str:
    return json.dumps(made, sort_keys=True, separators=(",", ":")) + "\n"


def _names(value: Any) -> Any:  # noqa: ANN401  # JSON
    if isinstance(value, dict):
        return {name: _names(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_names(inner) for inner in value]
    return "" if isinstance(value, str) and len(value) > LONGEST_COPIED else value


def managed_fields(made: Object, manager: str) -> list[Object]:
    """Of the one owner that there is."""
    wanted = {name: value for name, value in last_applied(made).items() if name not in ("apiVersion", "kind")}
    if not wanted:
        return []
    entry = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": made.get("apiVersion", "v1"),
        "fieldsType": "FieldsV1",
    }
    return [{**entry, "fieldsV1": _fields(wanted)}]


def _fields(value: Mapping[str, Any]) -> Object:
    return {
        f"f:{name}": _fields(inner) if isinstance(inner, dict) else {}
        for name, inner in value.items()
        if name not in ("name", "namespace") or not isinstance(inner, str)
    }
