# SPDX-License-Identifier: Apache-2.0
"""ResourceQuotas: what the pods of a namespace may have together."""

from agent.kinds.kind import BY_PODS, Kind, status_of
from agent.kinds.parts import part
from agent.kinds.table import Column, Object
from agent.kinds.written import AGE, NAMES, shown_objects

KIND = Kind(
    "resourcequotas", "resourcequota", ("quota",), "ResourceQuota", read_by=BY_PODS, is_carried_out=True,
    subresources=(status_of("ResourceQuota"),),
)  # fmt: skip


def _used(made: Object, limits: bool) -> str:
    hard, used = part(made, "spec", "hard"), part(made, "status", "used")
    names = (name for name in hard if name.startswith("limits.") == limits)
    return ", ".join(f"{name}: {used.get(name, '?')}/{hard[name]}" for name in names)


SHOWN = shown_objects((
    *NAMES,
    Column("REQUEST", lambda made: _used(made, False)),
    Column("LIMIT", lambda made: _used(made, True)),
    AGE,
))  # fmt: skip
