# SPDX-License-Identifier: Apache-2.0
"""The table kepd_dns: questions to our addresses and their answers pass connection tracking by.

Where a rule does not match, the packet is tracked and goes where the services plane leads it, to the cluster's own DNS:
the rule itself is the fail-safe. Not every packet of a connection meets a socket that the kernel shows to a rule: that
which ends a handshake does not, nor what comes after our end of it. So connections that met one are remembered for a
moment. To judge later packets by their flags alone would send those of a connection to the DNS of the cluster here, as
soon as our process is gone.
"""

from collections.abc import Iterable

from agent.model.services.nft_table import Family
from kepd_dns.rules.guards import LIFE_S, PORT, PROBE_MARK, Asking

TABLE = "kepd_dns"
LIVE = "live"
IP = {"IPv4": "ip", "IPv6": "ip6"}
KIND = {"IPv4": "ipv4_addr", "IPv6": "ipv6_addr"}
FLOWS, FLOW_S, MOST_FLOWS = "flows", 15, 8192
"""Connections that a socket of ours had a packet of."""
LATER = "tcp flags & (syn | ack) != syn"


def table_text(asking: Asking, live: Iterable[str] = ()) -> str:
    """One transaction, whatever was there before. `live` are addresses that a probe found to answer."""
    ip, kind = IP[asking.family], KIND[asking.family]
    to = f"{ip} daddr @addrs" + (f" {ip} daddr @{LIVE}" if asking.falls_back else "")
    asked = f"meta l4proto {{ tcp, udp }} th dport {PORT}"
    rules = [f"{ip} daddr @addrs {asked} jump strangers"] if asking.judges else []
    flow = f"{ip} saddr . tcp sport"
    rules += [
        f"{to} udp dport {PORT} socket wildcard 0 notrack",
        f"{to} tcp dport {PORT} socket wildcard 0 update @{FLOWS} {{ {flow} }} notrack",
        f"{to} tcp dport {PORT} {LATER} {flow} @{FLOWS} notrack",
    ]
    answers = [f"{ip} saddr @addrs {one} sport {PORT} notrack" for one in ("udp", "tcp")]
    probes = f"{ip} daddr @addrs meta mark {PROBE_MARK:#x} {asked} notrack"
    sets = _set("addrs", kind, "", asking.addresses) + _set(
        LIVE, kind, "flags timeout;", (f"{one} timeout {LIFE_S}s" for one in live)
    )
    flows = f"flags dynamic,timeout; timeout {FLOW_S}s; size {MOST_FLOWS};"
    sets += f"  set {FLOWS} {{ type {kind} . inet_service; {flows} }}\n"
    chains = _strangers(asking, ip) if asking.judges else ""
    chains += _chain("prerouting", rules) + _chain("output", [*answers, probes, f"{to} {asked} notrack"])
    return f"{removal_text(asking.family)}table {ip} {TABLE} {{\n{sets}{chains}}}\n"


def _set(name: str, kind: str, flags: str, elements: Iterable[str]) -> str:
    listed = ", ".join(elements)
    inside = f" elements = {{ {listed} }};" if listed else ""
    return f"  set {name} {{ type {kind}; {flags}{inside} }}\n"


def _chain(hook: str, rules: Iterable[str]) -> str:
    lines = "".join(f"    {one}\n" for one in rules)
    return f"  chain {hook} {{\n    type filter hook {hook} priority raw; policy accept;\n{lines}  }}\n"


def _strangers(asking: Asking, ip: str) -> str:
    """Who is no pod of this node, nor the node itself, asks in vain."""
    lines = ["fib saddr type local return"]
    networks = (*asking.pods, *asking.allowed)
    if networks:
        lines.append(f"{ip} saddr {{ {', '.join(networks)} }} return")
    if asking.detection.mode == "interface":
        lines.append(f'iifname "{asking.detection.interface}" return')
    elif asking.detection.mode == "none":
        names = ", ".join(f'"{one}"' for one in asking.outside)
        lines.append(f"iifname != {{ {names} }} return")
    body = "".join(f"    {one}\n" for one in (*lines, "counter name foreign drop"))
    return f"  counter foreign {{ }}\n  chain strangers {{\n{body}  }}\n"


def removal_text(family: Family) -> str:
    """Takes the table away, whether it is there or not."""
    return f"add table {IP[family]} {TABLE}\ndelete table {IP[family]} {TABLE}\n"
