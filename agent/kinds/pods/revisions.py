# SPDX-License-Identifier: Apache-2.0
"""Templates that Deployments, DaemonSets and StatefulSets have and had, in kubectl's columns."""

import json
from collections.abc import Sequence
from typing import Any

from agent.kinds.ages import age
from agent.kinds.pods.manifests import ask_for, object_listing
from agent.kinds.pods.parts import created_at, items, part
from agent.kinds.registry import Kind
from agent.kinds.shown import AnyListing, Shown
from agent.kinds.table import Column, Columns
from agent.wire.kepd.v1 import object_pb2 as pb

REVISION = "deployment.kubernetes.io/revision"
CAUSE = "kubernetes.io/change-cause"


def revision_number(made: dict[str, Any]) -> int:
    given = made.get("revision") or part(made, "metadata", "annotations").get(REVISION) or 0
    return int(given)


def owner_of(made: dict[str, Any]) -> tuple[str, str]:
    """Kind and name of what has the template."""
    owner = next(iter(items(made, "metadata", "ownerReferences")), {})
    return str(owner.get("kind", "")), str(owner.get("name", ""))


def _count(one: pb.Object, name: str) -> str:
    return str(part(json.loads(one.content), "status").get(name, 0))


def _owner(one: pb.Object) -> str:
    kind, name = owner_of(json.loads(one.content))
    return f"{kind.lower()}/{name}"


NAMES: Columns[pb.Object] = (
    Column("NAMESPACE", lambda one: one.namespace or "-"),
    Column("NAME", lambda one: one.name),
)
AGE: Column[pb.Object] = Column("AGE", lambda one: age(created_at(json.loads(one.content))))
COLUMNS: dict[str, Columns[pb.Object]] = {
    "ReplicaSet": (
        *NAMES,
        Column("DESIRED", lambda one: str(part(json.loads(one.content), "spec").get("replicas", 0))),
        Column("CURRENT", lambda one: _count(one, "replicas")),
        Column("READY", lambda one: _count(one, "readyReplicas")),
        AGE,
    ),
    "ControllerRevision": (
        *NAMES,
        Column("CONTROLLER", _owner),
        Column("REVISION", lambda one: str(revision_number(json.loads(one.content)))),
        AGE,
    ),
}


def _listing(kind: Kind, answers: Sequence[Any]) -> AnyListing:
    return object_listing(kind, answers[0].objects, COLUMNS[kind.api])


SHOWN = Shown(lambda kind, _how: (ask_for(kind),), _listing)
