# SPDX-License-Identifier: Apache-2.0
"""Endpoints of Services, which of them this node uses, and why."""

from agent.kinds.kube_shape import slice_objects
from agent.kinds.registry import Named
from agent.kinds.shown import AnyListing, shown_by
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import service_proxy_pb2 as pb


def _use(one: pb.Endpoint) -> str:
    words = [text for is_on, text in ((one.is_used, "used"), (one.is_used_locally, "local")) if is_on]
    return ", ".join(words) or "no"


COLUMNS: Columns[pb.Endpoint] = (
    Column("SERVICE", lambda one: f"{one.namespace}/{one.service}"),
    Column("PORT", lambda one: f"{one.port or '-'}/{one.protocol}"),
    Column("ENDPOINT", lambda one: one.endpoint),
    Column("NODE", lambda one: one.node),
    Column("STATE", lambda one: one.state),
    Column("USED", _use),
    Column("REASON", lambda one: one.reason, wide=True),
    Column("ZONES", lambda one: ",".join(one.zones), wide=True),
    Column("NODES", lambda one: ",".join(one.nodes), wide=True),
)


def _listing(answer: pb.ListEndpointsResponse) -> AnyListing:
    return Listing(
        "Endpoint", answer.endpoints, COLUMNS, lambda one: f"endpoint/{one.endpoint}", "no endpoints",
        named=lambda one: Named(one.namespace, one.service),
        labels=lambda one: {"kubernetes.io/service-name": one.service},
        grouped=slice_objects,
    )  # fmt: skip


SHOWN = shown_by(
    "kepd.v1.ServiceProxyService/ListEndpoints", pb.ListEndpointsRequest(), pb.ListEndpointsResponse, _listing
)
