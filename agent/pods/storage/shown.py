# SPDX-License-Identifier: Apache-2.0
"""Claims, volumes and classes as people see them: their status, and those that no manifest has."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agent.pods.storage.binding import ClaimRecord, Storage, Unbound, default_class, reclaim_policy
from agent.pods.storage.objects import CLAIM, CLASS, OWN_CLASS, OWN_PROVISIONER, RETAIN, VERSIONS, VOLUME

Content = dict[str, Any]
KEPD = "kepd"


def claim_status(record: ClaimRecord | None, unbound: Unbound | None, *, is_lost: bool) -> Content:
    """With what an API server would write into its spec."""
    if record is None:
        return {"phase": "Pending"} | ({"message": unbound.text} if unbound is not None else {})
    phase = "Lost" if is_lost else "Bound"
    capacity = {"capacity": {"storage": record.size}} if record.size else {}
    spec = {"volumeName": record.volume, "storageClassName": record.storage_class}
    return {"phase": phase, "accessModes": list(record.modes), **capacity, "spec": spec}


def volume_status(record: ClaimRecord | None) -> Content:
    if record is None:
        return {"phase": "Available"}
    reference = {"kind": CLAIM, "apiVersion": "v1", "namespace": record.namespace, "name": record.name}
    return {"phase": "Released" if record.is_released else "Bound", "spec": {"claimRef": reference}}


def made_objects(records: Iterable[ClaimRecord], storage: Storage) -> Iterator[tuple[str, Content]]:
    """Each with who made it: claims of StatefulSets, directories, and the class that kepd has by itself."""
    if OWN_CLASS not in storage.classes:
        own = default_class(storage.classes)
        yield KEPD, _class_object(is_default=own.name == OWN_CLASS)
    for record in records:
        if record.is_directory and record.volume not in storage.volumes:
            yield KEPD, _volume_object(record)
        if record.maker and not record.is_released and record.key not in storage.claims:
            yield record.maker, _claim_object(record)


def _claim_object(record: ClaimRecord) -> Content:
    return {
        "apiVersion": VERSIONS[CLAIM],
        "kind": CLAIM,
        "metadata": {"name": record.name, "namespace": record.namespace, **_labels(record.labels)},
        "spec": {"accessModes": list(record.modes), "resources": {"requests": {"storage": record.size}}},
    }


def _volume_object(record: ClaimRecord) -> Content:
    return {
        "apiVersion": VERSIONS[VOLUME],
        "kind": VOLUME,
        "metadata": {"name": record.volume},
        "spec": {
            "capacity": {"storage": record.size},
            "accessModes": list(record.modes),
            "persistentVolumeReclaimPolicy": reclaim_policy(record),
            "storageClassName": record.storage_class,
            "hostPath": {"path": record.path, "type": "Directory"},
        },
    }


def _class_object(*, is_default: bool) -> Content:
    marks = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}} if is_default else {}
    return {
        "apiVersion": VERSIONS[CLASS],
        "kind": CLASS,
        "metadata": {"name": OWN_CLASS, **marks},
        "provisioner": OWN_PROVISIONER,
        "reclaimPolicy": RETAIN,
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": True,
    }


def _labels(labels: Mapping[str, str]) -> Content:
    return {"labels": dict(labels)} if labels else {}
