# SPDX-License-Identifier: Apache-2.0
"""Devices that drivers publish for this node, and whose they are."""

from agent.kinds.ages import age
from agent.kinds.shown import AnyListing, shown_by
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import device_pb2 as pb

COLUMNS: Columns[pb.Device] = (
    Column("NAME", lambda one: one.name),
    Column("STATE", lambda one: one.state),
    Column("CLAIM", lambda one: ", ".join(one.claims)),
    Column("POD", lambda one: ", ".join(one.pods)),
    Column("SINCE", lambda one: age(one.since)),
    Column("ATTRIBUTES", lambda one: " ".join(one.attributes), wide=True),
    Column("LEFT", lambda one: " ".join(one.capacity), wide=True),
    Column("CDI", lambda one: " ".join(one.cdi_ids), wide=True),
    Column("MESSAGE", lambda one: one.message, wide=True),
)


def _listing(answer: pb.ListDevicesResponse) -> AnyListing:
    none = "no driver publishes devices for this node"
    return Listing("Device", answer.devices, COLUMNS, lambda one: f"device/{one.name}", none)


SHOWN = shown_by("kepd.v1.DeviceService/ListDevices", pb.ListDevicesRequest(), pb.ListDevicesResponse, _listing)
