# SPDX-License-Identifier: Apache-2.0
"""Names with real packets: a pod asks, rules lead it past connection tracking, a process answers, and both may fail."""

import asyncio
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.drivers.netlink.connection import open_socket
from agent.drivers.nft.named_table import NamedTable
from agent.model.services.nft_table import Family
from kepd_dns.handover.state import EndpointName, Port, ServiceName
from kepd_dns.rules.guards import Asking
from kepd_dns.rules.nftables import table_text
from kepd_dns.run.asking.flights import MOST_OF_SOURCE
from kepd_dns.run.plane import clean_up
from packages.dns.tests.dns_servers import ScriptedDns, addresses, ask, stream
from packages.dns.tests.node.dns_node import ADDRESSES, DnsNode, both_ways
from tests.lab.network import Network

pytestmark = pytest.mark.node

WEB = ServiceName("default", "web", ("10.96.0.10", "fd00:96::10"), (Port(80, "http"),))
NAME = "web.default.svc.cluster.local"
HERE = "0a60000a"
"""The end of an answer that names the Service's address."""


@pytest.fixture(params=["nftables", "iptables"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


async def off(work: Any, *arguments: Any, **more: Any) -> Any:
    return await asyncio.to_thread(partial(work, *arguments, **more))


async def test_questions_of_pods_and_of_the_host_are_not_tracked(
    network: Network, tmp_path: Path, backend: str
) -> None:
    """DNS-20, DNS-27: a thousand, of both families and protocols; the answer comes from where it was asked for."""
    async with DnsNode(network, tmp_path, backend=backend).running() as dns:
        await dns.tell(WEB)
        network.node.namespace.run("conntrack", "-F")
        found = {}
        for place in ("pod1", "node"):
            for family, tcp in both_ways():
                for _ in range(125):
                    answer = await off(ask, network[place].namespace, ADDRESSES[family], NAME, "A", tcp=tcp)
                    found.setdefault((place, family, tcp), set()).add(tuple(addresses(answer)))

        assert found == {key: {("10.96.0.10",)} for key in found}
        assert len(found) == 8
        assert dns.tracked() == []


async def test_pairs_from_one_socket_are_all_answered(network: Network, tmp_path: Path) -> None:
    """DNS-20: what libc sends at once, A and AAAA; nothing is refused at confirmation, for nothing is confirmed."""
    async with DnsNode(network, tmp_path).running() as dns:
        await dns.tell(WEB)
        clients = [network[f"pod{one}"].namespace for one in (1, 2, 3)] + [network.node.namespace]
        ask_pairs = partial(stream, count=20_000, rate=2000, kinds=("A", "AAAA"), linger_s=3.0)
        found = await asyncio.gather(*(off(ask_pairs, one, ADDRESSES["IPv4"], NAME) for one in clients))

        assert [one.lost for one in found] == [0, 0, 0, 0]
        assert dns.tracked() == []


async def test_a_killed_process_loses_nothing_where_its_sockets_are_held(
    network: Network, tmp_path: Path, family: Family, backend: str
) -> None:
    """DNS-11: three kills at 2 000 questions a second; what was not read waits in the socket, and a connection too."""
    pod, at = network["pod1"].namespace, ADDRESSES[family]
    async with DnsNode(network, tmp_path, backend=backend).running() as dns:
        await dns.tell(WEB)
        asking = asyncio.create_task(off(stream, pod, at, NAME, count=8000, rate=2000, linger_s=3.0))
        by_tcp = []
        for _ in range(3):
            await asyncio.sleep(1.0)
            await off(dns.process.end)
            waiting = asyncio.create_task(off(ask, pod, at, NAME, tcp=True))
            dns.process.start()
            by_tcp.append(addresses(await waiting))
        found = await asking

        assert by_tcp == [["10.96.0.10"]] * 3
        assert dns.tracked() == []
        assert found.sent == 8000
        assert found.lost <= 3 * 64
        assert set(found.who.values()) == {HERE}


async def test_a_restart_a_reload_and_a_new_state_lose_nothing(
    network: Network, tmp_path: Path, family: Family, backend: str
) -> None:
    """DNS-12, DNS-3: and a Service that comes meanwhile is known to the next process."""
    pod, at = network["pod1"].namespace, ADDRESSES[family]
    async with DnsNode(network, tmp_path, backend=backend).running() as dns:
        await dns.tell(WEB)
        asking = asyncio.create_task(off(stream, pod, at, NAME, count=4000, rate=2000, linger_s=3.0))
        await asyncio.sleep(0.5)
        await off(dns.process.end, signal.SIGTERM)
        dns.writer.put(ServiceName("default", "late", ("10.96.0.11",)))
        dns.process.start()
        dns.settings = replace(dns.settings, ttl_max_s=7)
        dns.plane.apply()
        found = await asking
        late = [await off(ask, pod, at, "late.default.svc.cluster.local", tcp=tcp) for tcp in (False, True)]

        assert found.lost == 0
        assert [addresses(one) for one in late] == [["10.96.0.11"]] * 2
        assert dns.tracked() == []


@pytest.mark.alone
async def test_a_flood_from_one_pod_leaves_another_its_answers(
    network: Network, tmp_path: Path, family: Family, backend: str
) -> None:
    """DNS-94: 10 000 new names a second, whose server is silent; what the other asks is answered, if need be at the
    second time, as resolvers do it. What finds no room gets an error, and nothing of either is tracked."""
    at, flooding, other = ADDRESSES[family], network["pod2"].namespace, network["pod1"].namespace
    async with DnsNode(network, tmp_path, backend=backend).running() as dns:
        (tmp_path / "resolv.conf").write_text(f"nameserver {network['far1'].v4}\n")
        await dns.tell(WEB)
        await asyncio.sleep(1.1)
        pouring = asyncio.create_task(off(stream, flooding, at, "N.example", count=20_000, rate=10_000, is_new=True))
        found = []
        while not pouring.done():
            tcp = len(found) % 2 == 1
            answer = await off(ask, other, at, NAME, tcp=tcp) or await off(ask, other, at, NAME, tcp=tcp, within_s=5.0)
            found.append(addresses(answer))
            # Who connects without a pause is a flood itself, and is held to its own share.
            await asyncio.sleep(0.02)
        flood = await pouring
        status = await dns.plane.look()

        assert found == [["10.96.0.10"]] * len(found)
        assert len(found) > 3
        assert status is not None
        assert status.overload.get("source", 0) > 0
        assert status.in_flight <= MOST_OF_SOURCE
        assert set(flood.who.values()) <= {"code 2"}
        assert dns.tracked() == []


async def test_rules_and_addresses_come_back(network: Network, tmp_path: Path, backend: str) -> None:
    """DNS-31: somebody flushes all rules, deletes the table or the address, or sets `lo` down and up."""
    node = network.node.namespace

    def down() -> None:
        node.run("ip", "link", "set", "lo", "down")
        node.run("ip", "link", "set", "lo", "up")

    deeds = [
        lambda: node.run("nft", "flush", "ruleset"),
        lambda: node.run("ip", "addr", "del", f"{ADDRESSES['IPv4']}/32", "dev", "lo"),
        lambda: node.run("ip", "addr", "del", f"{ADDRESSES['IPv6']}/128", "dev", "lo"),
        down,
    ]
    if backend == "nftables":
        deeds.append(lambda: node.run("nft", "delete", "table", "ip6", "kepd_dns"))
    async with DnsNode(network, tmp_path, backend=backend).running() as dns:
        await dns.tell(WEB)
        for deed in deeds:
            await off(deed)
            await asyncio.sleep(1.0)
            node.run("conntrack", "-F")
            for family, tcp in both_ways():
                answer = await off(ask, network["pod1"].namespace, ADDRESSES[family], NAME, tcp=tcp, within_s=1.0)
                assert addresses(answer) == ["10.96.0.10"]
            assert dns.tracked() == []
        assert "RulesRepaired" in dns.reasons()


async def test_who_is_no_pod_asks_in_vain(network: Network, tmp_path: Path, backend: str) -> None:
    """DNS-32: a host outside that has a route to the address."""
    client = network.client.namespace
    client.run("ip", "route", "replace", f"{ADDRESSES['IPv4']}/32", "via", network.node.v4)
    async with DnsNode(network, tmp_path, backend=backend).running() as dns:
        await dns.tell(WEB)
        outside = await off(ask, client, ADDRESSES["IPv4"], NAME, within_s=0.5)
        inside = await off(ask, network["pod1"].namespace, ADDRESSES["IPv4"], NAME)

        assert (outside, addresses(inside)) == (None, ["10.96.0.10"])
        assert await dns.guards["IPv4"].strangers() >= 1


async def test_cleanup_takes_all_of_it_away(network: Network, tmp_path: Path, backend: str) -> None:
    """DNS-30: rules, then the address; nothing where there is nothing."""
    dns = DnsNode(network, tmp_path, backend=backend)
    async with dns.running():
        pass
    dns = DnsNode(network, tmp_path, backend=backend, held=False)
    listed = tuple(ADDRESSES.values())
    first = await clean_up(dns.guards, dns.addresses, listed)
    again = await clean_up(dns.guards, dns.addresses, listed)

    assert (len(first), again) == (4, [])
    assert "dport 53" not in network.node.namespace.run("nft", "list", "ruleset")
    assert ADDRESSES["IPv4"] not in network.node.namespace.run("ip", "addr")
    dns.close()


async def test_addresses_are_never_a_source(network: Network, tmp_path: Path) -> None:
    """DNS-29: of scope link, and deprecated."""
    async with DnsNode(network, tmp_path).running():
        shown = network.node.namespace.run("ip", "addr", "show", "dev", "lo")

    assert "inet 169.254.20.10/32 scope link deprecated" in shown
    assert "inet6 fd00::a9fe:140a/128" in shown
    assert "deprecated" in shown.split("inet6 fd00::a9fe:140a/128")[1].splitlines()[0]


async def test_a_bare_node_resolves_what_the_specification_names(
    network: Network, tmp_path: Path, family: Family, backend: str
) -> None:
    """Section 7: short names by the pod's search list, SRV, PTR, headless pods, ExternalName; outside names go on."""
    pets = ServiceName(
        "default", "pets", is_headless=True, ports=(Port(80, "http"),),
        endpoints=(EndpointName("10.1.0.11", "rex", (Port(8080, "http"),)), EndpointName("10.1.0.12")),
    )  # fmt: skip
    out = ServiceName("default", "out", external="host.example.")
    pod, at = network["pod1"].namespace, ADDRESSES[family]
    server = network["far1"].address(family)
    async with (
        ScriptedDns(server, "203.0.113.5", network["remote"].namespace) as upstream,
        DnsNode(network, tmp_path, backend=backend).running() as dns,
    ):
        (tmp_path / "resolv.conf").write_text(f"nameserver {server}\n")
        await dns.tell(WEB, pets, out)
        await asyncio.sleep(1.1)
        asked = {
            (NAME, "AAAA"): ["fd00:96::10"],
            (f"_http._tcp.{NAME}", "SRV"): [f"0 100 80 {NAME}."],
            ("10.0.96.10.in-addr.arpa", "PTR"): [f"{NAME}."],
            ("pets.default.svc.cluster.local", "A"): ["10.1.0.11", "10.1.0.12"],
            ("rex.pets.default.svc.cluster.local", "A"): ["10.1.0.11"],
            ("out.default.svc.cluster.local", "A"): ["203.0.113.5", "host.example."],
            ("elsewhere.example", "A"): ["203.0.113.5"],
            ("no.default.svc.cluster.local", "A"): [],
        }
        found = {
            (name, kind): addresses(await off(ask, pod, at, name, kind, tcp=tcp))
            for tcp in (False, True)
            for name, kind in asked
        }

        assert found == asked
        assert {name for name, _ in upstream.asked if "cluster.local" in name} == set()
        dns.writer.put(ServiceName("default", "web", ("10.96.0.77",)))
        dns.plane.state_changed()
        await asyncio.sleep(0.2)
        assert addresses(await off(ask, pod, at, NAME)) == ["10.96.0.77"]


async def test_names_outside_do_not_lead_inside_where_that_is_forbidden(network: Network, tmp_path: Path) -> None:
    """DNS-96: an address of the cluster in an answer of the node's servers empties it, with a word why; others pass."""
    pod, at = network["pod1"].namespace, ADDRESSES["IPv4"]
    inside, outside = network["far1"], network["far2"]
    async with (
        ScriptedDns(inside.v4, "10.96.0.10", network["remote"].namespace),
        ScriptedDns(outside.v4, "203.0.113.5", network["remote"].namespace),
        DnsNode(network, tmp_path, protected_networks=("10.96.0.0/16", "fd00:96::/112")).running() as dns,
    ):
        await dns.tell(WEB)
        found = []
        for server in (inside, outside):
            (tmp_path / "resolv.conf").write_text(f"nameserver {server.v4}\n")
            await asyncio.sleep(1.1)
            found.append(await off(ask, pod, at, f"{server.name}.example"))
        own = await off(ask, pod, at, NAME)

        assert [addresses(one) for one in (*found, own)] == [[], ["203.0.113.5"], ["10.96.0.10"]]
        assert (found[0].rcode(), [one.to_text() for one in found[0].options]) == (0, ["EDE 15 (Blocked)"])


async def test_without_a_family_nothing_of_it_is_asked_for(
    network: Network, tmp_path: Path, family: Family, backend: str
) -> None:
    """Section 12, last row: no error in the log."""
    async with DnsNode(network, tmp_path, families=(family,), backend=backend).running() as dns:
        await dns.tell(WEB)
        found = [await off(ask, network["pod1"].namespace, ADDRESSES[family], NAME, tcp=tcp) for tcp in (False, True)]

        assert [addresses(one) for one in found] == [["10.96.0.10"]] * 2
        assert "error" not in dns.process.log.read_text()
        assert dns.tracked() == []
        kept = {"IPv4": "ip", "IPv6": "ip6"}[family]
        tables = {"nftables": ("kepd_dns",), "iptables": ("filter", "raw")}[backend]
        found = sorted(dns.node.run("nft", "list", "tables").splitlines())
        assert found == [f"table {kept} {one}" for one in tables]


async def test_an_element_lives_on_only_if_it_goes_and_comes_again(network: Network) -> None:
    """DNS-23: in one transaction, whether it was there or not."""
    node = network.node.namespace
    table = NamedTable("IPv4", "kepd_dns", command=node.command("nft"), opens=lambda: node.call(open_socket))
    key = [bytes((169, 254, 20, 10))]
    await table.load(table_text(Asking(family="IPv4", addresses=(ADDRESSES["IPv4"],), falls_back=True)))

    def left_s() -> int:
        found = re.search(r"expires (\d+)s", node.run("nft", "list", "set", "ip", "kepd_dns", "live"))
        return int(found[1]) if found is not None else 0

    await table.refresh("live", key, 5)
    short = left_s()
    await table.refresh("live", key, 30)
    long = left_s()
    await table.remove("live", key)
    gone = left_s()
    await table.remove("live", key)
    table.close()

    assert (3 <= short <= 5, 25 <= long <= 30, gone) == (True, True, 0)
