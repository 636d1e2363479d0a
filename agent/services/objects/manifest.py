# SPDX-License-Identifier: Apache-2.0
"""Services, EndpointSlices, Nodes and Service networks as a file has them: read strictly, each with the place of what
is wrong with it. The daemon reads them so, and `kepctl validate` and `apply` before it."""

import re
from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from agent.model.finding import Finding, suggestion
from agent.model.kube_objects import EndpointSlice, NodeObject, Service, ServiceCidr
from agent.services.objects.reading_service import read_service
from agent.services.objects.reading_slice import read_slice, with_defaults

Found = Service | EndpointSlice | NodeObject | ServiceCidr
Key = tuple[str, str, str]

KINDS: Mapping[str, tuple[str, type[Found]]] = {
    "Service": ("v1", Service),
    "EndpointSlice": ("discovery.k8s.io/v1", EndpointSlice),
    "Node": ("v1", NodeObject),
    "ServiceCIDR": ("networking.k8s.io/v1", ServiceCidr),
}
PORT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "Service": ("name", "protocol", "appProtocol", "port", "targetPort", "nodePort"),
    "EndpointSlice": ("name", "protocol", "port", "appProtocol"),
}
WITHOUT_NAMESPACE = ("Node", "ServiceCIDR")
PLACE = re.compile(r" - at `\$?\.?([^`]*)`\Z")
# Any that can be routed: the node gives a Service without address one of its own.
SOME_ADDRESS = "192.0.2.1"


def objects_in(where: str, content: object) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Those of the kinds above with their places; lists are taken apart."""
    if not isinstance(content, Mapping):
        return
    kind, items = content.get("kind"), content.get("items")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
        only = {"kind": kind.removesuffix("List"), "apiVersion": content.get("apiVersion")} if kind != "List" else {}
        for position, item in enumerate(items):
            yield from objects_in(f"{where} items[{position}]", {**only, **item} if isinstance(item, Mapping) else item)
    elif kind in KINDS:
        yield where, content


def key_of(content: Mapping[str, object]) -> Key:
    kind, metadata = str(content["kind"]), content.get("metadata")
    named = metadata if isinstance(metadata, Mapping) else {}
    namespace = "" if kind in WITHOUT_NAMESPACE else str(named.get("namespace") or "default")
    return kind, namespace, str(named.get("name") or "")


def strangers(where: str, content: Mapping[str, object]) -> list[Finding]:
    """What topology, which reads the same objects strictly, does not look at: ports, and networks of Services."""
    kind = str(content["kind"])
    version = KINDS[kind][0]
    found = []
    if kind == "ServiceCIDR" and content.get("apiVersion") != version:
        found.append(Finding(where, "apiVersion", f"must be {version} for a {kind}"))
    spec = content.get("spec") if kind == "Service" else content
    ports = spec.get("ports") if isinstance(spec, Mapping) and kind in PORT_FIELDS else None
    path = "spec.ports" if kind == "Service" else "ports"
    return found + [
        Finding(where, f"{path}[{position}].{name}", f"unknown field{suggestion(str(name), PORT_FIELDS[kind])}")
        for position, port in enumerate(ports if isinstance(ports, list) else ())
        for name in (port if isinstance(port, Mapping) else ())
        if name not in PORT_FIELDS[kind]
    ]


def converted(where: str, content: Mapping[str, object]) -> tuple[Found | None, list[Finding]]:
    kind, namespace, _ = key_of(content)
    metadata = content.get("metadata")
    named = {**(metadata if isinstance(metadata, Mapping) else {}), **({"namespace": namespace} if namespace else {})}
    try:
        return msgspec.convert({**content, "metadata": named}, KINDS[kind][1]), []
    except msgspec.ValidationError as error:
        place = PLACE.search(str(error))
        text = PLACE.sub("", str(error)).replace("`", "")
        return None, [Finding(where, place[1] if place else "", text[:1].lower() + text[1:])]


def service_faults(where: str, content: object) -> Iterator[Finding]:
    """Everything that would keep what is in a document, or a part of it, from being served."""
    for place, one in objects_in(where, content):
        findings = strangers(place, one)
        found, wrong = converted(place, one)
        findings += wrong
        if isinstance(found, Service):
            labels, spec = found.metadata.labels, found.spec
            found = replace(found, spec=replace(spec, cluster_ip=spec.cluster_ip or SOME_ADDRESS))
            findings += read_service(found, (labels.proxy_name if labels is not None else None) or "").findings
        elif isinstance(found, EndpointSlice):
            findings += read_slice(with_defaults(found)).findings
        yield from (Finding(place, finding.path, finding.text) for finding in findings)
