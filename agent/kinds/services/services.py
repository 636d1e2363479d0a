# SPDX-License-Identifier: Apache-2.0
"""Services, and what is programmed of them."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from agent.kinds.described import Described, entries_of, events_of_object, grid, reason_entries
from agent.kinds.kind import BY_SERVICES, Kind, proxy_of, status_of
from agent.kinds.kube_shape import service_object
from agent.kinds.parts import items, part
from agent.kinds.selection import chosen
from agent.kinds.shown import Ask, Describing, Objects, Shown
from agent.kinds.table import FACTS, Column, Columns, Object, names_of

if TYPE_CHECKING:
    from agent.wire.kepd.v1 import reason_pb2
    from agent.wire.kepd.v1 import service_proxy_pb2 as pb

KIND = Kind(
    "services",
    "service",
    ("svc",),
    "Service",
    read_by=BY_SERVICES,
    turn=1,
    is_in_all=True,
    subresources=(proxy_of("ServiceProxyOptions"), status_of("Service")),
)

SERVICE = "kepd.v1.ServiceProxyService"


def ports_of(service: Object) -> list[Object]:
    """As they are programmed, in each family."""
    return items(service, FACTS, "ports")


def _texts(service: Object, name: str) -> list[str]:
    return part(service, FACTS).get(name) or []


def _told(service: Object, name: str) -> str:
    return str(part(service, FACTS).get(name) or "")


def _ports(service: Object) -> str:
    seen: dict[str, None] = {}
    for port in ports_of(service):
        node_port = f":{port['nodePort']}" if port["nodePort"] else ""
        seen[f"{port['port']}{node_port}/{port['protocol']}"] = None
    return ",".join(seen)


def _used(service: Object) -> str:
    worst = min(ports_of(service), key=lambda port: (port["used"], port["total"]), default=None)
    return f"{worst['used']}/{worst['total']}" if worst is not None else ""


def _state(service: Object) -> str:
    if not is_programmed(service):
        return "not programmed"
    verdicts = sorted({port["verdict"] for port in ports_of(service) if port["verdict"]})
    return "ok" if not verdicts else ", ".join(verdicts)


def is_programmed(service: Object) -> bool:
    return bool(part(service, FACTS).get("isProgrammed"))


def affinity_s(service: Object) -> int:
    return int(part(service, FACTS).get("affinitySeconds") or 0)


COLUMNS: Columns[Object] = (
    Column("NAMESPACE", lambda service: names_of(service)[0]),
    Column("NAME", lambda service: names_of(service)[1]),
    Column("TYPE", lambda service: _told(service, "type")),
    Column("CLUSTER-IP", lambda service: ",".join(_texts(service, "clusterIps"))),
    Column("PORTS", _ports),
    Column("USED", _used),
    Column("STATE", _state),
    Column("FINDINGS", lambda service: _told(service, "cause") or "; ".join(_texts(service, "findings"))),
    Column("EXTERNAL-IP", lambda service: ",".join(_texts(service, "externalIps")), wide=True),
    Column("MODE", lambda service: ",".join(sorted({port["mode"] for port in ports_of(service)} - {""})), wide=True),
    Column("CONNECTIONS", lambda service: str(part(service, FACTS).get("connections", 0)), wide=True),
    Column("AFFINITY", lambda service: f"{affinity_s(service)} s" if affinity_s(service) else "", wide=True),
    Column("POLICY", lambda service: _told(service, "policies"), wide=True),
)


SHOWN = Shown(
    (SERVICE,), COLUMNS, empty="no Services", joined=service_object, is_watched=True, shows_last=False
)  # fmt: skip


def describe(kind: Kind, namespace: str, name: str) -> Describing:
    from agent.wire.kepd.v1 import service_proxy_pb2 as pb

    services = yield Objects(SERVICE, kind.plural)
    service = chosen(kind, namespace, name, services)
    request = pb.ExplainRouteRequest(service="/".join(names_of(service)))
    route = yield Ask(f"{SERVICE}/ExplainRoute", request, pb.ExplainRouteResponse)
    lines = service_lines(service, route.endpoints, route.reasons)
    return Described(tuple(lines), (events_of_object(service),))


def service_lines(
    service: Object, endpoints: "Sequence[pb.Endpoint]", reasons: "Sequence[reason_pb2.Reason]" = ()
) -> Iterator[str]:
    seconds = affinity_s(service)
    namespace, name = names_of(service)
    head = (
        ("Name", name),
        ("Namespace", namespace),
        ("Type", _told(service, "type")),
        ("IPs", ", ".join(_texts(service, "clusterIps")) or "none"),
        ("External IPs", ", ".join(_texts(service, "externalIps"))),
        ("Session Affinity", f"ClientIP, {seconds} s" if seconds else "None"),
        ("Policies", _told(service, "policies")),
        ("Programmed", "yes" if is_programmed(service) else "no"),
        *reason_entries(reasons),
    )
    yield from entries_of("", iter(head))
    yield "Ports:"
    ports = [
        (port["name"] or "-", f"{port['port']}/{port['protocol']}", str(port["nodePort"] or "-"), port["family"],
         f"{port['used']} of {port['total']}", port["verdict"] or "ok")
        for port in ports_of(service)
    ]  # fmt: skip
    yield from grid(("Name", "Port", "NodePort", "Family", "Endpoints Used", "State"), ports)
    yield "Endpoints:" if endpoints else "Endpoints:  <none>"
    rows = [
        (one.endpoint, one.port or "-", one.node or "-", one.state, "yes" if one.is_used else "no", one.reason)
        for one in endpoints
    ]
    yield from grid(("Address", "Port", "Node", "State", "Used", "Why"), rows)
