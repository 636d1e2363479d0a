# SPDX-License-Identifier: Apache-2.0
"""Turns a Service of the API into what the plane keeps of it, with the defaults an API server would have filled in.

What an API server would have refused makes the whole Service unusable; a stray address is dropped alone.
"""

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeVar, cast

from agent.model.finding import Finding, shown, suggestion
from agent.model.kube_objects import Service, ServicePort, ServiceSpec
from agent.model.services.nft_table import Family
from agent.model.services.service import Address, FamilyPart, PortFacts, Protocol, Range, ServiceFacts, ServiceKey
from agent.services.objects.addresses import collapse, read_address, read_range, unfit_endpoint
from agent.services.objects.options import read_options

TYPES = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
POLICIES = ("Cluster", "Local")
AFFINITIES = ("None", "ClientIP")
PROTOCOLS = ("TCP", "UDP", "SCTP")
PROXY_LABEL = "service.kubernetes.io/service-proxy-name"
IP_MODES = ("VIP", "Proxy")
T = TypeVar("T")
FAMILIES: tuple[Family, Family] = ("IPv4", "IPv6")
AFFINITY_S = 10800
LONGEST_AFFINITY_S = 86400
HIGHEST_PORT = 65535
DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
PORT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Unusable(Exception):
    """This Service cannot be programmed; the findings say why."""


def _service_key(item: Service) -> ServiceKey:
    return ServiceKey(item.metadata.namespace, item.metadata.name)


class ReadService(NamedTuple):
    """A Service that was read. No `facts`: it is not for us, or, if there are findings, it cannot be programmed."""

    key: ServiceKey
    facts: ServiceFacts | None
    findings: tuple[Finding, ...]
    uid: str = ""
    whose: str = ""
    """Why it is not for us."""


def read_service(item: Service, proxy_name: str = "", *, is_strict: bool = False) -> ReadService:
    """`proxy_name` is the value of the label of Services that are ours. `is_strict`: source ranges of which none
    can be used let no client in, instead of every one."""
    if whose := _why_not_ours(item, proxy_name):
        return ReadService(_service_key(item), None, (), item.metadata.uid, whose)
    return ReadService(_service_key(item), *_read(item, is_strict=is_strict), item.metadata.uid)


def _why_not_ours(item: Service, proxy_name: str) -> str:
    labels = item.metadata.labels
    named = labels.proxy_name if labels is not None else None
    if named != (proxy_name or None):
        ours = f'services.proxyName is "{proxy_name}"' if proxy_name else "services.proxyName names none"
        return f"its label {PROXY_LABEL} is {shown(named or '')}, and {ours}: another proxy programs it"
    if item.spec.type == "ExternalName":
        return "it is of type ExternalName: a name in DNS, and nothing to program"
    if item.spec.cluster_ip == "None":
        return "it is headless (clusterIP: None): its name leads to its pods, and nothing is programmed"
    return ""


def _read(item: Service, *, is_strict: bool) -> tuple[ServiceFacts | None, tuple[Finding, ...]]:
    if not item.spec.cluster_ip:
        text = "none is given, and no Service network has one left; set it, or services.serviceCIDRs"
        return None, (Finding(f"Service {_service_key(item)}", "spec.clusterIP", text),)
    findings: list[Finding] = []
    reader = _ServiceReader(f"Service {_service_key(item)}", item.spec, findings, is_strict=is_strict)
    try:
        return reader.facts(item), tuple(findings)
    except Unusable:
        return None, tuple(findings)


class _ServiceReader:
    def __init__(self, where: str, spec: ServiceSpec, findings: list[Finding], *, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._where = where
        self._spec = spec
        self._findings = findings

    def _refuse(self, path: str, text: str) -> None:
        self._findings.append(Finding(self._where, path, f"{text}; the Service is not programmed"))

    def facts(self, item: Service) -> ServiceFacts:
        spec = self._spec
        self._check_words(item)
        ports = self._ports(spec.ports or ())
        cluster_ips = self._cluster_ips()
        external_local = (spec.external_traffic_policy or "Cluster") == "Local"
        internal_local = (spec.internal_traffic_policy or "Cluster") == "Local"
        if self._findings:
            raise Unusable
        halves = {family: self._half(item, address) for family, address in cluster_ips.items()}
        is_local = external_local and (spec.type != "ClusterIP" or bool(spec.external_ips))
        affinity_s = self._affinity_s()
        needs_health = spec.type == "LoadBalancer" and is_local and spec.health_check_node_port
        return ServiceFacts(
            key=_service_key(item),
            type=spec.type,
            ports=ports,
            v4=halves.get("IPv4"),
            v6=halves.get("IPv6"),
            is_external_local=is_local,
            is_internal_local=internal_local,
            affinity_s=affinity_s,
            health_port=spec.health_check_node_port if needs_health else 0,
            created=item.metadata.creation_timestamp or "",
            uid=item.metadata.uid,
            options=read_options(
                item.metadata.annotations,
                has_local_policy=is_local or internal_local,
                has_affinity=bool(affinity_s),
                where=self._where,
                findings=self._findings,
            ),
        )

    def _check_words(self, item: Service) -> None:
        """Everything that has to be one of a few words, or a name."""
        spec = self._spec
        for path, name in (("metadata.name", item.metadata.name), ("metadata.namespace", item.metadata.namespace)):
            if DNS_NAME.fullmatch(name) is None:
                self._refuse(path, f"{shown(name)} is not a name; expected lower case letters, digits and -")
        self._word("spec.type", spec.type, TYPES)
        self._word("spec.externalTrafficPolicy", spec.external_traffic_policy or "Cluster", POLICIES)
        self._word("spec.internalTrafficPolicy", spec.internal_traffic_policy or "Cluster", POLICIES)
        self._word("spec.sessionAffinity", spec.session_affinity or "None", AFFINITIES)
        for position, family in enumerate(spec.ip_families or ()):
            self._word(f"spec.ipFamilies[{position}]", family, FAMILIES)
        health = spec.health_check_node_port
        if not 0 <= health <= HIGHEST_PORT:
            self._refuse("spec.healthCheckNodePort", f"{health} is not a port; expected 1 to {HIGHEST_PORT}")
        timeout_s = self._affinity_s()
        if not 0 <= timeout_s <= LONGEST_AFFINITY_S:
            path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
            self._refuse(path, f"{timeout_s} is out of range; expected 1 to {LONGEST_AFFINITY_S}")

    def _word(self, path: str, value: str, allowed: Collection[str]) -> None:
        if value not in allowed:
            text = f"{shown(value)} is not known; expected {', '.join(allowed)}{suggestion(value, allowed)}"
            self._refuse(path, text)

    def _affinity_s(self) -> int:
        """0: none."""
        if self._spec.session_affinity != "ClientIP":
            return 0
        config = self._spec.session_affinity_config
        given = config.client_ip.timeout_seconds if config is not None and config.client_ip is not None else None
        return AFFINITY_S if given is None else given or -1

    def _ports(self, ports: tuple[ServicePort, ...]) -> tuple[PortFacts, ...]:
        if not ports:
            self._refuse("spec.ports", "there is none; expected at least one")
        names: dict[str, int] = {}
        numbers: dict[tuple[int, str], int] = {}
        node_ports: dict[tuple[int, str], int] = {}
        for position, port in enumerate(ports):
            path = f"spec.ports[{position}]"
            self._port(path, port, is_alone=len(ports) == 1)
            self._once(names, port.name, position, f"{path}.name")
            self._once(numbers, (port.port, port.protocol), position, f"{path}.port")
            if port.node_port:
                self._once(node_ports, (port.node_port, port.protocol), position, f"{path}.nodePort")
        has_node_ports = self._spec.type in ("NodePort", "LoadBalancer")
        return tuple(
            PortFacts(
                port.name, cast("Protocol", port.protocol or "TCP"), port.port, port.node_port if has_node_ports else 0
            )
            for port in ports
        )

    def _port(self, path: str, port: ServicePort, *, is_alone: bool) -> None:
        if not 0 < port.port <= HIGHEST_PORT:
            self._refuse(f"{path}.port", f"{port.port} is not a port; expected 1 to {HIGHEST_PORT}")
        if not 0 <= port.node_port <= HIGHEST_PORT:
            self._refuse(f"{path}.nodePort", f"{port.node_port} is not a port; expected 1 to {HIGHEST_PORT}")
        self._word(f"{path}.protocol", port.protocol or "TCP", PROTOCOLS)
        if not port.name and is_alone:
            return
        if PORT_NAME.fullmatch(port.name) is None:
            text = f"{shown(port.name)} is not a port name; expected lower case letters, digits and -"
            self._refuse(f"{path}.name", text)

    def _once(self, seen: dict[T, int], value: T, position: int, path: str) -> None:
        first = seen.setdefault(value, position)
        if first != position:
            given = "/".join(map(str, value)) if isinstance(value, tuple) else shown(value)
            self._refuse(path, f"{given} is also that of spec.ports[{first}]")

    def _cluster_ips(self) -> dict[Family, Address]:
        spec = self._spec
        texts = spec.cluster_ips or (spec.cluster_ip,)
        if spec.cluster_ips and spec.cluster_ips[0] != spec.cluster_ip:
            text = f"{shown(spec.cluster_ips[0])} differs from clusterIP {shown(spec.cluster_ip)}; expected the same"
            self._refuse("spec.clusterIPs[0]", text)
        found: dict[Family, Address] = {}
        for position, text in enumerate(texts):
            path = f"spec.clusterIPs[{position}]" if spec.cluster_ips else "spec.clusterIP"
            address = self._cluster_ip(path, text)
            if address is None:
                continue
            if address.family in found:
                self._refuse(path, f"{shown(text)} is a second {address.family} address; expected one of each family")
            self._check_family(path, position, address)
            found.setdefault(address.family, address)
        return found

    def _cluster_ip(self, path: str, text: str) -> Address | None:
        address = read_address(text)
        if address is None:
            self._refuse(path, f"{shown(text)} is not an address; expected an address such as 10.96.0.10")
            return None
        unfit = unfit_endpoint(address)
        if unfit:
            self._refuse(path, f"{shown(text)} is {unfit}; expected an address that can be routed")
        return address

    def _check_family(self, path: str, position: int, address: Address) -> None:
        families = self._spec.ip_families
        if families and position < len(families) and families[position] != address.family:
            wrong = shown(families[position])
            self._refuse(path, f"{address.text} is {address.family}, but spec.ipFamilies[{position}] is {wrong}")

    def _half(self, item: Service, cluster_ip: Address) -> FamilyPart:
        family = cluster_ip.family
        spec = self._spec
        external = self._addresses("spec.externalIPs", spec.external_ips or (), family)
        balancers: tuple[Address, ...] = ()
        ranges: tuple[Range, ...] = ()
        is_closed = False
        if spec.type == "LoadBalancer":
            balancers = self._addresses("status.loadBalancer.ingress", self._vips(item), family)
            found = self._ranges(spec.load_balancer_source_ranges or (), family)
            is_closed = found is None and self._is_strict
            ranges = found or ()
        return FamilyPart(cluster_ip, external, balancers, ranges, is_closed)

    def _vips(self, item: Service) -> list[str]:
        """Entries that are for proxies to serve; "" where one is not, so that positions stay."""
        found = []
        for position, entry in enumerate(item.status.load_balancer.ingress or ()):
            if entry.ip_mode not in (None, *IP_MODES):
                path = f"status.loadBalancer.ingress[{position}].ipMode"
                self._tell_once(path, f"{shown(entry.ip_mode)} is not known; expected VIP, Proxy; it is left out")
            found.append(entry.ip if entry.ip_mode in (None, "VIP") else "")
        return found

    def _addresses(self, path: str, texts: Iterable[str], family: Family) -> tuple[Address, ...]:
        """Those of the family; one that is none is told once, with the first family that sees it."""
        found: dict[str, Address] = {}
        for position, text in enumerate(texts):
            address = read_address(text) if text else None
            if address is None and text:
                self._tell_once(f"{path}[{position}]", f"{shown(text)} is not an address; it is left out")
            elif address is not None and address.family == family:
                unfit = unfit_endpoint(address)
                if unfit:
                    self._tell_once(f"{path}[{position}]", f"{shown(text)} is {unfit}; it is left out")
                else:
                    found[address.text] = address
        return tuple(found.values())

    def _tell_once(self, path: str, text: str) -> None:
        finding = Finding(self._where, path, text)
        if finding not in self._findings:
            self._findings.append(finding)

    def _ranges(self, texts: Iterable[str], family: Family) -> tuple[Range, ...] | None:
        """Any range that is everybody means no restriction. None: there are some, but none of this family."""
        found: list[Range] = []
        given = 0
        for position, text in enumerate(texts):
            given += 1
            one = read_range(text.strip())
            path = f"spec.loadBalancerSourceRanges[{position}]"
            if one is None:
                self._tell_once(
                    path, f"{shown(text)} is not a CIDR; expected a network such as 192.0.2.0/24; it is left out"
                )
            elif one.family == family:
                found.append(one)
        if given and not found:
            effect = "closed, as services.strictSourceRanges asks" if self._is_strict else "open to all"
            text = f"nothing of {family} is in it, so the {family} addresses are {effect}"
            self._tell_once("spec.loadBalancerSourceRanges", text)
            return None
        return () if any(one.prefix == 0 for one in found) else collapse(found)
