# SPDX-License-Identifier: Apache-2.0
"""Drivers of devices."""

from agent.kinds.kind import Kind
from agent.kinds.shown import own_kind
from agent.kinds.table import Column, Columns, Object

KIND = Kind("drivers", "driver", has_namespace=False)

COLUMNS: Columns[Object] = (
    Column("NAME", lambda driver: driver["metadata"]["name"]),
    Column("KIND", lambda driver: driver["status"]["kind"]),
    Column("VERSIONS", lambda driver: ", ".join(driver["status"]["versions"])),
    Column("SLICES", lambda driver: str(driver["status"]["slices"])),
    Column("DEVICES", lambda driver: str(driver["status"]["devices"])),
    Column("STATE", lambda driver: driver["status"]["whyAway"] or "ready"),
    Column("ENDPOINTS", lambda driver: ", ".join(driver["status"]["endpoints"]), wide=True),
    Column("SERVED BY", lambda driver: ", ".join(driver["status"]["peers"]), wide=True),
    Column("LAST ERROR", lambda driver: driver["status"]["lastError"], wide=True),
)


SHOWN = own_kind("DeviceService", "DeviceDriver", "no driver of devices is registered", COLUMNS)
