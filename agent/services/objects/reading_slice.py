# SPDX-License-Identifier: Apache-2.0
"""Turns an EndpointSlice of the API into what the plane keeps of it.

A bad endpoint is left out alone, the others of its slice stay.
"""

from collections.abc import Sequence
from functools import lru_cache
from sys import intern
from typing import NamedTuple, cast

import msgspec

from agent.model.finding import Finding, shown
from agent.model.kube_objects import EndpointObject, EndpointPort, EndpointSlice, HintTarget
from agent.model.services.service import Address, Backend, PortKey, Protocol, ServiceKey, SliceFacts
from agent.services.objects.addresses import endpoint_key, read_address, unfit_endpoint

PROTOCOLS = ("TCP", "UDP", "SCTP")
HIGHEST_PORT = 65535
# An event has room for so many; the rest is counted.
MOST_FINDINGS = 5
LONGEST_TIME = 64


class ReadSlice(NamedTuple):
    """A slice that was read. No `facts`: nothing in it is for us. The findings say what is wrong with it, not what is
    merely for other proxies."""

    namespace: str
    name: str
    facts: SliceFacts | None
    findings: tuple[Finding, ...]
    uid: str = ""


def read_slice(item: EndpointSlice) -> ReadSlice:
    facts, findings = _read(item)
    return ReadSlice(item.metadata.namespace, item.metadata.name, facts, findings, item.metadata.uid)


def _read(item: EndpointSlice) -> tuple[SliceFacts | None, tuple[Finding, ...]]:
    labels = item.metadata.labels
    if labels is not None and labels.headless is not None:
        return None, ()
    findings: list[Finding] = []
    service = labels.service_name if labels is not None else None
    key, name = ServiceKey(intern(item.metadata.namespace), intern(service or "")), item.metadata.name
    where = f"EndpointSlice {item.metadata.namespace}/{name}"
    if not key.name:
        # It is for others than us.
        return None, ()
    if item.address_type not in ("IPv4", "IPv6"):
        if item.address_type != "FQDN":
            text = f"{shown(item.address_type)} is not known; expected IPv4, IPv6, FQDN; the slice is ignored"
            findings.append(Finding(where, "addressType", text))
        return None, tuple(findings)
    family = item.address_type
    ports = _ports(item.ports or (), where, findings)
    endpoints = _endpoints(item.endpoints or (), family, where, findings) if ports else []
    backends = tuple(_backends(endpoints, ports[0][1])) if ports else ()
    triggered = item.metadata.annotations.trigger_time if item.metadata.annotations is not None else None
    triggered = triggered if triggered and len(triggered) <= LONGEST_TIME else ""
    facts = SliceFacts(key, name, "IPv4" if family == "IPv4" else "IPv6", tuple(ports), backends, triggered)
    return facts, _bounded(findings, where)


def with_defaults(item: EndpointSlice) -> EndpointSlice:
    """A slice from a manifest as an API server would have stored it: a port without name has the name ""."""
    ports = tuple(one if one.name is not None else msgspec.structs.replace(one, name="") for one in item.ports or ())
    return msgspec.structs.replace(item, ports=ports)


def _bounded(findings: list[Finding], where: str) -> tuple[Finding, ...]:
    if len(findings) <= MOST_FINDINGS:
        return tuple(findings)
    rest = len(findings) - MOST_FINDINGS
    return (*findings[:MOST_FINDINGS], Finding(where, "", f"{rest} more like these"))


def _ports(ports: Sequence[EndpointPort], where: str, findings: list[Finding]) -> list[tuple[PortKey, int]]:
    """Ports without name or number mean nothing to a proxy."""
    found: list[tuple[PortKey, int]] = []
    for position, port in enumerate(ports):
        protocol = port.protocol or "TCP"
        if port.name is None or not port.port:
            continue
        path = f"ports[{position}]"
        if protocol not in PROTOCOLS:
            text = f"{shown(protocol)} is not known; expected TCP, UDP, SCTP; the port is ignored"
            findings.append(Finding(where, f"{path}.protocol", text))
        elif not 0 < port.port <= HIGHEST_PORT:
            text = f"{port.port} is not a port; expected 1 to {HIGHEST_PORT}; it is ignored"
            findings.append(Finding(where, f"{path}.port", text))
        else:
            found.append((_port_key(port.name, protocol), port.port))
    return found


@lru_cache(maxsize=4096)
def _port_key(name: str, protocol: str) -> PortKey:
    """One value for the thousands of slices that have it."""
    return PortKey(name, cast("Protocol", protocol))


def _endpoints(
    endpoints: Sequence[EndpointObject], family: str, where: str, findings: list[Finding]
) -> list[tuple[Address, EndpointObject]]:
    """Those that can be sent to, by their first address."""
    found: list[tuple[Address, EndpointObject]] = []
    for position, endpoint in enumerate(endpoints):
        if not endpoint.addresses:
            continue
        address = read_address(endpoint.addresses[0])
        if address is None:
            reason = "is not an address"
        elif address.family != family or (family == "IPv4" and ":" in endpoint.addresses[0]):
            reason = f"is no {family} address"
        else:
            unfit = unfit_endpoint(address)
            if not unfit:
                found.append((address, endpoint))
                continue
            reason = f"is {unfit}, no connection can be sent there"
        text = f"{shown(endpoint.addresses[0])} {reason}; the endpoint is left out"
        findings.append(Finding(where, f"endpoints[{position}].addresses[0]", text))
    return found


def _backends(endpoints: list[tuple[Address, EndpointObject]], port: int) -> list[Backend]:
    tail = port.to_bytes(2, "big") + b"\x00\x00"
    found = []
    for address, endpoint in endpoints:
        conditions, hints = endpoint.conditions, endpoint.hints
        ready = serving = True
        terminating = False
        if conditions is not None:
            ready = conditions.ready is not False
            serving = conditions.serving is not False
            terminating = conditions.terminating is True
        found.append(
            Backend(
                endpoint_key(address.text, port),
                address.packed + tail,
                intern(endpoint.node_name) if endpoint.node_name else "",
                ready,
                serving,
                terminating,
                _names(hints.for_zones) if hints is not None and hints.for_zones else (),
                _names(hints.for_nodes) if hints is not None and hints.for_nodes else (),
            )
        )
    return found


@lru_cache(maxsize=4096)
def _names(targets: tuple[HintTarget, ...]) -> tuple[str, ...]:
    """Shared by the many endpoints that have the same hints."""
    return tuple(intern(target.name) for target in targets)
