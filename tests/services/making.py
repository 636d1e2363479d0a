# SPDX-License-Identifier: Apache-2.0
"""API objects for tests, by their few interesting fields.

Owns: short spellings. Never: hides a field that a test is about; those are arguments.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from agent.model.kube_objects import EndpointSlice, Service
from agent.model.services.service import Backend, SliceFacts
from agent.services.objects.merged import SlicePorts
from agent.services.objects.reading_service import ReadService, read_service
from agent.services.objects.reading_slice import ReadSlice, read_slice


def make_service(name: str = "web", *, namespace: str = "shop", ip: str = "10.96.0.10", **spec: Any) -> ReadService:
    """A Service with the port 80/TCP named http unless `ports` says otherwise. `meta` and `status` are taken out."""
    meta: Mapping[str, Any] = spec.pop("meta", {})
    status: Mapping[str, Any] = spec.pop("status", {})
    ports = spec.pop("ports", [{"name": "http", "protocol": "TCP", "port": 80}])
    item = msgspec.convert(
        {
            "metadata": {"name": name, "namespace": namespace, **meta},
            "spec": {"clusterIP": ip, "ports": ports, **spec},
            "status": status,
        },
        Service,
    )
    return read_service(item)


def backends_in(facts: SliceFacts) -> list[Backend]:
    """Of all its ports."""
    ports = SlicePorts(facts)
    return [one for key in dict(facts.ports) for found in ports.backends(key) for one in found]


def make_slice(
    addresses: Sequence[str | Mapping[str, Any]],
    *,
    service: str = "web",
    namespace: str = "shop",
    name: str = "",
    ports: Iterable[Mapping[str, Any]] = ({"name": "http", "protocol": "TCP", "port": 8080},),
    family: str = "",
) -> ReadSlice:
    """An EndpointSlice; an endpoint is an address, or a mapping with `ip` and the fields of the API."""
    endpoints = []
    for one in addresses:
        fields = {"ip": one} if isinstance(one, str) else dict(one)
        endpoints.append({"addresses": [fields.pop("ip")], **fields})
    kind = family or ("IPv6" if endpoints and ":" in endpoints[0]["addresses"][0] else "IPv4")
    item = msgspec.convert(
        {
            "metadata": {
                "name": name or f"{service}-1",
                "namespace": namespace,
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": kind,
            "ports": list(ports),
            "endpoints": endpoints,
        },
        EndpointSlice,
    )
    return read_slice(item)
