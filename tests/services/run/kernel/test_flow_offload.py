# SPDX-License-Identifier: Apache-2.0
"""When flows may skip the rules and when not (SVN-80 to SVN-82), where nft or the kernel refuse."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent.drivers.interfaces.links import Link
from agent.model.event import Event
from agent.model.services.nft_error import NftFailed
from agent.services.nftables.flowtable import addition_text, probe_text, removal_text
from agent.services.objects.node_state import NodeSettings
from agent.services.run.intake import ServiceInputs
from agent.services.run.kernel import flow_offload
from agent.services.run.kernel.flow_offload import REST_S, FlowOffload
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.nft_view import NftRulesView
from agent.services.run.plane import ServicesPlane
from agent.services.run.view import ServicesView
from tests.fakes.clock import FakeClock
from tests.fakes.nft import FakeKernel, FakeNft
from tests.services.making import make_service, make_slice

PROBE, REMOVAL = probe_text("IPv4"), removal_text("IPv4")


class Table:
    """A kernel that has flowtables, or not."""

    def __init__(self, *, has_flowtables: bool = True, is_left: bool = True) -> None:
        self.is_left = is_left
        self.texts: list[str] = []
        self.chains = ["chain FORWARD of table filter"]
        self._has_flowtables = has_flowtables
        self.before_refusal: Callable[[], None] | None = None
        """What happens before the next table with devices is refused."""

    async def load(self, text: str) -> None:
        if "devices" in text and self.before_refusal is not None:
            happens, self.before_refusal = self.before_refusal, None
            happens()
            raise NftFailed("No such file or directory")
        if "flowtable" in text and not self._has_flowtables:
            raise NftFailed("Operation not supported")
        self.texts.append(text)

    async def has_table(self, name: str) -> bool:
        return name == "kepd_fast" and self.is_left

    async def forward_chains(self) -> list[str]:
        return self.chains


class Links:
    """A port has its bridge behind an @, a device that came again a prime for each time."""

    def __init__(self, *names: str) -> None:
        self._changed = asyncio.Event()
        self._numbers: dict[str, int] = {}
        self.put(*names)

    def put(self, *names: str) -> None:
        self._found: dict[str, Link] = {}
        for one in names:
            number = self._numbers.setdefault(one, len(self._numbers) + 1)
            name, _, bridge = one.replace("'", "").partition("@")
            self._found[name] = Link(number, bridge)
        self._changed.set()

    def now(self) -> dict[str, Link]:
        return self._found

    async def snapshots(self) -> AsyncIterator[dict[str, Link]]:
        while True:
            await self._changed.wait()
            self._changed.clear()
            yield self._found


class Node:
    def __init__(self, *patterns: str, has_flowtables: bool = True) -> None:
        self.clock = FakeClock()
        self.events: list[Event] = []
        settings = NodeSettings(node="here", addresses=("192.168.0.10",), service_ranges=("10.96.0.0/16",))
        self.intake = ServiceInputs(settings, tell=lambda _: None, started_s=0.0)
        rules = NftRuleset(FakeNft("IPv4", FakeKernel()))
        self.plane = ServicesPlane(self.intake, {"IPv4": rules}, clock=self.clock, tell=lambda _: None)
        self.table = Table(has_flowtables=has_flowtables)
        self.links = Links("eth0", "lo", "port0@br0")
        tables: Any = {"IPv4": self.table}
        links: Any = self.links
        self.offload = FlowOffload(self.plane, tables, patterns, self.clock, self.events.append, links)
        self.plane.followers.append(self.offload.follow)

        async def addresses() -> tuple[bytes, ...]:
            return ()

        views = {"IPv4": NftRulesView("IPv4", rules)}
        self.view = ServicesView(self.plane, views, addresses, beside=[self.offload])

    async def sync(self, **spec: Any) -> None:
        self.intake.put_service(make_service(**spec))
        self.intake.put_slice(make_slice(["10.1.0.1"]))
        await self.plane.families["IPv4"].sync()

    async def turns(self, count: int = 3) -> None:
        for _ in range(count):
            for _ in range(20):
                await asyncio.sleep(0)
            await self.clock.advance(REST_S)

    @property
    def last(self) -> str:
        return self.table.texts[-1]


@pytest.fixture(autouse=True)
def accounting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "acct"
    file.write_text("0\n")
    monkeypatch.setattr(flow_offload, "ACCOUNTING", file)
    monkeypatch.setattr(flow_offload, "LEGACY", {"IPv4": tmp_path / "none"})
    return file


def content(file: Path) -> str:
    return file.read_text()


def make_unwritable(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.fixture
async def started() -> AsyncIterator[Any]:
    tasks = []

    def start(node: Node) -> Node:
        tasks.append(asyncio.create_task(node.offload.run()))
        return node

    yield start
    for one in tasks:
        one.cancel()
        with suppress(asyncio.CancelledError):
            await one


async def test_it_is_off_and_takes_away_what_another_kepd_left(started: Any, accounting: Path) -> None:
    """SVN-83."""
    node = started(Node())
    await node.sync()
    await node.turns()

    assert node.table.texts == [REMOVAL]
    assert content(accounting) == "0\n"
    assert not any("flow" in line for line in node.view.route(("shop", "web")))


async def test_where_nothing_was_left_no_program_is_run(started: Any) -> None:
    node = started(Node())
    node.table.is_left = False
    await node.sync()
    await node.turns()

    assert node.table.texts == []


async def test_a_kernel_that_has_flowtables_gets_the_table_after_the_first_sync(started: Any, accounting: Path) -> None:
    node = started(Node("eth*", "port0"))
    await node.turns()
    assert node.table.texts == [] or node.table.texts == [PROBE]
    await node.sync(type="NodePort", ports=[{"name": "http", "port": 80, "nodePort": 30080}])
    await node.turns()

    assert node.table.texts[0] == PROBE
    assert 'devices = { "eth0" }' in node.last
    assert "elements = { 10.96.0.0/16 }" in node.last
    assert "elements = { tcp . 30080 }" in node.last
    assert content(accounting) == "1"
    assert [one.reason for one in node.events] == ["FlowtableIncomplete", "FlowtableSkips"]
    assert "chain FORWARD of table filter" in node.events[1].message
    assert any(
        "flows skip all rules after 20 packets, between eth0" in line for line in node.view.route(("shop", "web"))
    )
    told = await node.view.trace("10.1.0.9", "10.96.0.10", "TCP", 80, in_kernel=False)
    assert told.steps[-1].place == "flowtable"
    rows = [one async for _, one in node.view.rules()]
    assert [(one.key, one.data) for one in rows if one.map == "flowtable"] == [("eth0", "offload")]
    assert [one async for _, one in node.view.differences()] == []


async def test_endpoints_alone_write_nothing_and_addresses_and_devices_do(started: Any) -> None:
    node = started(Node("eth*"))
    await node.sync()
    await node.turns()
    count = len(node.table.texts)
    node.intake.put_slice(make_slice(["10.1.0.1", "10.1.0.2"]))
    await node.plane.families["IPv4"].sync()
    await node.turns()
    assert len(node.table.texts) == count

    await node.sync(externalIPs=["203.0.113.9"])
    await node.turns()
    assert "10.96.0.0/16, 203.0.113.9" in node.last
    node.links.put("eth0", "eth1")
    await node.turns()
    assert node.last == addition_text("IPv4", ["eth1"])
    node.links.put()
    await node.turns()
    assert node.last == REMOVAL
    assert any("waits for devices" in line for line in node.view.route(("shop", "web")))


async def test_a_bridge_comes_with_its_ports_which_are_no_part_of_the_setting(started: Any) -> None:
    """SVN-80: Linux 7 takes in no flow of a port that is not in the table."""
    node = started(Node("br0", "eth0"))
    node.links.put("eth0", "br0", "port0@br0")
    await node.sync()
    await node.turns()
    assert 'devices = { "br0", "eth0", "port0" }' in node.last
    assert any("between br0, eth0" in line and "port0" not in line for line in node.view.route(("shop", "web")))
    rows = [one async for _, one in node.view.rules()]
    assert [one.key for one in rows if one.map == "flowtable"] == ["br0", "eth0", "port0"]
    assert "FlowtableIncomplete" not in [one.reason for one in node.events]

    node.links.put("eth0", "br0", "port1@br0")
    await node.turns()
    assert node.last == addition_text("IPv4", ["port1"])
    rows = [one async for _, one in node.view.rules()]
    assert [one.key for one in rows if one.map == "flowtable"] == ["br0", "eth0", "port1"]


async def test_a_device_that_goes_writes_nothing_and_one_that_comes_again_is_added(started: Any) -> None:
    node = started(Node("eth*"))
    node.links.put("eth0", "eth1")
    await node.sync()
    await node.turns()
    count = len(node.table.texts)
    node.links.put("eth0")
    await node.turns()
    rows = [one async for _, one in node.view.rules()]
    assert [one.key for one in rows if one.map == "flowtable"] == ["eth0"]
    assert len(node.table.texts) == count

    node.links.put("eth0", "eth1'")
    await node.turns()
    assert node.table.texts[count:] == [addition_text("IPv4", ["eth1"])]


async def test_a_device_that_cannot_take_part_is_told_though_nothing_is_written(started: Any) -> None:
    node = started(Node("eth*"))
    await node.sync()
    await node.turns()
    count = len(node.table.texts)
    node.links.put("eth0", "eth*")
    await node.turns()

    assert len(node.table.texts) == count
    assert ["'eth*'" in one.message for one in node.events if one.reason == "FlowtableIncomplete"] == [True]


async def test_a_table_that_another_took_away_is_made_anew(started: Any) -> None:
    node = started(Node("eth*"))
    node.links.put("eth0")
    await node.sync()
    await node.turns()
    node.links.put("eth0", "eth1")
    node.table.before_refusal = lambda: None
    await node.turns()

    assert "table ip kepd_fast {" in node.last
    assert 'devices = { "eth0", "eth1" }' in node.last


@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_device_that_goes_while_it_is_written_is_no_refusal(started: Any, is_gone: bool) -> None:
    node = started(Node("eth*"))
    node.links.put("eth0", "eth1")
    node.table.before_refusal = lambda: node.links.put("eth0", *([] if is_gone else ["eth1"]))
    await node.sync()
    await node.turns()

    told = [one.message for one in node.events if one.reason == "FlowtableRefused"]
    assert told == ([] if is_gone else ["IPv4: No such file or directory; tried again"])
    assert ("eth1" in node.last) is not is_gone


async def test_a_kernel_without_flowtables_is_told_once_and_left_alone(started: Any) -> None:
    """SVN-81."""
    node = started(Node("eth*", has_flowtables=False))
    await node.sync()
    await node.turns(5)

    assert node.table.texts == [REMOVAL]
    (event,) = node.events
    assert (event.reason, "CONFIG_NF_FLOW_TABLE" in event.message) == ("FlowtableRefused", True)
    assert any("flowtable refused" in line for line in node.view.route(("shop", "web")))
    told = await node.view.trace("10.1.0.9", "10.96.0.10", "TCP", 80, in_kernel=False)
    assert "flowtable" not in [one.place for one in told.steps]


async def test_without_a_count_of_packets_there_is_none(started: Any, accounting: Path) -> None:
    make_unwritable(accounting)
    node = started(Node("eth*"))
    await node.sync()
    await node.turns()

    assert node.last == REMOVAL
    assert "cannot be set to 1" in node.events[0].message
