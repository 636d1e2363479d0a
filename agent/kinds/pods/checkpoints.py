# SPDX-License-Identifier: Apache-2.0
"""Archives of containers' states."""

from agent.kinds.ages import age
from agent.kinds.kind import Kind
from agent.kinds.shown import own_kind
from agent.kinds.table import Column, Columns, Object
from agent.model.images.text import bytes_text

KIND = Kind("checkpoints", "checkpoint", has_namespace=False)

COLUMNS: Columns[Object] = (
    Column("NAME", lambda checkpoint: checkpoint["metadata"]["name"]),
    Column("STATE", lambda checkpoint: checkpoint["status"]["state"]),
    Column("SIZE", lambda checkpoint: bytes_text(checkpoint["status"]["sizeBytes"])),
    Column("AGE", lambda checkpoint: age(checkpoint["status"].get("madeAt", ""))),
    Column("IMAGE", lambda checkpoint: checkpoint["status"]["image"] or "-"),
    Column("CRIU", lambda checkpoint: checkpoint["status"]["criu"] or "-"),
)


SHOWN = own_kind("PodService", "Checkpoint", "none is there", COLUMNS)
