# SPDX-License-Identifier: Apache-2.0
"""Writes the table that lets established flows of Services skip the rules (SVN-80 to SVN-82).

The kernel then takes packets of such a flow from one device to the other by itself, translated as before. Only TCP and
UDP, and only what a rule for a Service of this node translated: its original destination is an address of a Service, or
an address and node port of this node. Short flows are not worth an entry.
Never: shares anything with the table of Services, which stands without it.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from agent.model.nft_table import Family

TABLE = "kepd_fast"
PROBE = "kepd_probe"
FLOWTABLE = "fast"
IP = {"IPv4": "ip", "IPv6": "ip6"}
LEAST_PACKETS = 20
MOST_DEVICES = 512
LOOPBACK_DEVICE = "lo"
# After chains of others of the usual priority, so that what they drop is no flow.
PRIORITY = 10
PATTERN = re.compile(r"[A-Za-z0-9_.:@+-]{1,15}\*?")
OFFLOAD = f"flow add @{FLOWTABLE}"


class OffloadedWays(msgspec.Struct, frozen=True):
    """Original destinations of flows that may skip the rules. `node_ports` are protocol and number."""

    addresses: tuple[str, ...] = ()
    node_addresses: tuple[str, ...] = ()
    node_ports: tuple[tuple[str, int], ...] = ()


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
        if bridge and any(_fits(bridge, pattern) for pattern in patterns):
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


def offload_text(family: Family, devices: Collection[str], ways: OffloadedWays, verdict: str = OFFLOAD) -> str:
    """One transaction for `nft`, whatever was there before; without devices or ways it only takes the table away.
    Another `verdict` shows on any kernel which packets are meant."""
    removal = removal_text(family)
    rules = _rules(family, ways, verdict)
    if not devices or not rules:
        return removal
    ip = IP[family]
    kind = "ipv4_addr" if family == "IPv4" else "ipv6_addr"
    listed = ", ".join(f'"{name}"' for name in devices)
    flowtable = f"  flowtable {FLOWTABLE} {{ hook ingress priority 0; devices = {{ {listed} }}; }}\n"
    ports = [f"{protocol.lower()} . {number}" for protocol, number in ways.node_ports]
    return (
        f"{removal}table {ip} {TABLE} {{\n"
        f"{flowtable if verdict == OFFLOAD else ''}"
        f"{_set('addresses', f'{kind}; flags interval', ways.addresses)}"
        f"{_set('node_addresses', kind, ways.node_addresses)}"
        f"{_set('node_ports', 'inet_proto . inet_service', ports)}"
        "  chain forwarded {\n"
        f"    type filter hook forward priority {PRIORITY}; policy accept;\n"
        f"{rules}"
        "  }\n}\n"
    )


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
