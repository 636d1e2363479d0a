# SPDX-License-Identifier: Apache-2.0
"""kepd-dns on the node of a network of namespaces, with the plane that looks after it, beside a cluster or without.

Owns: the process, which ends with the `with`, and sockets that outlive it where a service manager would hold them.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from agent.drivers.clock.driver import SystemClock
from agent.drivers.interfaces.lo_addresses import LoAddresses, open_route_socket
from agent.drivers.iptables.family_programs import FamilyPrograms
from agent.drivers.iptables.sign import sign_of
from agent.drivers.netlink.connection import open_socket
from agent.drivers.nft.named_table import NamedTable
from agent.model.component import Board, State
from agent.model.event import Event
from agent.model.services.nft_table import Detection, Family
from kepd_dns.handover.state import SOCKET_FILE, ServiceName, Settings, Upstream
from kepd_dns.rules.guards import Asking
from kepd_dns.rules.nftables import TABLE
from kepd_dns.run.client import ProcessClient
from kepd_dns.run.kernel_guards import IptablesGuards, KernelGuards, NftGuards
from kepd_dns.run.plane import DnsPlane
from kepd_dns.run.probe import probe
from kepd_dns.run.sockets import bind
from kepd_dns.run.state_writer import StateWriter
from packages.dns.tests.dns_holder import HOLDER
from tests.lab.namespace import Namespace
from tests.lab.network import POD_RANGES, Network

ADDRESSES: dict[Family, str] = {"IPv4": "169.254.20.10", "IPv6": "fd00::a9fe:140a"}
FAMILIES: tuple[Family, Family] = ("IPv4", "IPv6")
WITHIN_S = 40.0


class DnsProcess:
    """`held` are sockets of a manager that stay over restarts."""

    def __init__(
        self, namespace: Namespace, directory: Path, *, held: bool, families: Sequence[Family] = FAMILIES
    ) -> None:
        self._namespace, self._directory, self._families = namespace, directory, families
        self._sockets: list[socket.socket] = []
        if held:
            self._sockets = [
                namespace.call(partial(bind, ADDRESSES[family], 53, kind))
                for family in families
                for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM)
            ]
        self.child: subprocess.Popen[bytes] | None = None
        self.log = directory / "log"

    def start(self) -> None:
        arguments = ["-m", "kepd_dns.run.process", "--directory", str(self._directory)]
        numbers = [one.fileno() for one in self._sockets]
        if not numbers:
            arguments += [f"--listen={ADDRESSES[family]}" for family in self._families]
        command = (
            [sys.executable, "-c", HOLDER, ",".join(map(str, numbers)), *arguments]
            if numbers
            else [sys.executable, *arguments]
        )
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                self._namespace.command(*command), pass_fds=numbers, stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
            )  # fmt: skip
        # What else runs on this machine is no part of what is tested: it would let questions pile up.
        os.setpriority(os.PRIO_PROCESS, self.child.pid, -20)

    def send(self, number: int) -> None:
        assert self.child is not None
        self.child.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> None:
        if self.child is not None and self.child.poll() is None:
            with suppress(ProcessLookupError):
                self.child.send_signal(signal.SIGCONT)
                self.child.send_signal(number)
            self.child.wait(10)
        self.child = None

    def close(self) -> None:
        self.end()
        for one in self._sockets:
            one.close()


class DnsNode:
    def __init__(
        self, network: Network, directory: Path, *, backend: str = "nftables", is_cluster: bool = False,
        held: bool = True, families: Sequence[Family] = FAMILIES, **settings: Any,
    ) -> None:  # fmt: skip
        node = network.node.namespace
        self.network, self.node, self.families = network, node, families
        self.events: list[Event] = []
        self.process = DnsProcess(node, directory, held=held, families=families)
        self.settings = Settings(
            is_authoritative=not is_cluster,
            has_cluster=is_cluster,
            addresses=tuple(ADDRESSES[family] for family in families),
            **{"resolv_conf": str(directory / "resolv.conf"), "per_source_qps": 0, **settings},
        )
        (directory / "resolv.conf").touch()
        self.is_cluster = is_cluster
        self._looking_after: asyncio.Task[None] | None = None
        self.writer = StateWriter(directory, time.time)
        self.client = ProcessClient(directory / SOCKET_FILE)
        self.tables = {
            family: NamedTable(family, TABLE, command=node.command("nft"), opens=lambda: node.call(open_socket))
            for family in families
        }
        self.guards: dict[Family, KernelGuards] = {family: self._guards(family, backend) for family in families}
        self.addresses = LoAddresses(opens=lambda: node.call(open_route_socket))
        self.plane = DnsPlane(
            self.guards, self.addresses, self.writer, self.client, SystemClock(), self.events.append,
            asking=self.asking, settings=lambda: self.settings,
            ask=partial(probe, opens=lambda *which: node.call(lambda: socket.socket(*which))),
        )  # fmt: skip

    def _guards(self, family: Family, backend: str) -> KernelGuards:
        if backend == "nftables":
            return NftGuards(family, self.tables[family])
        return IptablesGuards(
            FamilyPrograms(
                family, prefix=self.node.command(), variant="nft",
                sign=lambda *which: self.node.call(lambda: sign_of(*which)),
            )
        )  # fmt: skip

    def asking(self, family: Family) -> Asking:
        return Asking(
            family=family,
            addresses=(ADDRESSES[family],),
            falls_back=self.is_cluster,
            detection=Detection("cidrs"),
            pods=(POD_RANGES[family],),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["DnsNode"]:
        self.process.start()
        self._looking_after = asyncio.create_task(self.plane.run(Board(time.time).add("dns", State.STARTING)))
        try:
            await self.until_live()
            yield self
        finally:
            await self.stop_plane()
            self.close()

    async def stop_plane(self) -> None:
        """As at the end of the daemon."""
        if self._looking_after is not None:
            self._looking_after.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking_after
            self._looking_after = None

    def close(self) -> None:
        self.process.close()
        for one in self.tables.values():
            one.close()

    async def until_live(self, *, is_live: bool = True, within_s: float = WITHIN_S) -> float:
        """How long it took."""
        begun_s = time.monotonic()
        try:
            async with asyncio.timeout(within_s):
                while any(
                    self.plane.live.get(ADDRESSES[family]) is None
                    or self.plane.live[ADDRESSES[family]].is_live is not is_live
                    for family in self.families
                ):
                    await asyncio.sleep(0.01)
        except TimeoutError as error:
            raise AssertionError(f"{self.plane.probed}\n{self.process.log.read_text()}") from error
        return time.monotonic() - begun_s

    async def tell(self, *services: ServiceName, upstreams: tuple[Upstream, ...] | None = None) -> None:
        for one in services:
            self.writer.put(one)
        if upstreams is not None:
            self.writer.set_upstreams(upstreams)
        self.plane.state_changed()
        async with asyncio.timeout(WITHIN_S):
            while (status := await self.plane.look()) is None or status.number != self.writer.number:
                await asyncio.sleep(0.01)

    def tracked(self) -> list[str]:
        """Entries of connection tracking that lead to port 53 of our addresses."""
        found = []
        for flag in ("ipv4", "ipv6"):
            listed = self.node.run("conntrack", "-L", "-f", flag)
            found += [
                one
                for one in listed.splitlines()
                if "dport=53 " in one and any(address in one for address in ADDRESSES.values())
            ]
        return found

    def reasons(self) -> list[str]:
        return [one.reason for one in self.events]


def both_ways(families: Sequence[Family] = FAMILIES) -> Iterator[tuple[Family, bool]]:
    for family in families:
        for tcp in (False, True):
            yield family, tcp
