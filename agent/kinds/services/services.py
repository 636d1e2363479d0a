# SPDX-License-Identifier: Apache-2.0
"""Services, and what is programmed of them."""

from collections.abc import Iterator, Sequence
from typing import Any

from agent.kinds.described import Described, entries_of, events_of, grid, reason_entries
from agent.kinds.kube_shape import labels_of, manifest_object, service_object
from agent.kinds.pods.manifests import ask_for
from agent.kinds.registry import Kind, Named
from agent.kinds.selection import chosen
from agent.kinds.shown import AnyListing, Ask, Describing, How, Shown, Watch
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import reason_pb2
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


COLUMNS: Columns[pb.Service] = (
    Column("NAMESPACE", lambda one: one.namespace),
    Column("NAME", lambda one: one.name),
    Column("TYPE", lambda one: one.type),
    Column("CLUSTER-IP", lambda one: ",".join(one.cluster_ips)),
    Column("PORTS", _ports),
    Column("USED", _used),
    Column("STATE", _state),
    Column("FINDINGS", lambda one: one.cause or "; ".join(one.findings)),
    Column("EXTERNAL-IP", lambda one: ",".join(one.external_ips), wide=True),
    Column("MODE", lambda one: ",".join(sorted({port.mode for port in one.ports if port.mode})), wide=True),
    Column("CONNECTIONS", lambda one: str(one.connections), wide=True),
    Column("AFFINITY", lambda one: f"{one.affinity_s} s" if one.affinity_s else "", wide=True),
    Column("POLICY", lambda one: one.policies, wide=True),
)


def _asks(kind: Kind, how: How) -> Sequence[Ask]:
    """The manifests of Services are on the node where its source is files; an API server has them elsewhere."""
    services = Ask(f"{SERVICE}/ListServices", pb.ListServicesRequest(), pb.ListServicesResponse)
    return (services, ask_for(kind, may_fail=True)) if how.with_objects else (services,)


def _listing(_kind: Kind, answers: Sequence[Any]) -> AnyListing:
    found = answers[1].objects if len(answers) > 1 and answers[1] is not None else ()
    manifests = {f"{one.namespace}/{one.name}": manifest_object(one) for one in found}

    def manifest(one: pb.Service) -> dict[str, Any]:
        return manifests.get(f"{one.namespace}/{one.name}", {})

    return Listing(
        "Service", answers[0].services, COLUMNS, lambda one: f"service/{one.namespace}/{one.name}", "no Services",
        named=lambda one: Named(one.namespace, one.name),
        labels=lambda one: labels_of(manifest(one)),
        objects=lambda services: [service_object(one, manifest(one)) for one in services],
    )  # fmt: skip


SHOWN = Shown(
    _asks,
    _listing,
    lambda _how: Watch(
        Ask(f"{SERVICE}/WatchServices", pb.WatchServicesRequest(), pb.WatchServicesResponse),
        "service", pb.ListServicesResponse, "services",
    ),
)  # fmt: skip


def describe(kind: Kind, namespace: str, name: str) -> Describing:
    listed = yield Ask(f"{SERVICE}/ListServices", pb.ListServicesRequest(), pb.ListServicesResponse)
    service = chosen(kind, namespace, name, listed.services)
    request = pb.ExplainRouteRequest(service=f"{service.namespace}/{service.name}")
    route = yield Ask(f"{SERVICE}/ExplainRoute", request, pb.ExplainRouteResponse)
    lines = service_lines(service, route.endpoints, route.reasons)
    return Described(tuple(lines), (events_of(service.namespace, service.name),))


def service_lines(
    service: pb.Service, endpoints: Sequence[pb.Endpoint], reasons: Sequence[reason_pb2.Reason] = ()
) -> Iterator[str]:
    affinity = f"ClientIP, {service.affinity_s} s" if service.affinity_s else "None"
    head = (
        ("Name", service.name),
        ("Namespace", service.namespace),
        ("Type", service.type),
        ("IPs", ", ".join(service.cluster_ips) or "none"),
        ("External IPs", ", ".join(service.external_ips)),
        ("Session Affinity", affinity),
        ("Policies", service.policies),
        ("Programmed", "yes" if service.is_programmed else "no"),
        *reason_entries(reasons),
    )
    yield from entries_of("", iter(head))
    yield "Ports:"
    ports = [
        (one.name or "-", f"{one.port}/{one.protocol}", str(one.node_port or "-"), one.family,
         f"{one.used} of {one.total}", one.verdict or "ok")
        for one in service.ports
    ]  # fmt: skip
    yield from grid(("Name", "Port", "NodePort", "Family", "Endpoints Used", "State"), ports)
    yield "Endpoints:" if endpoints else "Endpoints:  <none>"
    rows = [
        (one.endpoint, one.port or "-", one.node or "-", one.state, "yes" if one.is_used else "no", one.reason)
        for one in endpoints
    ]
    yield from grid(("Address", "Port", "Node", "State", "Used", "Why"), rows)
