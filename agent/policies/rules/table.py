# SPDX-License-Identifier: Apache-2.0
"""Our table as a value: what is rendered for nft, compared with what stands, and judged by.

Chains and sets are named by what they are made of, so one that changes is another one. Each family has its own: no
packet passes rules of the other.
"""

from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_address
from typing import Literal

import msgspec

from agent.policies.manifest.objects import Direction

TABLE = "kepd_policies"
GUARD = f"{TABLE}_guard"
"""The same beside it, while it is made anew."""
Family = Literal["4", "6"]
FAMILIES: tuple[Family, ...] = ("4", "6")
SELVES = "self"
"""Pairs of addresses that one pod has."""
POLICED = "policed"
"""Addresses of pods that any policy selects."""


def family_of(address: str) -> Family:
    return "6" if ":" in address else "4"


def way(direction: Direction, family: Family) -> str:
    """The map that sends a pod's packets to its chain."""
    return f"{direction}{family}"


def refusal(direction: Direction) -> str:
    """The chain where nothing is left that could allow a packet."""
    return f"no_{direction}"


class SetKind(StrEnum):
    ADDRESSES = "addresses"
    BLOCKS = "blocks"
    """Ranges that do not overlap; such a set never changes."""
    PORTS = "ports"
    """Address, protocol and port."""
    PAIRS = "pairs"


class NamedSet(msgspec.Struct, frozen=True):
    """Elements are written as nft takes them."""

    kind: SetKind
    family: Family
    elements: frozenset[str] = frozenset()


class Rule(msgspec.Struct, frozen=True):
    """What all has to hold for a packet to be allowed, where it is given: the other end is in a set, the protocol, one
    of these port ranges, the port is one that a container of the receiver names."""

    peers: str = ""
    protocol: str = ""
    ports: tuple[tuple[int, int], ...] = ()
    named: str = ""


class Chain(msgspec.Struct, frozen=True):
    """What judges packets of pods with the same policies. A rule comes with the key of the policy that allows it."""

    family: Family
    direction: Direction
    rules: tuple[tuple[Rule, str], ...]


Links = Mapping[str, frozenset[tuple[str, str]]]
"""By set of the table of bridges: links of pods, with an address where the set has one."""


class Table(msgspec.Struct, frozen=True):
    """`ways` by map: addresses and the chains that judge their packets. `is_blunt`: of a pod with policies no link is
    known, so packets to all at once are forwarded to nobody."""

    chains: Mapping[str, Chain] = {}
    sets: Mapping[str, NamedSet] = {}
    ways: Mapping[str, Mapping[str, str]] = {}
    links: Links = {}
    is_blunt: bool = False

    @property
    def policed(self) -> frozenset[str]:
        return frozenset().union(*(self.sets[f"{POLICED}{one}"].elements for one in FAMILIES if self.sets))


NO_TABLE = Table()
"""Without policies there is none."""


def has_block(blocks: NamedSet, address: str) -> bool:
    """Whether a range of the set has it."""
    found = int(ip_address(address))
    ends = (one.split("-") for one in blocks.elements)
    return any(int(ip_address(first)) <= found <= int(ip_address(last)) for first, last in ends)
