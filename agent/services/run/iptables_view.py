# SPDX-License-Identifier: Apache-2.0
"""Shows the iptables rules of one family, and how the desired ones differ from the kernel's (NF-60)."""

from collections import Counter
from collections.abc import Iterator, Mapping

from agent.model.iptables_rules import Content, as_saved, is_ours
from agent.model.nft_table import Family
from agent.model.service import ServiceKey
from agent.model.service_report import RuleChange, RuleReport
from agent.services.iptables.trace import trace_rules
from agent.services.nftables.trace import Outcome, Packet
from agent.services.objects.node_state import FamilyFacts
from agent.services.routes.claims import Claim
from agent.services.run.iptables_ruleset import IptablesRuleset


class IptablesRulesView:
    """RulesView. A rule's chain stands where nftables has a map, its text where nftables has a key."""

    def __init__(self, family: Family, ruleset: IptablesRuleset) -> None:
        self._family: Family = family
        self._ruleset = ruleset

    def desired(self, key: ServiceKey | None = None) -> Iterator[RuleReport]:
        mirror = self._ruleset.mirror
        if key is not None:
            yield from self._reports(mirror.content(only=key), str(key))
        else:
            yield from self._reports(mirror.content())

    async def standing(self) -> list[RuleReport]:
        return list(self._reports(await self._ours()))

    async def _ours(self) -> Content:
        found = await self._ruleset.tables.read()
        return {table: {name: rules for name, rules in one.items() if is_ours(name)} for table, one in found.items()}

    def _reports(self, content: Content, service: str = "") -> Iterator[RuleReport]:
        for table, chains in content.items():
            for name, rules in chains.items():
                for rule in rules:
                    text = as_saved(rule)
                    yield RuleReport(family=self._family, map=f"{table} {name}", key=text, data="", service=service)

    async def differences(self) -> list[RuleChange]:
        have = Counter((one.map, one.key) for one in self._reports(await self._ours()))
        want = Counter((one.map, one.key) for one in self.desired())
        changes = [(place, "present", "") for place in want - have] + [(place, "", "present") for place in have - want]
        return [
            RuleChange(family=self._family, map=chain, key=rule, desired=desired, actual=actual)
            for (chain, rule), desired, actual in sorted(changes)
        ]

    async def connections(self) -> Mapping[Claim, int]:
        """Nobody counts them here: the counters of a chain begin anew whenever it is written."""
        return {}

    async def race_drops(self) -> int:
        """The kernel changes a table as a whole here, so no packet meets half of one."""
        return 0

    async def trace(self, packet: Packet, facts: FamilyFacts, *, in_kernel: bool) -> Outcome:  # noqa: ARG002
        content = await self._ruleset.tables.read() if in_kernel else self._ruleset.mirror.content()
        return trace_rules(content, packet)
