# SPDX-License-Identifier: Apache-2.0
"""The table in a kernel: flows that are judged again, what begins in the middle, neighbours, and the next kepd."""

import asyncio
import dataclasses
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.config.document import Configuration
from agent.drivers.conntrack.driver import Conntrack
from agent.drivers.netlink.connection import open_socket
from agent.drivers.nft.named_table import NamedTable
from agent.model.component import State
from agent.model.services.nft_error import NftFailed
from agent.model.services.nft_table import MapKind, MapLayout, SetChange
from agent.policies.attach.unit import remove_policies
from agent.policies.rules.nft_text import REMOVAL
from agent.policies.rules.table import TABLE
from tests.node.policy_network import PolicyNetwork, pod_addresses, policy_network
from tests.policies.making import policed
from tests.policies.oracle import Pod
from tests.policies.running import GivenManifests, GivenPods, Running, running
from tests.policies.test_plane import policy

pytestmark = pytest.mark.node
ANYBODY: dict[str, Any] = {"ingress": [{}]}
WITHIN_S = 20.0


@pytest.fixture(scope="module")
def network() -> Iterator[PolicyNetwork]:
    with policy_network() as made:
        yield made


@pytest.fixture
def table(network: PolicyNetwork) -> Iterator[NamedTable]:
    node = network.node
    made = NamedTable("inet", TABLE, command=node.command("nft"), opens=lambda: node.call(open_socket))
    yield made
    made.close()
    node.run("nft", "-f", "-", text=REMOVAL)


def pod(number: int, app: str) -> Any:
    return policed(Pod("default", f"p{number}", (("app", app),), pod_addresses(number)))


@asynccontextmanager
async def enforced(
    network: PolicyNetwork, table: NamedTable, manifests: GivenManifests, pods: GivenPods
) -> AsyncIterator[Running]:
    """A plane at work, whose flows are those of the node."""
    flows = Conntrack(opens=lambda: network.node.call(open_socket))
    try:
        async with running(manifests, pods, table=table, flows=flows) as made:  # type: ignore[arg-type]
            yield made
    finally:
        await flows.close()


class Talk:
    """A connection over which one byte goes to and fro; the listener is of its own."""

    def __init__(self, network: PolicyNetwork, source: str, target: str, port: int = 7000) -> None:
        family = socket.AF_INET6 if ":" in source else socket.AF_INET
        self.ear = network.places[target].call(lambda: socket.create_server((target, port), family=family))
        self.client = network.places[source].call(lambda: socket.socket(family))
        self.client.bind((source, 0))
        self.client.connect((target, port))
        self.server, _ = self.ear.accept()
        self.client.setblocking(False)
        self.server.setblocking(False)

    async def arrives(self, sender: socket.socket, receiver: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sender, b"x")
        await asyncio.wait_for(loop.sock_recv(receiver, 1), WITHIN_S)

    def close(self) -> None:
        for one in (self.client, self.server, self.ear):
            one.close()


async def until_denied(table: NamedTable, name: str, more_than: int) -> None:
    """Until the kernel has dropped a packet."""
    async with asyncio.timeout(WITHIN_S):
        while await table.counter(name) <= more_than:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("ends", [(0, 1), (0, 5), (5, 6)], ids=["one bridge", "routed", "on links"])
@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
async def test_a_policy_that_changes_ends_an_established_connection_in_both_directions(
    network: PolicyNetwork, table: NamedTable, ends: tuple[int, int], family: int
) -> None:
    """POL-08, POL-14."""
    source, target = (pod_addresses(one)[family] for one in ends)
    manifests, pods = GivenManifests(policy(**ANYBODY)), GivenPods(pod(ends[0], "db"), pod(ends[1], "web"))
    async with enforced(network, table, manifests, pods) as node:
        await node.plane.hold(f"uid-p{ends[1]}")
        talk = Talk(network, source, target)
        try:
            await talk.arrives(talk.client, talk.server)
            await talk.arrives(talk.server, talk.client)
            manifests.give(policy())
            async with asyncio.timeout(WITHIN_S):
                while node.metrics.ended_flows == 0:
                    await asyncio.sleep(0.005)
            unfit = await table.counter("denied_unfit")
            talk.server.send(b"y")
            await until_denied(table, "denied_unfit", unfit)
            talk.client.send(b"x")
            await until_denied(table, "denied_unfit", unfit + 1)

            with pytest.raises(BlockingIOError):
                talk.client.recv(1)
            with pytest.raises(BlockingIOError):
                talk.server.recv(1)
        finally:
            talk.close()


async def test_who_is_refused_does_not_get_in_as_the_answer_to_a_connection_that_begins_in_the_middle(
    network: PolicyNetwork, table: NamedTable
) -> None:
    """POL-14: an acknowledgement out of nothing is no beginning."""
    source, target = pod_addresses(5)[0], pod_addresses(6)[0]
    pods = GivenPods(pod(5, "web"), pod(6, "db"))
    async with enforced(network, table, GivenManifests(policy(policyTypes=["Egress"])), pods) as node:
        await node.plane.hold("uid-p5")
        raw = network.places[target].call(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP))
        with raw:
            raw.bind((target, 0))
            raw.sendto(_segment(target, source, 80, 40_000, flags=0x10), (source, 0))
            await until_denied(table, "denied_unfit", 0)

        assert f"src={target} dst={source}" not in network.node.run("conntrack", "-L", "-p", "tcp")


def _segment(source: str, target: str, port: int, to: int, flags: int) -> bytes:
    head = struct.pack("!HHIIBBHHH", port, to, 1, 1, 5 << 4, flags, 1024, 0, 0)
    pseudo = socket.inet_aton(source) + socket.inet_aton(target) + struct.pack("!BBH", 0, 6, len(head))
    total = sum(struct.unpack(f"!{len(pseudo + head) // 2}H", pseudo + head))
    total = (total & 0xFFFF) + (total >> 16)
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    return head[:16] + struct.pack("!H", checksum) + head[18:]


async def test_link_local_addresses_lead_round_no_policy_and_neighbours_still_find_each_other(
    network: PolicyNetwork, table: NamedTable
) -> None:
    """POL-15."""
    source, target = pod_addresses(0)[1], pod_addresses(1)[1]
    inside = network.places[target]
    shown = inside.run("ip", "-6", "-o", "address", "show", "dev", "eth0", "scope", "link")
    local = shown.split("inet6 ")[1].split("/")[0]
    pods = GivenPods(pod(0, "db"), pod(1, "web"))
    async with enforced(network, table, GivenManifests(policy(**ANYBODY)), pods) as node:
        await node.plane.hold("uid-p1")
        network.places[source].run("ip", "-6", "neigh", "flush", "dev", "eth0")
        reached = await network.reaches(source, target, "TCP", 80, lambda: table.counter("denied_ingress"))
        node.manifests.give(policy())
        async with asyncio.timeout(WITHIN_S):
            while node.plane.standing.ways["ingress6"].get(target) != "no_ingress":
                await asyncio.sleep(0.005)
        with network.places[source].call(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as one:
            index = network.places[source].call(lambda: socket.if_nametoindex("eth0"))
            one.sendto(b"?", (local, 80, 0, index))
            await until_denied(table, "denied_unfit", 0)

        assert reached


async def test_what_was_enforced_stays_while_kepd_is_away_and_the_next_one_opens_nothing(
    network: PolicyNetwork, table: NamedTable
) -> None:
    """POL-05, POL-12: a prober sends all the while, over deaths, first rounds, and changes that refuse it too."""
    source, target = pod_addresses(5)[0], pod_addresses(6)[0]
    closed, pods = policy(), (pod(5, "db"), pod(6, "web"))
    async with enforced(network, table, GivenManifests(closed), GivenPods(*pods)) as node:
        await node.plane.hold("uid-p6")
    network.hear()
    stop, sent = asyncio.Event(), 0

    async def probe() -> None:
        nonlocal sent
        with network.socket(source, "UDP") as one:
            while not stop.is_set():
                one.sendto(b"?", (target, 53))
                sent += 1
                await asyncio.sleep(0)

    prober = asyncio.create_task(probe())
    for _ in range(20):
        async with enforced(network, table, GivenManifests(closed), GivenPods(*pods)) as node:
            await node.until(State.READY)
            await node.plane.hold("uid-p6")
    async with enforced(network, table, GivenManifests(closed), GivenPods(*pods)) as node:
        for number in range(50):
            peers = [{"from": [{"podSelector": {"matchLabels": {"app": f"other-{number}"}}}]}]
            node.manifests.give(policy(ingress=peers))
            async with asyncio.timeout(WITHIN_S):
                while f"other-{number}" not in str(node.plane.builder.policy("default/closed")):
                    await asyncio.sleep(0)
            await node.plane.hold("uid-p6")
    stop.set()
    await prober

    assert sent > 100
    assert network.hear() == 0
    assert await table.counter("denied_ingress") > 0


async def test_a_change_is_all_or_nothing(network: PolicyNetwork, table: NamedTable) -> None:
    """Elements of several sets, and a chain that goes with the last that leads to it."""
    web = b"\x0a\0\0\x10"
    ways, members = MapLayout("ways", MapKind.VERDICT, ("address",)), MapLayout("members", MapKind.MEMBER, ("address",))
    await table.load(
        f"add table inet {TABLE}\nadd map inet {TABLE} ways {{ type ipv4_addr : verdict; }}\n"
        f"add set inet {TABLE} members {{ type ipv4_addr; }}\nadd set inet {TABLE} gone {{ type ipv4_addr; }}\n"
    )
    await table.add_chains(["one"])
    new = (SetChange(ways, "IPv4", (), ((web, "one"),)), SetChange(members, "IPv4", (), ((web, None),)))
    await table.change(new, (), ("gone",))
    both = network.node.run("nft", "list", "table", "inet", TABLE)
    with pytest.raises(NftFailed):
        await table.change((SetChange(members, "IPv4", (web,)),), ("one",), ())
    after_refusal = network.node.run("nft", "list", "table", "inet", TABLE)
    await table.change((SetChange(ways, "IPv4", (web,)), SetChange(members, "IPv4", (web,))), ("one",), ())
    left = network.node.run("nft", "list", "table", "inet", TABLE)

    assert "10.0.0.16 : goto one" in both
    assert "set gone" not in both
    assert after_refusal == both
    assert "10.0.0.16" not in left
    assert "chain one" not in left


def test_cleanup_takes_the_table_away_and_says_so(network: PolicyNetwork, table: NamedTable, short_path: Path) -> None:
    """POL-10."""
    network.node.run("nft", "add", "table", "inet", TABLE)
    plain = Configuration()
    configuration = dataclasses.replace(plain, node=dataclasses.replace(plain.node, run_directory=str(short_path)))

    def removed(*, is_dry: bool) -> list[str]:
        return network.node.call(lambda: asyncio.run(remove_policies(configuration, is_dry=is_dry)))

    said = [removed(is_dry=is_dry) for is_dry in (True, False, False)]

    assert said == [["nftables: table kepd_policies of inet"], ["nftables: table kepd_policies of inet"], []]
    assert TABLE not in network.node.run("nft", "list", "tables")
