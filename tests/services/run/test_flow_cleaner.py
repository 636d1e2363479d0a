# SPDX-License-Identifier: Apache-2.0
"""When flows are looked at, and which."""

import asyncio
import ipaddress
import threading
from collections.abc import AsyncIterator, Collection, Sequence

import pytest

from agent.model.services.flow import UDP_ALONE, Answerers, Flow, FlowsUnavailable, FlowTarget
from agent.model.services.nft_table import Family
from agent.model.services.service import Protocol
from agent.services.objects.addresses import read_address
from agent.services.run import flow_cleaner
from agent.services.run.flow_cleaner import FlowCleaner
from tests.fakes.conntrack import FakeConntrack
from tests.services.making import make_service, make_slice
from tests.services.run.test_metrics import Node

OLD, NEW, CLIENT, NODE_PORT = "10.1.0.53", "10.1.0.54", "10.1.0.99", 30053


def packed(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


def target(address: str, port: int = 53) -> FlowTarget:
    return FlowTarget(packed(address), "UDP", port)


class Table(FakeConntrack):
    """Remembers what it was asked for, and takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[set[FlowTarget]] = []
        self.times: list[float] = []
        self.takes_s = 0.0

    async def flows(
        self, family: Family, protocols: Collection[Protocol] = UDP_ALONE, unless: Answerers | None = None
    ) -> Sequence[Flow]:
        self.asked.append(set(unless or ()))
        self.times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.takes_s)
        return await super().flows(family, protocols, unless)


class CleanNode(Node):
    def __init__(self) -> None:
        super().__init__()
        self.flows = Table()
        self.cleaner = FlowCleaner(self.plane, self.flows)
        self.plane.followers.append(self.cleaner.follow)

    async def change(self, name: str, ip: str, endpoint: str, node_port: int = 0) -> None:
        ports = [{"name": "dns", "protocol": "UDP", "port": 53, "nodePort": node_port}]
        self.intake.put_service(make_service(name, ip=ip, type="NodePort", ports=ports))
        slice_ports = [{"name": "dns", "protocol": "UDP", "port": 53}]
        self.intake.put_slice(make_slice([endpoint], service=name, ports=slice_ports))
        await self.clock.advance(60.0)
        await self.sync()

    async def until(self, rounds: int) -> None:
        async with asyncio.timeout(30):
            while len(self.flows.asked) < rounds:
                await asyncio.sleep(0.005)


@pytest.fixture
async def node() -> AsyncIterator[CleanNode]:
    made = CleanNode()
    running = asyncio.create_task(made.cleaner.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_only_ways_into_services_that_changed_are_asked_for(node: CleanNode) -> None:
    """FS-16: on each address that this node has in that family."""
    node.intake.set_interfaces([one for text in ("192.168.0.10", "fd00::10") if (one := read_address(text))])
    await node.change("dns", "10.96.0.53", OLD)
    await node.until(1)
    await node.change("other", "10.96.0.54", OLD, NODE_PORT)
    await node.until(2)

    assert node.flows.asked == [
        {target("10.96.0.53")},
        {target("10.96.0.54"), target("192.168.0.10", NODE_PORT)},
    ]


async def test_a_failed_look_is_repeated_with_what_changed_since(node: CleanNode) -> None:
    """FS-16, CT-7."""
    node.flows.failures.append(FlowsUnavailable("busy"))
    await node.change("dns", "10.96.0.53", OLD)
    await node.until(1)
    await node.change("other", "10.96.0.54", OLD)
    await node.until(2)

    assert node.flows.asked[1] == {target("10.96.0.53"), target("10.96.0.54")}


async def test_an_endpoint_that_comes_during_a_look_keeps_its_flows(node: CleanNode) -> None:
    """FS-16: flows are compared with what serves after they were listed."""
    flows = [
        node.flows.begin(Flow("IPv4", "UDP", packed(CLIENT), port, packed("10.96.0.53"), 53, packed(answers), 53))
        for port, answers in ((1, OLD), (2, NEW), (3, "10.1.0.55"))
    ]
    node.flows.takes_s = 0.1
    await node.change("dns", "10.96.0.53", "10.1.0.56")
    await node.until(1)
    await node.change("dns", "10.96.0.53", NEW)
    async with asyncio.timeout(30):
        while not node.flows.deleted:
            await asyncio.sleep(0.005)

    assert node.flows.deleted == [flows[0], flows[2]]


async def test_the_longer_a_look_takes_the_longer_it_rests(node: CleanNode) -> None:
    """FS-16: at most 3 % of a core."""
    node.flows.takes_s = 0.02
    await node.change("dns", "10.96.0.53", OLD)
    await node.until(1)
    await asyncio.sleep(0.1)
    await node.change("dns", "10.96.0.53", NEW)
    await node.until(2)

    first_s, second_s = node.flows.times
    assert second_s - first_s >= node.flows.takes_s * (1 + flow_cleaner.PAUSES)


async def test_flows_are_compared_in_a_thread(node: CleanNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-16: many stale flows hold up nothing else."""
    threads: list[threading.Thread] = []
    compare = flow_cleaner._stale

    def noted(*given: object) -> list[Flow]:
        threads.append(threading.current_thread())
        return compare(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(flow_cleaner, "_stale", noted)
    node.flows.begin(Flow("IPv4", "UDP", packed(CLIENT), 1, packed("10.96.0.53"), 53, packed(NEW), 53))
    await node.change("dns", "10.96.0.53", OLD)
    async with asyncio.timeout(30):
        while not node.flows.deleted:
            await asyncio.sleep(0.005)

    assert threading.main_thread() not in threads
