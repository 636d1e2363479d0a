# SPDX-License-Identifier: Apache-2.0
"""Stable hashing with packets: two nodes lead each flow to the same endpoint (SVN-40 to SVN-43)."""

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from agent.drivers.clock.driver import SystemClock
from agent.drivers.netlink.connection import open_socket
from agent.drivers.nft.driver import NftTable
from agent.model.services.nft_table import Family
from agent.services.objects.node_state import NodeSettings
from agent.services.run.intake import ServiceInputs
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane
from tests.lab.network import LAN, OTHER_CLIENT, PORT, Network, Place
from tests.node.test_services import NODE_PORT, VIPS
from tests.services.making import make_service, make_slice

pytestmark = [pytest.mark.node, pytest.mark.timeout(180)]

FIRST_PORT, PORTS = 20_000, 5_000
ANSWER_S, TRIES = 2.0, 5
ENDPOINTS = ("pod1", "pod2", "pod3", "far1", "far2")
# Twice what a removal moves of ten endpoints' slots, which is more than of five's.
MOST_MOVED = 2 * 0.08
Tuples = Mapping[tuple[str, int], str]


@pytest.fixture(params=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


class NodeHere:
    """A plane of one family in the namespace of a place."""

    def __init__(self, place: Place, family: Family) -> None:
        space = place.namespace
        self.family = family
        self.place = place
        self.table = NftTable(family, command=space.command("nft"), opens=lambda: space.call(open_socket))
        settings = NodeSettings(node=place.name, addresses=(place.address(family),))
        self.intake = ServiceInputs(settings, tell=lambda _: None, started_s=0.0)
        self.plane = ServicesPlane(
            self.intake, {family: NftRuleset(self.table)}, clock=SystemClock(), tell=lambda _: None
        )

    async def sync(self, network: Network, how: str, *names: str) -> None:
        port = {"name": "http", "protocol": "UDP", "port": 80, "nodePort": NODE_PORT}
        spec: dict[str, Any] = {"type": "NodePort", "ports": [port], "ipFamilies": [self.family]}
        meta = {"annotations": {"kepd.dev/balance": how}}
        self.intake.put_service(make_service("web", ip=VIPS[self.family], meta=meta, **spec))
        pieces = [{"name": "http", "protocol": "UDP", "port": PORT}]
        addresses = [network[one].address(self.family) for one in names]
        self.intake.put_slice(make_slice(addresses, ports=pieces, family=self.family))
        await self.plane.families[self.family].sync()
        assert not self.plane._failures
        self.place.namespace.run("conntrack", "-F")


def answers(network: Network, family: Family, target: str, port: int, ports: int = PORTS) -> Tuples:
    """Who answers each flow from two addresses of the client and so many ports."""
    kind = socket.AF_INET if family == "IPv4" else socket.AF_INET6
    sources = (LAN[family].format(9), LAN[family].format(OTHER_CLIENT))

    def ask() -> Tuples:
        found = {}
        for source in sources:
            for number in range(FIRST_PORT, FIRST_PORT + ports):
                with socket.socket(kind, socket.SOCK_DGRAM) as flow:
                    flow.settimeout(ANSWER_S)
                    flow.bind((source, number))
                    found[source, number] = _asked(flow, (target, port))
        return found

    return network.client.caller.run(ask, 120.0)


def _asked(flow: socket.socket, target: tuple[str, int]) -> str:
    """A datagram may be lost; the flow is the same when it is repeated."""
    for _ in range(TRIES):
        flow.sendto(b"?", target)
        try:
            # From the endpoint itself, where the node that translated is not on the way back.
            return flow.recv(200).decode().split()[0]
        except TimeoutError:
            continue
    return "nobody"


@pytest.fixture
def nodes(network: Network, family: Family) -> Iterator[tuple[NodeHere, NodeHere]]:
    network.clear()
    network["remote"].namespace.run("nft", "flush", "ruleset")
    with ExitStack() as stack:
        made = NodeHere(network.node, family), NodeHere(network["remote"], family)
        for one in made:
            stack.callback(lambda one=one: asyncio.run(one.table.close()))
        yield made
    network["remote"].namespace.run("nft", "flush", "ruleset")


class Way:
    """The client's route to the Service's address."""

    def __init__(self, network: Network, family: Family, via: str) -> None:
        flag = "-4" if family == "IPv4" else "-6"
        self._route = (flag, "route", "{}", VIPS[family], "via", network[via].address(family))
        self._space = network.client.namespace

    def __enter__(self) -> None:
        self._run("add")

    def __exit__(self, *_: object) -> None:
        self._run("del")

    def _run(self, verb: str) -> None:
        self._space.run("ip", *(one.format(verb) for one in self._route))


def test_ten_thousand_flows_reach_the_same_endpoint_by_either_node(
    network: Network, family: Family, nodes: tuple[NodeHere, NodeHere]
) -> None:
    async def sync(*names: str) -> None:
        for one in nodes:
            await one.sync(network, "maglev", *names)

    asyncio.run(sync(*ENDPOINTS))
    found = []
    for via in ("node", "remote"):
        with Way(network, family, via):
            found.append(answers(network, family, VIPS[family], 80))
    first, second = found

    assert len(first) == 2 * PORTS
    assert first == second
    counts = Counter(first.values())
    assert set(counts) == set(ENDPOINTS)
    assert max(counts.values()) < 1.2 * 2 * PORTS / len(ENDPOINTS)

    asyncio.run(sync(*(one for one in ENDPOINTS if one != "pod2")))
    with Way(network, family, "node"):
        after = answers(network, family, VIPS[family], 80)
    others = [key for key, who in first.items() if who != "pod2"]
    assert "pod2" not in after.values()
    assert sum(first[key] != after[key] for key in others) / len(first) <= MOST_MOVED


def test_a_node_port_is_hashed_without_the_nodes_address(
    network: Network, family: Family, nodes: tuple[NodeHere, NodeHere]
) -> None:
    """SVN-41."""

    async def sync() -> None:
        for one in nodes:
            await one.sync(network, "maglev", *ENDPOINTS)

    asyncio.run(sync())
    found = [answers(network, family, network[one].address(family), NODE_PORT, 500) for one in ("node", "remote")]

    assert found[0] == found[1]
    assert set(found[0].values()) == set(ENDPOINTS)


def test_by_its_address_alone_a_client_has_one_endpoint(
    network: Network, family: Family, nodes: tuple[NodeHere, NodeHere]
) -> None:
    async def sync() -> None:
        for one in nodes:
            await one.sync(network, "maglev,source", *ENDPOINTS)

    asyncio.run(sync())
    found = []
    for via in ("node", "remote"):
        with Way(network, family, via):
            found.append(answers(network, family, VIPS[family], 80, 50))

    assert found[0] == found[1]
    assert all(len({who for (source, _), who in found[0].items() if source == one}) == 1 for one, _ in found[0])


def test_nft_can_list_what_was_written(network: Network, family: Family, nodes: tuple[NodeHere, NodeHere]) -> None:
    """NF-46: tools of the node read the rules that have no text of ours."""
    node, _ = nodes

    async def sync() -> None:
        for how in ("maglev", "maglev,source"):
            await node.sync(network, how, *ENDPOINTS)

    asyncio.run(sync())
    listed = network.node.namespace.run("nft", "list", "table", "ip" if family == "IPv4" else "ip6", "kepd")

    assert "jhash" in listed
    assert "seed 0x6b657064" in listed
