# SPDX-License-Identifier: Apache-2.0
"""Endpoints of Services, which of them this node uses, and why. For programs they are EndpointSlices."""

from agent.kinds.kind import BY_SERVICES, Kind
from agent.kinds.kube_shape import slice_objects
from agent.kinds.shown import Shown
from agent.kinds.table import FACTS, Column, Columns, Object

KIND = Kind(
    "endpoints",
    "endpoint",
    ("ep", "eps", "endpointslices", "endpointslice"),
    "EndpointSlice",
    group="discovery.k8s.io",
    also_written=("Endpoints",),
    read_by=BY_SERVICES,
)


def _use(endpoint: Object) -> str:
    words = [text for name, text in (("isUsed", "used"), ("isUsedLocally", "local")) if endpoint["status"][name]]
    return ", ".join(words) or "no"


COLUMNS: Columns[Object] = (
    Column("SERVICE", lambda one: f"{one['status']['namespace']}/{one['status']['service']}"),
    Column("PORT", lambda one: f"{one['status']['port'] or '-'}/{one['status']['protocol']}"),
    Column("ENDPOINT", lambda one: one["status"]["endpoint"]),
    Column("NODE", lambda one: one["status"]["node"]),
    Column("STATE", lambda one: one["status"]["state"]),
    Column("USED", _use),
    Column("REASON", lambda one: one["status"]["reason"], wide=True),
    Column("ZONES", lambda one: ",".join(one["status"]["zones"]), wide=True),
    Column("NODES", lambda one: ",".join(one["status"]["nodes"]), wide=True),
)


SHOWN = Shown(
    ("kepd.v1.ServiceProxyService",),
    COLUMNS,
    kind="Endpoint",
    empty="no endpoints",
    called=lambda endpoint: f"endpoint/{endpoint['status']['endpoint']}",
    grouped=slice_objects,
    first=lambda made: {"status": made[FACTS]["endpoints"][0]},
)
