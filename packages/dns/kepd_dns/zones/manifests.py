# SPDX-License-Identifier: Apache-2.0
"""What Services and EndpointSlices of manifests are called (section 7 of the specification of names)."""

from collections.abc import Iterable, Iterator

from agent.model.kube_objects import EndpointObject, EndpointSlice, Service
from kepd_dns.handover.state import EndpointName, Port, ServiceName

NONE = "None"


def service_names(services: Iterable[Service], slices: Iterable[EndpointSlice]) -> Iterator[ServiceName]:
    """As manifests mean them. Endpoints are those that are ready, which is also said of all where a Service asks for
    it."""
    of_service: dict[tuple[str, str], list[EndpointSlice]] = {}
    for one in slices:
        labels = one.metadata.labels
        if labels is not None and labels.service_name:
            of_service.setdefault((one.metadata.namespace, labels.service_name), []).append(one)
    for service in services:
        namespace, name, spec = service.metadata.namespace, service.metadata.name, service.spec
        ports = tuple(Port(one.port, one.name, one.protocol.lower()) for one in spec.ports or ())
        if spec.type == "ExternalName":
            yield ServiceName(namespace, name, external=spec.external_name)
        elif spec.cluster_ip == NONE:
            endpoints = tuple(_endpoints(of_service.get((namespace, name), ())))
            yield ServiceName(namespace, name, ports=ports, is_headless=True, endpoints=endpoints)
        elif spec.cluster_ip:
            addresses = tuple(spec.cluster_ips or (spec.cluster_ip,))
            yield ServiceName(namespace, name, addresses=addresses, ports=ports)


def _endpoints(slices: Iterable[EndpointSlice]) -> Iterator[EndpointName]:
    seen = set()
    for piece in slices:
        ports = tuple(
            Port(one.port, one.name or "", (one.protocol or "TCP").lower()) for one in piece.ports or () if one.port
        )
        for one in piece.endpoints or ():
            if one.addresses and _is_ready(one):
                found = EndpointName(one.addresses[0], one.hostname or "", ports)
                if found not in seen:
                    seen.add(found)
                    yield found


def _is_ready(endpoint: EndpointObject) -> bool:
    """What is not said is ready."""
    return endpoint.conditions is None or endpoint.conditions.ready is not False
