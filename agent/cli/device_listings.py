# SPDX-License-Identifier: Apache-2.0
"""What `kepctl get devices`, `claims`, `drivers` and `cdi` list, and a claim in full."""

from collections.abc import Iterator

from agent.cli.client import Client
from agent.cli.kinds import Named
from agent.cli.plain_rows import age
from agent.cli.table import Column, Columns, Listing
from agent.wire.kepd.v1 import device_pb2 as pb

SERVICE = "kepd.v1.DeviceService"
DEVICE_COLUMNS: Columns[pb.Device] = (
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
CLAIM_COLUMNS: Columns[pb.Claim] = (
    Column("NAMESPACE", lambda one: one.namespace),
    Column("NAME", lambda one: one.name),
    Column("STATE", lambda one: one.state),
    Column("DEVICES", lambda one: ", ".join(one.devices)),
    Column("PODS", lambda one: ", ".join(one.pods)),
    Column("AGE", lambda one: age(one.since)),
    Column("UID", lambda one: one.uid, wide=True),
    Column("LAST ERROR", lambda one: one.last_error, wide=True),
)
DRIVER_COLUMNS: Columns[pb.DeviceDriver] = (
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


CDI_COLUMNS: Columns[pb.CdiDevice] = (
    Column("ID", lambda one: one.id),
    Column("STATE", lambda one: "unusable" if one.refusal else "ready"),
    Column("FILE", lambda one: one.file),
    Column("EDITS", lambda one: "; ".join(one.edits), wide=True),
    Column("MESSAGE", lambda one: one.refusal, wide=True),
)


def list_devices(daemon: Client) -> Listing[pb.Device]:
    answer = daemon.call(f"{SERVICE}/ListDevices", pb.ListDevicesRequest(), pb.ListDevicesResponse)
    none = "no driver publishes devices for this node"
    return Listing("Device", answer.devices, DEVICE_COLUMNS, lambda one: f"device/{one.name}", none)


def list_claims(daemon: Client) -> Listing[pb.Claim]:
    answer = daemon.call(f"{SERVICE}/ListClaims", pb.ListClaimsRequest(), pb.ListClaimsResponse)
    return Listing(
        "Claim",
        answer.claims,
        CLAIM_COLUMNS,
        lambda one: f"claim/{one.namespace}/{one.name}",
        "no claims of devices",
        named=lambda one: Named(one.namespace, one.name),
    )


def list_drivers(daemon: Client) -> Listing[pb.DeviceDriver]:
    answer = daemon.call(f"{SERVICE}/ListDrivers", pb.ListDriversRequest(), pb.ListDriversResponse)
    none = "no driver of devices is registered"
    return Listing("DeviceDriver", answer.drivers, DRIVER_COLUMNS, lambda one: f"driver/{one.name}", none)


def list_cdi(daemon: Client) -> Listing[pb.CdiDevice]:
    answer = daemon.call(f"{SERVICE}/ListCdi", pb.ListCdiRequest(), pb.ListCdiResponse)
    none = "no CDI file of this node has a device"
    return Listing("CdiDevice", answer.devices, CDI_COLUMNS, lambda one: f"cdi/{one.id}", none)


def claim_lines(one: pb.Claim) -> Iterator[str]:
    """For `describe`."""
    yield f"Name:       {one.name}"
    yield f"Namespace:  {one.namespace}"
    yield f"Uid:        {one.uid}"
    yield f"State:      {one.state}" + (f" (for {age(one.since)})" if age(one.since) else "")
    yield f"Made of:    {'a template, for one pod' if one.is_made else 'a manifest of its own'}"
    for title, values in (("Devices:", one.devices), ("Pods:", one.pods)):
        yield f"{title:12}{values[0] if values else '<none>'}"
        yield from (f"{'':12}{value}" for value in values[1:])
    for driver in one.drivers:
        yield f"Driver:     {driver.name}: {driver.stage}"
    if one.last_error:
        yield f"Last error: {one.last_error} ({age(one.failed)} ago)"
