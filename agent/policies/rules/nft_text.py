# SPDX-License-Identifier: Apache-2.0
"""The table as text for nft: as a whole, or what is new. What is forwarded meets it so:

- replies pass by connection tracking, all else is judged at each packet, so that a policy that changes ends flows;
- what the chain of the sender allows goes on to the chain of the receiver;
- TCP that begins in the middle, and what tracking calls invalid, comes to no pod that a policy selects: it could make a
  refused sender look like who answers;
- neighbours of IPv6 find each other, and nobody gets round his rules by link-local addresses.
Traffic of the node itself comes by no such hook.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from agent.policies.manifest.objects import DIRECTIONS, Direction
from agent.policies.rules.table import (
    FAMILIES,
    GUARD,
    NO_TABLE,
    POLICED,
    SELVES,
    TABLE,
    Chain,
    NamedSet,
    Rule,
    SetKind,
    Table,
    refusal,
)

HERE = f"inet {TABLE}"
COUNTERS = ("denied_egress", "denied_ingress", "denied_unfit")
IP = {"4": "ip", "6": "ip6"}
LINK_LOCAL = "fe80::/10"
MOST_COMMENT = 120
SIZE = 1024
TYPES = {
    SetKind.ADDRESSES: "type {address}",
    SetKind.BLOCKS: "type {address}; flags interval",
    SetKind.PORTS: "type {address} . inet_proto . inet_service",
    SetKind.PAIRS: "type {address} . {address}",
}
# Of what is forwarded destinations are translated already. Flows that skip the hook are taken in later (priority 10).
HOOK = "{ type filter hook forward priority 0; policy accept; }"
NO_GUARD = f"add table inet {GUARD}\ndelete table inet {GUARD}\n"
REMOVAL = f"add table {HERE}\ndelete table {HERE}\n{NO_GUARD}"
"""Of both, whether they are there or not."""


RECEIVERS = ("ip daddr vmap @ingress4", "ip6 daddr vmap @ingress6")
# Where a rule of either direction leads that allows a packet.
ALLOWED: Mapping[Direction, str] = {"egress": "goto receivers", "ingress": "accept"}
# No answer makes a flow of these an established one.
TO_ALL = (
    "meta pkttype { broadcast, multicast } meta l4proto { tcp, udp, sctp, icmp }",
    # TCP answers no such address, and a look at routes costs something.
    "meta l4proto { udp, sctp, icmp } fib daddr type { broadcast, multicast }",
    "icmpv6 type echo-request ip6 daddr ff00::/8",
)
DROP_UNFIT = 'counter name "denied_unfit" drop'
HOOKED: Mapping[str, Sequence[str]] = {
    "unfit": [
        f"{IP[family]} {end} @{POLICED}{family} {DROP_UNFIT}" for family in FAMILIES for end in ("saddr", "daddr")
    ],
    # What is no packet of a known flow.
    "first": [
        "ct state related meta l4proto { icmp, ipv6-icmp } accept",
        "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept",
        f"ip6 saddr {LINK_LOCAL} ip6 daddr != ff00::/8 {DROP_UNFIT}",
        f"ip6 daddr {LINK_LOCAL} {DROP_UNFIT}",
        "ct state invalid jump unfit",
        "ct state new tcp flags & (fin | syn | rst | ack) != syn jump unfit",
    ],
    "forwarded": [
        "ct direction reply ct state established accept",
        "ct state != established jump first",
        "ip saddr vmap @egress4",
        "ip6 saddr vmap @egress6",
        *RECEIVERS,
    ],
}


def guard_text(whole: str) -> str:
    """The same as a second table. A packet that is under way while a table is made anew may still be in rules of the
    old one, whose elements have gone already; so both are asked until the new one is there."""
    return whole.replace(HERE, f"inet {GUARD}")


def whole_text(table: Table) -> str:
    """Whatever was there before."""
    if not table.sets:
        return REMOVAL
    ways = (
        _added(name, (f"{one} : goto {chain}" for one, chain in chains.items())) for name, chains in table.ways.items()
    )
    made = "".join(f"add chain {HERE} {name}\n" for name in table.chains) + additions_text(NO_TABLE, table)
    begin = f"add table {HERE}\ndelete table {HERE}\nadd table {HERE}\n"
    return "".join((begin, *_fixed(table), made, *ways, *_hooks(table)))


def _fixed(table: Table) -> Iterator[str]:
    yield from (f"add counter {HERE} {one}\n" for one in COUNTERS)
    for name in table.ways:
        yield f"add map {HERE} {name} {{ type {_address(name[-1])} : verdict;{sized(len(table.ways[name]))} }}\n"
    yield f"add chain {HERE} receivers\n"
    yield from (f"add rule {HERE} receivers {rule}\n" for rule in RECEIVERS)
    for name in (SELVES, POLICED):
        for family in FAMILIES:
            one = table.sets[f"{name}{family}"]
            yield _declared(f"{name}{family}", one) + _added(f"{name}{family}", one.elements)
    for direction in DIRECTIONS:
        chain = refusal(direction)
        yield f"add chain {HERE} {chain}\n"
        for family in FAMILIES:
            ip = IP[family]
            verdict = ALLOWED[direction]
            yield f"add rule {HERE} {chain} {ip} saddr . {ip} daddr @{SELVES}{family} {verdict}\n"
        yield f'add rule {HERE} {chain} counter name "denied_{direction}" drop\n'


def _hooks(table: Table) -> Iterator[str]:
    """Last, so that a table is whole before it is asked."""
    for chain, rules in HOOKED.items():
        yield f"add chain {HERE} {chain} {HOOK if chain == 'forwarded' else ''}\n"
        if chain == "first" and table.is_blunt:
            yield from (f"add rule {HERE} {chain} {packets} {DROP_UNFIT}\n" for packets in TO_ALL)
        yield from (f"add rule {HERE} {chain} {rule}\n" for rule in rules)


def additions_text(before: Table, after: Table) -> str:
    """Sets that are new, and rules of new chains. Nothing leads to them yet."""
    words = []
    for name, one in after.sets.items():
        if name not in before.sets and not _is_fixed(name):
            words.append(_declared(name, one) + _added(name, one.elements))
    for name, chain in after.chains.items():
        if name not in before.chains:
            words += _rules_text(name, chain)
    return "".join(words)


def _rules_text(name: str, chain: Chain) -> Iterator[str]:
    for rule, policy in chain.rules:
        comment = f' comment "{policy}"' if len(policy) < MOST_COMMENT else ""
        yield f"add rule {HERE} {name} {rule_text(chain, rule)} {ALLOWED[chain.direction]}{comment}\n"
    yield f"add rule {HERE} {name} goto {refusal(chain.direction)}\n"


def _is_fixed(name: str) -> bool:
    return name.startswith((SELVES, POLICED))


def _address(family: str) -> str:
    return "ipv4_addr" if family == "4" else "ipv6_addr"


def _declared(name: str, one: NamedSet) -> str:
    size = "" if one.kind is SetKind.BLOCKS else sized(len(one.elements))
    return f"add set {HERE} {name} {{ {TYPES[one.kind].format(address=_address(one.family))};{size} }}\n"


def sized(count: int) -> str:
    """Where a kernel knows how large a set may become, it finds an element in two thirds of the time."""
    return f" size {SIZE};" if count <= SIZE else ""


def _added(name: str, elements: Iterable[str]) -> str:
    listed = ", ".join(sorted(elements))
    return f"add element {HERE} {name} {{ {listed} }}\n" if listed else ""


def rule_text(chain: Chain, rule: Rule) -> str:
    ip = IP[chain.family]
    words = []
    if rule.peers:
        words.append(f"{ip} {'saddr' if chain.direction == 'ingress' else 'daddr'} @{rule.peers}")
    if rule.named:
        words.append(f"{ip} daddr . meta l4proto . th dport @{rule.named}")
    elif rule.ports:
        ranges = (str(first) if first == last else f"{first}-{last}" for first, last in rule.ports)
        listed = ", ".join(ranges)
        words.append(f"{rule.protocol} dport {listed if len(rule.ports) == 1 else f'{{ {listed} }}'}")
    elif rule.protocol:
        words.append(f"meta l4proto {rule.protocol}")
    return " ".join(words)
