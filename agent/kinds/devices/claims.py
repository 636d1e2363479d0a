# SPDX-License-Identifier: Apache-2.0
"""Claims of devices."""

from collections.abc import Iterator

from agent.kinds.ages import age
from agent.kinds.described import Described, events_of
from agent.kinds.registry import Kind, Named
from agent.kinds.selection import chosen
from agent.kinds.shown import AnyListing, Ask, Describing, shown_by
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import device_pb2 as pb

COLUMNS: Columns[pb.Claim] = (
    Column("NAMESPACE", lambda one: one.namespace),
    Column("NAME", lambda one: one.name),
    Column("STATE", lambda one: one.state),
    Column("DEVICES", lambda one: ", ".join(one.devices)),
    Column("PODS", lambda one: ", ".join(one.pods)),
    Column("AGE", lambda one: age(one.since)),
    Column("UID", lambda one: one.uid, wide=True),
    Column("LAST ERROR", lambda one: one.last_error, wide=True),
)


def _listing(answer: pb.ListClaimsResponse) -> AnyListing:
    return Listing(
        "Claim", answer.claims, COLUMNS, lambda one: f"claim/{one.namespace}/{one.name}", "no claims of devices",
        named=lambda one: Named(one.namespace, one.name),
    )  # fmt: skip


SHOWN = shown_by("kepd.v1.DeviceService/ListClaims", pb.ListClaimsRequest(), pb.ListClaimsResponse, _listing)


def describe(kind: Kind, namespace: str, name: str) -> Describing:
    claims = (yield Ask("kepd.v1.DeviceService/ListClaims", pb.ListClaimsRequest(), pb.ListClaimsResponse)).claims
    claim = chosen(kind, namespace, name, claims)
    return Described(tuple(claim_lines(claim)), (events_of(claim.namespace, claim.name),))


def claim_lines(one: pb.Claim) -> Iterator[str]:
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
