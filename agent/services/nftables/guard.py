# SPDX-License-Identifier: Apache-2.0
"""Writes the rules that stand between a boot and the first sync: what goes to a Service waits for its rules.

Without them the first packets leave untranslated, and connection tracking keeps their flows so for as long as they are
sent. They are dropped, for clients repeat them; a refusal would let them give up. Elements end by themselves, so that a
node whose kepd never comes is as without them.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from agent.model.services.nft_table import Family
from agent.model.services.service import Address, Range
from agent.services.objects.addresses import read_address, read_range, whole
from agent.services.routes.frontends import ServicePlan

TABLE = "kepd_guard"
MOST_ADDRESSES = 4096
IP = {"IPv4": "ip", "IPv6": "ip6"}
# After connection tracking and before any translation.
PRIORITY = -150


class Way(NamedTuple):
    """An address with a port of it; without a protocol: all of a network."""

    network: Range
    protocol: str = ""
    port: int = 0

    def __str__(self) -> str:
        text, _, prefix = self.network.text.rpartition("/")
        return f"{text} . {self.protocol.lower()} . {self.port}" if self.protocol else f"{text}/{prefix}"

    def has(self, address: Address, protocol: str, port: int) -> bool:
        is_inside = self.network.family == address.family and self.network.first <= address.packed <= self.network.last
        return is_inside and self.protocol in ("", protocol) and self.port in (0, port)


def outside(plan: ServicePlan | None, networks: Sequence[Range]) -> tuple[Way, ...]:
    """Ways in of a Service by addresses that none of the networks has."""
    frontends = [one for port in plan.ports for one in port.frontends] if plan is not None else []
    return tuple(
        Way(whole(one.ip), one.protocol, one.port)
        for one in frontends
        if one.ip is not None and not any(net.first <= one.ip.packed <= net.last for net in networks)
    )


def guarded(
    networks: Iterable[Range], ways: Iterable[Way], spared: Collection[bytes] = ()
) -> tuple[tuple[Way, ...], int]:
    """What is kept away, and how many ways in are left out because they are too many. `spared`: addresses of this node
    and of what it needs itself, where other programs listen as well, before any Service is there."""
    alone = sorted({one for one in ways if one.network.first not in spared})
    kept = alone[:MOST_ADDRESSES]
    return (*map(Way, networks), *kept), len(alone) - len(kept)


def guard_text(family: Family, elements: Iterable[Way], life_s: int) -> str:
    """One transaction for `nft`, whatever was there before; without elements it only takes the table away."""
    found = list(elements)
    removal = guard_removal(family)
    if not found:
        return removal
    ip = IP[family]
    kind = "ipv4_addr" if family == "IPv4" else "ipv6_addr"
    networks = _set("guarded", kind, "interval, timeout", [one for one in found if not one.protocol], life_s)
    ways = [one for one in found if one.protocol]
    chains = "".join(
        f"  chain {hook} {{\n"
        f"    type filter hook {hook} priority {PRIORITY}; policy accept;\n"
        f"    ct state new {ip} daddr @guarded counter drop\n"
        f"    ct state new {ip} daddr . meta l4proto . th dport @ways counter drop\n"
        "  }\n"
        for hook in ("prerouting", "output")
    )
    sets = networks + _set("ways", f"{kind} . inet_proto . inet_service", "timeout", ways, life_s)
    return f"{removal}table {ip} {TABLE} {{\n{sets}{chains}}}\n"


def _set(name: str, kind: str, flags: str, ways: Iterable[Way], life_s: int) -> str:
    listed = ",\n".join(f"      {one} timeout {life_s}s" for one in ways)
    elements = f"    elements = {{\n{listed}\n    }}\n" if listed else ""
    return f"  set {name} {{\n    type {kind}\n    flags {flags}\n{elements}  }}\n"


def guarded_in(text: str) -> tuple[Way, ...]:
    """What such a text guards, of both families."""
    found = []
    for line in text.splitlines():
        words, _, life = line.partition(" timeout ")
        address, _, rest = words.strip().partition(" . ")
        protocol, _, port = rest.partition(" . ")
        alone, network = read_address(address), read_range(address)
        network = whole(alone) if alone is not None else network
        if life and network is not None:
            found.append(Way(network, protocol.upper(), int(port or "0")))
    return tuple(found)


def guard_removal(family: Family) -> str:
    """Takes the table away, whether it is there or not."""
    return f"add table {IP[family]} {TABLE}\ndelete table {IP[family]} {TABLE}\n"
