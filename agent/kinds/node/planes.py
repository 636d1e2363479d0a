# SPDX-License-Identifier: Apache-2.0
"""Planes of the daemon, and how each of them is."""

from agent.kinds.ages import age
from agent.kinds.kind import Kind
from agent.kinds.shown import own_kind
from agent.kinds.table import Column, Columns, Object

KIND = Kind("planes", "plane", has_namespace=False)

COLUMNS: Columns[Object] = (
    Column("PLANE", lambda plane: plane["metadata"]["name"]),
    Column("STATE", lambda plane: plane["status"]["state"]),
    Column("SINCE", lambda plane: age(plane["status"].get("since", ""))),
    Column("RESTARTS", lambda plane: str(plane["status"]["restarts"])),
    Column("MESSAGE", lambda plane: plane["status"]["message"]),
)


SHOWN = own_kind("NodeService", "Plane", "", COLUMNS)
