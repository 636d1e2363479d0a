# SPDX-License-Identifier: Apache-2.0
"""ReplicationControllers, what ReplicaSets were before."""

from agent.kinds.kind import BY_PODS, POD_PATH, Kind, status_of
from agent.kinds.workloads.replicasets import COLUMNS
from agent.kinds.workloads.workloads import describe
from agent.kinds.written import shown_objects

KIND = Kind(
    "replicationcontrollers",
    "replicationcontroller",
    ("rc",),
    "ReplicationController",
    read_by=BY_PODS,
    is_carried_out=True,
    pod_path=POD_PATH,
    turn=3,
    is_in_all=True,
    subresources=(("scale", "Scale", ("get", "patch", "update")), status_of("ReplicationController")),
)
SHOWN = shown_objects(COLUMNS)
__all__ = ["KIND", "SHOWN", "describe"]
