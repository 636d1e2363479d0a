# SPDX-License-Identifier: Apache-2.0
"""Writes the table that lets established flows of Services skip the rules.

The kernel then takes packets of such a flow from one device to the other by itself, translated as before. Only TCP and
UDP, and only what a rule for a Service of this node translated: its original destination is an address of a Service, or
an address and node port of this node. Short flows are not worth an entry.
Never: shares anything with the table of Services, which stands without it.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from agent.model.services.nft_table import Family

TABLE = "kepd_fast"
PROBE = "kepd_probe"
FLOWTABLE = "fast"
IP = {"IPv4": "ip", "IPv6": "ip6"}
LEAST_PACKETS = 20
MOST_DEVICES = 512
# The kernel takes so many of one statement, and any number of several.
MOST_STATED = 255
# Newer kernels keep the names of devices that are gone.
MOST_LISTED = 2 * MOST_DEVICES
LOOPBACK_DEVICE = "lo"
# After chains of others of the usual priority, so that what they drop is no flow.
PRIORITY = 10
NAME = re.compile(r"[A-Za-z0-9_.:@+-]{1,15}")
PATTERN = re.compile(NAME.pattern + r"\*?")
OFFLOAD = f"flow add @{FLOWTABLE}"


class OffloadedWays(msgspec.Struct, frozen=True):
    """Original destinations of flows that may skip the rules. `node_ports` are protocol and number."""

    addresses: tuple[str, ...] = ()
    node_addresses: tuple[str, ...] = ()
    node_ports: tuple[tuple[str, int], ...] = ()

    @property
    def are_any(self) -> bool:
        return bool(self.addresses or (self.node_addresses and self.node_ports))


class ChosenDevices(msgspec.Struct, frozen=True):
    """Those that take part, ports of bridges that do so with them, and why others do not."""

    names: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def chosen_devices(patterns: Sequence[str], present: Mapping[str, str]) -> ChosenDevices:
    """In order of their names, so that the same devices make the same text. `present` has the bridge of each, or none.

    A bridge comes with its ports: Linux 7 takes in no flow that leaves by a port which is not in the table as well.
    """
    names, ports, left_out = [], [], []
    for name, bridge in sorted(present.items()):
        is_meant = name != LOOPBACK_DEVICE and any(_fits(name, pattern) for pattern in patterns)
        is_port = bridge and any(_fits(bridge, pattern) for pattern in patterns)
        if (is_meant or is_port) and not NAME.fullmatch(name):
            # Whoever makes devices names them, also with a quote or a star, which nft would take for its own.
            left_out.append(f"{name!r} has other characters in its name than {NAME.pattern}")
        elif is_port:
            ports.append(name)
        elif is_meant and bridge:
            left_out.append(f"{name} is a port of {bridge}; name that, which forwards, and its ports come with it")
        elif is_meant:
            names.append(name)
    room = max(MOST_DEVICES - len(names), 0)
    if len(names) + len(ports) > MOST_DEVICES:
        left_out.append(f"{len(names) + len(ports) - MOST_DEVICES} devices beyond {MOST_DEVICES}")
    return ChosenDevices(tuple(names[:MOST_DEVICES]), tuple(ports[:room]), tuple(left_out))


def _fits(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


class Offloaded(msgspec.Struct, frozen=True):
    """What the table is made of; nothing, where there is none. A device is its name and number."""

    ways: OffloadedWays = OffloadedWays()
    devices: frozenset[tuple[str, int]] = frozenset()

    @property
    def is_on(self) -> bool:
        return bool(self.devices) and self.ways.are_any

    def lacks(self, asked: "Offloaded", present: Collection[int]) -> list[str] | None:
        """Names to add, so that flows stay while pods come and go; None where the table has to be made anew. `self`
        may have devices that are gone, which take no part any more. `present`: the numbers of all that are not."""
        no_longer = self.numbers.intersection(present) - asked.numbers
        if asked.ways != self.ways or no_longer or len(self.devices | asked.devices) > MOST_LISTED:
            return None
        return sorted(name for name, _ in asked.devices - self.devices)

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(number for _, number in self.devices)


class TableChange(msgspec.Struct, frozen=True):
    """What is to be loaded, if anything, the devices that come with it, and what is there then."""

    text: str
    added: tuple[str, ...]
    then: Offloaded


def table_change(family: Family, known: Offloaded | None, asked: Offloaded, present: Collection[int]) -> TableChange:
    """`known`: what is there, None where that is not known."""
    if not asked.is_on:
        asked = Offloaded()
    added = None if known is None else known.lacks(asked, present)
    if known is None or added is None:
        names = tuple(sorted(name for name, _ in asked.devices))
        return TableChange(offload_text(family, names, asked.ways), names, asked)
    then = Offloaded(asked.ways, known.devices | asked.devices)
    return TableChange(addition_text(family, added), tuple(added), then)


def offload_text(family: Family, devices: Collection[str], ways: OffloadedWays, verdict: str = OFFLOAD) -> str:
    """One transaction for `nft`, whatever was there before; without devices or ways it only takes the table away.
    Another `verdict` shows on any kernel which packets are meant."""
    removal = removal_text(family)
    if not devices or not ways.are_any:
        return removal
    ip = IP[family]
    kind = "ipv4_addr" if family == "IPv4" else "ipv6_addr"
    ports = [f"{protocol.lower()} . {number}" for protocol, number in ways.node_ports]
    return (
        f"{removal}add table {ip} {TABLE}\n"
        f"{addition_text(family, devices) if verdict == OFFLOAD else ''}"
        f"table {ip} {TABLE} {{\n"
        f"{_set('addresses', f'{kind}; flags interval', ways.addresses)}"
        f"{_set('node_addresses', kind, ways.node_addresses)}"
        f"{_set('node_ports', 'inet_proto . inet_service', ports)}"
        "  chain forwarded {\n"
        f"    type filter hook forward priority {PRIORITY}; policy accept;\n"
        f"{_rules(family, ways, verdict)}"
        "  }\n}\n"
    )


def addition_text(family: Family, devices: Collection[str]) -> str:
    """More devices; one that the table has is no fault."""
    quoted = [f'"{name}"' for name in devices]
    stated = (", ".join(quoted[at : at + MOST_STATED]) for at in range(0, len(quoted), MOST_STATED))
    begin = f"add flowtable {IP[family]} {TABLE} {FLOWTABLE} {{ hook ingress priority 0; devices = "
    return "".join(f"{begin}{{ {one} }}; }}\n" for one in stated)


def _rules(family: Family, ways: OffloadedWays, verdict: str) -> str:
    ip = IP[family]
    known = f"ct state established ct status dnat ct packets > {LEAST_PACKETS} meta l4proto {{ tcp, udp }}"
    rules = []
    if ways.addresses:
        rules.append(f"ct original {ip} daddr @addresses")
    if ways.node_addresses and ways.node_ports:
        rules.append(f"ct original {ip} daddr @node_addresses meta l4proto . ct original proto-dst @node_ports")
    return "".join(f"    {known} {rule} {verdict}\n" for rule in rules)


def _set(name: str, kind: str, elements: Iterable[str]) -> str:
    listed = ", ".join(elements)
    filled = f" elements = {{ {listed} }};" if listed else ""
    return f"  set {name} {{ type {kind};{filled} }}\n"


def probe_text(family: Family) -> str:
    """Leaves nothing behind; refused as a whole where the kernel has no flowtables or cannot add to them."""
    ip = IP[family]
    return (
        f"add table {ip} {PROBE}\ndelete table {ip} {PROBE}\ntable {ip} {PROBE} {{\n"
        f"  flowtable {FLOWTABLE} {{ hook ingress priority 0; }}\n"
        f"  chain tried {{\n    {OFFLOAD}\n  }}\n}}\ndelete table {ip} {PROBE}\n"
    )


def removal_text(family: Family) -> str:
    """Takes the table away, whether it is there or not."""
    return f"add table {IP[family]} {TABLE}\ndelete table {IP[family]} {TABLE}\n"
