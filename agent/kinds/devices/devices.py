# SPDX-License-Identifier: Apache-2.0
"""Devices that drivers publish for this node, and whose they are."""

from agent.kinds.ages import age
from agent.kinds.kind import Kind
from agent.kinds.shown import own_kind
from agent.kinds.table import Column, Columns, Object

KIND = Kind("devices", "device", ("dev",), has_namespace=False)

COLUMNS: Columns[Object] = (
    Column("NAME", lambda device: device["metadata"]["name"]),
    Column("STATE", lambda device: device["status"]["state"]),
    Column("CLAIM", lambda device: ", ".join(device["status"]["claims"])),
    Column("POD", lambda device: ", ".join(device["status"]["pods"])),
    Column("SINCE", lambda device: age(device["status"].get("since", ""))),
    Column("ATTRIBUTES", lambda device: " ".join(device["status"]["attributes"]), wide=True),
    Column("LEFT", lambda device: " ".join(device["status"]["capacity"]), wide=True),
    Column("CDI", lambda device: " ".join(device["status"]["cdiIds"]), wide=True),
    Column("MESSAGE", lambda device: device["status"]["message"], wide=True),
)


SHOWN = own_kind("DeviceService", "Device", "no driver publishes devices for this node", COLUMNS)
