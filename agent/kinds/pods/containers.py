# SPDX-License-Identifier: Apache-2.0
"""Containers of pods: a container is its status in its pod, with the pod's name and its own kind beside it."""

from agent.kinds.ages import age
from agent.kinds.kind import Kind
from agent.kinds.pods.pod_parts import id_of, state_of
from agent.kinds.shown import own_kind
from agent.kinds.table import Column, Columns, Object

KIND = Kind("containers", "container")


def _exit(container: Object) -> str:
    word, detail = state_of(container["status"])
    return str(detail.get("exitCode", 0)) if word == "terminated" else ""


def _detail(container: Object, name: str) -> str:
    return str(state_of(container["status"])[1].get(name) or "")


COLUMNS: Columns[Object] = (
    Column("CONTAINER", lambda container: id_of(container["status"])[:13]),
    Column("NAME", lambda container: container["metadata"]["name"]),
    Column("STATE", lambda container: state_of(container["status"])[0].capitalize()),
    Column("REASON", lambda container: _detail(container, "reason")),
    Column("IMAGE", lambda container: container["status"].get("image", "")),
    Column("AGE", lambda container: age(_detail(container, "startedAt"))),
    Column("POD", lambda container: container["spec"]["pod"]),
    Column("EXIT", _exit, wide=True),
)


SHOWN = own_kind(
    "PodService",
    "Container",
    "no containers",
    COLUMNS,
    called=lambda container: f"container/{id_of(container['status'])}",
)
