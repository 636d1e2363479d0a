# SPDX-License-Identifier: Apache-2.0
"""File systems that kepd, containers and images use."""

from agent.kinds.kind import Kind
from agent.kinds.shown import own_kind
from agent.kinds.table import Column, Columns, Object
from agent.model.images.text import bytes_text

KIND = Kind("filesystems", "filesystem", ("fs",), has_namespace=False)


def _bytes(file_system: Object, name: str) -> str:
    return bytes_text(file_system["status"][name]) if file_system["status"]["sizeBytes"] else "-"


def _share(part: int, whole: int) -> str:
    return f"{part / whole * 100:.0f}%" if whole else "-"


def _used_share(file_system: Object) -> str:
    used, available = file_system["status"]["usedBytes"], file_system["status"]["availableBytes"]
    return _share(used, used + available)


def _used_by(file_system: Object) -> str:
    parts = file_system["status"]["usedBy"]
    return ", ".join(f"{use['what']} {bytes_text(use['bytes'])}" for use in parts) or "-"


COLUMNS: Columns[Object] = (
    Column("MOUNT", lambda one: one["status"]["mount"]),
    Column("DEVICE", lambda one: one["status"]["device"]),
    Column("TYPE", lambda one: one["status"]["type"]),
    Column("ROLES", lambda one: ",".join(one["status"]["roles"])),
    Column("SIZE", lambda one: _bytes(one, "sizeBytes")),
    Column("USED", lambda one: _bytes(one, "usedBytes")),
    Column("AVAIL", lambda one: _bytes(one, "availableBytes")),
    Column("USE%", _used_share),
    Column("IUSE%", lambda one: _share(one["status"]["inodes"] - one["status"]["inodesFree"], one["status"]["inodes"])),
    Column("HIGH", lambda one: f"{one['status']['collectsAt']}%" if one["status"]["collectsAt"] else "-"),
    Column("STATE", lambda one: one["status"]["state"]),
    Column("NEXT", lambda one: one["status"]["next"] or "-"),
    Column("MESSAGE", lambda one: one["status"]["message"]),
    Column("USED BY", _used_by, wide=True),
    Column("PATHS", lambda one: ",".join(one["status"]["paths"]), wide=True),
)


SHOWN = own_kind(
    "NodeService", "Filesystem", "none is known", COLUMNS, called=lambda one: f"filesystem/{one['status']['mount']}"
)
