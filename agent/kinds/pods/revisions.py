# SPDX-License-Identifier: Apache-2.0
"""Templates that Deployments, DaemonSets and StatefulSets have and had, in kubectl's columns."""

from typing import Any

from agent.kinds.pods.manifests import AGE, NAMES, shown_objects
from agent.kinds.pods.parts import items, part
from agent.kinds.table import Column, Columns, Object

REVISION = "deployment.kubernetes.io/revision"
CAUSE = "kubernetes.io/change-cause"


def revision_number(made: dict[str, Any]) -> int:
    given = made.get("revision") or part(made, "metadata", "annotations").get(REVISION) or 0
    return int(given)


def owner_of(made: dict[str, Any]) -> tuple[str, str]:
    """Kind and name of what has the template."""
    owner = next(iter(items(made, "metadata", "ownerReferences")), {})
    return str(owner.get("kind", "")), str(owner.get("name", ""))


def _count(one: Object, name: str) -> str:
    return str(part(one, "status").get(name, 0))


def _owner(one: Object) -> str:
    kind, name = owner_of(one)
    return f"{kind.lower()}/{name}"


COLUMNS: dict[str, Columns[Object]] = {
    "ReplicaSet": (
        *NAMES,
        Column("DESIRED", lambda one: str(part(one, "spec").get("replicas", 0))),
        Column("CURRENT", lambda one: _count(one, "replicas")),
        Column("READY", lambda one: _count(one, "readyReplicas")),
        AGE,
    ),
    "ControllerRevision": (
        *NAMES,
        Column("CONTROLLER", _owner),
        Column("REVISION", lambda one: str(revision_number(one))),
        AGE,
    ),
}


SHOWN = shown_objects(COLUMNS)
