# SPDX-License-Identifier: Apache-2.0
"""The iptables rules that do not depend on Services.

The fixed chains with their own rules, the jumps into them from the kernel's chains, the canaries, and the guard of the
loopback addresses.
"""

import re

from msgspec.structs import asdict

from agent.model.services.iptables_rules import CANARY, GUARD, HINT, OWNER, TABLES, Content, Table
from agent.services.iptables.rendering import RuleSettings, comment
from agent.services.objects.node_state import FamilyFacts

_NEW = "-m conntrack --ctstate NEW "
_INTERFACE = re.compile(r"[A-Za-z0-9_.@:-]{1,15}\+?")
GUARD_JUMPS = (("INPUT", f"-j {GUARD}"), ("OUTPUT", f"-j {GUARD}"))
KEPT: dict[Table, tuple[str, ...]] = {"mangle": (HINT,)}
_PORTALS = comment("kubernetes service portals")
_OUTSIDE = comment("kubernetes externally-visible service portals")
_HEALTH = comment("kubernetes health check service ports")
_FORWARDING = comment("kubernetes forwarding rules")
_FIREWALL = comment("kubernetes load balancer firewall")
_NODE_PORTS = comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain")
JUMPS: dict[Table, tuple[tuple[str, str], ...]] = {
    "filter": (
        *((chain, f"{_NEW}{_FIREWALL} -j KUBE-PROXY-FIREWALL") for chain in ("INPUT", "OUTPUT", "FORWARD")),
        ("FORWARD", f"{_FORWARDING} -j KUBE-FORWARD"),
        *((chain, f"{_NEW}{_PORTALS} -j KUBE-SERVICES") for chain in ("FORWARD", "OUTPUT")),
        ("INPUT", f"{_HEALTH} -j KUBE-NODEPORTS"),
        *((chain, f"{_NEW}{_OUTSIDE} -j KUBE-EXTERNAL-SERVICES") for chain in ("INPUT", "FORWARD")),
    ),
    "nat": (
        *((chain, f"{_PORTALS} -j KUBE-SERVICES") for chain in ("OUTPUT", "PREROUTING")),
        ("POSTROUTING", f"{comment('kubernetes postrouting rules')} -j KUBE-POSTROUTING"),
    ),
}
"""As they stand, from the first on."""
GUARD_RULE = (
    f"! -s 127.0.0.0/8 -d 127.0.0.0/8 {comment('block incoming localnet connections')} "
    "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
)


def rule_settings(facts: FamilyFacts) -> RuleSettings:
    table, node = facts.table, facts.node
    pods = ""
    if table.detection.mode == "cidrs" and node.pod_ranges and node.pod_ranges[0].prefix:
        pods = f"-s {node.pod_ranges[0].text}"
    elif table.detection.mode == "interface":
        name = re.sub(r"\*$", "+", table.detection.interface)
        pods = f"-i {name}" if _INTERFACE.fullmatch(name) else ""
    addresses = tuple(one.text for one in node.node_port_addresses)
    return RuleSettings(**asdict(table), pods=pods, node_port_addresses=addresses)


def fixed_chains(settings: RuleSettings) -> Content:
    """All of them with their own rules. What Services add comes after these and before `last_rules`."""
    mark = f"{settings.mark:#x}"
    forward = ["-m conntrack --ctstate INVALID -j DROP"] if settings.drops_invalid else []
    forward.append(f"{_FORWARDING} -m mark --mark {mark}/{mark} -j ACCEPT")
    told = comment("kubernetes forwarding conntrack rule")
    forward.append(f"{told} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
    content: Content = {table: {CANARY: (), OWNER: ()} for table in TABLES}
    for name in ("KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-SERVICES", "KUBE-PROXY-FIREWALL"):
        content["filter"][name] = ()
    content["filter"]["KUBE-FORWARD"] = tuple(forward)
    content["nat"] |= {
        "KUBE-SERVICES": (),
        "KUBE-NODEPORTS": (),
        "KUBE-MARK-MASQ": (f"-j MARK --set-xmark {mark}/{mark}",),
        "KUBE-POSTROUTING": (
            f"-m mark ! --mark {mark}/{mark} -j RETURN",
            f"-j MARK --set-xmark {mark}/0x0",
            f"{comment('kubernetes service traffic requiring SNAT')} -j MASQUERADE --random-fully",
        ),
    }
    return content


def last_rules(settings: RuleSettings) -> tuple[str, ...]:
    """The end of KUBE-SERVICES in nat."""
    if settings.has_node_ports_everywhere:
        # The kernel has no such way for IPv6, so there is nothing to lead anywhere.
        but = "" if settings.has_loopback_node_ports else "! -d ::1/128 "
        return (f"{but}{_NODE_PORTS} -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",)
    width = 32 if settings.family == "IPv4" else 128
    return tuple(f"-d {one}/{width} {_NODE_PORTS} -j KUBE-NODEPORTS" for one in settings.node_port_addresses)
