# SPDX-License-Identifier: Apache-2.0
"""PriorityClasses: names for priorities of pods."""

from agent.kinds.kind import BY_PODS, Kind
from agent.kinds.table import Column
from agent.kinds.written import AGE, NAMES, shown_objects

KIND = Kind(
    "priorityclasses", "priorityclass", ("pc",), "PriorityClass", has_namespace=False, group="scheduling.k8s.io",
    read_by=BY_PODS, turn=0,
)  # fmt: skip
SHOWN = shown_objects((
    NAMES[1],
    Column("VALUE", lambda made: str(made.get("value", 0))),
    Column("GLOBAL-DEFAULT", lambda made: str(bool(made.get("globalDefault"))).lower()),
    AGE,
))  # fmt: skip
