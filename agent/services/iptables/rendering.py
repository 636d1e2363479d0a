# SPDX-License-Identifier: Apache-2.0
"""A Service's plan as iptables rules, in the form in which iptables-save prints them. Same plan, same rules.

What one Service has in chains of its own (SVC, SVL, EXT, FW, SEP) and what it adds to the chains that all share, with
names and comments as kube-proxy gives them, so that operators and their tools find them. Nothing from a name can end a
comment, begin an option or begin a line.
Source of behaviour: kubernetes/kubernetes: pkg/proxy/iptables/proxier.go.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import sha256

import msgspec

from agent.model.services.iptables_rules import Table
from agent.model.services.nft_table import TableSettings
from agent.model.services.service import Backend, Range, ServiceKey
from agent.services.nftables.elements import NO_SLOTS, slots_of
from agent.services.routes.frontends import Frontend, PortPlan, ServicePlan, port_name

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
# Two characters of base32 at a time: b64encode is in C, b32encode is not, and a first sync makes 100 000 names. Three
# at a time would be a little faster, and 2 MB that every daemon with Services has to carry.
_PAIRS = tuple(first + second for first in _ALPHABET for second in _ALPHABET)
_HASH_BYTES = 10
_MOST_CHARACTERS = 250
_UNSAFE = re.compile(r"[^A-Za-z0-9 ._:;,/>\[\]-]")
Shared = tuple[Table, str, str]
"""Table, chain, rule."""
Chain = tuple[str, tuple[str, ...]]


class PortNames(msgspec.Struct, frozen=True, gc=False):
    """Of one service port. `told` is what comments call it."""

    told: str
    protocol: str
    cluster: str
    local: str
    external: str
    firewall: str


def _hashed(text: str) -> str:
    """16 characters of base32: 80 bits."""
    bits = int.from_bytes(sha256(text.encode()).digest()[:_HASH_BYTES], "big")
    return (
        f"{_PAIRS[bits >> 70]}{_PAIRS[bits >> 60 & 1023]}{_PAIRS[bits >> 50 & 1023]}{_PAIRS[bits >> 40 & 1023]}"
        f"{_PAIRS[bits >> 30 & 1023]}{_PAIRS[bits >> 20 & 1023]}{_PAIRS[bits >> 10 & 1023]}{_PAIRS[bits & 1023]}"
    )


def names_of(key: ServiceKey, port: PortPlan) -> PortNames:
    told, protocol = port_name(key, port.port.name), port.port.protocol.lower()
    digest = _hashed(told + protocol)
    kinds = [f"KUBE-{kind}-{digest}" for kind in ("SVC", "SVL", "EXT", "FW")]
    return PortNames(told, protocol, *kinds)


def endpoint_chain(names: PortNames, backend: Backend) -> str:
    return f"KUBE-SEP-{_hashed(names.told + names.protocol + backend.key)}"


def comment(text: str) -> str:
    """As a match. What might mean something to iptables-restore is shown as a question mark."""
    return f'-m comment --comment "{_UNSAFE.sub("?", text)[:_MOST_CHARACTERS]}"'


class RuleSettings(TableSettings, frozen=True, kw_only=True):
    """What rules depend on beside the plans. `pods` is how traffic of local pods matches; "" where nobody can tell."""

    pods: str = ""
    node_port_addresses: tuple[str, ...] = ()

    @property
    def has_loopback_node_ports(self) -> bool:
        return self.family == "IPv4" and self.has_node_ports_everywhere


def endpoint_count(plan: ServicePlan) -> int:
    """What large mode counts."""
    return sum(len(port.selection.everyone) for port in plan.ports)


def chains_of(plan: ServicePlan, settings: RuleSettings, *, is_large: bool) -> Iterator[Chain]:
    for port in plan.ports:
        yield from _Port(plan, port, settings, is_large=is_large).chains()


def shared_rules_of(plan: ServicePlan, settings: RuleSettings) -> Iterator[Shared]:
    for port in plan.ports:
        yield from _Port(plan, port, settings).shared()
    if plan.health_port:
        told = comment(f"{plan.key} health check node port")
        yield "filter", "KUBE-NODEPORTS", f"-p tcp {told} -m tcp --dport {plan.health_port} -j ACCEPT"


@lru_cache(maxsize=1024)
def _chances(shares: tuple[int, ...]) -> tuple[str, ...]:
    """Of each in turn, if none before it was chosen; most Services have as many endpoints as some other."""
    rest, chances = sum(shares), []
    for share in shares:
        chances.append("" if share == rest else f"-m statistic --mode random --probability {share / rest:.10f} ")
        rest -= share
    return tuple(chances)


class _Port:
    def __init__(self, plan: ServicePlan, port: PortPlan, settings: RuleSettings, *, is_large: bool = False) -> None:
        self._port = port
        self._settings = settings
        self._names: PortNames = names_of(plan.key, port)
        self._is_large = is_large
        self._endpoint_chains: dict[str, str] = {}
        self._options = plan.options
        inside = [one for one in port.frontends if one.kind == "clusterIP"]
        self._inside: Frontend | None = inside[0] if inside else None
        self._outside = [one for one in port.frontends if one.kind != "clusterIP" and self._has_way(one)]

    def _has_way(self, frontend: Frontend) -> bool:
        """Whether anybody who comes this way is served."""
        selection = self._port.selection
        return bool(selection.cluster if frontend.kind != "clusterIP" else None) or bool(
            selection.local if frontend.is_local_policy else selection.cluster
        )

    def chains(self) -> Iterator[Chain]:
        cluster, local = self._port.selection.cluster or (), self._port.selection.local or ()
        is_inside_local = self._inside is not None and self._inside.is_local_policy
        uses_cluster = bool(self._outside) or (self._inside is not None and not is_inside_local)
        uses_local = is_inside_local or any(one.is_local_policy for one in self._outside)
        served: dict[str, Backend] = {}
        if cluster and uses_cluster:
            served.update((one.key, one) for one in cluster)
            yield self._choice(self._names.cluster, cluster, is_inside=not is_inside_local)
        if local and uses_local:
            served.update((one.key, one) for one in local)
            yield self._choice(self._names.local, local, is_inside=is_inside_local)
        if self._outside:
            yield self._external(has_cluster=bool(cluster), has_local=bool(local))
        if any(self._is_behind_firewall(one) for one in self._outside):
            yield self._firewall()
        for one in served.values():
            yield self._endpoint(one)

    def _choice(self, chain: str, backends: Sequence[Backend], *, is_inside: bool) -> Chain:
        """Masquerade, come back, choose."""
        rules: list[str] = []
        chosen = self._shares(backends, is_local=chain == self._names.local)
        if is_inside and self._inside is not None:
            rules += self._masquerade_inside(self._inside)
        if self._port.affinity_s:
            for one, _ in chosen:
                recent = f"-m recent --rcheck --seconds {self._port.affinity_s} --reap {self._recent(one)}"
                rules.append(f"{self._to(one)}{recent} -j {self._chain_of(one)}")
        chances = _chances(tuple([share for _, share in chosen]))
        for (one, _), chance in zip(chosen, chances, strict=True):
            rules.append(f"{self._to(one)}{chance}-j {self._chain_of(one)}")
        return chain, tuple(rules)

    def _shares(self, backends: Sequence[Backend], *, is_local: bool) -> list[tuple[Backend, int]]:
        """As many shares as slots with nftables."""
        if self._options is None or not self._options.weights:
            return [(one, 1) for one in backends]
        slots = slots_of(self._port, NO_SLOTS, self._options)
        shares = Counter(slots.local if is_local else slots.cluster)
        return [(one, shares[one.data]) for one in backends if shares[one.data]]

    def _chain_of(self, backend: Backend) -> str:
        found = self._endpoint_chains.get(backend.key)
        if found is None:
            found = self._endpoint_chains[backend.key] = endpoint_chain(self._names, backend)
        return found

    def _to(self, backend: Backend) -> str:
        return "" if self._is_large else comment(f"{self._names.told} -> {backend.key}") + " "

    def _recent(self, backend: Backend) -> str:
        mask = "255.255.255.255" if self._settings.family == "IPv4" else ":".join(["ffff"] * 8)
        return f"--name {self._chain_of(backend)} --mask {mask} --rsource"

    def _masquerade_inside(self, frontend: Frontend) -> Iterator[str]:
        what = self._match(frontend, "cluster IP")
        if self._settings.masquerades_all:
            yield f"{what} -j KUBE-MARK-MASQ"
        elif self._settings.pods.startswith("-s "):
            yield f"! {self._settings.pods} {what} -j KUBE-MARK-MASQ"
        elif self._settings.pods:
            before, middle, after = what.partition(" -p ")
            yield f"{before} ! {self._settings.pods}{middle}{after} -j KUBE-MARK-MASQ"

    def _external(self, *, has_cluster: bool, has_local: bool) -> Chain:
        names, pods = self._names, self._settings.pods
        what = f"{names.told} external destinations"
        if not self._outside[0].is_local_policy:
            marks = comment(f"masquerade traffic for {what}")
            return names.external, (f"{marks} -j KUBE-MARK-MASQ", f"-j {names.cluster}")
        rules = []
        if has_cluster:
            local = "-m addrtype --src-type LOCAL"
            if pods:
                rules.append(f"{pods} {comment(f'pod traffic for {what}')} -j {names.cluster}")
            rules.append(f"{comment(f'masquerade LOCAL traffic for {what}')} {local} -j KUBE-MARK-MASQ")
            rules.append(f"{comment(f'route LOCAL traffic for {what}')} {local} -j {names.cluster}")
        if has_local:
            rules.append(f"-j {names.local}")
        return names.external, tuple(rules)

    @staticmethod
    def _is_behind_firewall(frontend: Frontend) -> bool:
        return frontend.is_restricted and frontend.kind != "nodePort"

    def _firewall(self) -> Chain:
        """Who is in no range leaves it without an endpoint, and KUBE-PROXY-FIREWALL drops it."""
        told = comment(f"{self._names.told} loadbalancer IP")
        ranges = [one for frontend in self._outside if self._is_behind_firewall(frontend) for one in frontend.ranges]
        rules = [f"{_source(one)}{told} -j {self._names.external}" for one in dict.fromkeys(ranges)]
        rules.append(comment(f"other traffic to {self._names.told} will be dropped by KUBE-PROXY-FIREWALL"))
        return self._names.firewall, tuple(rules)

    def _endpoint(self, backend: Backend) -> Chain:
        """Then the way there."""
        told = "" if self._is_large else comment(self._names.told) + " "
        width = 32 if self._settings.family == "IPv4" else 128
        protocol = self._names.protocol
        remembers = f"-m recent --set {self._recent(backend)} " if self._port.affinity_s else ""
        return self._chain_of(backend), (
            f"-s {backend.address}/{width} {told}-j KUBE-MARK-MASQ",
            f"-p {protocol} {told}{remembers}-m {protocol} -j DNAT --to-destination {backend.key}",
        )

    def _match(self, frontend: Frontend, what: str) -> str:
        """Destination, protocol, comment and port, in this order."""
        width = 32 if self._settings.family == "IPv4" else 128
        address = f"-d {frontend.ip.text}/{width} " if frontend.ip is not None else ""
        protocol = self._names.protocol
        told = comment(f"{self._names.told} {what}".rstrip())
        node = "-m addrtype --dst-type LOCAL " if not address and what else ""
        return f"{address}-p {protocol} {told} {node}-m {protocol} --dport {frontend.port}"

    def shared(self) -> Iterator[Shared]:
        for one in self._port.frontends:
            if self._has_way(one):
                yield from self._way_in(one)
            if one.verdict in ("reject", "drop"):
                yield self._refusal(one)

    def _way_in(self, frontend: Frontend) -> Iterator[Shared]:
        names = self._names
        if frontend.kind == "clusterIP":
            chain = names.local if frontend.is_local_policy else names.cluster
            yield "nat", "KUBE-SERVICES", f"{self._match(frontend, 'cluster IP')} -j {chain}"
        elif frontend.kind == "nodePort":
            what = self._match(frontend, "")
            sources = [_source(one) for one in frontend.ranges] if frontend.is_restricted else [""]
            for source in sources:
                yield "nat", "KUBE-NODEPORTS", f"{source}{what} -j {names.external}"
        else:
            what = self._match(frontend, "external IP" if frontend.kind == "externalIP" else "loadbalancer IP")
            chain = names.firewall if frontend.is_restricted else names.external
            yield "nat", "KUBE-SERVICES", f"{what} -j {chain}"
        if frontend.is_restricted:
            told = "traffic not accepted by " + (names.firewall if frontend.ip is not None else names.external)
            yield "filter", "KUBE-PROXY-FIREWALL", f"{self._match(frontend, told)} -j DROP"

    def _refusal(self, frontend: Frontend) -> Shared:
        what = "has no endpoints" if frontend.verdict == "reject" else "has no local endpoints"
        with_reset = self._settings.rejects_with_reset and frontend.protocol == "TCP"
        code = "icmp-port-unreachable" if self._settings.family == "IPv4" else "icmp6-port-unreachable"
        answer = f"REJECT --reject-with {'tcp-reset' if with_reset else code}"
        chain = "KUBE-SERVICES" if frontend.kind == "clusterIP" else "KUBE-EXTERNAL-SERVICES"
        return "filter", chain, f"{self._match(frontend, what)} -j {answer if frontend.verdict == 'reject' else 'DROP'}"


def _source(one: Range) -> str:
    return f"-s {one.text} " if one.prefix else ""
