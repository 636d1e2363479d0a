# SPDX-License-Identifier: Apache-2.0
"""What Kubernetes' rules say of a packet, read straight from objects: slow, plain, and written before what it judges.

Never: shares code with the plane.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
Object = Mapping[str, Any]


@dataclass(frozen=True)
class Pod:
    """`ports` are (name, protocol, number) of its containers."""

    namespace: str
    name: str
    labels: tuple[tuple[str, str], ...]
    addresses: tuple[str, ...]
    host_network: bool = False
    ports: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True)
class Packet:
    """The first of a new connection."""

    source: str
    destination: str
    protocol: str
    port: int


def passes(policies: Iterable[Object], pods: Iterable[Pod], node: Iterable[str], packet: Packet) -> bool:
    policies, pods, node = list(policies), list(pods), set(node)
    if packet.source in node or packet.destination in node:
        return True
    sender, receiver = _owner(pods, packet.source), _owner(pods, packet.destination)
    if sender is not None and sender == receiver:
        return True
    return all(
        pod is None or _direction(policies, pods, pod, kind, packet)
        for kind, pod in (("Egress", sender), ("Ingress", receiver))
    )


def _owner(pods: list[Pod], address: str) -> Pod | None:
    for pod in pods:
        if not pod.host_network and address in pod.addresses:
            return pod
    return None


def _direction(policies: list[Object], pods: list[Pod], pod: Pod, kind: str, packet: Packet) -> bool:
    mine = [
        one
        for one in policies
        if _namespace(one) == pod.namespace
        and _matches(one["spec"].get("podSelector") or {}, dict(pod.labels))
        and kind in _types(one["spec"])
    ]
    if not mine:
        return True
    return any(_rule(one, rule, kind, pods, packet) for one in mine for rule in one["spec"].get(kind.lower()) or ())


def _types(spec: Object) -> list[str]:
    if spec.get("policyTypes"):
        return list(spec["policyTypes"])
    return ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]


def _namespace(policy: Object) -> str:
    return str(policy["metadata"].get("namespace", "default"))


def _rule(policy: Object, rule: Object, kind: str, pods: list[Pod], packet: Packet) -> bool:
    peers = rule.get("from" if kind == "Ingress" else "to") or []
    other = packet.source if kind == "Ingress" else packet.destination
    if peers and not any(_peer(policy, peer, pods, other) for peer in peers):
        return False
    ports = rule.get("ports") or []
    return not ports or any(_port(one, pods, packet) for one in ports)


def _peer(policy: Object, peer: Object, pods: list[Pod], address: str) -> bool:
    if "ipBlock" in peer:
        block = peer["ipBlock"]
        inside = _inside(address, block["cidr"])
        return inside and not any(_inside(address, one) for one in block.get("except") or ())
    for pod in pods:
        if address not in pod.addresses:
            continue
        if "namespaceSelector" in peer:
            if not _matches(peer["namespaceSelector"], {NAMESPACE_LABEL: pod.namespace}):
                continue
        elif pod.namespace != _namespace(policy):
            continue
        if _matches(peer.get("podSelector") or {}, dict(pod.labels)):
            return True
    return False


def _inside(address: str, cidr: str) -> bool:
    network = ipaddress.ip_network(cidr, strict=False)
    found = ipaddress.ip_address(address)
    return found.version == network.version and found in network


def _port(one: Object, pods: list[Pod], packet: Packet) -> bool:
    if one.get("protocol", "TCP") != packet.protocol:
        return False
    port = one.get("port")
    if port is None:
        return True
    if isinstance(port, str):
        return any(
            packet.destination in pod.addresses and (port, packet.protocol, packet.port) in pod.ports for pod in pods
        )
    return bool(port <= packet.port <= one.get("endPort", port))


def _matches(selector: Object, labels: Mapping[str, str]) -> bool:
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for one in selector.get("matchExpressions") or ():
        has, value = one["key"] in labels, labels.get(one["key"])
        match one["operator"]:
            case "In":
                good = has and value in one["values"]
            case "NotIn":
                good = not has or value not in one["values"]
            case "Exists":
                good = has
            case _:
                good = not has
        if not good:
            return False
    return True
