# SPDX-License-Identifier: Apache-2.0
"""Everything that an API server would refuse in a NetworkPolicy: where, the value, and what would be right."""

import re
from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from agent.model.finding import shown
from agent.model.pods.fields import Metadata
from agent.model.selector import label_key_faults, label_value_faults, selector_faults
from agent.policies.manifest.bounds import size_faults
from agent.policies.manifest.objects import DIRECTIONS, IpBlock, Peer, Policy, PortFields, SelectorFields

Faults = Iterator[tuple[str, str]]
"""Path and text of each."""
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
PORT_NAME = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
PROTOCOLS = ("TCP", "UDP", "SCTP")
TYPES = ("Ingress", "Egress")
MOST_PORT = 65535


def policy_faults(policy: Policy) -> Faults:
    yield from _metadata(policy.metadata)
    yield from size_faults(policy)
    yield from _selector("spec.podSelector", policy.spec.pod_selector)
    for place, one in enumerate(policy.spec.policy_types):
        if one not in TYPES:
            yield f"spec.policyTypes[{place}]", f"{shown(one)} is no type of policy; expected Ingress or Egress"
    if len(policy.spec.policy_types) > len(TYPES):
        yield "spec.policyTypes", f"has {len(policy.spec.policy_types)} types; expected at most Ingress and Egress"
    for direction in DIRECTIONS:
        for place, rule in enumerate(policy.rules(direction)):
            path = f"spec.{direction}[{place}]"
            for number, peer in enumerate(rule.peers):
                yield from _peer(f"{path}.{'from' if direction == 'ingress' else 'to'}[{number}]", peer)
            for number, port in enumerate(rule.ports):
                yield from _port(f"{path}.ports[{number}]", port)


def _metadata(metadata: Metadata) -> Faults:
    if not SUBDOMAIN.fullmatch(metadata.name):
        yield "metadata.name", f"{shown(metadata.name)} is no name; expected a DNS name in lower case"
    if not LABEL.fullmatch(metadata.namespace):
        yield "metadata.namespace", f"{shown(metadata.namespace)} is no namespace; expected a DNS label in lower case"
    for key in (*metadata.labels, *metadata.annotations):
        for text in label_key_faults(key):
            yield "metadata", f"{shown(key)} is no key; {text}"
    for value in metadata.labels.values():
        for text in label_value_faults(value):
            yield "metadata.labels", f"{shown(value)} is no value; {text}"


def _selector(path: str, selector: SelectorFields) -> Faults:
    for fault in selector_faults(selector.selector):
        yield f"{path}.{fault.path}", f"{shown(fault.value)} is not valid; expected: {fault.right}"


def _peer(path: str, peer: Peer) -> Faults:
    selectors = {"podSelector": peer.pod_selector, "namespaceSelector": peer.namespace_selector}
    given = [name for name, one in selectors.items() if one is not None]
    if peer.ip_block is None and not given:
        yield path, "names nobody; expected podSelector, namespaceSelector, both of these, or ipBlock"
    if peer.ip_block is not None and given:
        yield path, f"has ipBlock and {given[0]}; expected ipBlock alone, or an entry of its own for each"
    for name, one in selectors.items():
        if one is not None:
            yield from _selector(f"{path}.{name}", one)
    if peer.ip_block is not None:
        yield from _block(f"{path}.ipBlock", peer.ip_block)


def _block(path: str, block: IpBlock) -> Faults:
    whole = _network(block.cidr)
    if whole is None:
        yield f"{path}.cidr", f"{shown(block.cidr)} is no network; expected one such as 10.0.0.0/8 or fd00::/8"
    for place, text in enumerate(block.except_):
        part = _network(text)
        if part is None:
            yield f"{path}.except[{place}]", f"{shown(text)} is no network; expected one inside {shown(block.cidr)}"
        elif whole is not None and (part == whole or not is_inside(part, whole)):
            yield f"{path}.except[{place}]", f"{shown(text)} is no part of {block.cidr}; expected a smaller one inside"


def _network(text: str) -> IPv4Network | IPv6Network | None:
    """As Kubernetes reads it: a length in plain digits, and an address of IPv4 written as such."""
    address, _, length = text.partition("/")
    try:
        network = ip_network(text, strict=False) if "%" not in text else None
        is_mapped = getattr(ip_address(address), "ipv4_mapped", None) is not None
    except ValueError:
        return None
    return network if network is not None and length == str(network.prefixlen) and not is_mapped else None


def is_inside(part: IPv4Network | IPv6Network, whole: IPv4Network | IPv6Network) -> bool:
    return part.version == whole.version and part.subnet_of(whole)  # type: ignore[arg-type]


def _port(path: str, one: PortFields) -> Faults:
    if one.protocol not in PROTOCOLS:
        yield f"{path}.protocol", f"{shown(one.protocol)} is no protocol here; expected TCP, UDP or SCTP"
    if isinstance(one.port, int) and not 1 <= one.port <= MOST_PORT:
        yield f"{path}.port", f"{one.port} is no port; expected 1 to {MOST_PORT}"
    if isinstance(one.port, str) and not PORT_NAME.fullmatch(one.port):
        text = "expected a number, or the name of a container's port: up to 15 lower case letters, digits and hyphens"
        yield f"{path}.port", f"{shown(one.port)} is no port; {text}"
    if one.end_port is None:
        return
    if not isinstance(one.port, int):
        has = "no port" if one.port is None else f"port {shown(one.port)}"
        yield f"{path}.endPort", f"{one.end_port} stands beside {has}; expected a number as port, or no endPort"
    elif not one.port <= one.end_port <= MOST_PORT:
        yield f"{path}.endPort", f"{one.end_port} ends no range from {one.port}; expected {one.port} to {MOST_PORT}"
