# SPDX-License-Identifier: Apache-2.0
"""Which of the two kinds of iptables this node uses, and which legacy tables its kernel has.

Never: asks for a legacy table that is not in use: asking creates it.
Source of behaviour: kubernetes-sigs/iptables-wrappers: internal/iptables/detect.go.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from agent.drivers.iptables.program import Program
from agent.model.services.iptables_rules import HINT, Variant
from agent.model.services.nft_error import NftFailed, NftMissing
from agent.model.services.nft_table import Family

_SIGNS = (f":{HINT} ", ":KUBE-KUBELET-CANARY ")


class SavedRules(msgspec.Struct, frozen=True):
    """Outputs of iptables-save and ip6tables-save of each variant; "" where there is none."""

    texts: Mapping[Variant, str]

    def has_sign(self, variant: Variant) -> bool:
        """Whether the kubelet, or we, said that it is this one."""
        return any(sign in self.texts.get(variant, "") for sign in _SIGNS)

    def has_rules(self, variant: Variant) -> bool:
        return any(line.startswith("-A") for line in self.texts.get(variant, "").splitlines())


def choose(seen: SavedRules) -> Variant:
    """That of the kubelet on this node, else the one whose rules are there."""
    if seen.has_sign("nft"):
        return "nft"
    if seen.has_sign("legacy"):
        return "legacy"
    return "legacy" if seen.has_rules("legacy") and not seen.has_rules("nft") else "nft"


async def look(program: Program, legacy_tables: Callable[[], str]) -> SavedRules:
    """`legacy_tables` is what /proc/net says is in use; where it says nothing, legacy is not asked."""
    texts: dict[Variant, str] = {}
    variants: tuple[Variant, ...] = ("nft", "legacy") if legacy_tables().strip() else ("nft",)
    failed: NftFailed | None = None
    for variant in variants:
        texts[variant] = ""
        for name in ("iptables", "ip6tables"):
            try:
                texts[variant] += await program.run(f"{name}-{variant}-save")
            except NftMissing as error:
                failed = failed or error
    if failed is not None and not any(texts.values()):
        with suppress(NftFailed):
            await program.run("iptables-nft", "--version")
            return SavedRules(texts)
        raise failed
    return SavedRules(texts)


log = structlog.get_logger(plane="services")

NAMES: Mapping[Family, Path] = {"IPv4": Path("/proc/net/ip_tables_names"), "IPv6": Path("/proc/net/ip6_tables_names")}


def legacy_names(family: Family, names: Mapping[Family, Path] = NAMES) -> str:
    """As the kernel writes them. It tells root only; who is not root could not look into one either."""
    try:
        return names[family].read_text()
    except FileNotFoundError:
        return ""
    except PermissionError as error:
        log.warning("legacy_tables_unread", family=family, error=str(error))
        return ""
