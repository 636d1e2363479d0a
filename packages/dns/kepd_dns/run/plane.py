# SPDX-License-Identifier: Apache-2.0
"""The plane that looks after kepd-dns: addresses, rules, probes, and what is said of them. One unit of the task tree.

Addresses come before rules, rules before the first live address, and nothing of it is taken away at the end: the
process outlives this one.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress

import structlog

from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.event import Event
from agent.model.finding import Advice
from agent.model.services.nft_error import NftFailed
from agent.model.services.nft_table import Family
from kepd_dns.handover.state import Settings
from kepd_dns.handover.status import Status, StatusRequest
from kepd_dns.ports import Addresses
from kepd_dns.rules.guards import TCP_PROBE_S, Asking, Liveness
from kepd_dns.run.client import ProcessClient, ProcessUnavailable
from kepd_dns.run.kernel_guards import KernelGuards
from kepd_dns.run.probe import Probed, probe
from kepd_dns.run.state_writer import StateWriter

log = structlog.get_logger(plane="dns")

RETRY_S = 2.0
SETTLE_S = 0.02
STATUS_S = 10.0
FIREWALL_S = 3600.0
OLD_STATE_S = 60.0
MISSING_AFTER = 3
"""Probes without any answer, after which the process is not about to start but missing."""
Prober = Callable[[str, socket.SocketKind], Awaitable[Probed]]


class DnsPlane:
    """`asking` says what rules are made of, `settings` what the process is told, both as of now."""

    def __init__(
        self,
        guards: Mapping[Family, KernelGuards],
        addresses: Addresses,
        writer: StateWriter,
        client: ProcessClient,
        clock: Clock,
        tell: Callable[[Event], None],
        *,
        asking: Callable[[Family], Asking],
        settings: Callable[[], Settings],
        ask: Prober = probe,
    ) -> None:
        self.guards, self.writer, self.client = guards, writer, client
        self.status: Status | None = None
        self.problem = ""
        """Why the status is not there."""
        self.live: dict[str, Liveness] = {}
        self.probed: dict[str, Probed] = {}
        self.fallbacks = self.setup_errors = 0
        self.strangers: dict[Family, int] = dict.fromkeys(guards, 0)
        self._counted: dict[Family, int] = {}
        self._addresses, self._clock, self._tell = addresses, clock, tell
        self._asking, self._settings, self._probe = asking, settings, ask
        self._wake = {family: asyncio.Event() for family in guards}
        self._changed = asyncio.Event()
        self._answered: set[str] = set()
        self._report: Report | None = None
        self._failures: dict[str, str] = {}
        self._told: set[tuple[str, str]] = set()
        self._lagging_since_s: float | None = None
        self._group: asyncio.TaskGroup | None = None
        self._probing: dict[str, asyncio.Task[None]] = {}

    def apply(self) -> None:
        """The configuration is another one, or what this node's networks are."""
        settings = self._settings()
        if self._report is None:
            return
        try:
            self.writer.begin(settings)
        except OSError as error:
            log.error("dns_state_not_written", directory=str(self.writer.directory), error=str(error))
        self.state_changed()
        for one in self._wake.values():
            one.set()

    def state_changed(self) -> None:
        """Something was written; the process hears of it, once for all that comes together."""
        self._changed.set()

    def now_s(self) -> float:
        return self._clock.now_s()

    def addresses_of(self, family: Family) -> tuple[str, ...]:
        return self._asking(family).addresses

    async def run(self, report: Report) -> None:
        self._report = report
        report.starting("writing the state of names")
        self.writer.begin(self._settings())
        self._changed.set()
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._tell_process(), name="dns-state")
            group.create_task(self._relay(), name="dns-status")
            group.create_task(self._follow_addresses(), name="dns-addresses")
            for family in self.guards:
                group.create_task(self._keep(family), name=f"dns-rules-{family}")
                group.create_task(self._watch(family), name=f"dns-watch-{family}")
                group.create_task(self._look_for_firewalls(family), name=f"dns-firewalls-{family}")

    async def _tell_process(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(SETTLE_S)
            self._changed.clear()
            try:
                await self.client.ask(StatusRequest(do="reread"))
            except ProcessUnavailable as error:
                # It reads the state when it starts.
                log.info("dns_process_unavailable", problem=str(error), v=2)

    async def _count_strangers(self, family: Family) -> None:
        """The kernel counts anew with each table."""
        with suppress(NftFailed):
            self.strangers[family] = self._counted.get(family, 0) + await self.guards[family].strangers()

    async def _relay(self) -> None:
        while True:
            await self.look()
            for family in self.guards:
                await self._count_strangers(family)
            await self._clock.sleep(STATUS_S)

    async def look(self) -> Status | None:
        """The process's own figures, now."""
        try:
            self.status, self.problem = (await self.client.ask(StatusRequest(do="status"))).status, ""
        except ProcessUnavailable as error:
            self.problem = str(error)
            return self.status
        if self.status is not None:
            for one in self.status.upstreams:
                self._once(one.is_loop, "DnsLoop", one.address, f"{one.address} leads back to kepd-dns and is left out")
                text = f"{one.address}, asked for {one.zone}, does not answer"
                self._once(not one.is_up, "DnsUpstreamDown", one.address, text)
            for text in self.status.faults:
                self._once(True, "DnsConflict", text, text)
        return self.status

    def _once(self, is_so: bool, reason: str, what: str, text: str) -> None:
        """An event when something begins, not while it lasts."""
        known = reason, what
        if is_so and known not in self._told:
            self._told.add(known)
            log.warning("dns_problem_found", reason=reason, problem=text)
            self._warn(reason, text)
        elif not is_so:
            self._told.discard(known)

    def _warn(self, reason: str, text: str, *, is_warning: bool = True) -> None:
        self._tell(Event(is_warning=is_warning, reason=reason, message=text, plane="dns"))

    async def _keep(self, family: Family) -> None:
        """Address and rules, at first and whenever somebody changed them."""
        while True:
            self._wake[family].clear()
            try:
                await self._put(family)
                self._failures.pop(family, None)
            except (NftFailed, OSError) as error:
                self.setup_errors += 1
                if self._failures.get(family) != str(error):
                    log.error("dns_rules_failed", family=family, error=str(error), retry_s=RETRY_S)
                self._failures[family] = str(error)
                self._clock_wake(family)
            self._tell_state()
            await self._wake[family].wait()
            await asyncio.sleep(SETTLE_S)

    def _clock_wake(self, family: Family) -> None:
        asyncio.get_running_loop().call_later(RETRY_S, self._wake[family].set)

    async def _put(self, family: Family) -> None:
        asking = self._asking(family)
        for address in asking.addresses:
            self._addresses.add(address)
        live = [one for one in asking.addresses if self.live.get(one, Liveness()).is_live]
        guards = self.guards[family]
        await self._count_strangers(family)
        self._counted[family] = self.strangers[family]
        await guards.put(asking, live)
        for one in live:
            self.live[one] = Liveness(True, 0, self._clock.now_s())
        self._follow_probes(family, asking.addresses)

    def _follow_probes(self, family: Family, wanted: Sequence[str]) -> None:
        for address in wanted:
            if address not in self._probing and self._group is not None:
                probing = self._probe_always(family, address)
                self._probing[address] = self._group.create_task(probing, name=f"dns-probe-{address}")
        for address in [*self._probing]:
            if (":" in address) == (family == "IPv6") and address not in wanted:
                self._probing.pop(address).cancel()
                self.live.pop(address, None)
                self.probed.pop(address, None)
                self._addresses.remove(address)

    async def _watch(self, family: Family) -> None:
        while True:
            try:
                await self._watch_once(family)
            except NftFailed as error:
                log.warning("dns_table_watch_failed", family=family, error=str(error))
                self._wake[family].set()
            await self._clock.sleep(RETRY_S)

    async def _watch_once(self, family: Family) -> None:
        async with aclosing(self.guards[family].changes()) as sentences:
            async for sentence in sentences:
                if not await self.guards[family].is_intact():
                    self._repair(family, sentence)

    def _repair(self, family: Family, sentence: str) -> None:
        log.warning("dns_rules_repaired", family=family, cause=sentence)
        self._warn("RulesRepaired", f"{family}: {sentence}; kepd writes its rules for names again")
        self._wake[family].set()

    async def _follow_addresses(self) -> None:
        async with aclosing(self._addresses.changes()) as changes:
            async for _ in changes:
                for family in self.guards:
                    wanted = self._asking(family).addresses
                    if len(self._addresses.present(wanted)) < len(wanted):
                        log.warning("dns_address_missing", family=family, effect="it is added again")
                        self._wake[family].set()

    async def _look_for_firewalls(self, family: Family) -> None:
        while True:
            try:
                for chain in await self.guards[family].input_drops():
                    self._once(True, "DnsFirewalled", f"{family} {chain}", self._firewalled(family, chain))
            except NftFailed as error:
                log.warning("dns_firewalls_unknown", family=family, error=str(error))
            await self._clock.sleep(FIREWALL_S)

    def _firewalled(self, family: Family, chain: str) -> str:
        ip, listed = "ip" if family == "IPv4" else "ip6", ", ".join(self.addresses_of(family))
        rule = f"{ip} daddr {{ {listed} }} meta l4proto {{ tcp, udp }} th dport 53 accept"
        return f"{family}: {chain} drops what nothing there accepts, and questions are untracked; it needs: {rule}"

    async def _probe_always(self, family: Family, address: str) -> None:
        tcp_s = float("-inf")
        while True:
            asking, begun_s = self._asking(family), self._clock.now_s()
            found = await self._probe(address, socket.SOCK_DGRAM)
            now_s = self._clock.now_s()
            if not found.problem and now_s - tcp_s >= TCP_PROBE_S:
                tcp_s = now_s
                found = await self._probe(address, socket.SOCK_STREAM)
            await self._judge(family, address, self._aged(found), falls_back=asking.falls_back)
            # From one question to the next; a silence that was waited for is over by then.
            pause_s = self.live[address].pause_s(falls_back=asking.falls_back)
            await self._clock.sleep(max(0.0, pause_s - (self._clock.now_s() - begun_s)))

    def _aged(self, found: Probed) -> Probed:
        """A process that does not take over what is written answers from an old world."""
        now_s = self._clock.now_s()
        if found.problem or found.number == self.writer.number:
            self._lagging_since_s = None
            return found
        self._lagging_since_s = now_s if self._lagging_since_s is None else self._lagging_since_s
        self._changed.set()
        if now_s - self._lagging_since_s < OLD_STATE_S:
            return found
        return Probed(
            f"its state is number {found.number}; expected {self.writer.number}", found.instance, found.number
        )

    async def _judge(self, family: Family, address: str, found: Probed, *, falls_back: bool) -> None:
        before = self.live.get(address, Liveness())
        after, deed = before.probed(self._clock.now_s(), works=not found.problem)
        self.probed[address] = found
        self._once(found.is_foreign, "DnsConflict", address, f"{address}: {found.problem}")
        try:
            if deed == "refresh" and falls_back:
                await self.guards[family].refresh(address)
            elif deed == "withdraw" and falls_back:
                await self.guards[family].withdraw(address)
            self.live[address] = after
        except NftFailed as error:
            log.warning("dns_live_not_set", address=address, error=str(error))
            self.live[address] = Liveness()
            self._wake[family].set()
        if before.is_live and not after.is_live:
            self.fallbacks += 1
            where = "questions go to the cluster's DNS" if falls_back else "there is no other server"
            log.warning("dns_fell_back", address=address, problem=found.problem, effect=where)
            self._warn("DnsFallback", f"kepd-dns at {address}: {found.problem}; {where}")
        elif after.is_live and not before.is_live and address in self._answered:
            self._warn("DnsRecovered", f"kepd-dns answers again at {address}", is_warning=False)
        if after.is_live:
            self._answered.add(address)
        if before.is_live != after.is_live or before.failures != after.failures:
            self._tell_state()

    @property
    def is_process_missing(self) -> bool:
        """It never answered, and was asked often enough."""
        asked = max((self.live[one].failures for one in self.live), default=0)
        return not self._answered and asked >= MISSING_AFTER

    async def advice(self) -> Sequence[Advice]:
        if not self.is_process_missing:
            return ()
        where = ", ".join(address for family in self.guards for address in self._asking(family).addresses)
        return (
            Advice(
                subject="kepd-dns", found=f"never answered at {where}", wanted="running",
                text="pods find no Service by its name",
                mend="systemctl enable --now kepd-dns.socket kepd-dns.service; journalctl -u kepd-dns says why it ends",
            ),
        )  # fmt: skip

    def _tell_state(self) -> None:
        if self._report is None:
            return
        wanted = [address for family in self.guards for address in self._asking(family).addresses]
        dead = [one for one in wanted if not self.live.get(one, Liveness()).is_live]
        if self._failures:
            self._report.degraded("; ".join(f"{family}: {text}" for family, text in sorted(self._failures.items())))
        elif dead:
            problem = next((self.probed[one].problem for one in dead if one in self.probed), "not asked yet")
            text = f"kepd-dns at {', '.join(dead)}: {problem}"
            if not self._answered and not self.is_process_missing:
                self._report.starting(text)
            else:
                missing = "; it never answered, `kepctl doctor` says what starts it"
                self._report.degraded(text + (missing if self.is_process_missing else ""))
        else:
            self._report.ready(f"answering at {', '.join(wanted)}")


async def clean_up(
    guards: Mapping[Family, KernelGuards], addresses: Addresses, listed: Sequence[str], *, is_dry: bool = False
) -> list[str]:
    """Take rules away, then, when no packet is on its way by them, the addresses. What was there."""
    removed = []
    for family, one in guards.items():
        if await one.is_there():
            if not is_dry:
                await one.remove()
            removed.append(f"rules for names of {family}")
    found = sorted(addresses.present(listed))
    if found and not is_dry:
        await asyncio.sleep(1.0)
    for address in found:
        if not is_dry:
            addresses.remove(address)
        removed.append(f"address {address} on lo")
    return removed
