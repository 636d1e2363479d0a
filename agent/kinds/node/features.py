# SPDX-License-Identifier: Apache-2.0
"""Enhancements of Kubernetes, and what has them here."""

from agent.kinds.kind import Kind
from agent.kinds.shown import own_kind
from agent.kinds.table import Column, Columns, Object

KIND = Kind("features", "feature", has_namespace=False)

COLUMNS: Columns[Object] = (
    Column("KEP", lambda feature: feature["status"]["keps"] or "-"),
    Column("WHAT", lambda feature: feature["status"]["what"]),
    Column("STATE", lambda feature: feature["status"]["state"]),
    Column("WHY", lambda feature: feature["status"]["why"]),
)


SHOWN = own_kind("NodeService", "Feature", "none is known", COLUMNS)
