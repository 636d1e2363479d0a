# SPDX-License-Identifier: Apache-2.0
"""Writes the rules that stand between a boot and the first sync: what goes to a Service waits for its rules.

Without them the first packets leave untranslated, and connection tracking keeps their flows so for as long as they are
sent. They are dropped, for clients repeat them; a refusal would let them give up. Elements end by themselves, so that a
node whose kepd never comes is as without them. Source of behaviour: SVN-20 to SVN-24.
"""

from collections.abc import Iterable, Sequence

from agent.model.nft_table import Family
from agent.model.service import Address, Range
from agent.services.objects.addresses import read_address, read_range, whole
from agent.services.routes.frontends import ServicePlan

TABLE = "kepd_guard"
MOST_ADDRESSES = 4096
IP = {"IPv4": "ip", "IPv6": "ip6"}
# After connection tracking and before any translation.
PRIORITY = -150


def outside(plan: ServicePlan | None, networks: Sequence[Range]) -> tuple[Address, ...]:
    """Addresses of a Service that none of the networks has."""
    ways = [one.ip for port in plan.ports for one in port.frontends] if plan is not None else []
    return tuple(
        dict.fromkeys(
            ip for ip in ways if ip is not None and not any(net.first <= ip.packed <= net.last for net in networks)
        )
    )


def guarded(networks: Iterable[Range], addresses: Iterable[Address]) -> tuple[tuple[str, ...], int]:
    """Elements of the set, and how many addresses are left out because they are too many."""
    alone = sorted(set(addresses))
    kept = alone[:MOST_ADDRESSES]
    return (*(one.text for one in networks), *(one.text for one in kept)), len(alone) - len(kept)


def guard_text(family: Family, elements: Iterable[str], life_s: int) -> str:
    """One transaction for `nft`, whatever was there before; without elements it only takes the table away."""
    listed = ",\n".join(f"      {one} timeout {life_s}s" for one in elements)
    removal = guard_removal(family)
    if not listed:
        return removal
    ip = IP[family]
    kind = "ipv4_addr" if family == "IPv4" else "ipv6_addr"
    chains = "".join(
        f"  chain {hook} {{\n"
        f"    type filter hook {hook} priority {PRIORITY}; policy accept;\n"
        f"    ct state new {ip} daddr @guarded counter drop\n"
        "  }\n"
        for hook in ("prerouting", "output")
    )
    return (
        f"{removal}table {ip} {TABLE} {{\n"
        f"  set guarded {{\n    type {kind}\n    flags interval, timeout\n    elements = {{\n{listed}\n    }}\n  }}\n"
        f"{chains}}}\n"
    )


def guarded_in(text: str) -> tuple[Range, ...]:
    """What such a text guards, of both families."""
    listed = (line.split() for line in text.splitlines())
    found = []
    for text in (words[0] for words in listed if words[1:2] == ["timeout"]):
        address = read_address(text)
        found.append(whole(address) if address is not None else read_range(text))
    return tuple(one for one in found if one is not None)


def guard_removal(family: Family) -> str:
    """Takes the table away, whether it is there or not."""
    return f"add table {IP[family]} {TABLE}\ndelete table {IP[family]} {TABLE}\n"
