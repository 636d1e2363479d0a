# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of services-normalise.json: API objects in, frontends per family out.

Owns: decoding a case and writing the plans in the form of the vectors.
Never: knows a case by its id.
Rules of which only recorded cases are a test: IN-3, IN-5, IN-7, IN-9, IN-10, IN-14, IN-15, SY-11.
"""

from collections.abc import Iterator

import msgspec

from agent.model.kube_objects import EndpointSlice, Service
from agent.services.objects.addresses import read_address
from agent.services.objects.reading_service import read_service
from agent.services.objects.reading_slice import read_slice, with_defaults
from agent.services.routes.desired import Desired, NodeFacts
from agent.services.routes.frontends import Frontend, PortPlan, ServicePlan, port_name
from agent.services.routes.selection import Place

ORDER = ("service", "protocol", "kind", "ip")


def cases(document: dict) -> Iterator[tuple[str, str, dict, dict]]:
    for case in document["cases"]:
        yield case["id"], "", case, case["expect"]


def check(_kind: str, given: dict, expect: dict) -> None:
    node = given["node"]
    addresses = [read_address(text) for text in node["nodeIPs"].values()]
    actual = {}
    for family in ("IPv4", "IPv6"):
        mine = tuple(one for one in addresses if one is not None and one.family == family)
        desired = Desired(family, NodeFacts(Place(node["name"], node["zone"] or ""), mine))
        for item in given["services"]:
            desired.fold.put_service(read_service(msgspec.convert(item, Service)))
        for item in given["endpointSlices"]:
            desired.fold.put_slice(read_slice(with_defaults(msgspec.convert(item, EndpointSlice))))
        desired.update()
        half = _half(desired)
        if half["clusterIPs"]:
            actual[family] = half
    assert expect == actual


def _half(desired: Desired) -> dict:
    frontends = [
        _frontend(plan, port, one) for plan in desired.plans() for port in plan.ports for one in port.frontends
    ]
    return {
        "clusterIPs": sorted({plan.cluster_ip.text for plan in desired.plans()}),
        "frontends": sorted(frontends, key=lambda one: (*(str(one[key] or "") for key in ORDER), one["port"])),
        "healthCheckNodePorts": {
            str(key): {"port": one.port, "localEndpoints": one.local_endpoints}
            for key, one in desired.health_ports.items()
        },
    }


def _frontend(plan: ServicePlan, port: PortPlan, one: Frontend) -> dict:
    cluster = port.selection.cluster or ()
    outside = (port.selection.local or ()) if one.is_local_policy else cluster
    inside = outside if one.kind == "clusterIP" else cluster
    told = {
        "kind": one.kind,
        "ip": one.ip.text if one.ip is not None else None,
        "protocol": one.protocol,
        "port": one.port,
        "service": port_name(plan.key, port.port.name),
        "policy": "Local" if one.is_local_policy else "Cluster",
        "endpoints": [backend.key for backend in outside],
        "snat": one.snat,
        "noEndpoints": one.verdict or None,
        "affinitySeconds": port.affinity_s,
    }
    if one.kind != "clusterIP":
        told["localClientEndpoints"] = [backend.key for backend in inside]
    if one.kind == "loadBalancer":
        told["sourceRanges"] = [item.text for item in one.ranges]
    return told
