# SPDX-License-Identifier: Apache-2.0
"""From one table to the next: what is new and led to by nothing yet, then one transaction that all packets notice.

Most of it goes without the nft program, which reads everything before it takes an element away.
"""

from collections.abc import Iterator
from ipaddress import ip_address

import msgspec

from agent.model.services.nft_table import Family as AddressFamily
from agent.model.services.nft_table import MapKind, MapLayout, SetChange
from agent.policies.rules.nft_text import SIZE, additions_text
from agent.policies.rules.table import Family, NamedSet, SetKind, Table

NAMES: dict[Family, AddressFamily] = {"4": "IPv4", "6": "IPv6"}
KEYS = {
    SetKind.ADDRESSES: ("address",),
    SetKind.PORTS: ("address", "proto", "port"),
    SetKind.PAIRS: ("address", "address"),
}
NUMBERS = {"tcp": 6, "udp": 17, "sctp": 132}


class Change(msgspec.Struct, frozen=True):
    """Chains that are new come first, empty, and `text`, where there is any; the rest is one transaction."""

    new_chains: tuple[str, ...]
    text: str
    elements: tuple[SetChange, ...]
    gone_chains: tuple[str, ...]
    gone_sets: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.new_chains or self.text or self.elements or self.gone_chains or self.gone_sets)


def change(before: Table, after: Table) -> Change:
    """Of two that are there."""
    return Change(
        tuple(name for name in after.chains if name not in before.chains),
        additions_text(before, after),
        (*_ways(before, after), *_members(before, after)),
        tuple(name for name in before.chains if name not in after.chains),
        tuple(name for name in before.sets if name not in after.sets),
    )


def outgrows(before: Table, after: Table) -> bool:
    """Whether all of the table has to be made anew: something gets more elements than it has room for, or the hook
    gets other rules."""
    if before.is_blunt != after.is_blunt:
        return True
    sets = ((one.elements, after.sets[name].elements) for name, one in before.sets.items() if name in after.sets)
    ways = ((one, after.ways[name]) for name, one in before.ways.items())
    return any(len(old) <= SIZE < len(new) for old, new in (*sets, *ways))


def _ways(before: Table, after: Table) -> Iterator[SetChange]:
    for name, chains in before.ways.items():
        now = after.ways[name]
        gone = [ip_address(one).packed for one, chain in chains.items() if now.get(one) != chain]
        new = [(ip_address(one).packed, chain) for one, chain in now.items() if chains.get(one) != chain]
        if gone or new:
            yield SetChange(MapLayout(name, MapKind.VERDICT, ("address",)), _family(name), gone, new)


def _members(before: Table, after: Table) -> Iterator[SetChange]:
    for name, one in before.sets.items():
        now = after.sets.get(name)
        if now is not None and now is not one and now.elements != one.elements:
            gone = [_key(one, element) for element in one.elements - now.elements]
            new = [(_key(one, element), None) for element in now.elements - one.elements]
            yield SetChange(MapLayout(name, MapKind.MEMBER, KEYS[one.kind]), NAMES[one.family], gone, new)


def _family(way: str) -> AddressFamily:
    return "IPv6" if way.endswith("6") else "IPv4"


def _key(whose: NamedSet, element: str) -> bytes:
    """As the kernel has it: each part padded to four bytes."""
    parts = element.split(" . ")
    if whose.kind is SetKind.PORTS:
        address, protocol, port = parts
        return ip_address(address).packed + bytes([NUMBERS[protocol], 0, 0, 0]) + int(port).to_bytes(2, "big") + b"\0\0"
    return b"".join(ip_address(one).packed for one in parts)
