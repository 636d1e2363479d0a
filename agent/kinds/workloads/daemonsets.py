# SPDX-License-Identifier: Apache-2.0
"""DaemonSets."""

from agent.kinds.kind import BY_PODS, POD_PATH, Kind, status_of
from agent.kinds.table import Column
from agent.kinds.workloads.workloads import WIDE, count_of, describe
from agent.kinds.written import AGE, NAMES, shown_objects

KIND = Kind(
    "daemonsets",
    "daemonset",
    ("ds",),
    "DaemonSet",
    group="apps",
    read_by=BY_PODS,
    is_carried_out=True,
    pod_path=POD_PATH,
    turn=4,
    is_in_all=True,
    subresources=(status_of("DaemonSet"),),
)
SHOWN = shown_objects((
    *NAMES,
    Column("DESIRED", lambda made: str(count_of(made, "desiredNumberScheduled"))),
    Column("CURRENT", lambda made: str(count_of(made, "currentNumberScheduled"))),
    Column("READY", lambda made: str(count_of(made, "numberReady"))),
    Column("UP-TO-DATE", lambda made: str(count_of(made, "updatedNumberScheduled"))),
    Column("AVAILABLE", lambda made: str(count_of(made, "numberAvailable"))),
    AGE,
    *WIDE,
))  # fmt: skip
__all__ = ["KIND", "SHOWN", "describe"]
