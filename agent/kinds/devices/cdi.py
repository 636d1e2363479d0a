# SPDX-License-Identifier: Apache-2.0
"""Devices of CDI files."""

from agent.kinds.shown import AnyListing, shown_by
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import device_pb2 as pb

COLUMNS: Columns[pb.CdiDevice] = (
    Column("ID", lambda one: one.id),
    Column("STATE", lambda one: "unusable" if one.refusal else "ready"),
    Column("FILE", lambda one: one.file),
    Column("EDITS", lambda one: "; ".join(one.edits), wide=True),
    Column("MESSAGE", lambda one: one.refusal, wide=True),
)


def _listing(answer: pb.ListCdiResponse) -> AnyListing:
    none = "no CDI file of this node has a device"
    return Listing("CdiDevice", answer.devices, COLUMNS, lambda one: f"cdi/{one.id}", none)


SHOWN = shown_by("kepd.v1.DeviceService/ListCdi", pb.ListCdiRequest(), pb.ListCdiResponse, _listing)
