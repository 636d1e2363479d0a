# SPDX-License-Identifier: Apache-2.0
"""Templates that Deployments, DaemonSets and StatefulSets have and had, in kubectl's columns."""

from typing import Any

from agent.kinds.parts import items, part

REVISION = "deployment.kubernetes.io/revision"
CAUSE = "kubernetes.io/change-cause"


def revision_number(made: dict[str, Any]) -> int:
    given = made.get("revision") or part(made, "metadata", "annotations").get(REVISION) or 0
    return int(given)


def owner_of(made: dict[str, Any]) -> tuple[str, str]:
    """Kind and name of what has the template."""
    owner = next(iter(items(made, "metadata", "ownerReferences")), {})
    return str(owner.get("kind", "")), str(owner.get("name", ""))
