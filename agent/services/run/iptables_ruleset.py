# SPDX-License-Identifier: Apache-2.0
"""Writes plans as iptables rules: the last step of a family's sync with the iptables backend.

It undoes the written part of a change that was refused half-way, and checks from time to time whether the rules are
still there. Never: decides when to write, or what to do about a failure; family_sync.py does, for every backend alike.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

import structlog

from agent.model.clock import Clock
from agent.model.services.iptables_rules import OWNER, Chains, Content, RulesChange, Table, is_ours
from agent.model.services.nft_error import NftFailed, RulesRefused
from agent.services.iptables.frame import rule_settings
from agent.services.iptables.instalments import instalments
from agent.services.iptables.mirror import IptablesMirror, StagedChange, difference, rule_counts, ways_in
from agent.services.iptables.rendering import RuleSettings
from agent.services.iptables.standing import restoring
from agent.services.objects.node_state import FamilyFacts
from agent.services.ports import ChainTables
from agent.services.ruleset import NO_PLANS, Plans, Reconciled, RuleCounts

log = structlog.get_logger(plane="services")

MOST_ENDPOINTS_COMPARED = 1000
"""With more it costs seconds to read everything, so without a sign only the canaries are looked at."""
MOST_TOLD, MOST_SERVICES = 3, 1000
Signs = dict[object, bytes]
"""Of all families of this process, as they were when we last wrote or looked: the kernel counts commits of all."""
# How often to ask for a sign, and how many times as long as a look took to rest from it.
LOOK_S, EMPTY_LOOK_S, REST = 0.5, 5.0, 20


class IptablesRuleset:
    """One family. `period_s` is how often to look for what others did (`services.syncPeriod`)."""

    def __init__(
        self,
        tables: ChainTables,
        *,
        clock: Clock,
        period_s: Callable[[], float] = lambda: 30.0,
        signs: Signs | None = None,
    ) -> None:
        self.tables = tables
        self.mirror = IptablesMirror()
        self._written: Mapping[Table, int] = {}
        self._clock = clock
        self._period_s = period_s
        self._found: Content | None = None
        self._is_warned = False
        self._lock = asyncio.Lock()
        """Around everything that writes, so that nobody compares with rules on their way."""
        self._signs = {} if signs is None else signs
        self._signs[self] = b""

    def __len__(self) -> int:
        return len(self.mirror)

    def rule_counts(self) -> RuleCounts:
        return RuleCounts(dict(self.mirror.rules), dict(self._written))

    async def check(self) -> None:
        await self.tables.check()

    async def rivals(self) -> Sequence[str]:
        return await self.tables.rivals()

    async def forward_drops(self) -> Sequence[str]:
        return ()

    async def has_rules(self) -> bool:
        nat = (await self.tables.read()).get("nat", {})
        return OWNER in nat and bool(nat.get("KUBE-SERVICES"))

    async def prepare(self, facts: FamilyFacts, *, is_wanted: bool) -> bool:  # noqa: ARG002
        """Read what there is. The fixed chains are written with the rest, in one go."""
        found = await self.tables.read()
        if not is_wanted and not _our_chains(found):
            return False
        self._found = found
        return True

    async def reconcile(self, plans: Plans, facts: FamilyFacts, spared: Plans = NO_PLANS) -> Reconciled:
        """The difference between what `prepare` found and these plans on top of all others."""
        found = self._found
        if found is None:
            raise NftFailed("the rules were not read before a change; kepd reads them again")
        settings = rule_settings(facts)
        is_first = not self.tables.most_chains and not len(self.mirror) and not _our_chains(found)
        async with self._writing():
            try:
                if is_first:
                    written = await self._fill(found, plans, settings)
                else:
                    written = await self._repair(found, plans, settings, spared)
            finally:
                self._found = None
            self._warn_of_size()
            if settings.has_loopback_node_ports:
                await self.tables.allow_loopback()
            left = ways_in(found) - ways_in(self.mirror.content())
        return Reconciled(written, left)

    async def _repair(self, found: Content, plans: Plans, settings: RuleSettings, spared: Plans) -> int:
        staged = await asyncio.to_thread(self.mirror.stage, plans, settings)
        change = await asyncio.to_thread(self.mirror.repair, found, staged, spared)
        await self._send(change)
        self.mirror.commit(staged)
        self._written = rule_counts(change.chains)
        return change.size

    async def _fill(self, found: Content, plans: Plans, settings: RuleSettings) -> int:
        """Everything at once, and while the program reads the chains of one Service those of the next are made."""
        services, shared = await asyncio.to_thread(self.mirror.fill, plans, settings)
        change = difference(found, shared, settings)
        counts, chain_count = rule_counts(shared), 0

        def ahead() -> Iterator[Chains]:
            nonlocal chain_count
            for one in services.values():
                if one is not None:
                    chains = one.chains(settings)
                    chain_count += len(chains)
                    counts["nat"] = counts.get("nat", 0) + sum(map(len, chains.values()))
                    yield chains

        alone = sum(counts.values())
        await self.tables.apply(change, ahead())
        self.mirror.commit(StagedChange(RulesChange(), RulesChange(), services, settings, counts))
        self._written = counts
        return change.size + chain_count + sum(counts.values()) - alone

    def _warn_of_size(self) -> None:
        """Once."""
        if len(self.mirror) > MOST_SERVICES and not self._is_warned:
            self._is_warned = True
            effect = "each change takes the kernel 0.1 s to 1 s and grows with the Services; nftables takes 2 ms"
            log.warning("iptables_is_slow_here", services=len(self.mirror), effect=effect)

    async def write_over(self, plans: Plans) -> int:
        """In place of the rules that these Services have; those of all others stay."""
        settings = self.mirror.settings
        if settings is None:
            raise NftFailed("the rules were not read before a change; kepd reads them again")
        async with self._writing():
            found = await self.tables.read()
            staged = await asyncio.to_thread(self.mirror.stage, plans, settings)
            change = await asyncio.to_thread(self.mirror.repair_over, found, staged)
            try:
                await self._send(change)
            except RulesRefused:
                # Of several tables those before the refused one have it already.
                await self._send(restoring(await self.tables.read(), found))
                raise
            self.mirror.commit(staged)
            self._written = rule_counts(change.chains)
        return change.size

    async def write(self, plans: Plans, facts: FamilyFacts | None = None) -> int:
        """Only chains whose text changes."""
        settings = rule_settings(facts) if facts is not None else self.mirror.settings
        if settings is None:
            raise NftFailed("the rules were not read before a change; kepd reads them again")
        async with self._writing():
            staged = self.mirror.stage(plans, settings)
            if staged.change:
                await self._apply(staged)
            self.mirror.commit(staged)
            self._written = rule_counts(staged.change.chains)
        return staged.change.size

    async def _apply(self, staged: StagedChange) -> None:
        try:
            await self._send(staged.change)
        except RulesRefused as refusal:
            if refusal.is_passing:
                raise
            # The tables before the refused one have it already, and others must not wait for a full sync because of it.
            try:
                await self._take_back(staged)
            except RulesRefused as error:
                raise NftFailed(f"the written part of a refused change cannot be undone: {error}") from error
            raise

    async def _take_back(self, staged: StagedChange) -> None:
        """Nothing stays of it, in whichever part it was refused."""
        settings = self.mirror.settings
        if settings is not None and len(list(instalments(staged.change, self.tables.most_chains))) > 1:
            have, want = await self.tables.read(), self.mirror.content()
            await self._send(difference(have, want, settings))
            return
        await self.tables.apply(staged.opposite)

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[None, None]:
        async with self._lock:
            before = self.tables.sign()
            try:
                yield
            finally:
                # Where there was another sign before, what that stands for is still to be looked at.
                after = self.tables.sign()
                self._signs.update({one: after for one, sign in self._signs.items() if sign in (before, b"")})

    async def _send(self, change: RulesChange) -> None:
        for part in instalments(change, self.tables.most_chains):
            await self.tables.apply(part)

    def release_dump(self) -> None:
        self._found = None

    async def changes(self) -> AsyncGenerator[str, None]:
        """Looks at single rules where there is a sign; where a change may leave none, from time to time."""
        looked_s, rest_s = self._clock.now_s(), 0.0
        while True:
            # Without Services a changed rule of ours harms no traffic.
            await self._clock.sleep(max(LOOK_S if len(self.mirror) else EMPTY_LOOK_S, rest_s))
            rest_s = 0.0
            if self._lock.locked():
                # The kernel may hold who asks until what we write is in.
                continue
            began_s, sign = self._clock.now_s(), self.tables.sign()
            is_proof = bool(sign) and self.tables.signs_all
            if sign == self._signs[self] and (is_proof or began_s - looked_s < self._period_s()):
                continue
            is_signed, self._signs[self], looked_s = sign != self._signs[self], sign, began_s
            sentence = await self._look(at_all=is_signed)
            rest_s = REST * (self._clock.now_s() - began_s)
            if sentence:
                yield sentence

    async def _look(self, *, at_all: bool) -> str:
        if self.mirror.settings is None:
            return ""
        missing = await self.tables.missing_canaries()
        if missing:
            return f"another program flushed the tables {', '.join(missing)}"
        if self.mirror.endpoints > MOST_ENDPOINTS_COMPARED and not at_all:
            return ""
        async with self._lock:
            have, want = await self.tables.read(), self.mirror.content()
            change = difference(have, want, self.mirror.settings)
        changed = [name for chains in change.chains.values() for name in chains]
        changed += [f"a jump in {chain}" for rules in change.first.values() for chain, _ in rules]
        changed += [name for names in change.gone.values() for name in names]
        more = f" and {len(changed) - MOST_TOLD} more" if len(changed) > MOST_TOLD else ""
        return f"another program changed {', '.join(changed[:MOST_TOLD])}{more}" if changed else ""


def _our_chains(found: Content) -> list[str]:
    return [chain for chains in found.values() for chain in chains if is_ours(chain)]
