# SPDX-License-Identifier: Apache-2.0
"""Plans as one nftables table: the last step of a family's sync where nftables programs the kernel.

Owns: the mirror of what is in the table, and making the table itself where it is missing or was damaged.
Never: decides when, or what to do about a failure; family_sync.py does, for every backend alike.
Source of behaviour: NF-8, NF-9, SY-10.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

import structlog

from agent.model.nft_error import NftFailed
from agent.model.nft_table import TableState
from agent.model.service import ServiceKey, ServiceOptions
from agent.services.nftables.instalments import instalments
from agent.services.nftables.mirror import Mirror, Staged
from agent.services.nftables.structure import replacement_text, structure_damage, structure_text
from agent.services.objects.node_state import FamilyFacts, node_content
from agent.services.ports import RuleTable
from agent.services.ruleset import Plans, ServiceOf

__all__ = ["NftRuleset"]

log = structlog.get_logger(plane="services")

# While anybody listens for changes of rules, the kernel keeps 8 KiB for every element until the commit.
FILL_AT_ONCE = 1000


class NftRuleset:
    """One family's table."""

    def __init__(self, table: RuleTable) -> None:
        self.table = table
        self.mirror = Mirror()
        self._found: TableState | None = None

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

    def changes(self) -> AsyncGenerator[str, None]:
        """Who changed our table."""
        return self.table.changes()

    async def stand(self, facts: FamilyFacts, *, is_wanted: bool) -> bool:
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
        damage = structure_damage(table, state) if state is not None else "it is gone again"
        if damage:
            log.warning("service_table_replaced", family=table.family, reason=damage, v=0)
            await self.table.load(replacement_text(table, state.content if state is not None else None))
            state = await self.table.read()
        if state is None:
            raise NftFailed("the table was deleted by somebody else while it was made; it is made again")
        self._found = state
        self.mirror.adopt(state)
        return True

    async def bring_about(self, plans: Plans, service_of: ServiceOf, facts: FamilyFacts) -> int:
        """The difference between what `stand` found and these plans on top of all others."""
        state = self._found
        if state is None:
            raise NftFailed("the table was not read before it was to be changed; it is read again")
        if not len(self.mirror) and not any(state.content.values()):
            return await self._fill(plans, service_of, facts)
        options = _options(service_of)
        staged = await asyncio.to_thread(self.mirror.prepare, plans, options, node_content(facts.node))
        batch = await asyncio.to_thread(self.mirror.repair, state, staged)
        for part in instalments(batch):
            await self.table.apply(part)
        self.mirror.commit(staged)
        self.mirror.committed_chains(batch)
        return batch.size

    async def _fill(self, plans: Plans, service_of: ServiceOf, facts: FamilyFacts) -> int:
        """Onto an empty table, some Services at a time: each transaction is whole, and none takes much memory.

        While the kernel takes one, the next is made, as if this one were in already."""
        options = _options(service_of)
        keys = list(plans)
        portions = [
            {key: plans[key] for key in keys[start : start + FILL_AT_ONCE]}
            for start in range(0, max(len(keys), 1), FILL_AT_ONCE)
        ]

        async def staged(number: int) -> Staged | None:
            return self.mirror.stage(portions[number], options) if number < len(portions) else None

        written = 0
        made: Staged | None = self.mirror.stage(portions[0], options, node_content(facts.node))
        following = 1
        while made is not None:
            self.mirror.commit(made)
            try:
                _, after = await asyncio.gather(self.table.apply(made.batch), staged(following))
            except BaseException:
                self.mirror.withdraw(made, options)
                raise
            written += made.batch.size
            made, following = after, following + 1
        return written

    async def write(self, plans: Plans, service_of: ServiceOf, facts: FamilyFacts | None = None) -> int:
        """On top of a table that is known."""
        node = node_content(facts.node) if facts is not None else None
        staged = self.mirror.stage(plans, _options(service_of), node)
        await self.table.apply(staged.batch)
        self.mirror.commit(staged)
        return staged.batch.size

    def forget(self) -> None:
        """What was read may go."""
        self._found = None
        self.mirror.forget_dump()


def _options(service_of: ServiceOf) -> Callable[[ServiceKey], ServiceOptions | None]:
    def find(key: ServiceKey) -> ServiceOptions | None:
        service = service_of(key)
        return service.options if service is not None else None

    return find
