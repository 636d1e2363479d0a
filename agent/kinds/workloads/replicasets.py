# SPDX-License-Identifier: Apache-2.0
"""ReplicaSets: those that somebody wrote, and the templates that Deployments have and had."""

from agent.kinds.kind import BY_PODS, POD_PATH, Kind, status_of
from agent.kinds.parts import part
from agent.kinds.table import Column, Columns, Object
from agent.kinds.workloads.workloads import WIDE, count_of, describe
from agent.kinds.written import AGE, NAMES, shown_objects

KIND = Kind(
    "replicasets",
    "replicaset",
    ("rs",),
    "ReplicaSet",
    group="apps",
    read_by=BY_PODS,
    is_carried_out=True,
    is_also_made=True,
    pod_path=POD_PATH,
    turn=3,
    is_in_all=True,
    subresources=(("scale", "Scale", ("get", "patch", "update")), status_of("ReplicaSet")),
)
COLUMNS: Columns[Object] = (
    *NAMES,
    Column("DESIRED", lambda made: str(part(made, "spec").get("replicas", 1))),
    Column("CURRENT", lambda made: str(count_of(made, "replicas"))),
    Column("READY", lambda made: str(count_of(made, "readyReplicas"))),
    AGE,
    *WIDE,
)
SHOWN = shown_objects(COLUMNS)
__all__ = ["COLUMNS", "KIND", "SHOWN", "describe"]
