# SPDX-License-Identifier: Apache-2.0
"""Drivers of devices."""

from agent.kinds.shown import AnyListing, shown_by
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import device_pb2 as pb

COLUMNS: Columns[pb.DeviceDriver] = (
    Column("NAME", lambda one: one.name),
    Column("KIND", lambda one: one.kind),
    Column("VERSIONS", lambda one: ", ".join(one.versions)),
    Column("SLICES", lambda one: str(one.slices)),
    Column("DEVICES", lambda one: str(one.devices)),
    Column("STATE", lambda one: one.why_away or "ready"),
    Column("ENDPOINTS", lambda one: ", ".join(one.endpoints), wide=True),
    Column("SERVED BY", lambda one: ", ".join(one.peers), wide=True),
    Column("LAST ERROR", lambda one: one.last_error, wide=True),
)


def _listing(answer: pb.ListDriversResponse) -> AnyListing:
    none = "no driver of devices is registered"
    return Listing("DeviceDriver", answer.drivers, COLUMNS, lambda one: f"driver/{one.name}", none)


SHOWN = shown_by("kepd.v1.DeviceService/ListDrivers", pb.ListDriversRequest(), pb.ListDriversResponse, _listing)
