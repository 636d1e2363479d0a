# SPDX-License-Identifier: Apache-2.0
"""ControllerRevisions: the templates that DaemonSets and StatefulSets have and had."""

from agent.kinds.kind import Kind
from agent.kinds.table import Column, Object
from agent.kinds.workloads.revisions import owner_of, revision_number
from agent.kinds.written import AGE, NAMES, shown_objects

KIND = Kind(
    "controllerrevisions",
    "controllerrevision",
    (),
    "ControllerRevision",
    group="apps",
    is_made=True,
    pod_path=("data", "spec", "template", "spec"),
)


def _owner(made: Object) -> str:
    kind, name = owner_of(made)
    return f"{kind.lower()}/{name}"


SHOWN = shown_objects((
    *NAMES, Column("CONTROLLER", _owner), Column("REVISION", lambda made: str(revision_number(made))), AGE
))  # fmt: skip
