# SPDX-License-Identifier: Apache-2.0
"""The table as text for nft: as a whole, or what changes from one to the next, each one transaction.

What the fixed chains hold to:
- replies pass by connection tracking, all else is judged at each packet, so that a policy that changes ends flows;
- an allowed packet leaves the chain of its sender by `accept` and then comes to that of its receiver;
- TCP that begins in the middle, and what tracking calls invalid, comes to no pod that a policy selects: it could make a
  refused sender look like who answers;
- neighbours of IPv6 find each other, and nobody gets round his rules by link-local addresses.
Traffic of the node itself comes by none of these hooks.
"""

from collections.abc import Iterable, Iterator, Mapping

from agent.policies.manifest.objects import DIRECTIONS, Direction
from agent.policies.rules.table import FAMILIES, POLICED, SELVES, TABLE, Chain, NamedSet, Rule, SetKind, Table, refusal

HERE = f"inet {TABLE}"
COUNTERS = ("denied_egress", "denied_ingress", "denied_unfit")
IP = {"4": "ip", "6": "ip6"}
TYPES = {
    SetKind.ADDRESSES: "type {address}",
    SetKind.BLOCKS: "type {address}; flags interval",
    SetKind.PORTS: "type {address} . inet_proto . inet_service",
    SetKind.PAIRS: "type {address} . {address}",
}
# After translation of destinations, which is made before anything is forwarded, and before flows are taken in that skip
# these hooks (priority 10).
PRIORITIES: Mapping[Direction, int] = {"egress": 0, "ingress": 1}
NEIGHBOURS = "{ nd-neighbor-solicit, nd-neighbor-advert }"
REMOVAL = f"add table {HERE}\ndelete table {HERE}\n"
"""Whether it is there or not."""


def whole_text(table: Table) -> str:
    """Whatever was there before."""
    if not table.sets:
        return REMOVAL
    return "".join((REMOVAL, f"add table {HERE}\n", *_fixed(table), changes_text(_bare(table), table), *_hooks()))


def _bare(table: Table) -> Table:
    return Table(ways={name: {} for name in table.ways})


def _fixed(table: Table) -> Iterator[str]:
    yield from (f"add counter {HERE} {one}\n" for one in COUNTERS)
    for name in table.ways:
        yield f"add map {HERE} {name} {{ type {_address(name[-1])} : verdict; }}\n"
    for name in (SELVES, POLICED):
        for family in FAMILIES:
            yield _declared(f"{name}{family}", table.sets[f"{name}{family}"])
    for direction in DIRECTIONS:
        chain = refusal(direction)
        yield f"add chain {HERE} {chain}\n"
        for family in FAMILIES:
            ip = IP[family]
            yield f"add rule {HERE} {chain} {ip} saddr . {ip} daddr @{SELVES}{family} accept\n"
        yield f'add rule {HERE} {chain} counter name "denied_{direction}" drop\n'


def _hooks() -> Iterator[str]:
    """Last, so that a table is whole before it is asked."""
    yield f"add chain {HERE} unfit\n"
    for family in FAMILIES:
        for end in ("saddr", "daddr"):
            yield f'add rule {HERE} unfit {IP[family]} {end} @{POLICED}{family} counter name "denied_unfit" drop\n'
    for direction, priority in PRIORITIES.items():
        yield f"add chain {HERE} {direction} {{ type filter hook forward priority {priority}; policy accept; }}\n"
        yield f"add rule {HERE} {direction} ct state established ct direction reply accept\n"
        yield f"add rule {HERE} {direction} ct state related meta l4proto {{ icmp, ipv6-icmp }} accept\n"
        yield f"add rule {HERE} {direction} icmpv6 type {NEIGHBOURS} ip6 hoplimit 255 accept\n"
        if direction == "egress":
            yield from (f"add rule {HERE} egress {rule}\n" for rule in _at_first())
        for family in FAMILIES:
            end = "saddr" if direction == "egress" else "daddr"
            yield f"add rule {HERE} {direction} {IP[family]} {end} vmap @{direction}{family}\n"


def _at_first() -> Iterator[str]:
    yield 'ip6 saddr fe80::/10 ip6 daddr != ff00::/8 counter name "denied_unfit" drop'
    yield 'ip6 daddr fe80::/10 counter name "denied_unfit" drop'
    yield "ct state invalid jump unfit"
    yield "ct state new tcp flags & (fin | syn | rst | ack) != syn jump unfit"


def changes_text(before: Table, after: Table) -> str:
    """Empty where nothing changes. Both have the fixed part."""
    return "".join(_changes(before, after))


def _changes(before: Table, after: Table) -> Iterator[str]:
    new_sets = {name: one for name, one in after.sets.items() if not _is_fixed(name) and name not in before.sets}
    new_chains = {name: one for name, one in after.chains.items() if name not in before.chains}
    gone_chains = [name for name in before.chains if name not in after.chains]
    gone_sets = [name for name in before.sets if name not in after.sets and not _is_fixed(name)]
    yield from _gone_elements(before, after)
    for name, one in new_sets.items():
        yield _declared(name, one) + _added(name, one.elements)
    for name, chain in new_chains.items():
        comment = f' {{ comment "{chain.policy}"; }}' if chain.policy and len(chain.policy) < 120 else ""
        yield f"add chain {HERE} {name}{comment}\n"
    for name, chain in new_chains.items():
        yield from (f"add rule {HERE} {name} {rule_text(chain, rule)}\n" for rule in chain.rules)
    yield from _new_elements(before, after, new_sets)
    # Chains of pods lead to those of policies.
    for name in sorted(gone_chains):
        yield f"flush chain {HERE} {name}\ndelete chain {HERE} {name}\n"
    for name in gone_sets:
        yield f"delete set {HERE} {name}\n"


def _gone_elements(before: Table, after: Table) -> Iterator[str]:
    for name, chains in before.ways.items():
        now = after.ways[name]
        if now is not chains:
            yield _removed(name, (one for one, chain in chains.items() if now.get(one) != chain))
    for name, one in before.sets.items():
        if name in after.sets and one.elements != after.sets[name].elements:
            yield _removed(name, one.elements - after.sets[name].elements)


def _new_elements(before: Table, after: Table, new_sets: Mapping[str, NamedSet]) -> Iterator[str]:
    nothing: frozenset[str] = frozenset()
    for name, one in after.sets.items():
        if name not in new_sets:
            known = before.sets[name].elements if name in before.sets else nothing
            if known != one.elements:
                yield _added(name, one.elements - known)
    for name, chains in after.ways.items():
        known_ways = before.ways[name]
        new = (f"{one} : goto {chain}" for one, chain in chains.items() if known_ways.get(one) != chain)
        yield _added(name, new)


def _is_fixed(name: str) -> bool:
    return name.startswith((SELVES, POLICED))


def _address(family: str) -> str:
    return "ipv4_addr" if family == "4" else "ipv6_addr"


def _declared(name: str, one: NamedSet) -> str:
    return f"add set {HERE} {name} {{ {TYPES[one.kind].format(address=_address(one.family))}; }}\n"


def _added(name: str, elements: Iterable[str]) -> str:
    listed = ", ".join(sorted(elements))
    return f"add element {HERE} {name} {{ {listed} }}\n" if listed else ""


def _removed(name: str, elements: Iterable[str]) -> str:
    listed = ", ".join(sorted(elements))
    return f"delete element {HERE} {name} {{ {listed} }}\n" if listed else ""


def rule_text(chain: Chain, rule: Rule) -> str:
    ip = IP[chain.family]
    words = []
    if rule.peers:
        words.append(f"{ip} {'saddr' if chain.direction == 'ingress' else 'daddr'} @{rule.peers}")
    if rule.named:
        words.append(f"{ip} daddr . meta l4proto . th dport @{rule.named}")
    elif rule.ports:
        ranges = (str(first) if first == last else f"{first}-{last}" for first, last in rule.ports)
        words.append(f"{rule.protocol} dport {{ {', '.join(ranges)} }}")
    elif rule.protocol:
        words.append(f"meta l4proto {rule.protocol}")
    return " ".join((*words, rule.verdict))
