# SPDX-License-Identifier: Apache-2.0
"""Which families of addresses this host has."""

from pathlib import Path

from agent.model.services.nft_table import Family

INET6 = Path("/proc/net/if_inet6")
SWITCH = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")


def host_families() -> tuple[Family, ...]:
    is_off = not INET6.exists() or (SWITCH.exists() and SWITCH.read_text().strip() == "1")
    return ("IPv4",) if is_off else ("IPv4", "IPv6")
