# SPDX-License-Identifier: Apache-2.0
"""Claims of devices."""

from collections.abc import Iterator

from agent.kinds.ages import age
from agent.kinds.described import Described, events_of_object
from agent.kinds.kind import BY_DEVICES, Kind
from agent.kinds.selection import chosen
from agent.kinds.shown import Describing, Objects, own_kind
from agent.kinds.table import Column, Columns, Object, names_of

KIND = Kind(
    "claims", "claim", ("resourceclaims", "resourceclaim"), "ResourceClaim", group="resource.k8s.io", read_by=BY_DEVICES
)

SERVICE = "kepd.v1.DeviceService"
COLUMNS: Columns[Object] = (
    Column("NAMESPACE", lambda claim: names_of(claim)[0]),
    Column("NAME", lambda claim: names_of(claim)[1]),
    Column("STATE", lambda claim: claim["status"]["state"]),
    Column("DEVICES", lambda claim: ", ".join(claim["status"]["devices"])),
    Column("PODS", lambda claim: ", ".join(claim["status"]["pods"])),
    Column("AGE", lambda claim: age(claim["status"].get("since", ""))),
    Column("UID", lambda claim: claim["status"]["uid"], wide=True),
    Column("LAST ERROR", lambda claim: claim["status"]["lastError"], wide=True),
)


SHOWN = own_kind("DeviceService", "Claim", "no claims of devices", COLUMNS)


def describe(kind: Kind, namespace: str, name: str) -> Describing:
    claims = yield Objects(SERVICE, kind.plural)
    claim = chosen(kind, namespace, name, claims)
    return Described(tuple(claim_lines(claim)), (events_of_object(claim),))


def claim_lines(claim: Object) -> Iterator[str]:
    (namespace, name), status = names_of(claim), claim["status"]
    since = age(status.get("since", ""))
    yield f"Name:       {name}"
    yield f"Namespace:  {namespace}"
    yield f"Uid:        {status['uid']}"
    yield f"State:      {status['state']}" + (f" (for {since})" if since else "")
    yield f"Made of:    {'a template, for one pod' if status['isMade'] else 'a manifest of its own'}"
    for title, values in (("Devices:", status["devices"]), ("Pods:", status["pods"])):
        yield f"{title:12}{values[0] if values else '<none>'}"
        yield from (f"{'':12}{value}" for value in values[1:])
    for driver in status["drivers"]:
        yield f"Driver:     {driver['name']}: {driver['stage']}"
    if status["lastError"]:
        yield f"Last error: {status['lastError']} ({age(status.get('failed', ''))} ago)"
