# SPDX-License-Identifier: Apache-2.0
"""Keeps the table of bridges beside that for IP. What is in its way keeps no policy from being in force."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import structlog

from agent.model.services.nft_error import NftFailed, RulesRefused
from agent.policies.ports import PolicyTable
from agent.policies.rules.bridge_text import REMOVAL, bridge_text, link_changes
from agent.policies.rules.table import Links

log = structlog.get_logger(plane="policies")

MEND = "a kernel with CONFIG_NF_TABLES_BRIDGE"
EFFECT = "sources of pods are not held to their links, and frames with tags between pods of one bridge pass policies"


class BridgeTable:
    def __init__(self, table: PolicyTable, claim: Callable[[], None]) -> None:
        """`claim` takes the tables for this process, or raises TableTaken."""
        self._table, self._claim = table, claim
        self._standing: Links | None = None
        self.problem = ""
        self.is_due = False
        """Somebody else has changed it, or the last change failed."""

    async def bring(self, links: Links) -> None:
        """Raises TableTaken."""
        self.is_due = False
        try:
            if not links:
                await self._remove()
            elif self._standing is None or not self._standing:
                self._claim()
                await self._make_anew(links)
            elif made := link_changes(self._standing, links):
                await self._table.change(made, (), ())
        except NftFailed as error:
            if links and not self.problem:
                log.warning("bridge_table_not_applied", error=str(error), effect=EFFECT)
            self._standing, self.problem = None, f"{EFFECT}: {error}" if links else ""
            return
        self._standing, self.problem = None if self.is_due else links, ""

    async def _make_anew(self, links: Links) -> None:
        try:
            await self._table.load(bridge_text(links))
        except RulesRefused:
            # One of another layout cannot be filled.
            await self._table.load(REMOVAL + bridge_text(links))

    async def _remove(self) -> None:
        if self._standing or (self._standing is None and await self._table.exists()):
            self._claim()
            await self._table.load(REMOVAL)

    async def follow(self, in_force: asyncio.Event, due: Callable[[], None]) -> None:
        await in_force.wait()
        async with aclosing(self._table.changes()) as sentences:
            async for sentence in sentences:
                log.warning("policies_touched", change=sentence, effect="the table of bridges is written again")
                self._standing, self.is_due = None, True
                due()
