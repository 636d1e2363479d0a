# SPDX-License-Identifier: Apache-2.0
"""The chain of hosts of each registry, as containerd's configuration has it."""

from agent.kinds.kind import Kind
from agent.kinds.shown import own_kind
from agent.kinds.table import Column, Columns, Object

KIND = Kind("mirrors", "mirror", has_namespace=False)

COLUMNS: Columns[Object] = (
    Column("REGISTRY", lambda mirror: mirror["status"]["registry"]),
    Column("URL", lambda mirror: mirror["status"]["url"]),
    Column("CAPABILITIES", lambda mirror: ",".join(mirror["status"]["capabilities"])),
    Column("SOURCE", lambda mirror: mirror["status"]["source"]),
    Column("PROBLEM", lambda mirror: mirror["status"]["problem"]),
)


SHOWN = own_kind("ImageService", "Mirror", "no mirrors", COLUMNS)
