# SPDX-License-Identifier: Apache-2.0
"""What lies in iptables, as values that the services plane and the iptables driver share.

A rule is the text after `-A CHAIN `, in the form in which iptables-save prints it, so that a reading and what was
written compare as texts.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

Table = Literal["mangle", "filter", "nat"]
Variant = Literal["nft", "legacy"]
Chains = dict[str, tuple[str, ...]]
Content = dict[Table, Chains]

TABLES: tuple[Table, ...] = ("mangle", "filter", "nat")
"""In the order in which they are written."""

CANARY = "KUBE-PROXY-CANARY"
OWNER = "KEPD-OWNER"
"""An empty chain that tells these rules from kube-proxy's, which have the same names."""
GUARD = "KUBE-FIREWALL"
"""Shared with the kubelet: never emptied, never removed."""
HINT = "KUBE-IPTABLES-HINT"
"""Tells other programs which variant this node uses."""
RIVALS = {"KUBE-SERVICES": "kube-proxy"}
"""Chains whose rules lead to Services of another program, unless our mark stands beside them.

Names alone say little: a program that gave up its Services may leave its chains empty, and CILIUM_PRE_nat is there with
every Cilium, also where it leaves Services to others.
"""

_FIXED = frozenset({
    "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL",
    "KUBE-POSTROUTING", "KUBE-MARK-MASQ", CANARY, OWNER,
})  # fmt: skip
_PREFIXES = ("KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-")
_PROBABILITY = re.compile(r"--probability (\d+\.\d+)")
_PLAIN_COMMENT = re.compile(r'--comment ([^"\s]+)')
_STEPS = 1 << 31


def rival_chains(chains: Mapping[str, Sequence[str]]) -> list[str]:
    """Of one table, by its chains and the rules of each, or what they lead to."""
    return [] if OWNER in chains else [name for name in RIVALS if chains.get(name)]


def rivals_in(tables: Mapping[Table, Mapping[str, Sequence[str]]], where: str) -> list[str]:
    """The same of all tables, in words."""
    return [
        f"chain {chain} of {RIVALS[chain]} in table {table} of {where}"
        for table, chains in tables.items()
        for chain in rival_chains(chains)
    ]


def is_ours(chain: str) -> bool:
    """Whether the chain is emptied and removed with the backend."""
    return chain in _FIXED or chain.startswith(_PREFIXES)


def as_saved(rule: str) -> str:
    """The form of iptables-save: probabilities as the kernel has them, comments always in quotes."""
    if "--probability" in rule:
        rule = _PROBABILITY.sub(lambda found: f"--probability {round(float(found[1]) * _STEPS) / _STEPS:.11f}", rule)
    return _PLAIN_COMMENT.sub(r'--comment "\1"', rule)


class RulesChange(msgspec.Struct, frozen=True):
    """One input of iptables-restore. All maps are table → what happens there. `chains` are written whole; `kept` only
    have to exist; `first` and `last` are (chain, rule) to put at that end of a chain that is not ours; `deletes` are
    such rules to take out; `gone` are chains to empty and remove."""

    chains: Mapping[Table, Mapping[str, Sequence[str]]] = msgspec.field(default_factory=dict)
    kept: Mapping[Table, Sequence[str]] = msgspec.field(default_factory=dict)
    first: Mapping[Table, Sequence[tuple[str, str]]] = msgspec.field(default_factory=dict)
    last: Mapping[Table, Sequence[tuple[str, str]]] = msgspec.field(default_factory=dict)
    deletes: Mapping[Table, Sequence[tuple[str, str]]] = msgspec.field(default_factory=dict)
    gone: Mapping[Table, Sequence[str]] = msgspec.field(default_factory=dict)

    @property
    def size(self) -> int:
        return (
            sum(1 + len(rules) for chains in self.chains.values() for rules in chains.values())
            + sum(len(one) for part in (self.first, self.last, self.deletes, self.gone) for one in part.values())
            + sum(map(len, self.kept.values()))
        )

    def __bool__(self) -> bool:
        return bool(self.size)
