# SPDX-License-Identifier: Apache-2.0
"""The table of bridges: what holds for frames between pods of one bridge, where rules for IP see too little.

- a frame that comes from a pod is ARP, IPv4 or IPv6, without a tag, and its source is an address of that pod; so are
  the sender of ARP and the target of an advertisement of neighbours; and no pod plays the router of others;
- to a pod whose ingress is limited comes only what has its own address, of which its rules then judge, and what
  neighbours need to find each other;
- a pod whose egress is limited sends from its own addresses alone, of which its rules then judge.
A link is the end of a pod's interface that is a port of the bridge.
"""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address

from agent.model.services.nft_table import MapKind, MapLayout, SetChange
from agent.policies.manifest.objects import DIRECTIONS, PolicedPod
from agent.policies.rules.table import FAMILIES, TABLE, Links, family_of, way

HERE = f"bridge {TABLE}"
REMOVAL = f"add table {HERE}\ndelete table {HERE}\n"
COUNTERS = ("denied_frames", "denied_forged", "denied_group")
TYPES: Mapping[str, str] = {
    "links": "type ifname",
    "closed": "type ifname",
    "limited": "type ifname",
    "owners4": "type ifname . ipv4_addr",
    "owners6": "type ifname . ipv6_addr",
    # nft 1.0.6 has no word for the target of an advertisement.
    "targets6": "typeof iifname . @th,64,128",
}
LINK_BYTES = 16
HOOK = "{ type filter hook %s priority %d; policy accept; }"
FOREIGN = 'ether type != { ip, ip6, arp } counter name "denied_frames" drop'
FORGED, GROUP = 'counter name "denied_forged" drop', 'counter name "denied_group" drop'
NEIGHBOURS = (
    "icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, mld-listener-query, "
    "mld-listener-report, mld-listener-done, mld2-listener-report }"
)
CHAINS: Mapping[str, tuple[str, ...]] = {
    "held6": (
        f"icmpv6 type {{ nd-router-advert, nd-redirect }} {FORGED}",
        # All of them but link-local ones, which lead nowhere by the rules for IP.
        f"icmpv6 type nd-neighbor-advert @th,64,10 != 0x3fa iifname . @th,64,128 != @targets6 {FORGED}",
        "iifname . ip6 saddr @owners6 accept",
        "ip6 saddr fe80::/10 accept",
        "ip6 saddr :: meta l4proto ipv6-icmp accept",
        FORGED,
    ),
    "held": (
        FOREIGN,
        "ether type ip6 goto held6",
        "iifname . ip saddr @owners4 accept",
        "iifname . arp saddr ip @owners4 accept",
        "arp saddr ip 0.0.0.0 accept",
        "ip saddr 0.0.0.0 udp sport 68 udp dport 67 accept",
        FORGED,
    ),
    "leaving": (
        f"{NEIGHBOURS} return",
        f"ip saddr 0.0.0.0 {GROUP}",
        f"ip6 saddr {{ ::/128, fe80::/10 }} {GROUP}",
    ),
    "reached": (
        FOREIGN,
        "ether type arp accept",
        "oifname . ip daddr @owners4 accept",
        "oifname . ip6 daddr @owners6 accept",
        "ip protocol igmp accept",
        f"{NEIGHBOURS} accept",
        GROUP,
    ),
    "entered": ("iifname @links goto held",),
    "passed": ("iifname @limited jump leaving", "oifname @closed goto reached"),
}
# Before the bridge shows its packets to the rules for IP.
HOOKS = {"entered": HOOK % ("prerouting", -300), "passed": HOOK % ("forward", -200)}


def links_of(pods: Iterable[PolicedPod], ways: Mapping[str, Mapping[str, str]]) -> Links:
    """The table's elements, as pairs of a link and an address."""
    found: dict[str, set[tuple[str, str]]] = {name: set() for name in TYPES}
    sides = dict(zip(DIRECTIONS, ("limited", "closed"), strict=True))
    for pod in pods:
        addresses = pod.addresses or ()
        for link in pod.links:
            found["links"].add((link, ""))
            for direction, side in sides.items():
                if any(one in ways[way(direction, family_of(one))] for one in addresses):
                    found[side].add((link, ""))
            for family in FAMILIES:
                found[f"owners{family}"] |= {(link, one) for one in addresses if family_of(one) == family}
    found["targets6"] = found["owners6"]
    return {name: frozenset(one) for name, one in found.items()}


def bridge_text(links: Links) -> str:
    """What is there is filled anew in one transaction, and is never gone for a frame."""
    lines = [f"add table {HERE}"]
    lines += [f"add counter {HERE} {name}" for name in COUNTERS]
    lines += [f"add set {HERE} {name} {{ {kind}; }}\nflush set {HERE} {name}" for name, kind in TYPES.items()]
    for name, rules in CHAINS.items():
        lines.append(f"add chain {HERE} {name} {HOOKS.get(name, '')}\nflush chain {HERE} {name}")
        lines += [f"add rule {HERE} {name} {rule}" for rule in rules]
    for name, one in links.items():
        if elements := ", ".join(sorted(_elements(name, one))):
            lines.append(f"add element {HERE} {name} {{ {elements} }}")
    return "\n".join([*lines, ""])


def link_changes(before: Links, after: Links) -> tuple[SetChange, ...]:
    return tuple(
        SetChange(
            MapLayout(name, MapKind.MEMBER, ("link", "address") if " . " in kind else ("link",)),
            "IPv6" if name.endswith("6") else "IPv4",
            [_key(one) for one in before[name] - after[name]],
            [(_key(one), None) for one in after[name] - before[name]],
        )
        for name, kind in TYPES.items()
        if before[name] != after[name]
    )


def _elements(name: str, pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for link, address in pairs:
        value = f"0x{int(ip_address(address)):032x}" if name == "targets6" else address
        yield f'"{link}" . {value}' if address else f'"{link}"'


def _key(pair: tuple[str, str]) -> bytes:
    link, address = pair
    return link.encode().ljust(LINK_BYTES, b"\0") + (ip_address(address).packed if address else b"")
