# SPDX-License-Identifier: Apache-2.0
"""Keeps what is programmed in iptables in one family, and computes the change from there to the plans.

The rules follow from the Services as last written by rendering, so texts of a hundred thousand endpoints are not kept.
`stage` changes nothing; `commit` is for after the kernel took the change. A fixed chain is written only if its text
changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

import msgspec

from agent.model.services.iptables_rules import GUARD, Chains, Content, RulesChange, Table, as_saved, is_ours
from agent.model.services.service import ServiceKey
from agent.services.iptables.frame import GUARD_JUMPS, GUARD_RULE, JUMPS, KEPT, fixed_chains, last_rules
from agent.services.iptables.rendering import RuleSettings, Shared, chains_of, endpoint_count, names_of, shared_rules_of
from agent.services.iptables.standing import beside, kept_of, reached_from
from agent.services.objects.addresses import read_address
from agent.services.routes.frontends import Claim, ServicePlan
from agent.services.ruleset import NO_PLANS, Plans

Item = TypeVar("Item")
LARGE = 1000
"""From more endpoints on rules carry no comments."""


class ProgrammedChains(msgspec.Struct, frozen=True):
    plan: ServicePlan
    shared: tuple[Shared, ...]
    endpoints: int
    is_large: bool

    def chains(self, settings: RuleSettings) -> Chains:
        return dict(chains_of(self.plan, settings, is_large=self.is_large))


class StagedChange(msgspec.Struct, frozen=True):
    """A change, its opposite, and what to remember once it is in the kernel."""

    change: RulesChange
    opposite: RulesChange
    services: Mapping[ServiceKey, ProgrammedChains | None]
    settings: RuleSettings
    rules: Mapping[Table, int] = msgspec.field(default_factory=dict)
    """By how many rules the tables grow."""


class IptablesMirror:
    """One family. Changed by `commit` alone."""

    def __init__(self) -> None:
        self.settings: RuleSettings | None = None
        self.rules: dict[Table, int] = {}
        """How many of ours there are in each table."""
        self._services: dict[ServiceKey, ProgrammedChains] = {}
        self.endpoints = 0
        self._kept: Content = {}
        """What an earlier process wrote for Services that the kernel refuses as they are now."""

    def __len__(self) -> int:
        return len(self._services)

    def stage(self, plans: Plans, settings: RuleSettings) -> StagedChange:
        """From what is programmed to these plans; with other settings everything is looked at again."""
        before_settings = self.settings or settings
        wanted: dict[ServiceKey, ServicePlan | None] = {}
        if settings != before_settings:
            wanted.update((key, one.plan) for key, one in self._services.items())
        wanted.update(plans)
        services = self._render(wanted, settings)
        gone: Chains = {}
        come: Chains = {}
        touched: set[tuple[Table, str]] = set()
        for key, after in sorted(services.items(), key=lambda item: item[0]):
            before = self._services.get(key)
            gone |= before.chains(before_settings) if before is not None else {}
            come |= after.chains(settings) if after is not None else {}
            had, has = set(before.shared if before is not None else ()), set(after.shared if after is not None else ())
            touched |= {(table, chain) for table, chain, _ in had ^ has}
        if settings != before_settings or self.settings is None:
            touched |= {(table, chain) for table, chains in fixed_chains(settings).items() for chain in chains}
        fixed = self._fixed(touched, services, settings)
        earlier = self._fixed(touched, {}, before_settings) if self.settings is not None else {}
        change = _between(gone, come, earlier, fixed)
        before_rules, after_rules = rule_counts(earlier, gone), rule_counts(fixed, come)
        growth = {table: after_rules.get(table, 0) - before_rules.get(table, 0) for table in before_rules | after_rules}
        return StagedChange(change, _between(come, gone, fixed, earlier), services, settings, growth)

    def fill(self, plans: Plans, settings: RuleSettings) -> tuple[dict[ServiceKey, ProgrammedChains | None], Content]:
        """Onto tables without any of ours: the shared chains. Those of each Service can be made later."""
        services = self._render(plans, settings)
        names = {(table, chain) for table, chains in fixed_chains(settings).items() for chain in chains}
        return services, self._fixed(names, services, settings)

    def _render(self, plans: Plans, settings: RuleSettings) -> dict[ServiceKey, ProgrammedChains | None]:
        counts = {key: endpoint_count(plan) if plan is not None else 0 for key, plan in plans.items()}
        had = sum(self._services[key].endpoints for key in counts if key in self._services)
        is_large = self.endpoints - had + sum(counts.values()) > LARGE
        services: dict[ServiceKey, ProgrammedChains | None] = {}
        for key, plan in plans.items():
            if plan is None:
                services[key] = None
                continue
            shared = tuple(shared_rules_of(plan, settings))
            services[key] = ProgrammedChains(plan, shared, counts[key], is_large)
        return services

    def _fixed(
        self,
        names: set[tuple[Table, str]],
        services: Mapping[ServiceKey, ProgrammedChains | None],
        settings: RuleSettings,
    ) -> Content:
        if not names:
            return {}
        rules: dict[tuple[Table, str], list[str]] = {name: [] for name in names}
        frame = fixed_chains(settings)
        for name in names:
            rules[name] += frame[name[0]].get(name[1], ())
        for one in self._all(services):
            for table, chain, rule in one.shared:
                if (table, chain) in rules:
                    rules[table, chain].append(rule)
        if ("nat", "KUBE-SERVICES") in rules:
            rules["nat", "KUBE-SERVICES"] += last_rules(settings)
        content: Content = {}
        for (table, chain), lines in sorted(rules.items()):
            content.setdefault(table, {})[chain] = tuple(lines)
        return beside(content, self._kept, settings, only_rules=True)

    def _all(self, services: Mapping[ServiceKey, ProgrammedChains | None]) -> Iterator[ProgrammedChains]:
        """In an order that a restart does not change."""
        for key in sorted({*self._services, *services}):
            one = services[key] if key in services else self._services[key]
            if one is not None:
                yield one

    def commit(self, staged: StagedChange) -> None:
        for key, after in staged.services.items():
            before = self._services.pop(key, None)
            self.endpoints -= before.endpoints if before is not None else 0
            if after is not None:
                self._services[key] = after
                self.endpoints += after.endpoints
        self.settings = staged.settings
        for table, growth in staged.rules.items():
            self.rules[table] = self.rules.get(table, 0) + growth

    def content(self, staged: StagedChange | None = None, only: ServiceKey | None = None) -> Content:
        """Everything of ours that should be in the kernel: what was committed, and on top what is staged."""
        settings = staged.settings if staged is not None else self.settings
        if settings is None:
            return {}
        services = staged.services if staged is not None else {}
        if only is not None:
            return self._content_of(only, settings)
        if staged is not None and self.settings is None:
            # Nothing was written before, so the change is everything, and rendered already.
            change: Content = {table: dict(chains) for table, chains in staged.change.chains.items()}  # type: ignore[arg-type]
            return beside(change, self._kept, settings)
        names = {(table, chain) for table, chains in fixed_chains(settings).items() for chain in chains}
        content = self._fixed(names, services, settings)
        for one in self._all(services):
            content["nat"].update(one.chains(settings))
        content["nat"] = {**self._kept.get("nat", {}), **content["nat"]}
        return content

    def _content_of(self, key: ServiceKey, settings: RuleSettings) -> Content:
        one = self._services.get(key)
        if one is None:
            return {}
        content: Content = {"filter": {}, "nat": {}}
        for table, chain, rule in one.shared:
            content[table][chain] = (*content[table].get(chain, ()), rule)
        content["nat"].update(one.chains(settings))
        return content

    def repair(self, have: Content, staged: StagedChange, spared: Plans = NO_PLANS) -> RulesChange:
        """From what is in the kernel to what should be. `spared`: Services that keep what they have there."""
        self._kept = {}
        if spared:
            names = [names_of(key, port) for key, plan in spared.items() if plan is not None for port in plan.ports]
            chains = [name for one in names for name in (one.cluster, one.local, one.external, one.firewall)]
            self._kept = kept_of(self.content(staged), have, reached_from(chains, have))
        return difference(have, self.content(staged), staged.settings)

    def repair_over(self, have: Content, staged: StagedChange) -> RulesChange:
        """The same where all that others have stays."""
        want = self.content(staged)
        return difference(have, beside(want, kept_of(want, have), staged.settings), staged.settings)


def rule_counts(
    content: Mapping[Table, Mapping[str, Sequence[str]]], chains_of_nat: Chains | None = None
) -> dict[Table, int]:
    counts: dict[Table, int] = {table: sum(map(len, chains.values())) for table, chains in content.items()}
    if chains_of_nat:
        counts["nat"] = counts.get("nat", 0) + sum(map(len, chains_of_nat.values()))
    return counts


def difference(have: Content, want: Content, settings: RuleSettings) -> RulesChange:
    """Only chains whose text differs are written; jumps that are there stay where they are."""
    chains: dict[Table, Chains] = {}
    gone: dict[Table, list[str]] = {}
    for table, wanted in want.items():
        found = have.get(table, {})
        differ = {
            name: rules
            for name, rules in wanted.items()
            if name not in found or found[name] != tuple(map(as_saved, rules))
        }
        stale = [name for name in found if is_ours(name) and name not in wanted]
        if differ:
            chains[table] = differ
        if stale:
            gone[table] = stale
    jumps: dict[Table, tuple[tuple[str, str], ...]] = dict(JUMPS)
    kept: dict[Table, tuple[str, ...]] = dict(KEPT)
    if settings.has_loopback_node_ports:
        jumps["filter"] = (*GUARD_JUMPS, *jumps["filter"])
        kept["filter"] = (GUARD,)
    first = {table: [one for one in each if not _has(have, table, one)] for table, each in jumps.items()}
    missing = {table: [name for name in names if name not in have.get(table, {})] for table, names in kept.items()}
    guard = [(GUARD, GUARD_RULE)] if settings.has_loopback_node_ports else []
    last: dict[Table, list[tuple[str, str]]] = {"filter": [one for one in guard if not _has(have, "filter", one)]}
    return RulesChange(chains, _filled(missing), _filled(first), _filled(last), {}, gone)


def ways_in(content: Content) -> frozenset[Claim]:
    """Addresses and ports that lead to Services."""
    found = set()
    for chain in ("KUBE-SERVICES", "KUBE-NODEPORTS"):
        for rule in content.get("nat", {}).get(chain, ()):
            flags = dict(pairwise(rule.split()))
            if "--dport" in flags and "-p" in flags:
                address = read_address(flags.get("-d", "").partition("/")[0])
                packed = address.packed if address is not None else b""
                found.add((packed, flags["-p"].upper(), int(flags["--dport"])))
    return frozenset(found)


def removal(have: Content) -> RulesChange:
    """All that is ours; the guard and the hint stay."""
    jumps = {
        table: [(name, rule) for name, rules in chains.items() for rule in rules if _leads_to_ours(name, rule)]
        for table, chains in have.items()
    }
    gone = {table: [name for name in chains if is_ours(name)] for table, chains in have.items()}
    return RulesChange(deletes=_filled(jumps), gone=_filled(gone))


def _leads_to_ours(chain: str, rule: str) -> bool:
    _, sign, target = rule.rpartition("-j ")
    return bool(sign) and not is_ours(chain) and is_ours(target.split()[0])


def _has(have: Content, table: Table, jump: tuple[str, str]) -> bool:
    return as_saved(jump[1]) in have.get(table, {}).get(jump[0], ())


def _filled(parts: Mapping[Table, list[Item]]) -> dict[Table, list[Item]]:
    return {table: items for table, items in parts.items() if items}


def _between(gone: Chains, come: Chains, before: Content, after: Content) -> RulesChange:
    """Chains whose text is the same before and after are not written."""
    chains: dict[Table, Chains] = {}
    for table in {*before, *after}:
        had = before.get(table, {})
        differ = {name: rules for name, rules in after.get(table, {}).items() if had.get(name) != rules}
        if differ:
            chains[table] = differ
    own = {name: rules for name, rules in come.items() if gone.get(name) != rules}
    if own:
        chains["nat"] = {**chains.get("nat", {}), **own}
    stale = [name for name in gone if name not in come]
    return RulesChange(chains, gone={"nat": stale} if stale else {})
