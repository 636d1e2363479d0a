# SPDX-License-Identifier: Apache-2.0
"""What lies in our nftables table, as values that the services plane and the nft driver share.

The layout is data: which maps there are, what their keys and values are made of. Keys and data are bytes in the
kernel's own form, so that a mirror of 100 000 elements is compared and sent without being encoded again.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal, NamedTuple

import msgspec

TABLE = "kepd"
PATTERN = "kepd_pattern"
"""Stands for a moment, without hooks, to see what the kernel makes of our rules."""
LAYOUT = "layout_1"
RACE_DROPS = "race_drops"
"""Named counter of packets whose endpoint went between two lookups."""

Family = Literal["IPv4", "IPv6"]
TableFamily = Literal["IPv4", "IPv6", "inet", "bridge"]
"""Of a table, which may see both."""
Hashing = Literal["", "flow", "source"]
"""By what a connection's slot is chosen, so that every node chooses the same: addresses and ports, or the client's
address. Empty: at random."""

Data = bytes | str | None
"""Address and port, or a number: bytes. A verdict: the chain to go to, "" = drop. The member of a set: None."""

Content = dict[str, dict[bytes, Data]]
"""Map name → key → data. A key of an interval set is its first and its last member, one after the other."""


WAYS_IN = ("services", "nodeports")
CLIENTS = "clients"
"""Client address and number of the service port → endpoint. The kernel fills it; we take away, or shorten lives."""


class MapKind(StrEnum):
    VERDICT = "verdict"
    ENDPOINT = "endpoint"
    NUMBER = "number"
    MEMBER = "member"
    INTERVAL = "interval"
    CLIENT = "client"
    """Data: what the kernel has there, and milliseconds to live in eight bytes."""


class MapLayout(msgspec.Struct, frozen=True):
    """One map or set. `key` names its components: address, proto, port, slot, number, link."""

    name: str
    kind: MapKind
    key: tuple[str, ...]
    has_counter: bool = False


_FRONTEND = ("address", "proto", "port")
_NODE_PORT = ("proto", "port")

MAPS: Mapping[str, MapLayout] = {
    one.name: one
    for one in (
        MapLayout("services", MapKind.VERDICT, _FRONTEND, has_counter=True),
        MapLayout("nodeports", MapKind.VERDICT, _NODE_PORT, has_counter=True),
        MapLayout("svc_cluster", MapKind.VERDICT, _FRONTEND),
        MapLayout("svc_local", MapKind.VERDICT, _FRONTEND),
        MapLayout("np_cluster", MapKind.VERDICT, _NODE_PORT),
        MapLayout("np_local", MapKind.VERDICT, _NODE_PORT),
        MapLayout("eps", MapKind.ENDPOINT, (*_FRONTEND, "slot")),
        MapLayout("eps_local", MapKind.ENDPOINT, (*_FRONTEND, "slot")),
        MapLayout("np_eps", MapKind.ENDPOINT, (*_NODE_PORT, "slot")),
        MapLayout("np_eps_local", MapKind.ENDPOINT, (*_NODE_PORT, "slot")),
        MapLayout("cluster_ips", MapKind.MEMBER, ("address",)),
        MapLayout("passed", MapKind.MEMBER, _FRONTEND),
        MapLayout("np_addrs", MapKind.MEMBER, ("address",)),
        MapLayout("hairpin", MapKind.MEMBER, ("address", "address", "proto", "port")),
        MapLayout("aff_port", MapKind.NUMBER, _FRONTEND),
        MapLayout("np_aff_port", MapKind.NUMBER, _NODE_PORT),
        MapLayout("aff_cluster", MapKind.MEMBER, ("address", "port", "number")),
        MapLayout("aff_local", MapKind.MEMBER, ("address", "port", "number")),
        MapLayout("pod_cidrs", MapKind.INTERVAL, ("address",)),
        MapLayout("svc_cidrs", MapKind.INTERVAL, ("address",)),
        MapLayout("fw_allow", MapKind.INTERVAL, (*_FRONTEND, "address")),
        MapLayout("np_allow", MapKind.INTERVAL, (*_NODE_PORT, "address")),
    )
}


_WITH_OWN_MAP = re.compile(r"n?[cl]_\d+_\d+_([0-9a-f]{8}_\d+)")


def own_map(number: bytes, size: int) -> str:
    """The map of the clients of one port."""
    return f"cl_{number.hex()}_{size}"


def client_map_of(chain: str) -> str:
    """The map of its own that a choice chain looks into, by its name, which ends like that of the map; "" if none."""
    found = _WITH_OWN_MAP.fullmatch(chain)
    return f"cl_{found[1]}" if found else ""


def layout_of(name: str) -> MapLayout:
    """Of a map, also of one for clients."""
    return MAPS.get(name) or MapLayout(name, MapKind.CLIENT, ("address", "number"))


class ChoiceChain(msgspec.Struct, frozen=True):
    """A chain that sends a connection to one of `count` slots of an endpoint map. `timeout_s` is not 0 where clients
    come back to the endpoint they had: the chain looks for the client's address and the number of its service port in
    the map `clients`, and follows what it finds there while that is still a member of the list (`aff_cluster`,
    `aff_local`). So affinity needs no map or chain per Service. A port may have its own map all the same: it comes with
    its first chain. With `hashing` the slot is not drawn but a hash."""

    name: str
    map: str
    count: int
    timeout_s: int = 0
    hashing: Hashing = ""

    @property
    def clients(self) -> str:
        """Where its clients are remembered."""
        return client_map_of(self.name) or CLIENTS


class AffineClient(NamedTuple):
    """An entry of a map of clients: a client of a port, its endpoint, and how long that is remembered."""

    key: bytes
    data: bytes
    life_ms: int

    @property
    def pair(self) -> bytes:
        """The endpoint with the number of the port, as in `aff_cluster`."""
        return self.data[4:] + self.key[-4:]

    def living(self, life_ms: int) -> tuple[bytes, bytes]:
        """As it is written, to live so long."""
        return self.key, self.data + life_ms.to_bytes(8, "big")


class Detection(msgspec.Struct, frozen=True):
    """How pods of this cluster are told from others. `interface` may be a name, or a prefix with `*`."""

    mode: Literal["none", "cidrs", "interface"] = "none"
    interface: str = ""


class TableSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the constant part of one table depends on. Another value means another table, loaded as a whole."""

    family: Family
    mark: int = 0x4000
    detection: Detection = Detection()
    masquerades_all: bool = False
    has_node_ports_everywhere: bool = False
    """Node ports on all addresses of the node, not only on those in `np_addrs`."""
    rejects_with_reset: bool = True
    drops_invalid: bool = False
    counts_endpoints: bool = False


class ChainBody(msgspec.Struct, frozen=True):
    """A chain: its rules as the kernel's own expressions, and its hook with its policy as nft writes them."""

    rules: tuple[bytes, ...] = ()
    hook: str = ""


class TableState(msgspec.Struct, frozen=True):
    """What is in the kernel. `layout_text` is what the marker chain says the table was made from."""

    layout_text: str
    bodies: Mapping[str, ChainBody]
    content: Content
    is_dormant: bool = False
    """It is there and does nothing."""

    @property
    def chains(self) -> frozenset[str]:
        return frozenset(self.bodies)


class SetChange(msgspec.Struct, frozen=True):
    """What goes out of a map or set whose addresses are of a family, and what comes in."""

    layout: MapLayout
    family: Family
    gone: Sequence[bytes] = ()
    new: Sequence[tuple[bytes, Data]] = ()


class Batch(msgspec.Struct, frozen=True):
    """One transaction. Order inside: new chains, deletions, additions, chains that go, maps that go. A chain
    that is there already gets its rules anew."""

    chains: Sequence[ChoiceChain] = ()
    deletes: Mapping[str, Sequence[bytes]] = msgspec.field(default_factory=dict)
    adds: Mapping[str, Sequence[tuple[bytes, Data]]] = msgspec.field(default_factory=dict)
    gone_chains: Sequence[str] = ()
    bodies: Mapping[str, ChainBody] = msgspec.field(default_factory=dict)
    """Chains that get exactly this."""
    gone_maps: Sequence[str] = ()

    @property
    def size(self) -> int:
        return sum(map(len, self.deletes.values())) + sum(map(len, self.adds.values()))

    @property
    def replaced(self) -> dict[str, list[bytes]]:
        """By map, elements that get other data."""
        found = {}
        for name in self.deletes.keys() & self.adds.keys():
            gone = set(self.deletes[name])
            found[name] = [key for key, _ in self.adds[name] if key in gone]
        return {name: keys for name, keys in found.items() if keys}

    def __bool__(self) -> bool:
        return bool(self.chains or self.gone_chains or self.gone_maps or self.bodies or self.size)
