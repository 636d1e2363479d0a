# SPDX-License-Identifier: Apache-2.0
"""Iptables in memory, refusing what the real one refuses.

Owns: the tables of one kernel and the drivers that share them.
Never: judges rules beyond what the contract suite shows of the real programs: jumps to chains that are not there,
chains removed while in use, names that are too long, extensions that the test takes away.
"""

import errno
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from agent.model.services.iptables_rules import (
    CANARY,
    TABLES,
    Chains,
    Content,
    RulesChange,
    Table,
    as_saved,
    rival_chains,
)
from agent.model.services.nft_error import ExtensionMissing, NftFailed, RulesRefused
from agent.model.services.nft_table import Family

_MOST_NAME = 28
_BUILT_IN: dict[Table, tuple[str, ...]] = {
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
}
_TARGETS = ("ACCEPT", "DROP", "RETURN", "REJECT", "DNAT", "MASQUERADE", "MARK")


class FakeTables(msgspec.Struct):
    """One kernel. `failures` are raised by the next applies, in their order."""

    content: dict[Family, Content] = msgspec.field(default_factory=dict)
    failures: list[NftFailed] = msgspec.field(default_factory=list)
    without: set[str] = msgspec.field(default_factory=set)
    """Extensions that this kernel does not have."""
    changes: list[RulesChange] = msgspec.field(default_factory=list)
    is_loopback_allowed: bool = False
    signs_all: bool = True

    def of(self, family: Family) -> Content:
        """Changeable, for tests that act as somebody else."""
        return self.content.setdefault(family, {table: dict.fromkeys(_BUILT_IN[table], ()) for table in TABLES})

    def flush_by_others(self, family: Family, table: Table) -> None:
        self.of(family)[table] = dict.fromkeys(_BUILT_IN[table], ())


class FakeIptables:
    def __init__(self, family: Family, kernel: FakeTables | None = None) -> None:
        self.family: Family = family
        self.kernel = kernel or FakeTables()
        self.most_chains = 0

    async def check(self) -> None:
        return

    async def rivals(self) -> Sequence[str]:
        found = self.kernel.of(self.family)
        return [
            f"chain KUBE-SERVICES of kube-proxy in table {table} of fake"
            for table, chains in found.items()
            if rival_chains(chains)
        ]

    async def read(self) -> Content:
        return {table: dict(chains) for table, chains in self.kernel.of(self.family).items()}

    async def apply(self, change: RulesChange, ahead: Iterable[Chains] = ()) -> None:
        made = {name: rules for chains in ahead for name, rules in chains.items()}
        if made:
            change = replace(change, chains={**change.chains, "nat": {**change.chains.get("nat", {}), **made}})
        if self.kernel.failures:
            raise self.kernel.failures.pop(0)
        content = self.kernel.of(self.family)
        self.kernel.changes.append(change)
        for table in TABLES:
            # A table is changed whole or not at all; those before it stay changed.
            content[table] = _Applied(content[table], self.kernel.without).after(change, table)

    @property
    def signs_all(self) -> bool:
        return self.kernel.signs_all

    def sign(self) -> bytes:
        return repr(self.kernel.of(self.family)).encode()

    async def missing_canaries(self) -> Sequence[Table]:
        return [table for table in TABLES if CANARY not in self.kernel.of(self.family)[table]]

    async def allow_loopback(self) -> None:
        self.kernel.is_loopback_allowed = True


class _Applied:
    """One table while a change is made."""

    def __init__(self, chains: Chains, without: set[str]) -> None:
        self._chains = dict(chains)
        self._without = without

    def after(self, change: RulesChange, table: Table) -> Chains:
        written, gone = change.chains.get(table, {}), change.gone.get(table, ())
        for name in (*change.kept.get(table, ()), *written, *gone):
            if len(name) > _MOST_NAME:
                raise RulesRefused(f"fake: chain name `{name}' too long (must be under 29 chars)")
            self._chains[name] = ()
        for name, rule in change.deletes.get(table, ()):
            self._delete(name, as_saved(rule))
        for name, rules in written.items():
            self._chains[name] = tuple(self._checked(rule) for rule in rules)
        for name, rule in change.last.get(table, ()):
            self._chains[name] = (*self._chains.get(name, ()), self._checked(rule))
        for name, rule in reversed(change.first.get(table, ())):
            self._chains[name] = (self._checked(rule), *self._chains.get(name, ()))
        for name in gone:
            if any(rule.endswith(f"-j {name}") for rules in self._chains.values() for rule in rules):
                raise RulesRefused(f"fake: CHAIN_DEL failed (Device or resource busy): chain {name}", errno=errno.EBUSY)
            del self._chains[name]
        return self._chains

    def _delete(self, chain: str, rule: str) -> None:
        rules = list(self._chains.get(chain, ()))
        if rule not in rules:
            raise RulesRefused(f"fake: Bad rule (does a matching rule exist in that chain?): {chain} {rule}")
        rules.remove(rule)
        self._chains[chain] = tuple(rules)

    def _checked(self, rule: str) -> str:
        words = rule.split()
        for option, name in pairwise(words):
            if option in ("-m", "-j") and name in self._without:
                raise ExtensionMissing(f"fake: Couldn't load {name}", line=rule)
        target = words[words.index("-j") + 1] if "-j" in words else ""
        if target and target not in _TARGETS and target not in self._chains:
            raise RulesRefused(f"fake: Couldn't load target `{target}':No such file or directory")
        return as_saved(rule)
