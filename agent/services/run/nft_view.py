# SPDX-License-Identifier: Apache-2.0
"""Shows the elements of one family's nftables table, and how the desired ones differ from the kernel's (NF-60)."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from agent.model.nft_error import NftFailed
from agent.model.nft_table import Content, Data, Family
from agent.model.service import ServiceKey
from agent.model.service_report import RuleChange, RuleReport
from agent.services.nftables.elements import claim_in, elements_of, shared_elements_of
from agent.services.nftables.trace import Outcome, Packet, trace
from agent.services.nftables.wording import told_data, told_key
from agent.services.objects.node_state import FamilyFacts
from agent.services.routes.claims import Claim
from agent.services.run.nft_ruleset import NftRuleset


class NftRulesView:
    def __init__(self, family: Family, ruleset: NftRuleset) -> None:
        self._family = family
        self._ruleset = ruleset

    def desired(self, key: ServiceKey | None = None) -> Iterator[RuleReport]:
        mirror = self._ruleset.mirror
        for one in sorted([key] if key is not None else mirror.keys()):
            programmed = mirror.programmed(one)
            if programmed is None:
                continue
            own = elements_of(programmed.plan, programmed.slots)
            shared = shared_elements_of(programmed.plan, programmed.slots)
            for name, item, data in (*own, *shared):
                yield _rule(self._family, name, item, data, str(one))

    async def standing(self) -> list[RuleReport]:
        content = await self._standing()
        return [
            _rule(self._family, name, item, data) for name, items in content.items() for item, data in items.items()
        ]

    async def differences(self) -> list[RuleChange]:
        have, want = await self._standing(), self._ruleset.mirror.content()
        return [
            change
            for name in sorted({*have, *want})
            for change in _changes(self._family, name, have.get(name, {}), want.get(name, {}))
        ]

    async def connections(self) -> Mapping[Claim, int]:
        """Since the frontend came: an element that is replaced goes on where the one before it ended (NF-37)."""
        found: dict[Claim, int] = {}
        for name in ("services", "nodeports"):
            with suppress(NftFailed):
                for key, (packets, _) in (await self._ruleset.table.counters(name)).items():
                    found[claim_in(key)] = packets
        return found

    async def race_drops(self) -> int:
        """While there is no table, nothing was dropped by it."""
        with suppress(NftFailed):
            return await self._ruleset.table.race_drops()
        return 0

    async def trace(self, packet: Packet, facts: FamilyFacts, *, in_kernel: bool) -> Outcome:
        content = await self._standing() if in_kernel else self._ruleset.mirror.content()
        return trace(content, facts.table, packet)

    async def _standing(self) -> Content:
        state = await self._ruleset.table.read()
        return state.content if state is not None else {}


def _rule(family: Family, name: str, item: bytes, data: Data, service: str = "") -> RuleReport:
    return RuleReport(family=family, map=name, key=told_key(name, item, family), data=told_data(data), service=service)


def _changes(family: Family, name: str, have: Mapping[bytes, Data], want: Mapping[bytes, Data]) -> Iterator[RuleChange]:
    for key in sorted({*have, *want}):
        is_there, is_wanted = key in have, key in want
        if is_there and is_wanted and have[key] == want[key]:
            continue
        yield RuleChange(
            family=family,
            map=name,
            key=told_key(name, key, family),
            desired=(told_data(want[key]) or "present") if is_wanted else "",
            actual=(told_data(have[key]) or "present") if is_there else "",
        )
