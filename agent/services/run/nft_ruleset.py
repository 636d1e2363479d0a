# SPDX-License-Identifier: Apache-2.0
"""Writes plans as one nftables table: the last step of a family's sync with the nftables backend.

Never: decides when, or what to do about a failure; family_sync.py does, for every backend alike.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence

import structlog
from msgspec.structs import replace

from agent.model.services.nft_error import NftFailed, RulesRefused
from agent.model.services.nft_table import Batch, ChainBody, Content, Data, TableSettings, TableState
from agent.services.batches import MOST_ELEMENTS, portions
from agent.services.nftables.changes import Staged, left_targets, removals
from agent.services.nftables.elements import claim_in
from agent.services.nftables.mirror import Mirror
from agent.services.nftables.standing import Standing, frontends_of
from agent.services.nftables.structure import (
    bodies_of,
    constant_chains,
    pattern_text,
    replacement_text,
    structure_damage,
    structure_text,
)
from agent.services.objects.node_state import FamilyFacts, node_content
from agent.services.ports import RuleTable
from agent.services.ruleset import NO_PLANS, Plans, Reconciled

log = structlog.get_logger(plane="services")

CATCHING = ("svc_cidrs",)
"""Sets that decide about packets of nobody."""
# Chains without use wait for others, so that not every change of a large Service takes a second transaction.
MOST_UNUSED = 64
MOST_DROPPED = 1000
FRONTEND_BYTES = {"IPv4": 12, "IPv6": 24}


class NftRuleset:
    def __init__(self, table: RuleTable) -> None:
        self.table = table
        self.mirror = Mirror()
        self._found: TableState | None = None
        self._standing: Standing | None = None
        self._width = 0
        self._most = MOST_ELEMENTS
        """Elements of one transaction."""
        self._settings: TableSettings | None = None
        self._bodies: Mapping[str, ChainBody] = {}
        self.left: set[bytes] = set()
        """Endpoints with numbers of ports to which clients stopped coming back; whoever forgets them empties it."""

    def __len__(self) -> int:
        return len(self.mirror)

    def rule_counts(self) -> None:
        """There is a constant number of rules."""

    async def check(self) -> None:
        await self.table.check()
        self._most = min(MOST_ELEMENTS, await self.table.most_elements())

    async def rivals(self) -> Sequence[str]:
        return await self.table.rivals()

    async def forward_drops(self) -> Sequence[str]:
        return await self.table.forward_drops()

    async def has_rules(self) -> bool:
        return await self.table.has_services()

    def changes(self) -> AsyncGenerator[str, None]:
        return self.table.changes()

    async def prepare(self, facts: FamilyFacts, *, is_wanted: bool) -> bool:
        table = facts.table
        state = await self.table.read()
        if state is None:
            if not is_wanted:
                return False
            # After a foreign flush: frontends drop until their endpoints follow, so that no packet leaves untranslated.
            known = self.mirror.content() if len(self.mirror) else None
            await self.table.load(replacement_text(table, known) if known else structure_text(table))
            state = await self.table.read()
        else:
            await self._know_bodies(table)
            state = await self._mend(table, state)
        if state is None:
            raise NftFailed("another program deleted the table while kepd created it; kepd creates it again")
        self._found, self._standing, self._width = state, None, FRONTEND_BYTES[table.family]
        self.mirror.adopt(state)
        return True

    async def _mend(self, table: TableSettings, state: TableState) -> TableState | None:
        """The table that is there, with its constant chains as they should be, whatever became of them."""
        damage = structure_damage(table, state)
        if not damage:
            wrong = {name: body for name, body in self._bodies.items() if state.bodies.get(name) != body}
            try:
                await self.table.apply(Batch(bodies=wrong))
            except RulesRefused as error:
                # A chain of that name with another hook, for instance.
                damage = str(error)
            else:
                return replace(state, bodies={**state.bodies, **wrong})
        log.warning("service_table_replaced", family=table.family, reason=damage, v=0)
        await self.table.load(replacement_text(table, state.content))
        return await self.table.read()

    async def _know_bodies(self, table: TableSettings) -> None:
        if table != self._settings:
            self._bodies = bodies_of(table, await self.table.pattern(pattern_text(table)))
            self._settings = table

    async def reconcile(self, plans: Plans, facts: FamilyFacts, spared: Plans = NO_PLANS) -> Reconciled:
        """The difference between what `prepare` found and these plans on top of all others."""
        state = self._found
        if state is None:
            raise NftFailed("the table was not read before a change; kepd reads it again")
        if not len(self.mirror) and not any(state.content.values()):
            return Reconciled(await self._write_all(plans, node_content(facts.node)))
        staged = await asyncio.to_thread(self.mirror.prepare, plans, node_content(facts.node))
        spared_ways = frontends_of(spared.values())
        constant = constant_chains(facts.table)
        batch = await asyncio.to_thread(self.mirror.repair, state, staged, spared_ways, constant)
        written = 0
        if batch.size > self._most:
            for keys in portions(plans, NO_PLANS, self._most):
                written += await self.write_over({key: plans[key] for key in keys})
            staged = self.mirror.prepare({}, node_content(facts.node))
            batch = await asyncio.to_thread(self.mirror.repair, state, staged, spared_ways, constant)
        for part in removals(batch, self._most):
            await self._apply(part)
        self.mirror.commit(staged)
        self.mirror.committed_chains(batch)
        used = constant | self.mirror.used | left_targets(state.content, batch)
        await self._drop_chains({name: replace(state.bodies[name], rules=()) for name in state.chains - used})
        kept = batch.replaced
        gone = [
            claim_in(key)
            for name in ("services", "nodeports")
            for key in {*batch.deletes.get(name, ())}.difference(kept.get(name, ()))
        ]
        return Reconciled(written + batch.size, gone)

    async def _write_all(self, plans: Plans, node: Content) -> int:
        """Portion by portion. While the kernel takes one, the next is made as if this one were in already. What catches
        packets comes last: until then the addresses of Services that are not in yet are left alone."""
        parts = [{key: plans[key] for key in keys} for keys in portions(plans, self.mirror.plans_of(plans), self._most)]
        early = {name: self._early(name, items) for name, items in node.items()} if len(parts) > 1 else node

        async def staged(number: int) -> Staged | None:
            if number >= len(parts):
                return None
            return self.mirror.stage(parts[number], node if number == len(parts) - 1 else early)

        written, number = 0, 0
        made = await staged(0)
        while made is not None:
            opposite = self.mirror.opposite(made)
            self.mirror.commit(made)
            number += 1
            try:
                _, after = await asyncio.gather(self._apply(made.batch), staged(number))
            except BaseException:
                self.mirror.commit(opposite)
                raise
            written += made.batch.size
            made = after
        return written

    def _early(self, name: str, items: dict[bytes, Data]) -> dict[bytes, Data]:
        if name not in CATCHING:
            return items
        had = self.mirror.node.get(name, {})
        return {key: data for key, data in items.items() if key in had}

    async def write_over(self, plans: Plans) -> int:
        """In place of what the kernel has at the ways in of these Services; all else stays."""
        state = self._found
        if state is None:
            raise NftFailed("the table was not read before a change; kepd reads it again")
        if self._standing is None:
            self._standing = await asyncio.to_thread(Standing, state.content, self._width)
        staged = self.mirror.stage_over(self._standing, plans)
        await self._apply(staged.batch)
        self.mirror.commit(staged)
        self._standing.take(staged.batch)
        return staged.batch.size

    async def write(self, plans: Plans, facts: FamilyFacts | None = None) -> int:
        node = node_content(facts.node) if facts is not None else self.mirror.node
        written = await self._write_all(plans, node)
        if len(self.mirror.unused) > MOST_UNUSED or self.mirror.spare_maps(self.mirror.unused):
            await self._drop_chains(dict.fromkeys(self.mirror.unused, ChainBody()))
        return written

    async def _apply(self, batch: Batch) -> None:
        await self.table.apply(batch)
        self.left.update(*(batch.deletes.get(name, ()) for name in ("aff_cluster", "aff_local")))

    async def _drop_chains(self, bodies: Mapping[str, ChainBody]) -> None:
        """Those that no element leads to. They are emptied first, as one of them may lead to another."""
        left = sorted(bodies)
        for at in range(0, len(left), MOST_DROPPED):
            names = left[at : at + MOST_DROPPED]
            maps = self.mirror.spare_maps(names)
            batch = Batch(bodies={name: bodies[name] for name in names}, gone_chains=names, gone_maps=maps)
            try:
                await self.table.apply(batch)
            except RulesRefused as error:
                log.info("service_chains_kept", chains=len(batch.gone_chains), error=str(error))
            self.mirror.committed_chains(batch)

    def release_dump(self) -> None:
        self._found = self._standing = None
        self.mirror.forget_dump()
