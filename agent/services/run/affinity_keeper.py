# SPDX-License-Identifier: Apache-2.0
"""Keeps the maps of clients: entries of endpoints that left go, and no port crowds out the others.

Each look asks how full the map is, which costs 15 µs from kernel 6.16 on; only a crowded one is read, and of that so
much as takes 0.1 s.
Never: holds up a sync or the event loop.
"""

import asyncio
import errno
from collections.abc import Sequence

import structlog

from agent.model.clock import Clock
from agent.model.services.nft_error import NftFailed, RulesRefused
from agent.model.services.nft_table import CLIENTS, AffineClient, Batch, Family, own_map
from agent.services.nftables.crowding import SHORT_LIFE_MS, Crowd, is_crowded, is_full, plan_trims
from agent.services.nftables.structure import MOST_CLIENTS
from agent.services.ports import RuleTable
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane

log = structlog.get_logger(plane="services")

LOOK_S, FULL_LOOK_S = 10.0, 1.0
SAMPLE = 32_768
PIECE = 4096
MOST_ROUNDS = 8
# What lives no longer than this may be gone before it is deleted.
ENDING_MS = 5000
MOST_MISSING = 64
# Reading a whole map takes the kernel up to 5 s; with pauses so many times as long it is 3 % of a core.
PAUSES = 33
SILENCE_S = 600.0


class AffinityKeeper:
    """A task. `size`: of the map that ports share. With iptables each endpoint has a list of its own."""

    def __init__(self, plane: ServicesPlane, clock: Clock, size: int = MOST_CLIENTS) -> None:
        self._plane = plane
        self._rules = {family: one.rules for family, one in plane.families.items() if isinstance(one.rules, NftRuleset)}
        self._clock = clock
        self._size = size
        self._told_s: dict[bytes, float] = {}

    async def run(self) -> None:
        """For ever, with nftables."""
        while self._rules:
            await self._clock.sleep(min([await self.look(family) for family in self._rules]))

    async def look(self, family: Family) -> float:
        """Once; returns when to look again."""
        rules = self._rules[family]
        if not rules.left and not rules.mirror.sharing_ports:
            return LOOK_S
        try:
            began_s = self._clock.now_s()
            await self._forget(rules)
            count = await rules.table.client_count(CLIENTS)
            pause_s = max(LOOK_S, PAUSES * (self._clock.now_s() - began_s))
            self._plane.measures.affinity_clients[family] = count
            deletes = is_full(count, self._size)
            rounds = MOST_ROUNDS if deletes else int(is_crowded(count, self._size))
            while rounds and (done := await self._trim(family, rules, count, deletes=deletes)):
                count, rounds = count - done, rounds - 1
        except NftFailed as error:
            log.warning("affinity_not_kept", family=family, error=str(error), retry_s=LOOK_S)
            return LOOK_S
        return FULL_LOOK_S if deletes else pause_s

    async def _trim(self, family: Family, rules: NftRuleset, count: int, *, deletes: bool) -> int:
        """How many were forgotten or cut."""
        sample = await rules.table.clients(CLIENTS, SAMPLE)
        ports = rules.mirror.sharing_ports
        crowds, chosen = await asyncio.to_thread(plan_trims, sample, count, self._size, ports, deletes=deletes)
        await self._write(rules.table, CLIENTS, chosen, 0 if deletes else SHORT_LIFE_MS)
        for one in crowds:
            self._tell(family, rules, one, deletes=deletes)
        self._plane.measures.affinity_trimmed[family] += len(chosen)
        return len(chosen)

    async def _forget(self, rules: NftRuleset) -> None:
        """Clients of endpoints that left."""
        pairs: dict[str, set[bytes]] = {}
        for pair in rules.left:
            if not rules.mirror.is_member(pair):
                port = rules.mirror.port_of(pair[-4:])
                size = port[1].own_clients if port is not None else 0
                pairs.setdefault(own_map(pair[-4:], size) if size else CLIENTS, set()).add(pair)
        rules.left.clear()
        for name, some in pairs.items():
            found = await rules.table.clients(name, pairs=some)
            await self._write(rules.table, name, [one for one in found if one.life_ms > ENDING_MS])

    async def _write(self, table: RuleTable, name: str, clients: Sequence[AffineClient], life_ms: int = 0) -> None:
        """They go, or live so long. A turn of the loop after each piece is for others."""
        for at in range(0, len(clients), PIECE):
            piece = {one.key: one for one in clients[at : at + PIECE]}
            for _ in range(MOST_MISSING):
                adds = {name: [one.living(life_ms) for one in piece.values()]} if life_ms else {}
                try:
                    await table.apply(Batch(deletes={name: list(piece)}, adds=adds))
                    break
                except RulesRefused as error:
                    if error.errno != errno.ENOENT or piece.pop(error.key, None) is None:
                        raise
            await asyncio.sleep(0)

    def _tell(self, family: Family, rules: NftRuleset, crowd: Crowd, *, deletes: bool) -> None:
        """Once in a while for each port."""
        now_s, found = self._clock.now_s(), rules.mirror.port_of(crowd.number)
        if found is None or now_s < self._told_s.get(crowd.number, 0.0):
            return
        self._told_s = {one: until_s for one, until_s in self._told_s.items() if until_s > now_s}
        self._told_s[crowd.number] = now_s + SILENCE_S
        key, port = found
        name, end = port.port.name or port.port.port, "" if deletes else " unless they come back within a minute"
        has = f"port {name} has about {crowd.held} of the {self._size} clients in the map that Services share"
        less = f"the newest, down to {crowd.level}, are forgotten{end}"
        self._plane.crowded(family, key, f"{has}; {less}; kepd.dev/affinity-clients gives it a map of its own")
