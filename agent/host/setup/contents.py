# SPDX-License-Identifier: Apache-2.0
"""The texts that setup writes, and the networks that it chooses for pods and for Services."""

import json
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import IPv4Network, ip_network

from agent.config.document import API_VERSION, KIND

HEAD = f"apiVersion: {API_VERSION}\nkind: {KIND}\n"
BASE_CONFIGURATION = f"{HEAD}images: {{enabled: true}}\nservices: {{enabled: true}}\n".encode()
DOOR_LINE = "api: {door: {address: '127.0.0.1:10246'}}"
# Clusters have their Services there, and so have our examples.
OF_SERVICES = "10.96.0.0/12"
# Within it, and more than one node has.
SERVICE_RANGES = tuple(f"10.{octet}.0.0/16" for octet in range(96, 112))
SECOND_OCTETS = (*range(85, 96), *range(112, 255), *range(85))


def free_subnet(networks: Sequence[str]) -> str | None:
    """The first range for pods that meets none of these networks. A default route is in nobody's way."""
    return _free(_ranges(), (*networks, OF_SERVICES))


def free_service_range(networks: Sequence[str]) -> str | None:
    """Likewise for Services; on a node whose routes cover where clusters have them, one of those for pods."""
    usual = (IPv4Network(text) for text in SERVICE_RANGES)
    return _free((*usual, *_ranges()), networks)


def _free(ranges: Iterable[IPv4Network], networks: Sequence[str]) -> str | None:
    taken = [one for text in networks if isinstance(one := ip_network(text, strict=False), IPv4Network)]
    taken = [one for one in taken if one.prefixlen]
    return next((str(one) for one in ranges if not any(one.overlaps(other) for other in taken)), None)


def _ranges() -> Iterator[IPv4Network]:
    for octet in SECOND_OCTETS:
        yield IPv4Network((f"10.{octet}.0.0", 16))
    for octet in range(16, 32):
        yield IPv4Network((f"172.{octet}.0.0", 16))
    for octet in range(256):
        yield IPv4Network((f"192.168.{octet}.0", 24))


def cni_list(subnet: str) -> bytes:
    """Hairpin: a pod reaches itself by its Service. Portmap: for hostPort."""
    ipam = {"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {
        "type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": ipam,
    }  # fmt: skip
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    document = {"cniVersion": "1.0.0", "name": "kepd", "plugins": [bridge, portmap]}
    return (json.dumps(document, indent=2) + "\n").encode()


def drop_in(
    *,
    service_ranges: Sequence[str],
    subnets: Sequence[str],
    is_with_pods: bool,
    is_with_names: bool = False,
    is_with_door: bool = False,
) -> bytes:
    """Empty if everything is said elsewhere. Never the node's addresses: without, kepd follows the default route."""
    lines = []
    if is_with_pods:
        lines.append("pods: {enabled: true}")
    services = []
    if service_ranges:
        services.append(f"serviceCIDRs: {json.dumps(service_ranges)}")
    if subnets:
        services.append(f"detectLocal: {{clusterCIDRs: {json.dumps(subnets)}}}")
    if services:
        lines.append(f"services: {{{', '.join(services)}}}")
    if is_with_names:
        lines.append("dns: {enabled: true}")
    if is_with_door:
        lines.append(DOOR_LINE)
    if not lines:
        return b""
    comment = (
        "# Written by `kepd setup`. Services without an address get one of serviceCIDRs.\n"
        "# A drop-in with a later name counts more, and setup leaves out what it says.\n"
    )
    return (comment + HEAD + "\n".join(lines) + "\n").encode()
