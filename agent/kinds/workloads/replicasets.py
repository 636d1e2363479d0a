# SPDX-License-Identifier: Apache-2.0
"""ReplicaSets: the templates that Deployments have and had."""

from agent.kinds.kind import POD_PATH, Kind
from agent.kinds.parts import part
from agent.kinds.table import Column
from agent.kinds.workloads.workloads import count_of
from agent.kinds.written import AGE, NAMES, shown_objects

KIND = Kind("replicasets", "replicaset", ("rs",), "ReplicaSet", group="apps", is_made=True, pod_path=POD_PATH)
SHOWN = shown_objects((
    *NAMES,
    Column("DESIRED", lambda made: str(part(made, "spec").get("replicas", 0))),
    Column("CURRENT", lambda made: str(count_of(made, "replicas"))),
    Column("READY", lambda made: str(count_of(made, "readyReplicas"))),
    AGE,
))  # fmt: skip
