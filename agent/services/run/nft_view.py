# SPDX-License-Identifier: Apache-2.0
"""Shows the elements of one family's nftables table, and how the desired ones differ from the kernel's."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from operator import itemgetter

import msgspec

from agent.model.placed import Walk, begins, is_over, to_come, within
from agent.model.services.nft_error import NftFailed
from agent.model.services.nft_table import Content, Data, Family
from agent.model.services.report import RuleChange, RuleReport
from agent.model.services.service import ServiceKey
from agent.services.nftables.elements import claim_in, elements_of, shared_elements_of
from agent.services.nftables.trace import Outcome, Packet, told_data, told_key, trace
from agent.services.objects.node_state import FamilyFacts
from agent.services.routes.frontends import Claim
from agent.services.run.kept import Kept
from agent.services.run.nft_ruleset import NftRuleset


class NftRulesView:
    def __init__(self, family: Family, ruleset: NftRuleset) -> None:
        self._family = family
        self._ruleset = ruleset
        self._found = Kept(self._read)
        self._compared = Kept(self._compare)

    async def desired(self, key: ServiceKey | None = None, after: str = "") -> Walk[RuleReport]:
        mirror = self._ruleset.mirror
        for one in to_come(sorted([key] if key is not None else mirror.keys()), self._begin, after):
            programmed = mirror.programmed(one)
            if programmed is None:
                continue
            own = elements_of(programmed.plan, programmed.slots)
            shared = shared_elements_of(programmed.plan, programmed.slots)
            for name, item, data in sorted((*own, *shared), key=itemgetter(0, 1)):
                place = f"{self._begin(one)}{begins(name)}{item.hex()}"
                if place > after:
                    yield place, _rule(self._family, name, item, data, str(one))

    def _begin(self, key: ServiceKey) -> str:
        return begins(self._family, *key)

    async def standing(self, key: ServiceKey | None = None, after: str = "") -> Walk[RuleReport]:
        if is_over(begins(self._family), after):
            return
        wanted = self._wanted(key) if key is not None else None
        reading = await self._found.get(is_first=not within(begins(self._family), after))
        for place, name, item in reading.walk(self._family, after):
            if wanted is None or (name, item) in wanted:
                yield place, _rule(self._family, name, item, reading.have[name][item])
        self._found.forget()

    def _wanted(self, key: ServiceKey) -> set[tuple[str, bytes]]:
        one = self._ruleset.mirror.programmed(key)
        if one is None:
            return set()
        elements = (*elements_of(one.plan, one.slots), *shared_elements_of(one.plan, one.slots))
        return {(name, item) for name, item, _ in elements}

    async def differences(self, after: str = "") -> Walk[RuleChange]:
        if is_over(begins(self._family), after):
            return
        reading = await self._compared.get(is_first=not within(begins(self._family), after))
        for place, name, item in reading.walk(self._family, after):
            change = _change(self._family, name, item, reading)
            if change is not None:
                yield place, change
        self._compared.forget()

    async def _read(self) -> "_Reading":
        return _Reading(await self._standing(), {}, {})

    async def _compare(self) -> "_Reading":
        return _Reading(await self._standing(), self._ruleset.mirror.content(), {})

    async def connections(self) -> Mapping[Claim, int]:
        """Since the frontend came: an element that is replaced goes on where the one before it ended."""
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


class _Reading(msgspec.Struct, frozen=True):
    """Elements that the kernel has, and those that it should have where they are compared."""

    have: Content
    want: Content
    ordered: dict[str, list[bytes]]

    def walk(self, family: Family, after: str) -> Iterator[tuple[str, str, bytes]]:
        """Place, map and key of those behind a place."""
        for name in sorted({*self.have, *self.want}):
            begin = begins(family, name)
            if is_over(begin, after):
                continue
            if name not in self.ordered:
                self.ordered[name] = sorted({*self.have.get(name, {}), *self.want.get(name, {})})
            keys = self.ordered[name]
            rest = within(begin, after)
            for at in range(bisect_right(keys, rest, key=bytes.hex) if rest else 0, len(keys)):
                yield f"{begin}{keys[at].hex()}", name, keys[at]


def _change(family: Family, name: str, key: bytes, reading: _Reading) -> RuleChange | None:
    have, want = reading.have.get(name, {}), reading.want.get(name, {})
    is_there, is_wanted = key in have, key in want
    if is_there and is_wanted and have[key] == want[key]:
        return None
    return RuleChange(
        family=family,
        map=name,
        key=told_key(name, key, family),
        desired=(told_data(want[key]) or "present") if is_wanted else "",
        actual=(told_data(have[key]) or "present") if is_there else "",
    )
