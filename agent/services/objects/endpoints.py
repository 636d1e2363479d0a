# SPDX-License-Identifier: Apache-2.0
"""Endpoints, the form that EndpointSlices had before, as the slice that they mean."""

from collections.abc import Iterator, Mapping
from typing import Any

from agent.kinds.parts import items, part

Content = Mapping[str, Any]
FIELDS = {
    "": ("apiVersion", "kind", "metadata", "subsets"),
    "subsets[0]": ("addresses", "notReadyAddresses", "ports"),
}
ADDRESS_FIELDS = ("ip", "hostname", "nodeName", "targetRef")


def endpoints_faults(content: Content) -> Iterator[tuple[str, str]]:
    """By path. What is not said here, the slice is asked for."""
    if content.get("apiVersion") != "v1":
        yield "apiVersion", "must be v1 for Endpoints"
    subsets = content.get("subsets")
    if not isinstance(subsets, list) or not all(isinstance(one, dict) for one in subsets):
        yield "subsets", "must be a list of maps, with addresses and ports"
        return
    if len(subsets) != 1:
        yield "subsets", f"has {len(subsets)}, and one can be taken; write an EndpointSlice for each"
        return
    for place, given in (("", content), ("subsets[0]", subsets[0])):
        for name in given.keys() - set(FIELDS[place]):
            yield f"{place}.{name}".lstrip("."), "unknown field"
    for name in ("addresses", "notReadyAddresses", "ports"):
        given = subsets[0].get(name) or []
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            yield f"subsets[0].{name}", "must be a list of maps"
            return
        for index, one in enumerate(given if name != "ports" else ()):
            for unknown in one.keys() - set(ADDRESS_FIELDS):
                yield f"subsets[0].{name}[{index}].{unknown}", "unknown field"


def slice_of(content: Content) -> dict[str, Any]:
    subset, metadata = content["subsets"][0], part(content, "metadata")
    addresses = [(one, True) for one in items(subset, "addresses")]
    addresses += [(one, False) for one in items(subset, "notReadyAddresses")]
    is_ipv6 = any(":" in str(one.get("ip")) for one, _ in addresses[:1])
    labels = {**part(metadata, "labels"), "kubernetes.io/service-name": metadata.get("name", "")}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**metadata, "labels": labels},
        "addressType": "IPv6" if is_ipv6 else "IPv4",
        "ports": list(items(subset, "ports")),
        "endpoints": [_endpoint(one, is_ready=is_ready) for one, is_ready in addresses],
    }


def _endpoint(address: Content, *, is_ready: bool) -> dict[str, Any]:
    known = {name: address[name] for name in ("hostname", "nodeName", "targetRef") if name in address}
    return {"addresses": [address.get("ip", "")], "conditions": {"ready": is_ready}, **known}
