# SPDX-License-Identifier: Apache-2.0
"""Keeps the rules that a boot loads before there is a kepd, and lifts them as soon as there are others.

The file is loaded by `kepd-guard.service`, without Python. It is written again when what is guarded changes, at most
every ten seconds; a family's table is lifted after the first sync of that family, also where the setting is off now.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path

import structlog

from agent.drivers.atomic_files import write_file
from agent.drivers.nft.driver import NftTable
from agent.model.clock import Clock
from agent.model.services.nft_error import NftFailed
from agent.model.services.nft_table import Family
from agent.model.services.report import RuleReport, TraceStep
from agent.model.services.service import Address, ServiceKey
from agent.services.nftables.guard import TABLE, Way, guard_removal, guard_text, guarded, guarded_in, outside
from agent.services.nftables.trace import Outcome, Packet
from agent.services.routes.desired import NodeFacts
from agent.services.routes.frontends import PortPlan
from agent.services.ruleset import Beside, SyncReport
from agent.services.run.plane import ServicesPlane

log = structlog.get_logger(plane="services")

GUARD_FILE = Path("services", "guard.nft")
REST_S = 10.0


class BootGuard(Beside):
    """A follower of the plane, and a task. `life_s` 0: no boot is guarded."""

    def __init__(
        self,
        plane: ServicesPlane,
        tables: Mapping[Family, NftTable],
        file: Path,
        clock: Clock,
        *,
        life_s: int,
        addresses: Callable[[], Awaitable[Iterable[bytes]]],
    ) -> None:
        """`addresses`: those that this host has now."""
        self._plane = plane
        self._tables = tables
        self._file = file
        self._clock = clock
        self._life_s = life_s
        self._standing = set(tables)
        """Families whose table may still be there."""
        self._due: set[Family] = set()
        self._here = addresses
        self._ways: dict[Family, dict[ServiceKey, tuple[Way, ...]]] = {family: {} for family in tables}
        self._nodes: dict[Family, NodeFacts] = {}
        self._written = ""
        self._guarding: dict[Family, tuple[Way, ...]] = {}
        """What the tables that a boot loaded keep away, where they are there."""
        self._wake = asyncio.Event()

    def follow(self, family: Family, report: SyncReport) -> None:
        self.lift(family)
        if self._life_s and self._take_in(family, report.changed):
            self._wake.set()

    def lift(self, family: Family) -> None:
        """Rules are there: ours, or those of another program that has its Services here."""
        if family in self._standing:
            self._standing.discard(family)
            self._due.add(family)
            self._wake.set()

    def _take_in(self, family: Family, changed: Iterable[ServiceKey]) -> bool:
        """Whether the file has to be written again. Most Services have no address beside those of the networks."""
        sync, known = self._plane.families[family], self._ways[family]
        node = sync.facts.node
        differs = self._nodes.get(family) != node
        if differs:
            self._nodes[family] = node
            changed = [plan.key for plan in sync.desired.plans()]
        for key in changed:
            now = outside(sync.desired.plan_of(key), node.service_ranges)
            differs |= known.get(key, ()) != now
            if now:
                known[key] = now
            else:
                known.pop(key, None)
        return differs

    async def begin(self) -> None:
        """Before the first sync: what the boot left."""
        try:
            there = [family for family, table in self._tables.items() if await table.has_table(TABLE)]
            text = await asyncio.to_thread(self._file.read_text) if there else ""
        except (NftFailed, OSError, UnicodeDecodeError) as error:
            log.warning("boot_guard_unknown", error=str(error))
            return
        for family in there:
            self._guarding[family] = tuple(one for one in guarded_in(text) if one.network.family == family)

    def told(self, family: Family, port: PortPlan) -> Iterator[str]:
        ways = [(one.ip, one.protocol, one.port) for one in port.frontends if one.ip is not None]
        if family in self._guarding and any(self._guards(*one) for one in ways):
            yield f"guarded since the boot: new traffic is dropped until the first sync of {family}"

    def rows(self, key: ServiceKey | None = None, *, is_standing: bool) -> Iterator[RuleReport]:
        """It should be there until the first sync."""
        for family, ways in self._guarding.items() if key is None else ():
            for one in ways if is_standing or family in self._standing else ():
                yield RuleReport(family=family, map=TABLE, key=str(one), data="drop")

    def instead(self, packet: Packet, *, is_standing: bool) -> Outcome | None:  # noqa: ARG002
        if not self._guards(packet.target, packet.protocol, packet.port):
            return None
        return Outcome("drop", (TraceStep(TABLE, "guarded since the boot, until the first sync"),))

    def _guards(self, address: Address, protocol: str, port: int) -> bool:
        return any(one.has(address, protocol, port) for one in self._guarding.get(address.family, ()))

    async def run(self) -> None:
        if not self._life_s:
            await asyncio.to_thread(self._file.unlink, missing_ok=True)
        while True:
            await self._wake.wait()
            self._wake.clear()
            for family in sorted(self._due):
                await self._lift(family)
            if self._standing and not self._due:
                # The other family's is lifted as soon as it can be.
                continue
            if self._life_s and not self._standing:
                await self._write()
            await self._clock.sleep(REST_S)

    async def _lift(self, family: Family) -> None:
        try:
            await self._tables[family].load(guard_removal(family))
            self._due.discard(family)
            self._guarding.pop(family, None)
        except NftFailed as error:
            log.warning("boot_guard_stands", family=family, error=str(error), next_try_s=REST_S)
            self._wake.set()

    async def _write(self) -> None:
        here = frozenset(await self._here())
        text = "".join(self._text(family, here) for family in self._ways if family in self._nodes)
        if text == self._written:
            return
        try:
            await asyncio.to_thread(write_file, self._file, text.encode())
            self._written = text
        except OSError as error:
            log.warning("boot_guard_not_written", path=str(self._file), error=str(error), next_try_s=REST_S)
            self._wake.set()

    def _text(self, family: Family, here: frozenset[bytes]) -> str:
        """A port of this node, or of what it needs itself, is no Service's alone."""
        node = self._plane.families[family].facts.node
        needed = (packed for packed, _ in node.limits.reserved)
        spared = here.union((one.packed for one in node.limits.node), needed)
        ways = (way for found in self._ways[family].values() for way in found)
        elements, left_out = guarded(node.service_ranges, ways, spared)
        if left_out:
            log.warning("boot_guard_incomplete", family=family, left_out=left_out, set="services.serviceCIDRs")
        return guard_text(family, elements, self._life_s)
