# SPDX-License-Identifier: Apache-2.0
"""Endpoints, as clients of before EndpointSlices know them: those that are written, and of each other Service what its
slices say. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agent.kinds.parts import items, part
from agent.kinds.table import FACTS, names_of
from kepd_door.run.kinds.slices import OF_SERVICE

Object = dict[str, Any]
COPIED = ("nodeName", "targetRef", "hostname")


def all_endpoints(
    written: Iterable[Object], services: Iterable[Object], slices: Sequence[Object]
) -> Iterator[tuple[tuple[str, str], Object]]:
    """By namespace and name. A Service without a selector has those that somebody writes."""
    found = {names_of(made): made for made in written}
    named: dict[tuple[str, str], list[Object]] = {}
    for each in slices:
        namespace, _ = names_of(each)
        named.setdefault((namespace, str(part(each, "metadata", "labels").get(OF_SERVICE))), []).append(each)
    for service in services:
        key = names_of(service)
        if key not in found and (part(service, "spec").get("selector") or key in named):
            found[key] = _made(service, named.get(key, ()))
    yield from sorted(found.items())


def _made(service: Object, slices: Iterable[Object]) -> Object:
    namespace, name = names_of(service)
    labels = {**part(service, "metadata", "labels"), "endpoints.kubernetes.io/managed-by": "endpoint-controller"}
    subsets = [made for each in slices if (made := _subset(each))]
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"metadata": metadata, **({"subsets": subsets} if subsets else {}), FACTS: {"source": ""}}


def _subset(made: Object) -> Object:
    """Empty without an address."""
    addresses: dict[str, list[Object]] = {"addresses": [], "notReadyAddresses": []}
    for endpoint in items(made, "endpoints"):
        is_ready = part(endpoint, "conditions").get("ready") is not False
        more = {name: endpoint[name] for name in COPIED if endpoint.get(name)}
        shown = [{"ip": str(address), **more} for address in endpoint.get("addresses") or ()]
        addresses["addresses" if is_ready else "notReadyAddresses"] += shown
    ports = [{name: value for name, value in port.items() if value} for port in items(made, "ports")]
    kept = {name: listed for name, listed in addresses.items() if listed}
    return {**kept, "ports": ports} if kept else {}
