# SPDX-License-Identifier: Apache-2.0
"""What the plane makes of probes, of the process's own words, and of failures, against a kernel that only notes."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.drivers.clock.driver import SystemClock
from agent.model.component import Board, State
from agent.model.event import Event
from agent.model.services.nft_error import NftFailed
from agent.model.services.nft_table import Detection
from kepd_dns.handover.state import ServiceName, Settings
from kepd_dns.handover.status import Reply, Status, StatusRequest, UpstreamStatus
from kepd_dns.rules import iptables, nftables
from kepd_dns.rules.guards import Asking, Liveness
from kepd_dns.run.client import ProcessUnavailable
from kepd_dns.run.plane import DnsPlane
from kepd_dns.run.probe import Probed, read_probe
from kepd_dns.run.state_files import StateFiles
from kepd_dns.run.state_writer import StateWriter
from packages.dns.tests.life import _Kernel, _Links
from packages.dns.tests.messages import answer, ask

AT = "169.254.20.10"


class Kernel(_Kernel):
    def __init__(self) -> None:
        self.deeds: list[str] = []
        self.fails = False

    async def put(self, asking: Asking, live: Any) -> None:
        if self.fails:
            raise NftFailed("no")
        self.deeds.append("put")

    async def refresh(self, address: str) -> None:
        self.deeds.append("refresh")

    async def withdraw(self, address: str) -> None:
        self.deeds.append("withdraw")


class Client:
    def __init__(self) -> None:
        self.status: Status | None = None

    async def ask(self, request: StatusRequest) -> Reply:
        if self.status is None:
            raise ProcessUnavailable("away")
        return Reply(status=self.status)


class Node:
    def __init__(self, folder: Path) -> None:
        self.kernel, self.client, self.events = Kernel(), Client(), list[Event]()
        self.found = Probed(instance="a")
        self.writer = StateWriter(folder, lambda: 1000.0)
        self.board = Board(lambda: 0.0)
        asking = Asking(family="IPv4", addresses=(AT,), falls_back=True)

        async def probe(_address: str, _kind: socket.SocketKind) -> Probed:
            return Probed(self.found.problem, "a", self.writer.number, self.found.is_foreign)

        self.plane = DnsPlane(
            {"IPv4": self.kernel}, _Links(), self.writer, self.client, SystemClock(), self.events.append,  # type: ignore[arg-type]
            asking=lambda _family: asking, settings=Settings, ask=probe,
        )  # fmt: skip

    def reasons(self) -> list[str]:
        return [one.reason for one in self.events]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.plane.run(self.board.add("dns", State.STARTING)))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(30):
            while not holds():
                await asyncio.sleep(0.01)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_two_failed_probes_withdraw_an_address_and_one_brings_it_back() -> None:
    """DNS-22, DNS-24; a refresh comes every five seconds."""
    live, deeds = Liveness(), []
    for now_s, works in ((0.0, True), (1.0, True), (6.0, True), (7.0, False), (7.3, False), (7.6, False), (8.0, True)):
        live, deed = live.probed(now_s, works=works)
        deeds.append(deed)

    assert deeds == ["refresh", "", "refresh", "", "withdraw", "", "refresh"]


async def test_an_address_is_live_while_it_answers(node: Node) -> None:
    """DNS-24, DNS-104: the board says what the rules do."""
    async with node.running():
        await node.until(lambda: node.board.line("dns").is_ready)
        node.found = Probed("no answer within 250 ms")
        await node.until(lambda: "withdraw" in node.kernel.deeds)
        await node.until(lambda: "DnsFallback" in node.reasons())
        assert "no answer" in node.board.line("dns").message
        node.found = Probed(instance="a")
        await node.until(lambda: "DnsRecovered" in node.reasons())

    assert node.kernel.deeds == ["put", "refresh", "withdraw", "refresh"]


async def test_a_process_that_never_answers_is_missing_and_a_cure_is_told(node: Node) -> None:
    """It is said to be starting for a few probes only."""
    node.found = Probed("no answer within 250 ms")
    async with node.running():
        await node.until(lambda: node.board.line("dns").state is State.DEGRADED)
        (advice,) = await node.plane.advice()
        message = node.board.line("dns").message
        node.found = Probed(instance="a")
        await node.until(lambda: node.board.line("dns").is_ready)

        assert list(await node.plane.advice()) == []
    assert message.endswith("it never answered, `kepctl doctor` says what starts it")
    assert advice.mend.startswith("systemctl enable --now kepd-dns.socket")


async def test_what_is_wrong_is_an_event_once(node: Node) -> None:
    """DNS-28, DNS-45, DNS-104: a loop, a server that is silent, a firewall, another program at the address."""
    up = UpstreamStatus(zone=".", address="10.0.0.1:53", protocol="udp", is_loop=True)
    out = UpstreamStatus(zone=".", address="10.0.0.2:53", protocol="udp", is_up=False)
    node.client.status = Status(
        instance="a", pid=1, started_s=1, uptime_s=1, number=1, state_age_s=0, upstreams=(up, out)
    )
    node.found = Probed("another program answers", is_foreign=True)
    async with node.running():
        await node.until(lambda: {"DnsLoop", "DnsUpstreamDown", "DnsFirewalled", "DnsConflict"} <= {*node.reasons()})
        await node.plane.look()

    assert len(node.reasons()) == 4
    firewalled = next(one.message for one in node.events if one.reason == "DnsFirewalled")
    assert "ip daddr { 169.254.20.10 } meta l4proto { tcp, udp } th dport 53 accept" in firewalled


async def test_rules_that_are_refused_are_tried_again(node: Node) -> None:
    """DNS-31."""
    node.kernel.fails = True
    async with node.running():
        await node.until(lambda: node.board.line("dns").message == "IPv4: no")
        node.kernel.fails = False
        await node.until(lambda: "put" in node.kernel.deeds)


def test_a_probe_knows_its_own_process() -> None:
    """DNS-24, DNS-104."""
    asked = ask("probe.kepd.invalid", "TXT", options=False)
    ours = answer(asked, ['probe.kepd.invalid. 0 IN TXT "instance=ab started=1.0 number=7 age=0.1"'])
    other = answer(asked, code=3)

    assert read_probe(ours) == Probed(instance="ab", number=7)
    assert read_probe(other).is_foreign
    assert read_probe(b"xx").is_foreign


def test_a_reader_that_missed_a_change_takes_the_whole_state(tmp_path: Path) -> None:
    """DNS-3: lines are taken one by one; a gap, a line that is cut, and another state are no change."""
    writer = StateWriter(tmp_path, lambda: 1000.0)
    writer.begin(Settings(is_authoritative=True))
    files = StateFiles(tmp_path, lambda _: None)
    assert files.look() == (True, ())
    writer.put(ServiceName("default", "a", ("10.96.0.1",)))
    assert [one.put and one.put.name for one in files.look()[1]] == ["a"]
    changes = tmp_path / "changes.jsonl"
    content = changes.read_bytes()
    writer.put(ServiceName("default", "b", ("10.96.0.2",)))
    writer.put(ServiceName("default", "c", ("10.96.0.3",)))
    lines = changes.read_bytes().removeprefix(content).splitlines(keepends=True)
    changes.write_bytes(content + lines[1])
    assert files.look()[0]
    changes.write_bytes(content + lines[0] + lines[1][:-5])
    assert files.number == writer.number - 2
    files.look()
    assert files.number == writer.number - 1
    writer.begin(Settings(is_authoritative=True))
    assert files.look()[0]

    assert (files.own is not None and files.own.services, files.number) == (3, writer.number)


def test_rules_say_who_may_ask() -> None:
    """DNS-22, DNS-25, DNS-32: by networks, by interfaces, or by where the default route leads."""
    networks = Asking(
        family="IPv4", addresses=(AT,), falls_back=True, detection=Detection("cidrs"), pods=("10.1.0.0/24",)
    )
    bridge = Asking(family="IPv6", addresses=("fd00::1",), detection=Detection("interface", "cni*"))
    unknown = Asking(family="IPv4", addresses=(AT,), outside=("eth0",))
    nobody = Asking(family="IPv4", addresses=(AT,))

    assert "ip saddr { 10.1.0.0/24 } return" in nftables.table_text(networks)
    assert "ip daddr @live udp dport 53 socket wildcard 0 notrack" in nftables.table_text(networks)
    assert 'iifname "cni*" return' in nftables.table_text(bridge)
    assert "ip6 daddr @live" not in nftables.table_text(bridge)
    assert 'iifname != { "eth0" } return' in nftables.table_text(unknown)
    assert "strangers" not in nftables.table_text(nobody)
    assert "elements = { 169.254.20.10 timeout 30s }" in nftables.table_text(networks, [AT])
    assert "-i cni+ -j RETURN" in iptables.restore_text(bridge, ())
    assert "-i eth0 -j DROP" in iptables.restore_text(unknown, ())
    assert "-m socket" not in iptables.restore_text(networks, ())
    assert "-p tcp --dport 53 -m socket --nowildcard -j CT --notrack" in iptables.restore_text(networks, (AT,))
