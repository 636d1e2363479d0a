# SPDX-License-Identifier: Apache-2.0
"""Packets through the table, with elements written by hand: what the structure and the driver do together.

The plane that decides on elements has tests of its own; here every element is in sight.
"""

import asyncio
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import TypeVar

import pytest

from agent.drivers.netlink.connection import open_socket
from agent.drivers.nft.driver import NftTable
from agent.model.services.nft_table import Batch, ChoiceChain, Data, Detection, Family, TableSettings
from agent.services.nftables.structure import replacement_text
from tests.lab.callers import Outcome, Reply
from tests.lab.network import POD_RANGES, PORT, Network
from tests.lab.sctp import SctpEars, send_init

pytestmark = pytest.mark.node

PROTOCOLS = {"TCP": b"\x06\0\0\0", "UDP": b"\x11\0\0\0", "SCTP": b"\x84\0\0\0"}
T = TypeVar("T")
SHORT_S, WITHIN_S = 0.3, 20.0
NODE_PORT = 30_080
VIPS = {"IPv4": "10.96.0.1", "IPv6": "fd00:96::1"}
OTHER_VIPS = {"IPv4": "203.0.113.1", "IPv6": "fd00:203::1"}


@pytest.fixture(params=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


@dataclass
class Rules:
    """The node's table in one family, and short ways to its elements."""

    family: Family
    network: Network
    table: NftTable

    @property
    def vip(self) -> str:
        return VIPS[self.family]

    @property
    def other_vip(self) -> str:
        return OTHER_VIPS[self.family]

    def address(self, name: str) -> str:
        return self.network[name].address(self.family)

    def endpoint(self, name: str, port: int = PORT) -> bytes:
        return ip_address(self.address(name)).packed + struct.pack(">HH", port, 0)

    def frontend(self, address: str = "", port: int = 80, protocol: str = "TCP") -> bytes:
        return ip_address(address or self.vip).packed + PROTOCOLS[protocol] + struct.pack(">HH", port, 0)

    def node_port(self, protocol: str = "TCP") -> bytes:
        return PROTOCOLS[protocol] + struct.pack(">HH", NODE_PORT, 0)

    def slots(self, key: bytes, *names: str) -> list[tuple[bytes, Data]]:
        return [(key + struct.pack("=I", slot), self.endpoint(name)) for slot, name in enumerate(names)]

    def connect(self, place: str, address: str = "", port: int = 80, **options: object) -> Reply:
        options = {"wait_s": WITHIN_S, **options}
        return self.network[place].caller.connect(address or self.vip, port, **options)  # type: ignore[arg-type]

    def silence(self, place: str, address: str = "", port: int = 80, **options: object) -> Outcome:
        """For what must not be answered: wait only shortly."""
        return self.connect(place, address, port, wait_s=SHORT_S, **options).outcome


@pytest.fixture
async def rules(network: Network, family: Family) -> AsyncIterator[Rules]:
    node = network.node.namespace
    table = NftTable(family, command=node.command("nft"), opens=lambda: node.call(open_socket))
    await table.load(replacement_text(TableSettings(family=family, detection=Detection("cidrs"))))
    pods = ip_network(POD_RANGES[family])
    node_address = ip_address(network.node.address(family)).packed
    made = Rules(family, network, table)
    await table.apply(
        Batch(
            adds={
                "pod_cidrs": [(pods[0].packed + pods[-1].packed, None)],
                "np_addrs": [(node_address, None)],
                "cluster_ips": [(ip_address(made.vip).packed, None)],
            }
        )
    )
    yield made
    await table.close()


async def off_loop(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)


def is_even(spread: Counter[str], names: list[str]) -> bool:
    """Chi-square; three servers exceed this by chance in one of a million runs."""
    expected = spread.total() / len(names)
    return set(spread) == set(names) and sum((spread[name] - expected) ** 2 / expected for name in names) < 28


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
async def test_a_service_address_spreads_evenly_over_its_endpoints(rules: Rules, protocol: str) -> None:
    """TY-1: local ones and ones behind a route; also with a chain made on demand and by the structure."""
    names = ["pod1", "pod2", "far1"]
    small, large = rules.frontend(protocol=protocol), rules.frontend(port=81, protocol=protocol)
    large_slots = [
        (large + struct.pack("=I", slot), rules.endpoint(names[slot % 3])) for slot in range(18)
    ]  # fmt: skip
    await rules.table.apply(
        Batch(
            [ChoiceChain("c_18", "eps", 18)],
            adds={"services": [(small, "c_3"), (large, "c_18")], "eps": [*rules.slots(small, *names), *large_slots]},
        )
    )
    caller = rules.network["pod3"].caller
    for port in (80, 81):
        spread = caller.spread(rules.vip, port, 300, protocol, wait_s=WITHIN_S)  # type: ignore[arg-type]

        assert is_even(spread, names), spread


async def test_pods_keep_their_address_and_others_get_the_nodes(rules: Rules) -> None:
    """TY-9: whoever is no pod of the cluster is masqueraded on the way to a service address."""
    key = rules.frontend()
    await rules.table.apply(Batch(adds={"services": [(key, "c_1")], "eps": rules.slots(key, "pod1")}))
    gateway = rules.network["pod1"].caller.connect(rules.address("pod1"), PORT)

    assert gateway.server == "pod1"
    assert rules.connect("pod2").client == rules.address("pod2")
    assert rules.connect("client").client not in (rules.address("client"), "")
    assert rules.connect("node").server == "pod1"


async def test_a_pod_that_reaches_itself_sees_the_nodes_address(rules: Rules) -> None:
    """TY-8: and only then."""
    key = rules.frontend()
    hairpin = ip_address(rules.address("pod1")).packed * 2 + PROTOCOLS["TCP"] + struct.pack(">HH", PORT, 0)
    await rules.table.apply(
        Batch(adds={"services": [(key, "c_2")], "eps": rules.slots(key, "pod1", "pod2"), "hairpin": [(hairpin, None)]})
    )
    replies = [rules.connect("pod1") for _ in range(40)]
    seen = {reply.server: {one.client for one in replies if one.server == reply.server} for reply in replies}

    assert set(seen) == {"pod1", "pod2"}
    assert seen["pod2"] == {rules.address("pod1")}
    assert len(seen["pod1"]) == 1
    assert rules.address("pod1") not in seen["pod1"]


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
async def test_no_endpoints_are_refused_at_once(rules: Rules, protocol: str) -> None:
    """TY-14, TY-16: so is a port that the service does not have."""
    await rules.table.apply(Batch(adds={"services": [(rules.frontend(protocol=protocol), "rj")]}))
    for source in ("pod1", "client", "node"):
        for port in (80, 4711):
            reply = rules.connect(source, port=port, protocol=protocol)

            assert (source, port, reply.outcome) == (source, port, "refused")


async def test_tcp_is_refused_by_a_reset_every_time(rules: Rules) -> None:
    """TY-14: ICMP is limited per destination, and lost where the socket is locked."""
    await rules.table.apply(Batch(adds={"services": [(rules.frontend(), "rj")]}))
    began = time.monotonic()
    outcomes = {rules.connect(source).outcome for source in ("node", "client", "pod1") for _ in range(30)}

    assert outcomes == {"refused"}
    assert time.monotonic() - began < 0.9 * WITHIN_S


async def test_dropped_frontends_stay_silent(rules: Rules) -> None:
    """SEL-9."""
    await rules.table.apply(Batch(adds={"services": [(rules.frontend(), "")]}))

    assert rules.silence("pod1") == rules.silence("client") == "timeout"


async def test_a_node_port_answers_on_the_nodes_addresses_alone(rules: Rules) -> None:
    """TY-2, TY-11: with the node's address as source; not on another address of the node."""
    key = rules.node_port()
    await rules.table.apply(
        Batch(
            adds={
                "nodeports": [(key, "n_cluster")],
                "np_cluster": [(key, "nc_2")],
                "np_eps": rules.slots(key, "pod1", "far1"),
            }
        )
    )
    node = rules.address("node")
    replies = [rules.connect("client", node, NODE_PORT) for _ in range(40)]
    gateway = "10.1.0.1" if rules.family == "IPv4" else "fd00:1::1"

    assert {reply.server for reply in replies} == {"pod1", "far1"}
    assert rules.address("client") not in {reply.client for reply in replies}
    assert rules.connect("node", node, NODE_PORT).outcome == "answered"
    assert rules.connect("pod2", node, NODE_PORT).outcome == "answered"
    assert rules.connect("pod2", gateway, NODE_PORT).outcome == "refused"


async def external_local(rules: Rules, address: str, *, local: bool = True) -> None:
    """A load balancer's address whose external traffic stays on this node: pod1 is here, far1 is not."""
    key = rules.frontend(address)
    adds = {"services": [(key, "x_local")], "svc_cluster": [(key, "c_2")], "eps": rules.slots(key, "pod1", "far1")}
    if local:
        adds |= {"svc_local": [(key, "l_1")], "eps_local": rules.slots(key, "pod1")}
    await rules.table.apply(Batch(adds=adds))


async def test_local_external_traffic_stays_on_the_node_and_keeps_its_source(rules: Rules) -> None:
    """TY-12: local pods and the host itself may go everywhere."""
    await external_local(rules, rules.other_vip)
    outside = [rules.connect("client", rules.other_vip) for _ in range(20)]
    inside = {rules.connect("pod2", rules.other_vip).server for _ in range(40)}
    host = {rules.connect("node", rules.other_vip).server for _ in range(40)}

    assert {(reply.server, reply.client) for reply in outside} == {("pod1", rules.address("client"))}
    assert inside == host == {"pod1", "far1"}


async def test_local_external_traffic_without_a_local_endpoint_is_dropped(rules: Rules) -> None:
    """TY-12, SEL-9: pods and the host are served all the same."""
    await external_local(rules, rules.other_vip, local=False)

    assert rules.silence("client", rules.other_vip) == "timeout"
    assert rules.connect("pod2", rules.other_vip).outcome == "answered"
    assert rules.connect("node", rules.other_vip).outcome == "answered"


def other_client(family: Family) -> str:
    """The second address of the host outside."""
    return "192.168.7.10" if family == "IPv4" else "fd00:7::10"


async def test_source_ranges_let_in_whom_they_name(rules: Rules) -> None:
    """TY-15: pods are no exception."""
    key = rules.frontend(rules.other_vip)
    other = other_client(rules.family)
    allowed = ip_address(rules.address("client")).packed
    await rules.table.apply(
        Batch(
            adds={
                "services": [(key, "fw_cluster")],
                "svc_cluster": [(key, "c_1")],
                "eps": rules.slots(key, "pod1"),
                "fw_allow": [(key + allowed + key + allowed, None)],
            }
        )
    )

    assert rules.connect("client", rules.other_vip).server == "pod1"
    assert rules.silence("client", rules.other_vip, source=other) == "timeout"
    assert rules.silence("pod2", rules.other_vip) == "timeout"


async def affine(rules: Rules, timeout_s: int, *names: str) -> tuple[list[bytes], bytes]:
    """A service address and a node port with affinity, number 7."""
    number = struct.pack("=I", 7)
    key, node_port = rules.frontend(), rules.node_port()
    chain, node_chain = f"c_{len(names)}_{timeout_s}", f"nc_{len(names)}_{timeout_s}"
    await rules.table.apply(
        Batch(
            [
                ChoiceChain(chain, "eps", len(names), timeout_s),
                ChoiceChain(node_chain, "np_eps", len(names), timeout_s),
            ],
            adds={
                "services": [(key, chain)],
                "nodeports": [(node_port, "n_cluster")],
                "np_cluster": [(node_port, node_chain)],
                "eps": rules.slots(key, *names),
                "np_eps": rules.slots(node_port, *names),
                "aff_port": [(key, number)],
                "np_aff_port": [(node_port, number)],
                "aff_cluster": [(rules.endpoint(name) + number, None) for name in names],
            },
        )
    )
    return [key, node_port], number


async def test_clients_come_back_to_the_endpoint_they_had(rules: Rules) -> None:
    """TY-7: each client to its own, by all frontends of the port."""
    await affine(rules, 600, "pod1", "pod2", "far1")
    node = rules.address("node")
    for source in ("pod3", "client", "node"):
        caller = rules.network[source].caller
        by_address = caller.spread(rules.vip, 80, 30, wait_s=WITHIN_S)
        by_node_port = caller.spread(node, NODE_PORT, 30, wait_s=WITHIN_S)

        assert len(by_address) == 1
        assert set(by_address) == set(by_node_port)


async def test_affinity_ends_when_the_client_stays_away(rules: Rules) -> None:
    """TY-7: the time counts from the last new connection."""
    names = {"pod1", "pod2", "far1"}
    await affine(rules, 2, *names)
    caller = rules.network["pod3"].caller

    def keep_coming() -> tuple[set[str], float]:
        """Servers during a time that is longer than the time-out, and the longest pause."""
        servers, pauses = set[str](), [0.0]
        began = last = time.monotonic()
        while last - began < 3.5:
            servers.add(caller.connect(rules.vip, 80, wait_s=WITHIN_S).server)
            time.sleep(0.05)
            pauses.append(time.monotonic() - last)
            last += pauses[-1]
        return servers, max(pauses)

    kept, pause_s = await off_loop(keep_coming)
    while pause_s > 1.5:
        # A busy machine kept us away for too long: that proves nothing.
        kept, pause_s = await off_loop(keep_coming)
    drawn = set[str]()
    for _ in range(60):
        rules.network.node.namespace.run("nft", "flush", "map", *_clients(rules))
        drawn.add(rules.connect("pod3").server)

    assert len(kept) == 1
    assert drawn == names


def _clients(rules: Rules) -> tuple[str, ...]:
    return ("ip" if rules.family == "IPv4" else "ip6", "kepd", "clients")


async def test_what_is_remembered_expires(rules: Rules) -> None:
    """TY-7: the kernel forgets by itself."""
    await affine(rules, 1, "pod1", "pod2")
    rules.connect("pod3")
    node = rules.network.node.namespace
    remembered = "expires" in node.run("nft", "list", "map", *_clients(rules))
    async with asyncio.timeout(WITHIN_S):
        while "expires" in await off_loop(lambda: node.run("nft", "list", "map", *_clients(rules))):  # type: ignore[operator]
            await asyncio.sleep(0.1)

    assert remembered


async def test_a_client_of_a_removed_endpoint_gets_another_one_and_keeps_it(rules: Rules) -> None:
    """NF-33: no second transaction is needed: membership decides."""
    names = ["pod1", "pod2", "far1"]
    (key, _), number = await affine(rules, 600, *names)
    had = rules.connect("pod3").server
    left = [name for name in names if name != had]
    await rules.table.apply(
        Batch(
            [ChoiceChain("c_2_600", "eps", 2, 600)],
            deletes={
                "services": [key],
                "eps": [slot for slot, _ in rules.slots(key, *names)],
                "aff_cluster": [rules.endpoint(had) + number],
            },
            adds={"services": [(key, "c_2_600")], "eps": rules.slots(key, *left)},
        )
    )
    spread = rules.network["pod3"].caller.spread(rules.vip, 80, 30, wait_s=WITHIN_S)

    assert len(spread) == 1
    assert set(spread) < set(left)


async def test_clients_of_other_endpoints_stay_where_they_are(rules: Rules) -> None:
    """TY-7: when one endpoint goes, nobody else moves."""
    names = ["pod1", "pod2", "far1"]
    (key, _), number = await affine(rules, 600, *names)
    clients = [
        ("pod3", rules.address("pod3")),
        ("client", rules.address("client")),
        ("client", other_client(rules.family)),
    ]
    before = {client: rules.connect(client[0], source=client[1]).server for client in clients}
    gone = before[clients[0]]
    left = [name for name in names if name != gone]
    await rules.table.apply(
        Batch(
            deletes={
                "services": [key],
                "eps": [slot for slot, _ in rules.slots(key, *names)],
                "aff_cluster": [rules.endpoint(gone) + number],
            },
            chains=[ChoiceChain("c_2_600", "eps", 2, 600)],
            adds={"services": [(key, "c_2_600")], "eps": rules.slots(key, *left)},
        )
    )
    others = {client: server for client, server in before.items() if server != gone}
    after = {client: rules.connect(client[0], source=client[1]).server for client in others}

    assert "" not in before.values()
    assert after == others


async def test_sctp_is_translated_too(rules: Rules) -> None:
    """IN-4: one number on three protocols is three ports; the kernel needs no SCTP sockets for that."""
    key = rules.frontend(protocol="SCTP")
    await rules.table.apply(Batch(adds={"services": [(key, "c_1")], "eps": rules.slots(key, "pod1")}))
    with SctpEars.of(rules.network["pod1"], rules.network["pod2"]) as ears:
        send_init(rules.network["pod3"], rules.vip, 80)
        heard = ears.heard(PORT, WITHIN_S)

    assert [(one.place, one.source) for one in heard] == [("pod1", rules.address("pod3"))]
