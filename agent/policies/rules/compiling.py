# SPDX-License-Identifier: Apache-2.0
"""One policy as chains, and the sets that they look into. Pods play no part yet: they are elements."""

import hashlib
from collections.abc import Iterable, Iterator
from ipaddress import ip_address, ip_network

import msgspec

from agent.model.selector import Matcher, compile_selector
from agent.policies.manifest.faults import MOST_PORT
from agent.policies.manifest.objects import (
    DIRECTIONS,
    NAMESPACE_LABEL,
    Direction,
    EgressRule,
    IngressRule,
    IpBlock,
    Peer,
    PolicedPod,
    Policy,
    PortFields,
)
from agent.policies.rules.table import FAMILIES, Family, NamedSet, Rule, SetKind

NUMBER_BITS = {"4": 32, "6": 128}


class Selection(msgspec.Struct, frozen=True):
    """Pods by their labels; `namespaces` None: only those of `namespace`."""

    namespace: str
    pods: Matcher
    namespaces: Matcher | None = None

    def selects(self, pod: PolicedPod) -> bool:
        if pod.labels is None:
            return False
        if self.namespaces is None:
            is_there = pod.namespace == self.namespace
        else:
            is_there = self.namespaces.matches({**dict(pod.namespace_labels), NAMESPACE_LABEL: pod.namespace})
        return is_there and self.pods.matches(dict(pod.labels))


class Compiled(msgspec.Struct, frozen=True):
    """A policy made ready; `names` tell its rules from others. `groups` and `ports` say which pods the elements of a
    set come from: those that one of the selections selects, and those with a container's port of such a name and
    protocol."""

    policy: Policy
    limited: tuple[Direction, ...]
    selected: Selection
    rules: dict[tuple[Direction, Family], tuple[Rule, ...]]
    blocks: dict[str, NamedSet]
    groups: dict[str, tuple[Family, tuple[Selection, ...]]]
    ports: dict[str, tuple[Family, str, str]]
    names: dict[tuple[Direction, Family], str]


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def compiled(policy: Policy) -> Compiled:
    selected = Selection(policy.namespace, compile_selector(policy.spec.pod_selector.selector))
    limited = tuple(one for one in DIRECTIONS if policy.limits(one))
    found = Compiled(policy, limited, selected, {}, {}, {}, {}, {})
    for direction in limited:
        for family in FAMILIES:
            rules = tuple(
                dict.fromkeys(
                    made for rule in policy.rules(direction) for made in _rules(found, rule, family, policy.namespace)
                )
            )
            if rules:
                found.rules[direction, family] = rules
                found.names[direction, family] = digest(policy.key, rules)
    return found


def _rules(found: Compiled, rule: IngressRule | EgressRule, family: Family, namespace: str) -> Iterator[Rule]:
    ports = list(_ports(found, rule.ports, family))
    for peers in _peers(found, rule.peers, family, namespace):
        yield from (msgspec.structs.replace(one, peers=peers) for one in ports)


def _peers(found: Compiled, peers: tuple[Peer, ...], family: Family, namespace: str) -> Iterator[str]:
    """Sets whose members are peers; an empty name stands for everybody."""
    if not peers:
        yield ""
        return
    blocks = [one.ip_block for one in peers if one.ip_block is not None]
    ranges = ranges_of(blocks, family)
    if ranges == ((0, (1 << NUMBER_BITS[family]) - 1),):
        yield ""
        return
    # A kernel finds pods faster than networks.
    if groups := tuple(dict.fromkeys(selection_of(one, namespace) for one in peers if one.ip_block is None)):
        name = f"pods{family}_{digest(groups)}"
        found.groups[name] = (family, groups)
        yield name
    if ranges:
        kind = ip_address if family == "4" else _v6
        elements = frozenset(f"{kind(first)}-{kind(last)}" for first, last in ranges)
        name = f"blocks{family}_{digest(sorted(elements))}"
        found.blocks[name] = NamedSet(SetKind.BLOCKS, family, elements)
        yield name


def _v6(number: int) -> object:
    return ip_address(number.to_bytes(16, "big"))


def selection_of(peer: Peer, namespace: str) -> Selection:
    pods, namespaces = peer.pod_selector, peer.namespace_selector
    matcher = compile_selector(pods.selector) if pods is not None else Matcher()
    if namespaces is None:
        return Selection(namespace, matcher)
    return Selection("", matcher, compile_selector(namespaces.selector))


def ranges_of(blocks: Iterable[IpBlock], family: Family) -> tuple[tuple[int, int], ...]:
    """All blocks without their exceptions, as ranges that neither overlap nor touch."""
    found: list[tuple[int, int]] = []
    for block in blocks:
        whole = ip_network(block.cidr, strict=False)
        if str(whole.version) != family:
            continue
        parts = (ip_network(text, strict=False) for text in block.except_)
        found += _without(int(whole[0]), int(whole[-1]), merged((int(one[0]), int(one[-1])) for one in parts))
    return merged(found)


def _without(first: int, last: int, gaps: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What is left of a range; the gaps are sorted and do not overlap."""
    for begin, end in gaps:
        if first < begin:
            yield first, min(begin - 1, last)
        first = max(first, end + 1)
    if first <= last:
        yield first, last


def merged(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def _ports(found: Compiled, ports: tuple[PortFields, ...], family: Family) -> Iterator[Rule]:
    if not ports:
        yield Rule()
    numbers: dict[str, list[tuple[int, int]]] = {}
    for one in (each for each in ports if not isinstance(each.port, str)):
        first = int(one.port or 0)
        last = MOST_PORT if one.port is None else one.end_port or first
        numbers.setdefault(one.protocol.lower(), []).append((first, last))
    for protocol, given in numbers.items():
        ranges = merged(given)
        yield Rule(protocol=protocol, ports=() if ranges[0] == (0, MOST_PORT) else ranges)
    for one in (each for each in ports if isinstance(each.port, str)):
        protocol = one.protocol.lower()
        name = f"port{family}_{protocol}_{one.port}"
        found.ports[name] = (family, str(one.port), one.protocol)
        yield Rule(protocol=protocol, named=name)
