# SPDX-License-Identifier: Apache-2.0
"""kepd-dns beside a cluster: its DNS is asked by its endpoints, and takes over where kepd-dns does not answer."""

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dns.message import make_query

from agent.host.joints.dns_services import upstreams_of
from agent.model.services.nft_table import Family
from agent.model.services.service import ServiceKey
from agent.services.objects.addresses import read_address
from kepd_dns.handover.state import Upstream
from packages.dns.tests.dns_servers import HALF, ScriptedDns, Stream, addresses, answered, ask, ordinary, stream
from packages.dns.tests.node.dns_node import ADDRESSES, DnsNode
from tests.lab.namespace import Namespace
from tests.lab.network import Network
from tests.node.test_services import Cluster
from tests.services.making import make_service, make_slice

pytestmark = pytest.mark.node

KEY = ServiceKey("kube-system", "kube-dns")
VIPS: dict[Family, str] = {"IPv4": "10.96.0.53", "IPv6": "fd00:96::53"}
NAME = "web.default.svc.cluster.local"
PORTS = ({"name": "dns", "protocol": "UDP", "port": 53}, {"name": "dns-tcp", "protocol": "TCP", "port": 53})
KIND: dict[Family, str] = {"IPv4": "A", "IPv6": "A"}
FEW = 16
# What the cluster's DNS says by itself, and what the cache got from it.
ITS, OURS = "192.0.2.1", "192.0.2.1"


@pytest.fixture(params=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=["nftables", "iptables-nft"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


async def off(work: Any, *arguments: Any, **more: Any) -> Any:
    return await asyncio.to_thread(partial(work, *arguments, **more))


class Beside:
    """The cluster's rules for its DNS Service, and kepd-dns in front of it."""

    def __init__(self, network: Network, directory: Path, family: Family, backend: str, *, held: bool) -> None:
        self.cluster = Cluster(family, network, backend)
        self.family, self.network = family, network
        own = read_address(ADDRESSES[family])
        assert own is not None
        self.cluster.intake.set_aliases(KEY, [own])
        self.dns = DnsNode(
            network, directory, is_cluster=True, held=held, families=(family,),
            backend=backend.removesuffix("-nft"), stale_s=2.0,
        )  # fmt: skip
        self.cluster.plane.followers.append(self._follow)

    def _follow(self, *_: Any) -> None:
        if self.dns.writer.set_upstreams(upstreams_of(self.cluster.plane.families, KEY, is_intercepted=False)):
            self.dns.plane.state_changed()

    async def scale(self, *places: str | dict[str, Any]) -> None:
        found = []
        for one in places:
            fields = {"ip": one} if isinstance(one, str) else dict(one)
            found.append({**fields, "ip": self.network[fields["ip"]].address(self.family)})
        self.cluster.intake.put_slice(
            make_slice(found, service=KEY.name, namespace=KEY.namespace, family=self.family, ports=PORTS)
        )
        self.cluster.intake.complete("services")
        self.cluster.intake.complete("slices")
        await self.cluster.settled()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Beside"]:
        self.cluster.intake.put_service(
            make_service(KEY.name, namespace=KEY.namespace, ip=VIPS[self.family], ports=PORTS)
        )
        task = asyncio.create_task(self.cluster.run())
        try:
            await self.scale("far1")
            async with self.dns.running():
                yield self
        finally:
            task.cancel()
            await asyncio.wait([task])
            await self.cluster.table.close()
            await self.cluster.conntrack.close()

    def server(self, place: str = "far1", says: str = ITS) -> ScriptedDns:
        return ScriptedDns(self.network[place].address(self.family), says, self.network[place].namespace)

    async def ask(self, name: str = NAME, **more: Any) -> Any:
        return await off(ask, self.network["pod1"].namespace, ADDRESSES[self.family], name, **more)

    @property
    def address(self) -> str:
        return ADDRESSES[self.family]


async def test_its_endpoints_are_asked_by_two_connections_at_most(
    network: Network, tmp_path: Path, family: Family, backend: str
) -> None:
    """DNS-20, DNS-41, DNS-42: by TCP, whatever the client used; nothing of it is in connection tracking for port 53 of
    ours, and the cluster's names are asked of nobody else."""
    beside = Beside(network, tmp_path, family, backend, held=True)
    async with beside.server() as server, beside.running():
        network.node.namespace.run("conntrack", "-F")
        for number in range(50):
            found = await beside.ask(f"n{number}.{NAME}", tcp=number % 2 == 1)
            assert addresses(found) == [ITS]

        assert {way for _, way in server.asked} == {"tcp"}
        assert server.connections <= 2
        assert beside.dns.tracked() == []


async def test_the_clusters_dns_answers_when_the_process_is_gone(
    network: Network, tmp_path: Path, family: Family, backend: str
) -> None:
    """DNS-21, DNS-22: no socket, no match: from the next packet on; and back when there is one. What lies unread in a
    socket goes with it, so the end comes at a moment when that is little; and each process begins with what an earlier
    one stored, for no more than 256 questions wait for one name (DNS-15, DNS-57)."""
    beside = Beside(network, tmp_path, family, backend, held=False)
    found = Stream()
    async with beside.server(), beside.running():
        assert addresses(await beside.ask()) == [ITS]
        await off(beside.dns.process.end, signal.SIGTERM)
        beside.dns.process.start()
        await beside.dns.tell()
        ask_many = partial(stream, count=6000, rate=2000, linger_s=2.0, found=found)
        asking = asyncio.create_task(off(ask_many, network["pod1"].namespace, beside.address, NAME))
        await asyncio.sleep(1.0)
        while found.lost > FEW:
            await asyncio.sleep(0)
        beside.dns.process.send(signal.SIGKILL)
        await off(beside.dns.process.end)
        await asyncio.sleep(1.0)
        beside.dns.process.start()
        await asking

        assert found.lost <= 64
        assert set(found.who.values()) == {"c0000201"}


async def test_a_process_that_hangs_is_left_within_a_second(
    network: Network, tmp_path: Path, family: Family, backend: str
) -> None:
    """DNS-22, DNS-24: its sockets are there, so the probe decides; it comes back by itself, and answers nothing twice
    with other data."""
    beside = Beside(network, tmp_path, family, backend, held=True)
    async with beside.server(), beside.running():
        assert addresses(await beside.ask()) == [ITS]
        took_s = []
        # Where the machine has much else to do one of them may take longer.
        for _ in range(3):
            beside.dns.process.send(signal.SIGSTOP)
            left_s = await beside.dns.until_live(is_live=False)
            meanwhile = [await beside.ask(f"m{number}.{NAME}", tcp=number % 2 == 1) for number in range(4)]
            beside.dns.process.send(signal.SIGCONT)
            took_s.append((left_s, await beside.dns.until_live()))
            assert [addresses(one) for one in meanwhile] == [[ITS]] * 4
            assert addresses(await beside.ask()) == [ITS]
            if took_s[-1][0] <= 1.0 and took_s[-1][1] <= 2.0:
                break
        told = [one for one in beside.dns.reasons() if one.startswith("Dns")]

        assert took_s[-1][0] <= 1.0, took_s
        assert took_s[-1][1] <= 2.0, took_s
        assert told == ["DnsFallback", "DnsRecovered"] * len(took_s)


async def test_servers_follow_endpoints_and_hints(
    network: Network, tmp_path: Path, family: Family, backend: str
) -> None:
    """DNS-41: scaled to another node within a second; hints choose the near one, whatever way the client came."""
    beside = Beside(network, tmp_path, family, backend, held=True)
    async with beside.server() as one, beside.server("pod2", "192.0.2.2") as two, beside.running():
        assert addresses(await beside.ask()) == ["192.0.2.1"]
        await beside.scale("pod2")
        await asyncio.sleep(0.5)
        assert addresses(await beside.ask(f"b.{NAME}")) == ["192.0.2.2"]
        near = {"forNodes": [{"name": "node"}]}
        far = {"forNodes": [{"name": "remote"}]}
        await beside.scale({"ip": "far1", "hints": far}, {"ip": "pod2", "hints": near})
        await asyncio.sleep(0.5)
        asked = len(one.asked)
        for number in range(10):
            assert addresses(await beside.ask(f"c{number}.{NAME}", tcp=number % 2 == 1)) == ["192.0.2.2"]
        assert len(one.asked) == asked
        assert len(two.asked) >= 11
        assert beside.dns.writer.upstreams == (Upstream(network["pod2"].address(family), 53, "PreferSameNode"),)
        assert beside.dns.tracked() == []


async def test_without_endpoints_the_outside_goes_on(
    network: Network, tmp_path: Path, family: Family, backend: str
) -> None:
    """DNS-41, DNS-55: what is known is given on for a while, then SERVFAIL; never the node's resolvers."""
    beside = Beside(network, tmp_path, family, backend, held=True)
    async with (
        beside.server(),
        ScriptedDns(network["far2"].address(family), "203.0.113.5", network["remote"].namespace) as outside,
        beside.running(),
    ):
        (tmp_path / "resolv.conf").write_text(f"nameserver {network['far2'].address(family)}\n")
        await asyncio.sleep(1.1)
        fresh = await beside.ask()
        beside.dns.writer.set_upstreams(())
        beside.dns.plane.state_changed()
        await asyncio.sleep(0.3)
        known = await beside.ask()
        new = await beside.ask(f"new.{NAME}", within_s=5.0)
        out = await beside.ask("host.example")

        assert [addresses(one) for one in (fresh, known, out)] == [[ITS], [ITS], ["203.0.113.5"]]
        assert new.rcode() == 2
        assert not any("cluster.local" in name for name, _ in outside.asked)


async def test_the_end_of_the_daemon_and_of_both_leaves_names(
    network: Network, tmp_path: Path, family: Family, backend: str
) -> None:
    """DNS-22, DNS-26, DNS-30: the process answers on while nobody looks after it; without it the cluster's DNS does,
    with the rules as the daemon left them, and by TCP as well."""
    beside = Beside(network, tmp_path, family, backend, held=False)
    async with beside.server(), beside.running():
        assert addresses(await beside.ask()) == [ITS]
        await beside.dns.stop_plane()
        alone = [await beside.ask(f"a{number}.{NAME}", tcp=number % 2 == 1) for number in range(4)]
        with closing(await off(connected, network["pod1"].namespace, beside.address)) as opened:
            await off(beside.dns.process.end)
            ended = await off(rest_of, opened)
        both = [await beside.ask(f"b{number}.{NAME}", tcp=number % 2 == 1) for number in range(4)]

        assert [addresses(one) for one in (*alone, *both)] == [[ITS]] * 8
        assert ended == b""


def connected(namespace: Namespace, address: str) -> socket.socket:
    """A client that has asked nothing yet."""
    opened = namespace.call(lambda: socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET))
    opened.settimeout(5.0)
    opened.connect((address, 53))
    return opened


def rest_of(opened: socket.socket) -> bytes:
    """What still comes. A reset is an end too: a connection that nobody had accepted ends so."""
    try:
        return opened.recv(1)
    except ConnectionResetError:
        return b""


def silent(_server: ScriptedDns, _data: bytes, _way: str) -> Iterable[bytes]:
    return ()


def cut(_server: ScriptedDns, data: bytes, _way: str) -> Iterable[bytes]:
    text = answered(data, BAD)
    return (text[:2] + bytes((text[2] | 2,)) + text[3:],)


def other_id(_server: ScriptedDns, data: bytes, _way: str) -> Iterable[bytes]:
    text = answered(data, BAD)
    return [bytes((text[0] ^ number, text[1])) + text[2:] for number in range(1, 12)]


def other_question(_server: ScriptedDns, data: bytes, _way: str) -> Iterable[bytes]:
    return (data[:2] + answered(make_query("bank.example").to_wire(), BAD)[2:],)


def looping(_server: ScriptedDns, data: bytes, _way: str) -> Iterable[bytes]:
    text = answered(data, BAD)
    at = text.index(b"\xc0\x0c")
    return (text[:at] + bytes((0xC0, at)) + text[at + 2 :],)


def _plain(data: bytes) -> bytes:
    """The question without options."""
    end = data.index(0, 12) + 5
    return data[:10] + b"\0\0" + data[12:end]


def huge(_server: ScriptedDns, data: bytes, _way: str) -> Iterable[bytes]:
    """4 000 records."""
    text = answered(_plain(data), BAD)
    return (text[:6] + (4000).to_bytes(2, "big") + text[8:-16] + 4000 * text[-16:],)


def resetting(_server: ScriptedDns, _data: bytes, way: str) -> Iterable[bytes]:
    return (HALF,) if way == "tcp" else ()


BAD, GOOD = "192.0.2.66", "192.0.2.2"
MISDEEDS = {"drops": silent, "is late": ordinary, "cuts": cut, "other id": other_id, "other question": other_question,
            "loops": looping, "sends 64 KiB": huge, "resets": resetting}  # fmt: skip


@pytest.mark.parametrize("deed", MISDEEDS)
async def test_a_server_that_misbehaves_is_not_believed(network: Network, tmp_path: Path, deed: str) -> None:
    """DNS-43, DNS-44, DNS-91, DNS-92, DNS-95: with real packets, by TCP of the cluster and by UDP of the node; another
    server has the answer, to clients of both ways. Rules of the cluster are met in turns: they see no answer."""
    backend = ("nftables", "iptables-nft")[list(MISDEEDS).index(deed) % 2]
    family: Family = "IPv6" if list(MISDEEDS).index(deed) % 4 > 1 else "IPv4"
    beside = Beside(network, tmp_path, family, backend, held=True)
    place, bad, good = network["remote"].namespace, network["far1"].address(family), network["far2"].address(family)
    late_s = 3.0 if deed == "is late" else 0.0
    async with (
        ScriptedDns(bad, BAD, place, answers=MISDEEDS[deed], delay_s=late_s) as lying,
        ScriptedDns(good, GOOD, place),
        beside.running(),
    ):
        await beside.scale("far1", "far2")
        (tmp_path / "resolv.conf").write_text(f"nameserver {bad}\nnameserver {good}\n")
        await asyncio.sleep(1.1)
        names = [f"m{number}.{zone}" for number in range(4) for zone in (NAME, "example")]
        found = [addresses(await beside.ask(one, tcp=at % 4 > 1, within_s=5.0)) for at, one in enumerate(names)]

        assert found == [[GOOD]] * len(names)
        assert {way for _, way in lying.asked} == {"tcp", "udp"}
        assert beside.dns.tracked() == []


async def test_a_server_that_hangs_costs_less_than_a_second(network: Network, tmp_path: Path, backend: str) -> None:
    """DNS-43, DNS-44, DNS-95: by UDP of the node and by TCP of the cluster; another is asked beside it."""

    beside = Beside(network, tmp_path, "IPv4", backend, held=True)
    place = network["remote"].namespace
    async with (
        ScriptedDns(network["far1"].v4, "", place, answers=silent) as hanging,
        beside.server("far2", "192.0.2.2"),
        beside.running(),
    ):
        await beside.scale("far1", "far2")
        (tmp_path / "resolv.conf").write_text(f"nameserver {network['far1'].v4}\nnameserver {network['far2'].v4}\n")
        await asyncio.sleep(1.1)
        longest_s = 0.0
        for number in range(10):
            for name in (f"h{number}.{NAME}", f"h{number}.example"):
                begun_s = time.monotonic()
                assert addresses(await beside.ask(name, within_s=5.0)) == ["192.0.2.2"]
                longest_s = max(longest_s, time.monotonic() - begun_s)

        assert {way for _, way in hanging.asked} == {"udp", "tcp"}
        assert longest_s <= 1.0
        print(f"longest {longest_s:.3f} s")
