# SPDX-License-Identifier: Apache-2.0
"""Which flows would skip the rules, by packets, and what a kernel without flowtables makes of it (SVN-80, SVN-81).

Flows that really skip them are in vm/test_flowtable.py: its kernel has the module. Here the same rules count instead.
"""

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.drivers.interfaces.links import Links
from agent.drivers.netlink.connection import open_socket
from agent.drivers.nft.driver import NftTable
from agent.model.services.nft_error import NftFailed
from agent.model.services.nft_table import Family
from agent.services.nftables.flowtable import LEAST_PACKETS, OffloadedWays, offload_text, probe_text, removal_text
from tests.lab.network import PORT, Network, Place
from tests.node.test_services import NODE_PORT, VIPS, Cluster
from tests.services.making import make_service, make_slice

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

MANY, FEW = 2 * LEAST_PACKETS, 2


@pytest.fixture(params=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def table(network: Network, family: Family) -> Iterator[NftTable]:
    network.clear()
    space = network.node.namespace
    made = NftTable(family, command=space.command("nft"), opens=lambda: space.call(open_socket))
    yield made
    asyncio.run(made.close())


def has_flowtables(table: NftTable, family: Family) -> bool:
    try:
        asyncio.run(table.load(probe_text(family)))
    except NftFailed as error:
        assert "syntax" not in str(error)
        return False
    return True


def test_the_probe_leaves_nothing_behind(network: Network, family: Family, table: NftTable) -> None:
    """SVN-81: taken or refused, in one transaction."""
    has_flowtables(table, family)

    assert "kepd" not in network.node.namespace.run("nft", "list", "tables")


def test_a_refusal_is_the_kernels_and_not_one_of_the_text(network: Network, family: Family, table: NftTable) -> None:
    ways = OffloadedWays((f"{VIPS[family]}",), (network.node.address(family),), (("TCP", NODE_PORT),))
    try:
        asyncio.run(table.load(offload_text(family, ("eth0", "veth1"), ways)))
    except NftFailed as error:
        assert not has_flowtables(table, family)
        assert "syntax" not in str(error)
    else:
        assert "flow add @fast" in network.node.namespace.run("nft", "list", "ruleset")
    asyncio.run(table.load(removal_text(family)))


def test_chains_that_such_flows_pass_by_are_named(network: Network, family: Family, table: NftTable) -> None:
    """SVN-82: of the family and of inet, whatever they do, and none of ours."""
    ip = "ip" if family == "IPv4" else "ip6"
    text = (
        f"table {ip} shop {{ chain guard {{ type filter hook forward priority 0; counter; }}\n"
        " chain in { type filter hook input priority 0; }\n}\n"
        "table inet wall { chain over { type filter hook forward priority -5; }\n}\n"
        f"table {ip} kepd_fast {{ chain forwarded {{ type filter hook forward priority 10; }}\n}}\n"
    )
    network.node.namespace.run("nft", "-f", "-", text=text)

    assert asyncio.run(table.forward_chains()) == ["chain guard of table shop", "chain over of table wall"]


def test_devices_are_those_of_the_namespace(network: Network) -> None:
    found = network.node.caller.run(lambda: Links().now())

    assert {"lo", "eth0", "veth1"} <= found.keys()


def talk(place: Place, address: str, port: int, count: int) -> None:
    """One connection with so many questions and answers."""
    with closing(place.caller.hold(address, port)) as connection:
        connection.settimeout(10.0)
        connection.recv(200)
        for _ in range(count):
            connection.send(b"?")
            while not connection.recv(200).endswith(b"?"):
                continue


def counted(network: Network) -> list[int]:
    """By rule: what Services have, then node ports."""
    listed = network.node.namespace.run("nft", "list", "chain", *chain_of(network), "kepd_fast", "forwarded")
    return [int(one) for one in re.findall(r"counter packets (\d+)", listed)]


def chain_of(network: Network) -> tuple[str]:
    return ("ip",) if "table ip kepd_fast" in network.node.namespace.run("nft", "list", "tables") else ("ip6",)


def test_only_long_flows_of_our_services_are_meant(network: Network, family: Family, table: NftTable) -> None:
    """SVN-80: from a pod to a Service, from outside to a node port; a short flow, one to the pod itself and what a
    rule of somebody else translated are left to the rules."""
    node, pod, client = network.node, network["pod2"], network.client
    node.namespace.set("net.netfilter.nf_conntrack_acct", 1)
    cluster = Cluster(family, network)
    port = {"name": "http", "protocol": "TCP", "port": 80, "nodePort": NODE_PORT}
    spec = {"type": "NodePort", "ports": [port], "ipFamilies": [family]}
    cluster.intake.put_service(make_service("web", ip=VIPS[family], **spec))
    cluster.intake.put_slice(make_slice([network["pod1"].address(family)], family=family))
    ways = OffloadedWays((VIPS[family],), (node.address(family),), (("TCP", NODE_PORT),))
    brackets = network["pod1"].address(family) if family == "IPv4" else f"[{network['pod1'].address(family)}]"
    ip = "ip" if family == "IPv4" else "ip6"
    others = (
        f"table {ip} docker {{ chain pre {{ type nat hook prerouting priority -90;\n"
        f" tcp dport 9999 dnat to {brackets}:{PORT}\n}}\n}}\n"
    )

    async def program() -> None:
        await cluster.plane.families[family].sync()
        await table.load(offload_text(family, ("eth0",), ways, "counter"))
        await table.load(others)
        await cluster.table.close()
        await cluster.conntrack.close()

    asyncio.run(program())
    talk(pod, VIPS[family], 80, FEW)
    talk(pod, network["pod1"].address(family), PORT, MANY)
    talk(client, node.address(family), 9999, MANY)
    assert counted(network) == [0, 0]
    talk(pod, VIPS[family], 80, MANY)
    services, ports = counted(network)
    assert services > 0
    assert ports == 0
    talk(client, node.address(family), NODE_PORT, MANY)
    assert counted(network)[0] == services
    assert counted(network)[1] > 0


def test_a_device_that_is_a_port_of_a_bridge_is_known(tmp_path: Path) -> None:
    (tmp_path / "lo").mkdir()
    (tmp_path / "lo/brport").mkdir()
    (tmp_path / "lo/master").symlink_to("../cni0")

    assert Links(tmp_path).now()["lo"].bridge == "cni0"
    assert {link.bridge for link in Links(tmp_path / "none").now().values()} == {""}
