# SPDX-License-Identifier: Apache-2.0
"""The texts that setup writes, and the subnet that it chooses for pods."""

import json
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network, ip_network

from agent.config.document import API_VERSION, KIND

HEAD = f"apiVersion: {API_VERSION}\nkind: {KIND}\n"
BASE_CONFIGURATION = f"{HEAD}images: {{enabled: true}}\nservices: {{enabled: true}}\n".encode()
# Clusters have their Services there, and so have our examples.
OF_SERVICES = "10.96.0.0/12"
SECOND_OCTETS = (*range(85, 96), *range(112, 255), *range(85))


def free_subnet(networks: Sequence[str]) -> str | None:
    """The first range for pods that meets none of these networks. A default route is in nobody's way."""
    taken = [one for text in (*networks, OF_SERVICES) if isinstance(one := ip_network(text, strict=False), IPv4Network)]
    taken = [one for one in taken if one.prefixlen]
    return next((str(one) for one in _ranges() if not any(one.overlaps(other) for other in taken)), None)


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


def drop_in(*, addresses: Sequence[str], subnets: Sequence[str], is_with_pods: bool) -> bytes:
    """Empty if everything is said elsewhere."""
    lines = []
    if addresses:
        lines.append(f"node: {{addresses: {json.dumps(addresses)}}}")
    if is_with_pods:
        lines.append("pods: {enabled: true}")
    if subnets:
        lines.append(f"services: {{detectLocal: {{clusterCIDRs: {json.dumps(subnets)}}}}}")
    if not lines:
        return b""
    comment = (
        "# Written by `kepd setup`: run it again when the addresses of the node change.\n"
        "# A drop-in with a later name counts more, and setup leaves out what it says.\n"
    )
    return (comment + HEAD + "\n".join(lines) + "\n").encode()
