# SPDX-License-Identifier: Apache-2.0
"""Services, EndpointSlices, Nodes and Service networks as a file has them: read strictly, each fault with its place.

The daemon reads them so, and `kepctl validate` and `apply` before it. On a bare node Services get here what an API
server would have given them: an address, and an age. Invariant: while a Service is there it keeps its address and the
time at which it was first seen, over any restart; two Services never have one address by allotment. A Service's own
name says where to look first, so that the same Services get the same addresses even where nothing is remembered.
Never: overrules an address that a manifest gives: whoever was allotted it before gets another one.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import msgspec
from msgspec.structs import replace

from agent.kinds.registry import CLUSTER_KINDS
from agent.model.finding import Finding, suggestion
from agent.model.kube_objects import EndpointSlice, NodeObject, Service, ServiceCidr, ServiceSpec
from agent.objects.reading import DEFAULT_NAMESPACE
from agent.services.objects.addresses import read_address, read_range
from agent.services.objects.reading_service import read_service
from agent.services.objects.reading_slice import read_slice, with_defaults

Found = Service | EndpointSlice | NodeObject | ServiceCidr
Key = tuple[str, str, str]
KINDS: Mapping[str, tuple[str, type[Found]]] = {
    "Service": ("v1", Service),
    "EndpointSlice": ("discovery.k8s.io/v1", EndpointSlice),
    "Endpoints": ("v1", EndpointSlice),
    "Node": ("v1", NodeObject),
    "ServiceCIDR": ("networking.k8s.io/v1", ServiceCidr),
}
PORT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "Service": ("name", "protocol", "appProtocol", "port", "targetPort", "nodePort"),
    "EndpointSlice": ("name", "protocol", "port", "appProtocol"),
}
PLACE = re.compile(r" - at `\$?\.?([^`]*)`\Z")
# Any that can be routed: the node gives a Service without address one of its own.
SOME_ADDRESS = {"IPv4": "192.0.2.1", "IPv6": "2001:db8::1"}
MOST_TRIED = 1 << 16
Network = IPv4Network | IPv6Network


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
    kind, metadata = str(content["kind"]), content.get("metadata")
    named = metadata if isinstance(metadata, Mapping) else {}
    namespace = "" if kind in CLUSTER_KINDS else str(named.get("namespace") or DEFAULT_NAMESPACE)
    named = {**(metadata if isinstance(metadata, Mapping) else {}), **({"namespace": namespace} if namespace else {})}
    try:
        return msgspec.convert({**content, "metadata": named}, KINDS[kind][1]), []
    except msgspec.ValidationError as error:
        place = PLACE.search(str(error))
        text = PLACE.sub("", str(error)).replace("`", "")
        return None, [Finding(where, place[1] if place else "", text[:1].lower() + text[1:])]


def service_faults(found: Found) -> Iterator[tuple[str, str]]:
    """What would keep an object, or a part of it, from being served, by path."""
    findings: Sequence[Finding] = ()
    if isinstance(found, Service):
        labels, spec = found.metadata.labels, found.spec
        family = next(iter(spec.ip_families or ()), "")
        some = SOME_ADDRESS.get(family, SOME_ADDRESS["IPv4"])
        filled = replace(found, spec=replace(spec, cluster_ip=spec.cluster_ip or some))
        findings = read_service(filled, (labels.proxy_name if labels is not None else None) or "").findings
    elif isinstance(found, EndpointSlice):
        findings = read_slice(with_defaults(found)).findings
    return ((finding.path, finding.text) for finding in findings)


def service_warnings(found: Found) -> Iterator[tuple[str, str]]:
    """Addresses of Services that other programs read as others: some take digits behind a zero for octal."""
    spec = found.spec if isinstance(found, Service) else ServiceSpec()
    for path, text in (
        ("spec.clusterIP", spec.cluster_ip),
        *(("spec.clusterIPs", text) for text in spec.cluster_ips or ()),
        *(("spec.externalIPs", text) for text in spec.external_ips or ()),
    ):
        address = read_address(text)
        if address is not None and ":" not in text and address.text != text:
            yield path, f"{text} is read as {address.text}; write that"


class Allotted(msgspec.Struct, frozen=True):
    """What one Service was given. `addresses` are in the order of its families."""

    seen: str
    addresses: tuple[str, ...] = ()


def allot(
    services: Iterable[Service], ranges: Iterable[str], before: Mapping[str, Allotted], now: str
) -> tuple[list[Service], dict[str, Allotted]]:
    services = list(services)
    networks = [ip_network(text, strict=False) for text in ranges if read_range(text) is not None]
    taken = {text for one in services for text in (one.spec.cluster_ip, *(one.spec.cluster_ips or ()))}
    wanting = [one for one in services if not one.spec.cluster_ip and one.spec.type != "ExternalName"]
    kept: dict[str, tuple[str, ...]] = {}
    for one in wanting:
        had = before.get(_name(one), Allotted(now)).addresses
        if had and not taken.intersection(had) and _fits(had, _networks(one, networks)):
            kept[_name(one)] = had
            taken.update(had)
    filled, known = [], {}
    for one in services:
        name = _name(one)
        addresses = kept.get(name, ())
        if one in wanting and not addresses:
            addresses = tuple(_free(name, _networks(one, networks), taken))
            taken.update(addresses)
        known[name] = Allotted(before[name].seen if name in before else now, addresses)
        filled.append(_with(one, addresses, known[name].seen))
    return filled, known


def _name(service: Service) -> str:
    return f"{service.metadata.namespace}/{service.metadata.name}"


def _networks(service: Service, networks: Sequence[Network]) -> list[Network]:
    """One for each family that the Service asks for; the first there is if it asks for none."""
    families = service.spec.ip_families or ()
    wanted = [int(family.removeprefix("IPv")) for family in families if family in ("IPv4", "IPv6")]
    if not wanted:
        return list(networks[:1])
    return [found for version in wanted for found in [one for one in networks if one.version == version][:1]]


def _fits(addresses: Sequence[str], networks: Sequence[Network]) -> bool:
    pairs = zip(map(ip_address, addresses), networks, strict=False)
    return len(addresses) == len(networks) and all(address in network for address, network in pairs)


def _free(name: str, networks: Iterable[Network], taken: set[str]) -> Iterator[str]:
    for network in networks:
        # Neither the first address nor the last one, which some programs take for something else.
        room = network.num_addresses - 2
        start = int.from_bytes(sha256(f"{name} {network.version}".encode()).digest()[:8], "big")
        for step in range(min(max(room, 0), MOST_TRIED)):
            text = str(network[1 + (start + step) % room])
            if text not in taken:
                yield text
                break


def _with(service: Service, addresses: tuple[str, ...], seen: str) -> Service:
    metadata, spec = service.metadata, service.spec
    if not metadata.creation_timestamp:
        metadata = msgspec.structs.replace(metadata, creation_timestamp=seen)
    if addresses:
        families = tuple("IPv6" if ":" in text else "IPv4" for text in addresses)
        spec = msgspec.structs.replace(spec, cluster_ip=addresses[0], cluster_ips=addresses, ip_families=families)
    return msgspec.structs.replace(service, metadata=metadata, spec=spec)
