# SPDX-License-Identifier: Apache-2.0
"""StatefulSets."""

from agent.kinds.kind import BY_PODS, POD_PATH, Kind, status_of
from agent.kinds.workloads.workloads import READY, WIDE, describe
from agent.kinds.written import AGE, NAMES, shown_objects

KIND = Kind(
    "statefulsets",
    "statefulset",
    ("sts",),
    "StatefulSet",
    group="apps",
    read_by=BY_PODS,
    is_carried_out=True,
    pod_path=POD_PATH,
    turn=5,
    is_in_all=True,
    subresources=(("scale", "Scale", ("get", "patch", "update")), status_of("StatefulSet")),
)
SHOWN = shown_objects((
    *NAMES,
    READY,
    AGE,
    *WIDE,
))  # fmt: skip
__all__ = ["KIND", "SHOWN", "describe"]
