# SPDX-License-Identifier: Apache-2.0
"""Decides which addresses from outside a Service may have, so that nobody takes another's traffic (CVE-2020-8554).

Whoever may create Services could else have the packets to any address: a resolver, the API server, a neighbour's node.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from agent.model.finding import Finding
from agent.model.services.nft_table import Family
from agent.model.services.service import Address, FamilyPart, Range, ServiceFacts, ServiceKey

Allowed = tuple[Range, ...] | None
"""None: every address."""
Way = Literal["externalIPs", "balancerIPs"]
_PATHS: dict[Way, str] = {"externalIPs": "spec.externalIPs", "balancerIPs": "status.loadBalancer.ingress"}


class Limits(msgspec.Struct, frozen=True):
    """Of one family. `reserved`: addresses that no Service may take, and whose they are."""

    external: Allowed = None
    balancer: Allowed = None
    node: tuple[Address, ...] = ()
    networks: tuple[tuple[Range, str], ...] = ()
    reserved: tuple[tuple[bytes, str], ...] = ()
    only_warns: bool = False
    """As with kube-proxy, a Service may take what is another's, if only it is in the networks above."""


NO_LIMITS = Limits()


class _Refusal(NamedTuple):
    way: Way
    ip: Address
    why: str
    holds: bool

    def __str__(self) -> str:
        effect = "it is left out" if self.holds else "services.profile kube-proxy lets it be taken"
        return f"{self.ip.text} {self.why}; {effect}"


def inside(address: Address, ranges: Iterable[Range]) -> bool:
    return any(one.first <= address.packed <= one.last for one in ranges)


class OutsideAddresses:
    """Which Services of one family want addresses from outside, and which have an address as their cluster IP."""

    def __init__(self, family: Family) -> None:
        self._family: Family = family
        self._owners: dict[bytes, ServiceKey] = {}
        self._cluster_ips: dict[ServiceKey, bytes] = {}
        self._wanted: dict[ServiceKey, tuple[bytes, ...]] = {}
        self._wanting: dict[bytes, set[ServiceKey]] = {}
        self.findings: dict[ServiceKey, tuple[Finding, ...]] = {}

    @property
    def services(self) -> Iterable[ServiceKey]:
        """Those that limits concern."""
        return self._wanted.keys()

    def put(self, key: ServiceKey, service: ServiceFacts | None) -> Iterable[ServiceKey]:
        """Returns the others that lose or may get an address because the cluster IP is another one."""
        part = service.part(self._family) if service is not None else None
        self._want(key, part)
        if part is None:
            self.findings.pop(key, None)
        before, now = self._cluster_ips.get(key), part.cluster_ip.packed if part is not None else None
        if before == now:
            return ()
        if before is not None:
            del self._cluster_ips[key]
            if self._owners.get(before) == key:
                del self._owners[before]
        if now is not None:
            self._cluster_ips[key] = now
            self._owners[now] = key
        if not self._wanting:
            return ()
        others = {one for ip in (before, now) if ip is not None for one in self._wanting.get(ip, ())}
        return others - {key}

    def _want(self, key: ServiceKey, part: FamilyPart | None) -> None:
        wanted = tuple([one.packed for one in (*part.external_ips, *part.balancer_ips)]) if part is not None else ()
        before = self._wanted.get(key, ())
        if wanted == before:
            return
        for ip in before:
            self._wanting[ip].discard(key)
            if not self._wanting[ip]:
                del self._wanting[ip]
        for ip in wanted:
            self._wanting.setdefault(ip, set()).add(key)
        self._wanted[key] = wanted
        if not wanted:
            del self._wanted[key]

    def permitted(self, service: ServiceFacts, limits: Limits) -> ServiceFacts:
        """The Service without the addresses that it may not have, of which `findings` tells."""
        part = service.part(self._family)
        if part is None or not (part.external_ips or part.balancer_ips):
            self.findings.pop(service.key, None)
            return service
        refusals = tuple(self._refusals(service.key, part, limits))
        self._note(service.key, refusals)
        left_out = {(one.way, one.ip) for one in refusals if one.holds}
        return _without(service, part, left_out) if left_out else service

    def _refusals(self, key: ServiceKey, part: FamilyPart, limits: Limits) -> Iterator[_Refusal]:
        ways: tuple[tuple[Way, tuple[Address, ...], Allowed], ...] = (
            ("externalIPs", part.external_ips, limits.external),
            ("balancerIPs", part.balancer_ips, limits.balancer),
        )
        for way, addresses, allowed in ways:
            for ip in addresses:
                if why := _outside(way, ip, allowed):
                    yield _Refusal(way, ip, why, holds=True)
                elif why := self._taken(key, ip) or _reserved(way, ip, allowed, limits):
                    yield _Refusal(way, ip, why, holds=not limits.only_warns)

    def _taken(self, key: ServiceKey, ip: Address) -> str:
        owner = self._owners.get(ip.packed)
        return f"is the cluster IP of {owner}" if owner is not None and owner != key else ""

    def _note(self, key: ServiceKey, refusals: Iterable[_Refusal]) -> None:
        found = tuple(Finding(f"Service {key}", _PATHS[one.way], str(one)) for one in refusals)
        if found:
            self.findings[key] = found
        else:
            self.findings.pop(key, None)


def _without(service: ServiceFacts, part: FamilyPart, left_out: set[tuple[Way, Address]]) -> ServiceFacts:
    kept = msgspec.structs.replace(
        part,
        external_ips=tuple(one for one in part.external_ips if ("externalIPs", one) not in left_out),
        balancer_ips=tuple(one for one in part.balancer_ips if ("balancerIPs", one) not in left_out),
    )
    if part.cluster_ip.family == "IPv4":
        return msgspec.structs.replace(service, v4=kept)
    return msgspec.structs.replace(service, v6=kept)


def _outside(way: Way, ip: Address, allowed: Allowed) -> str:
    if allowed is None or inside(ip, allowed):
        return ""
    expected = ", ".join(one.text for one in allowed)
    return f"is outside of services.{way}, {expected}" if allowed else f"is refused: services.{way} allows none"


def _reserved(way: Way, ip: Address, allowed: Allowed, limits: Limits) -> str:
    if ip in limits.node and allowed is None:
        return f"is an address of this node, which only a list in services.{way} that has it allows"
    for packed, whose in limits.reserved:
        if packed == ip.packed:
            return f"is {whose}"
    for network, whose in limits.networks:
        if network.first <= ip.packed <= network.last:
            return f"is in {network.text}, {whose}"
    return ""
