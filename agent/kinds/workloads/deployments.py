# SPDX-License-Identifier: Apache-2.0
"""Deployments."""

from agent.kinds.kind import BY_PODS, POD_PATH, Kind, status_of
from agent.kinds.table import Column
from agent.kinds.workloads.workloads import READY, WIDE, count_of, describe
from agent.kinds.written import AGE, NAMES, shown_objects

KIND = Kind(
    "deployments",
    "deployment",
    ("deploy",),
    "Deployment",
    group="apps",
    read_by=BY_PODS,
    is_carried_out=True,
    pod_path=POD_PATH,
    turn=3,
    is_in_all=True,
    subresources=(("scale", "Scale", ("get", "patch", "update")), status_of("Deployment")),
)
SHOWN = shown_objects((
    *NAMES,
    READY,
    Column("UP-TO-DATE", lambda made: str(count_of(made, "updatedReplicas"))),
    Column("AVAILABLE", lambda made: str(count_of(made, "availableReplicas"))),
    AGE,
    *WIDE,
))  # fmt: skip
__all__ = ["KIND", "SHOWN", "describe"]
