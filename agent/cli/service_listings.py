# SPDX-License-Identifier: Apache-2.0
"""What `kepctl get services`, `endpoints` and `rules` list, and in which columns."""

from collections.abc import Mapping, Sequence
from typing import Any

from agent.cli.client import Client
from agent.cli.kinds import Named
from agent.cli.kube_objects import labels_of, service_object, slice_objects
from agent.cli.table import Column, Columns, Listing
from agent.wire.kepd.v1 import service_proxy_pb2 as pb

SERVICE = "kepd.v1.ServiceProxyService"


def _ports(service: pb.Service) -> str:
    seen: dict[str, None] = {}
    for one in service.ports:
        node_port = f":{one.node_port}" if one.node_port else ""
        seen[f"{one.port}{node_port}/{one.protocol}"] = None
    return ",".join(seen)


def _used(service: pb.Service) -> str:
    worst = min(service.ports, key=lambda one: (one.used, one.total), default=None)
    return f"{worst.used}/{worst.total}" if worst is not None else ""


def _state(service: pb.Service) -> str:
    if not service.is_programmed:
        return "not programmed"
    verdicts = sorted({one.verdict for one in service.ports if one.verdict})
    return "ok" if not verdicts else ", ".join(verdicts)


SERVICE_COLUMNS: Columns[pb.Service] = (
    Column("NAMESPACE", lambda one: one.namespace),
    Column("NAME", lambda one: one.name),
    Column("TYPE", lambda one: one.type),
    Column("CLUSTER-IP", lambda one: ",".join(one.cluster_ips)),
    Column("PORTS", _ports),
    Column("USED", _used),
    Column("STATE", _state),
    Column("FINDINGS", lambda one: "; ".join(one.findings)),
    Column("EXTERNAL-IP", lambda one: ",".join(one.external_ips), wide=True),
    Column("MODE", lambda one: ",".join(sorted({port.mode for port in one.ports if port.mode})), wide=True),
    Column("CONNECTIONS", lambda one: str(one.connections), wide=True),
    Column("AFFINITY", lambda one: f"{one.affinity_s} s" if one.affinity_s else "", wide=True),
    Column("POLICY", lambda one: one.policies, wide=True),
)


def _use(one: pb.Endpoint) -> str:
    words = [text for is_on, text in ((one.is_used, "used"), (one.is_used_locally, "local")) if is_on]
    return ", ".join(words) or "no"


ENDPOINT_COLUMNS: Columns[pb.Endpoint] = (
    Column("SERVICE", lambda one: f"{one.namespace}/{one.service}"),
    Column("PORT", lambda one: f"{one.port or '-'}/{one.protocol}"),
    Column("ENDPOINT", lambda one: one.endpoint),
    Column("NODE", lambda one: one.node),
    Column("STATE", lambda one: one.state),
    Column("USED", _use),
    Column("REASON", lambda one: f"{one.reason} ({one.rule})", wide=True),
    Column("ZONES", lambda one: ",".join(one.zones), wide=True),
    Column("NODES", lambda one: ",".join(one.nodes), wide=True),
)

RULE_COLUMNS: Columns[pb.Rule] = (
    Column("FAMILY", lambda one: one.family),
    Column("MAP", lambda one: one.map),
    Column("KEY", lambda one: one.key),
    Column("LEADS TO", lambda one: one.data),
    Column("SERVICE", lambda one: one.service),
)


def service_name(one: pb.Service) -> str:
    return f"service/{one.namespace}/{one.name}"


def list_services(daemon: Client, manifests: Mapping[str, dict[str, Any]] | None = None) -> Listing[pb.Service]:
    answer = daemon.call(f"{SERVICE}/ListServices", pb.ListServicesRequest(), pb.ListServicesResponse)
    return service_listing(answer.services, manifests or {})


def service_listing(services: Sequence[pb.Service], manifests: Mapping[str, dict[str, Any]]) -> Listing[pb.Service]:
    """`manifests`: those of Services that have one on this node, by `namespace/name`."""

    def manifest(one: pb.Service) -> dict[str, Any]:
        return manifests.get(f"{one.namespace}/{one.name}", {})

    return Listing(
        "Service", services, SERVICE_COLUMNS, service_name, "no Services",
        named=lambda one: Named(one.namespace, one.name),
        labels=lambda one: labels_of(manifest(one)),
        objects=lambda services: [service_object(one, manifest(one)) for one in services],
    )  # fmt: skip


def list_endpoints(daemon: Client) -> Listing[pb.Endpoint]:
    answer = daemon.call(f"{SERVICE}/ListEndpoints", pb.ListEndpointsRequest(), pb.ListEndpointsResponse)
    return Listing(
        "Endpoint", answer.endpoints, ENDPOINT_COLUMNS, lambda one: f"endpoint/{one.endpoint}", "no endpoints",
        named=lambda one: Named(one.namespace, one.service),
        labels=lambda one: {"kubernetes.io/service-name": one.service},
        objects=slice_objects,
    )  # fmt: skip


def list_rules(daemon: Client, service: str = "", *, is_desired: bool = False) -> Listing[pb.Rule]:
    request = pb.ListRulesRequest(service=service, desired=is_desired)
    answer = daemon.call(f"{SERVICE}/ListRules", request, pb.ListRulesResponse)
    return Listing("Rule", answer.rules, RULE_COLUMNS, lambda one: f"rule/{one.map}/{one.key}", "no rules")
