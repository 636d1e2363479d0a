# SPDX-License-Identifier: Apache-2.0
"""Writes plans as one nftables table: the last step of a family's sync with the nftables backend.

Owns: the mirror of what is in the table, and making the table itself where it is missing or was damaged.
Never: decides when, or what to do about a failure; family_sync.py does, for every backend alike.
Source of behaviour: NF-8, NF-9, SY-10.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import replace

import structlog

from agent.model.nft_error import NftFailed, Refused
from agent.model.nft_table import Batch, ChainBody, TableSettings, TableState
from agent.model.service import ServiceKey
from agent.services.nftables.instalments import instalments
from agent.services.nftables.mirror import Mirror, Staged, left_targets
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
from agent.services.routes.frontends import ServicePlan
from agent.services.ruleset import NO_PLANS, Plans

__all__ = ["NftRuleset"]

log = structlog.get_logger(plane="services")

# While anybody listens for changes of rules, the kernel keeps 8 KiB for every element until the commit.
FILL_AT_ONCE = 1000
MOST_FILLED_AT_ONCE = 50_000
# Chains without use wait for others, so that not every change of a large Service takes a second transaction.
MOST_UNUSED = 64
MOST_DROPPED = 1000
FRONTEND_BYTES = {"IPv4": 12, "IPv6": 24}


class NftRuleset:
    """One family's table."""

    def __init__(self, table: RuleTable) -> None:
        self.table = table
        self.mirror = Mirror()
        self._found: TableState | None = None
        self._standing: Standing | None = None
        self._width = 0
        self._settings: TableSettings | None = None
        self._bodies: Mapping[str, ChainBody] = {}

    def __len__(self) -> int:
        return len(self.mirror)

    def rule_counts(self) -> None:
        """There is a constant number of rules."""

    async def check(self) -> None:
        """Whether this node can have the table at all."""
        await self.table.check()

    async def rivals(self) -> Sequence[str]:
        """What else programs Services here."""
        return await self.table.rivals()

    async def has_rules(self) -> bool:
        """Whether the table has any Service."""
        state = await self.table.read()
        return state is not None and any(state.content.get(name) for name in ("services", "nodeports"))

    def changes(self) -> AsyncGenerator[str, None]:
        """Who changed our table."""
        return self.table.changes()

    async def prepare(self, facts: FamilyFacts, *, is_wanted: bool) -> bool:
        """Our table as it should be made, whether it was there or not."""
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
        """The table that is there, with its constant chains as they should be, whatever became of them (FS-3)."""
        damage = structure_damage(table, state)
        if not damage:
            wrong = {name: body for name, body in self._bodies.items() if state.bodies.get(name) != body}
            try:
                await self.table.apply(Batch(bodies=wrong))
            except Refused as error:
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

    async def reconcile(self, plans: Plans, facts: FamilyFacts, spared: Plans = NO_PLANS) -> int:
        """The difference between what `stand` found and these plans on top of all others."""
        state = self._found
        if state is None:
            raise NftFailed("the table was not read before a change; kepd reads it again")
        if not len(self.mirror) and not any(state.content.values()):
            return await self._fill(plans, facts)
        staged = await asyncio.to_thread(self.mirror.prepare, plans, node_content(facts.node))
        spared_ways = frontends_of(spared.values())
        batch = await asyncio.to_thread(self.mirror.repair, state, staged, spared_ways, constant_chains(facts.table))
        for part in instalments(batch):
            await self.table.apply(part)
        self.mirror.commit(staged)
        self.mirror.committed_chains(batch)
        used = constant_chains(facts.table) | self.mirror.used | left_targets(state.content, batch)
        await self._drop_chains({name: replace(state.bodies[name], rules=()) for name in state.chains - used})
        return batch.size

    async def _fill(self, plans: Plans, facts: FamilyFacts) -> int:
        """Onto an empty table, some Services at a time: each transaction is whole, and none takes much memory.

        While the kernel takes one, the next is made, as if this one were in already."""
        portions = list(_portions(plans))

        async def staged(number: int) -> Staged | None:
            return self.mirror.stage(portions[number]) if number < len(portions) else None

        written = 0
        made: Staged | None = self.mirror.stage(portions[0], node_content(facts.node))
        following = 1
        while made is not None:
            self.mirror.commit(made)
            try:
                _, after = await asyncio.gather(self.table.apply(made.batch), staged(following))
            except BaseException:
                self.mirror.withdraw(made)
                raise
            written += made.batch.size
            made, following = after, following + 1
        return written

    async def write_over(self, plans: Plans) -> int:
        """In place of what the kernel has at the ways in of these Services; all else stays."""
        state = self._found
        if state is None:
            raise NftFailed("the table was not read before a change; kepd reads it again")
        if self._standing is None:
            self._standing = await asyncio.to_thread(Standing, state.content, self._width)
        staged = self.mirror.stage_over(self._standing, plans)
        await self.table.apply(staged.batch)
        self.mirror.commit(staged)
        self._standing.take(staged.batch)
        return staged.batch.size

    async def write(self, plans: Plans, facts: FamilyFacts | None = None) -> int:
        """On top of a table that is known."""
        node = node_content(facts.node) if facts is not None else None
        staged = self.mirror.stage(plans, node)
        await self.table.apply(staged.batch)
        self.mirror.commit(staged)
        if len(self.mirror.unused) > MOST_UNUSED:
            await self._drop_chains(dict.fromkeys(self.mirror.unused, ChainBody()))
        return staged.batch.size

    async def _drop_chains(self, bodies: Mapping[str, ChainBody]) -> None:
        """Those that no element leads to (FS-13). They are emptied first, as one of them may lead to another."""
        left = sorted(bodies)
        for at in range(0, len(left), MOST_DROPPED):
            names = left[at : at + MOST_DROPPED]
            batch = Batch(bodies={name: bodies[name] for name in names}, gone_chains=names)
            try:
                await self.table.apply(batch)
            except Refused as error:
                log.info("service_chains_kept", chains=len(batch.gone_chains), error=str(error))
            self.mirror.committed_chains(batch)

    def release_dump(self) -> None:
        """What was read may go."""
        self._found = self._standing = None
        self.mirror.forget_dump()


def _portions(plans: Plans) -> Iterator[Plans]:
    """At least one, even of nothing: the node's own elements go with it."""
    portion: dict[ServiceKey, ServicePlan | None] = {}
    elements = 0
    for key, plan in plans.items():
        size = sum(len(port.selection.everyone) * len(port.frontends) for port in plan.ports) if plan is not None else 0
        if portion and (len(portion) >= FILL_AT_ONCE or elements + size > MOST_FILLED_AT_ONCE):
            yield portion
            portion, elements = {}, 0
        portion[key] = plan
        elements += size
    yield portion
