# SPDX-License-Identifier: Apache-2.0
"""Devices of CDI files."""

from agent.kinds.kind import Kind
from agent.kinds.shown import own_kind
from agent.kinds.table import Column, Columns, Object

KIND = Kind("cdi", "cdidevice", has_namespace=False)

COLUMNS: Columns[Object] = (
    Column("ID", lambda device: device["metadata"]["name"]),
    Column("STATE", lambda device: "unusable" if device["status"]["refusal"] else "ready"),
    Column("FILE", lambda device: device["status"]["file"]),
    Column("EDITS", lambda device: "; ".join(device["status"]["edits"]), wide=True),
    Column("MESSAGE", lambda device: device["status"]["refusal"], wide=True),
)


SHOWN = own_kind(
    "DeviceService",
    "CdiDevice",
    "no CDI file of this node has a device",
    COLUMNS,
    called=lambda device: f"cdi/{device['metadata']['name']}",
)
