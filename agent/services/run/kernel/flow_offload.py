# SPDX-License-Identifier: Apache-2.0
"""Keeps the table by which established flows of Services skip the rules, where it is asked for.

A follower of the plane, and a task. Whether the kernel can is tried once. The table is made anew when addresses of
Services change, at most every ten seconds; flows that were taken out by that go on by the rules, and are taken in
again. A new device is added to it. A table of an earlier kepd goes after the first sync, also where the setting is off
now.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import structlog

from agent.drivers.interfaces.links import Links
from agent.drivers.nft.driver import NftTable
from agent.model.clock import Clock
from agent.model.event import Event
from agent.model.services.nft_error import NftFailed
from agent.model.services.nft_table import Family
from agent.model.services.report import RuleReport, TraceStep
from agent.model.services.service import Address, ServiceKey
from agent.services.nftables.flowtable import (
    LEAST_PACKETS,
    TABLE,
    ChosenDevices,
    Offloaded,
    OffloadedWays,
    chosen_devices,
    probe_text,
    table_change,
)
from agent.services.nftables.guard import outside
from agent.services.nftables.trace import Outcome, Packet
from agent.services.objects.addresses import address_of
from agent.services.routes.frontends import PortPlan, ServicePlan
from agent.services.routes.relays import node_ports
from agent.services.ruleset import Beside, SyncReport
from agent.services.run.plane import ServicesPlane

log = structlog.get_logger(plane="services")

REST_S = 10.0
OFFLOADED = ("TCP", "UDP")
ACCOUNTING = Path("/proc/sys/net/netfilter/nf_conntrack_acct")
LEGACY = {"IPv4": Path("/proc/net/ip_tables_names"), "IPv6": Path("/proc/net/ip6_tables_names")}

_Ports = tuple[tuple[str, int], ...]


class _Known(msgspec.Struct):
    """What a family's table is made of."""

    addresses: dict[ServiceKey, tuple[Address, ...]] = msgspec.field(default_factory=dict)
    ports: dict[ServiceKey, _Ports] = msgspec.field(default_factory=dict)
    is_due: bool = False
    is_synced: bool = False
    written: Offloaded | None = None
    """What is there, as far as it is known."""


class FlowOffload(Beside):
    def __init__(
        self,
        plane: ServicesPlane,
        tables: Mapping[Family, NftTable],
        devices: Sequence[str],
        clock: Clock,
        tell: Callable[[Event], None],
        links: Links | None = None,
    ) -> None:
        self._plane = plane
        self._tables = tables
        self._patterns = tuple(devices)
        self._clock = clock
        self._tell = tell
        self._links = links or Links()
        self._known: dict[Family, _Known] = {family: _Known() for family in tables}
        self._refusals: dict[Family, str] = {}
        self._told: dict[str, str] = {}
        self._devices = ChosenDevices()
        self._standing: frozenset[Family] = frozenset()
        """Families of which flows skip the rules now."""
        self._wake = asyncio.Event()

    def follow(self, family: Family, report: SyncReport) -> None:
        known = self._known[family]
        first, known.is_synced = not known.is_synced, True
        if first or (self._patterns and self._take_in(family, report.changed)):
            known.is_due = True
            self._wake.set()
        if first and self._patterns:
            self._take_in(family, (plan.key for plan in self._plane.families[family].desired.plans()))

    def _take_in(self, family: Family, changed: Iterable[ServiceKey]) -> bool:
        """Whether the table has to be written again: endpoints alone are nothing to it."""
        known, sync = self._known[family], self._plane.families[family]
        differs = False
        for key in changed:
            plan = sync.desired.plan_of(key)
            ways = outside(plan, sync.facts.node.service_ranges)
            found = tuple(dict.fromkeys(address_of(one.network.first) for one in ways)), _ports(plan)
            differs |= (known.addresses.get(key, ()), known.ports.get(key, ())) != found
            for kept, now in ((known.addresses, found[0]), (known.ports, found[1])):
                if now:
                    kept[key] = now  # type: ignore[assignment]
                else:
                    kept.pop(key, None)
        return differs

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write_due(), name="services-flowtable")
            if self._patterns:
                group.create_task(self._follow_links(), name="services-flowtable-devices")

    async def _follow_links(self) -> None:
        async for _ in self._links.snapshots():
            for known in self._known.values():
                known.is_due = True
            self._wake.set()

    async def _write_due(self) -> None:
        is_tried = False
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._patterns and not is_tried:
                is_tried = True
                await self._try()
            for family, known in self._known.items():
                if known.is_due and known.is_synced:
                    await self._write(family, known)
            await self._clock.sleep(REST_S)

    async def _try(self) -> None:
        """Once, for a kernel does not learn."""
        for family, table in self._tables.items():
            try:
                await table.load(probe_text(family))
            except NftFailed as error:
                self._refusals[family] = f"this kernel cannot (CONFIG_NF_FLOW_TABLE): {error}"
                self._say(f"{family} refused", "FlowtableRefused", f"{family}: {self._refusals[family]}")
        if len(self._refusals) < len(self._tables):
            self._count_packets()

    def _count_packets(self) -> None:
        """Without it no flow ever has twenty."""
        try:
            if ACCOUNTING.read_text().strip() != "1":
                ACCOUNTING.write_text("1")
        except OSError as error:
            text = f"{ACCOUNTING} cannot be set to 1: {error.strerror}; flows stay in the rules"
            self._refusals |= dict.fromkeys(self._tables, text)
            self._say("accounting", "FlowtableRefused", text)

    async def _write(self, family: Family, known: _Known) -> None:
        present = self._links.now()
        chosen = chosen_devices(self._patterns, {name: link.bridge for name, link in present.items()})
        devices = () if family in self._refusals else (*chosen.names, *chosen.ports)
        asked = Offloaded(self._ways(family, known), frozenset((name, present[name].number) for name in devices))
        change = table_change(family, known.written, asked, [link.number for link in present.values()])
        known.is_due, known.written = False, change.then
        try:
            if change.text and (asked.is_on or await self._tables[family].has_table(TABLE)):
                await self._tables[family].load(change.text)
        except NftFailed as error:
            # The port of a pod that has just ended is no refusal of the kernel.
            if self._links.now() == present:
                self._say(f"{family} failed", "FlowtableRefused", f"{family}: {error}; tried again")
            known.is_due, known.written = True, None
            self._wake.set()
            return
        self._standing = self._standing | {family} if asked.is_on else self._standing - {family}
        self._devices = chosen if self._standing else ChosenDevices()
        if not asked.is_on:
            return
        if chosen.left_out:
            self._say(f"{family} devices", "FlowtableIncomplete", f"{family}: left out: {'; '.join(chosen.left_out)}")
        if change.text:
            log.info("services_flowtable_written", family=family, devices=change.added, v=2)
            await self._tell_skipped(family)

    async def _tell_skipped(self, family: Family) -> None:
        """Others may count on chains that such flows pass by."""
        chains = [*await self._tables[family].forward_chains(), *_legacy_chains(family)]
        if chains:
            effect = "nothing of them is counted, marked or dropped there any more"
            text = f"{family}: packets of offloaded flows pass by {', '.join(chains)}: {effect}"
            self._say(f"{family} chains", "FlowtableSkips", text)

    def _say(self, about: str, reason: str, text: str) -> None:
        """Once, until it is something else."""
        if self._told.get(about) != text:
            self._told[about] = text
            log.warning("services_flowtable", problem=text)
            self._tell(Event(is_warning=True, reason=reason, message=text, plane="services"))

    def _ways(self, family: Family, known: _Known) -> OffloadedWays:
        node = self._plane.families[family].facts.node
        alone = sorted({one.text for found in known.addresses.values() for one in found})
        own = node.node_port_addresses
        if node.is_open_everywhere:
            own = tuple(one for one in self._plane.intake.interfaces if one.family == family)
        return OffloadedWays(
            (*(one.text for one in node.service_ranges), *alone),
            tuple(sorted({one.text for one in own})),
            tuple(sorted({one for found in known.ports.values() for one in found})),
        )

    def told(self, family: Family, port: PortPlan) -> Iterator[str]:
        if not self._patterns or port.port.protocol not in OFFLOADED:
            return
        if family in self._refusals:
            yield f"flowtable refused: {self._refusals[family]}"
        elif family not in self._standing:
            yield "flowtable waits for devices and the first sync (services.flowtable)"
        else:
            yield f"flows skip all rules after {LEAST_PACKETS} packets, between {', '.join(self._devices.names)}"

    def rows(self, key: ServiceKey | None = None, *, is_standing: bool) -> Iterator[RuleReport]:  # noqa: ARG002
        for family in self._standing if key is None else ():
            for name in (*self._devices.names, *self._devices.ports):
                yield RuleReport(family=family, map="flowtable", key=name, data="offload")

    def afterwards(self, packet: Packet, outcome: Outcome) -> Outcome:
        if packet.target.family not in self._standing or outcome.verdict != "dnat" or packet.protocol not in OFFLOADED:
            return outcome
        step = TraceStep("flowtable", f"after {LEAST_PACKETS} packets its flow skips all rules")
        return msgspec.structs.replace(outcome, steps=(*outcome.steps, step))


def _ports(plan: ServicePlan | None) -> _Ports:
    return tuple((one.protocol, one.port) for one, _ in node_ports(plan) if one.protocol in OFFLOADED) if plan else ()


def _legacy_chains(family: Family) -> list[str]:
    """The kernel names the tables that legacy programs have used; their chains are seen by those alone."""
    try:
        tables = LEGACY[family].read_text().split()
    except OSError:
        return []
    return [f"FORWARD of the legacy table {one}" for one in tables if one in ("filter", "mangle")]
