# SPDX-License-Identifier: Apache-2.0
"""Shows the iptables rules of one family, and how the desired ones differ from the kernel's."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeVar

from agent.model.placed import Walk, begins, is_over, within
from agent.model.services.iptables_rules import Content, as_saved, is_ours
from agent.model.services.nft_table import Family
from agent.model.services.report import RuleChange, RuleReport
from agent.model.services.service import ServiceKey
from agent.services.iptables.trace import trace_rules
from agent.services.nftables.trace import Outcome, Packet
from agent.services.objects.node_state import FamilyFacts
from agent.services.routes.frontends import Claim
from agent.services.run.iptables_ruleset import IptablesRuleset
from agent.services.run.kept import Kept

T = TypeVar("T")
_Rule = tuple[str, str]
"""Table with chain, and text."""


class IptablesRulesView:
    """RulesView. A rule's chain stands where nftables has a map, its text where nftables has a key."""

    def __init__(self, family: Family, ruleset: IptablesRuleset) -> None:
        self._family: Family = family
        self._ruleset = ruleset
        self._written = Kept(self._own)
        self._found = Kept(self._ours)
        self._compared = Kept(self._compare)

    async def desired(self, key: ServiceKey | None = None, after: str = "") -> Walk[RuleReport]:
        service = "" if key is None else str(key)
        rules = list(_rules_in(self._ruleset.mirror.content(only=key))) if key is not None else None
        async for place, (chain, rule) in self._walk(self._written, after, rules):
            yield place, RuleReport(family=self._family, map=chain, key=rule, data="", service=service)

    async def standing(self, key: ServiceKey | None = None, after: str = "") -> Walk[RuleReport]:
        wanted = set(_rules_in(self._ruleset.mirror.content(only=key))) if key is not None else None
        async for place, (chain, rule) in self._walk(self._found, after):
            if wanted is None or (chain, rule) in wanted:
                yield place, RuleReport(family=self._family, map=chain, key=rule, data="")

    async def differences(self, after: str = "") -> Walk[RuleChange]:
        async for place, ((chain, rule), desired, actual) in self._walk(self._compared, after):
            yield place, RuleChange(family=self._family, map=chain, key=rule, desired=desired, actual=actual)

    async def _walk(self, kept: Kept[list[T]], after: str, these: list[T] | None = None) -> Walk[T]:
        """Rules by their number: one may stand in a chain twice."""
        begin = begins(self._family)
        if is_over(begin, after):
            return
        rest = within(begin, after)
        found = these if these is not None else await kept.get(is_first=not rest)
        places = range(len(found))
        for number in places[bisect_right(places, rest, key=_told) if rest else 0 :]:
            yield f"{begin}{_told(number)}", found[number]
        kept.forget()

    async def _ours(self) -> list[_Rule]:
        found = await self._ruleset.tables.read()
        ours = {table: {name: rules for name, rules in one.items() if is_ours(name)} for table, one in found.items()}
        return list(_rules_in(ours))

    async def _own(self) -> list[_Rule]:
        return list(_rules_in(self._ruleset.mirror.content()))

    async def _compare(self) -> list[tuple[_Rule, str, str]]:
        have, want = Counter(await self._ours()), Counter(await self._own())
        changes = [(place, "present", "") for place in want - have] + [(place, "", "present") for place in have - want]
        return sorted(changes)

    async def connections(self) -> Mapping[Claim, int]:
        """Nobody counts them here: the counters of a chain begin anew whenever it is written."""
        return {}

    async def race_drops(self) -> int:
        """The kernel changes a table as a whole here, so no packet meets half of one."""
        return 0

    async def trace(self, packet: Packet, facts: FamilyFacts, *, in_kernel: bool) -> Outcome:  # noqa: ARG002
        content = await self._ruleset.tables.read() if in_kernel else self._ruleset.mirror.content()
        return trace_rules(content, packet)


def _rules_in(content: Content) -> Iterator[_Rule]:
    for table, chains in content.items():
        for name, rules in chains.items():
            for rule in rules:
                yield f"{table} {name}", as_saved(rule)


def _told(number: int) -> str:
    return f"{number:08}"
