# SPDX-License-Identifier: Apache-2.0
"""Node ports on localhost, with connections of this host to endpoints in pods (SVN-30 to SVN-32)."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from agent.drivers.clock.driver import SystemClock
from agent.model.event import Event
from agent.model.placed import Walk
from agent.model.services.nft_table import Family
from agent.model.services.service import ServiceKey
from agent.services.run.localhost_relay import MOST_OF_PORT, LocalhostRelay
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.nft_view import NftRulesView
from agent.services.run.view import ServicesView
from tests.lab.network import PORT, Network
from tests.node.test_services import NODE_PORT, VIPS, Cluster
from tests.node.test_services_daemon import VIP
from tests.node.test_services_daemon import Node as Daemon
from tests.services.making import make_service, make_slice

pytestmark = [pytest.mark.node, pytest.mark.timeout(180)]

WITHIN_S = 40.0
WEB = ServiceKey("shop", "web")
HERE = {"IPv4": "127.0.0.1", "IPv6": "::1"}
TOLD = {"IPv4": f"127.0.0.1:{NODE_PORT}", "IPv6": f"[::1]:{NODE_PORT}"}
SHORT, TOGETHER = 3000, 100
MEGABYTE = 2**20


@pytest.fixture(params=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


class Node(Cluster):
    """A plane and the relay; all of it has to run in the node's namespace."""

    def __init__(self, family: Family, network: Network) -> None:
        super().__init__(family, network, node_port_addresses=("localhost",))
        self.events: list[Event] = []
        self.relay = LocalhostRelay(self.plane, SystemClock(), self.events.append)
        self.plane.followers.append(self.relay.follow)
        assert isinstance(self.rules, NftRuleset)
        views = {family: NftRulesView(family, self.rules)}
        self.view = ServicesView(self.plane, views, self._no_addresses, beside=[self.relay])

    async def _no_addresses(self) -> tuple[bytes, ...]:
        return ()

    def serve(self, *names: str, port: int = PORT, **spec: Any) -> None:
        ports = [{"name": "http", "protocol": "TCP", "port": 80, "nodePort": NODE_PORT}]
        family = {"ipFamilies": [self.family]}
        spec = {"type": "NodePort", "ports": ports, **family, **spec}
        self.intake.put_service(make_service("web", ip=VIPS[self.family], **spec))
        pieces = [{"name": "http", "protocol": "TCP", "port": port}]
        self.intake.put_slice(
            make_slice([self.network[one].address(self.family) for one in names], ports=pieces, family=self.family)
        )

    async def sync(self) -> None:
        await self.plane.families[self.family].sync()

    async def opened(self) -> None:
        await self.sync()
        async with asyncio.timeout(WITHIN_S):
            while not list(self.relay.rows(is_standing=True)):
                await asyncio.sleep(0.01)

    async def ask(self) -> str:
        """Who answers one connection; "reset" where nobody does."""
        writer = None
        try:
            reader, writer = await asyncio.open_connection(HERE[self.family], NODE_PORT)
            return (await reader.readline()).decode().partition(" ")[0] or "closed"
        except ConnectionResetError:
            return "reset"
        except ConnectionRefusedError:
            return "refused"
        finally:
            if writer is not None:
                writer.close()

    async def ask_often(self, count: int) -> Counter[str]:
        return Counter(await asyncio.gather(*(self.ask() for _ in range(count))))


@asynccontextmanager
async def running(family: Family, network: Network) -> AsyncIterator[Node]:
    node = Node(family, network)
    for one in ("services", "slices"):
        node.intake.complete(one)
    task = asyncio.create_task(node.relay.run())
    try:
        yield node
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await node.table.close()
        await node.conntrack.close()


def inside(network: Network, work: Callable[[], Coroutine[None, None, None]]) -> None:
    network.clear()
    network.node.caller.run(lambda: asyncio.run(asyncio.wait_for(work(), 90.0)), 170.0)  # others need its only thread


def test_it_answers_without_any_rule_for_it(network: Network, family: Family) -> None:
    """SVN-30: no `route_localnet`, no element; `explain`, `trace`, `rules` and `diff` know it."""

    async def work() -> None:
        async with running(family, network) as node:
            node.serve("pod1", "far1")
            await node.opened()
            found = await node.ask_often(60)
            assert set(found) == {"pod1", "far1"}

            space = network.node.namespace
            assert "127.0.0.1" not in await asyncio.to_thread(space.run, "nft", "list", "table", ip_of(family), "kepd")
            assert (await asyncio.to_thread(space.run, "sysctl", "-n", "net.ipv4.conf.all.route_localnet")) == "0\n"
            lines = node.view.route(WEB)
            expected = f"  localhost {TOLD[family]}, relayed by kepd, policy Cluster, source address the node's"
            assert expected in lines
            assert not any("answers on no address" in one for one in lines)
            for in_kernel in (False, True):
                told = await node.view.trace(HERE[family], HERE[family], "TCP", NODE_PORT, in_kernel=in_kernel)
                assert (told.verdict, told.service, len(told.targets)) == ("relay", str(WEB), 2)
            for walk in (node.view.desired_rules(WEB), node.view.rules(WEB)):
                assert ("localhost", TOLD[family], "relay") in [
                    (one.map, one.key, one.data) for one in await all_of(walk)
                ]
            assert await all_of(node.view.differences()) == []

    inside(network, work)


def ip_of(family: Family) -> str:
    return "ip" if family == "IPv4" else "ip6"


async def all_of(walk: Walk[Any]) -> list[Any]:
    return [one async for _, one in walk]


def test_who_comes_back_gets_the_same_endpoint(network: Network, family: Family) -> None:
    """SVN-31."""

    async def work() -> None:
        async with running(family, network) as node:
            node.serve("pod1", "pod2", "far1", sessionAffinity="ClientIP")
            await node.opened()
            first = await node.ask()
            assert await node.ask_often(30) == {first: 30}

    inside(network, work)


def test_a_direction_may_end_before_the_other(network: Network, family: Family) -> None:
    """SVN-31: what is sent after the client's end arrives whole, and so does the client's part before it."""

    async def work() -> None:
        async with running(family, network) as node:
            port = PORT + 1
            kind = socket.AF_INET if family == "IPv4" else socket.AF_INET6
            address = network["pod1"].address(family)
            listener = network["pod1"].namespace.call(lambda: socket.create_server((address, port), family=kind))
            seen: asyncio.Queue[int] = asyncio.Queue()

            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                seen.put_nowait(len(await reader.read(-1)))
                writer.write(b"x" * 3 * MEGABYTE)
                await writer.drain()
                writer.close()

            server = await asyncio.start_server(answer, sock=listener)
            node.serve("pod1", port=port)
            await node.opened()
            reader, writer = await asyncio.open_connection(HERE[family], NODE_PORT)
            writer.write(b"y" * 2 * MEGABYTE)
            writer.write_eof()
            async with asyncio.timeout(WITHIN_S):
                assert len(await reader.read(-1)) == 3 * MEGABYTE
                assert await seen.get() == 2 * MEGABYTE
            writer.close()
            server.close()

    inside(network, work)


def test_thousands_of_short_connections_while_endpoints_change(network: Network, family: Family) -> None:
    """SVN-31, SVN-32: none is lost, and none goes to an endpoint after the sync that took it out."""

    async def work() -> None:
        async with running(family, network) as node:
            node.serve("pod1", "pod2")
            await node.opened()
            replies: Counter[str] = Counter()
            after: Counter[str] = Counter()
            for number in range(SHORT // TOGETHER):
                if number == SHORT // TOGETHER // 2:
                    node.serve("pod1", "far1")
                    asking = asyncio.create_task(node.ask_often(TOGETHER))
                    await node.sync()
                    replies += await asking
                else:
                    found = await node.ask_often(TOGETHER)
                    replies += found
                    after += found if number > SHORT // TOGETHER // 2 else Counter()
            assert replies.total() == SHORT
            assert set(replies) == {"pod1", "pod2", "far1"}
            assert set(after) == {"pod1", "far1"}

    inside(network, work)


def test_a_taken_port_is_told_and_tried_again(network: Network, family: Family) -> None:
    """SVN-32."""

    async def work() -> None:
        kind = socket.AF_INET if family == "IPv4" else socket.AF_INET6
        async with running(family, network) as node:
            with closing(socket.create_server((HERE[family], NODE_PORT), family=kind)):
                node.serve("pod1")
                await node.sync()
                await until(lambda: bool(node.events))
                assert [one.reason for one in node.events] == ["LocalhostPortTaken"]
                (finding,) = node.view.service(WEB).findings
                assert f"node port on {TOLD[family]} cannot be listened on: Address already in use" in finding
                told = await node.view.trace(HERE[family], HERE[family], "TCP", NODE_PORT, in_kernel=True)
                assert told.verdict == "pass"
                (change,) = await all_of(node.view.differences())
                assert (change.map, change.desired, change.actual) == ("localhost", "relay", "")
                await node.sync()
            await node.opened()
            assert await node.ask() == "pod1"
            assert node.view.service(WEB).findings == ()
            assert len(node.events) == 1

    inside(network, work)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.01)


def test_without_endpoints_a_connection_is_reset(network: Network, family: Family) -> None:
    """SVN-31: also where all of three refuse; a Service that goes takes its listener along."""

    async def work() -> None:
        async with running(family, network) as node:
            node.serve()
            await node.opened()
            assert await node.ask() == "reset"
            node.serve("pod1", "pod2", "far1", port=9)
            await node.sync()
            assert await node.ask() == "reset"
            assert node.relay.counts.unserved == 2

            node.intake.drop_service(*WEB)
            await node.sync()
            await until(lambda: "0 ports" in repr(node.relay))
            assert await node.ask() == "refused"

    inside(network, work)


def test_one_too_many_is_reset_and_counted(network: Network, family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """SVN-32: a port has a share, so that no user of this node takes it from the others; an idle one goes first."""

    async def work() -> None:
        async with running(family, network) as node:
            node.serve("pod1")
            await node.opened()
            held = [await asyncio.open_connection(HERE[family], NODE_PORT) for _ in range(MOST_OF_PORT)]
            await asyncio.gather(*(reader.readline() for reader, _ in held))
            assert await node.ask() == "reset"
            assert node.relay.counts.crowded == 1
            assert f"had more than {MOST_OF_PORT} connections" in "".join(node.relay.findings(ServiceKey(*WEB)))
            monkeypatch.setattr("agent.services.run.localhost_relay.IDLE_S", 0.0)
            assert await node.ask() == "pod1"
            assert await held[0][0].read() == b""
            for _, writer in held:
                writer.close()
            await until(lambda: "0 connections" in repr(node.relay))
            assert await node.ask() == "pod1"

    inside(network, work)


def test_other_protocols_are_found_out_and_told(network: Network, family: Family) -> None:
    """SVN-30."""

    async def work() -> None:
        async with running(family, network) as node:
            port = {"name": "dns", "protocol": "UDP", "port": 53, "nodePort": NODE_PORT}
            node.serve("pod1", ports=[port])
            await node.sync()
            (finding,) = node.view.service(WEB).findings
            assert finding.endswith(f"does not answer on {HERE[family]}: only TCP is relayed there")
            assert list(node.relay.rows(is_standing=False)) == []

    inside(network, work)


def test_the_commands_know_it(network: Network, short_path: Path) -> None:
    """SVN-30, SVN-40: `explain route`, `trace`, `rules` and `diff` of a whole kepd, and a connection by 127.0.0.1."""
    network.clear()
    node = Daemon(network, short_path)
    text = node.kepd.config.read_text()
    node.kepd.config.write_text(text.replace("services: {", "services: {nodePortAddresses: [primary, localhost], ", 1))
    with node.kepd:
        ports = [{"name": "http", "port": 80, "nodePort": NODE_PORT}]
        node.put("pod1", "pod2", type="NodePort", ports=ports)
        document = (node.kepd.manifests / "web.json").read_text()
        hashed = document.replace(
            '"name": "web", ', '"name": "web", "annotations": {"kepd.dev/balance": "maglev"}, ', 1
        )
        (node.kepd.manifests / "web.json").write_text(hashed)
        node.start()
        node.wait_used("pod1", "pod2")
        target = f"127.0.0.1:{NODE_PORT}"
        node.kepd.wait(lambda: target in node.kepd.ctl("rules").stdout, "a listener")
        told = node.kepd.ctl("explain", "route", "shop/web").stdout
        traced = [node.kepd.ctl("trace", "--from", "127.0.0.1", "--to", target, *more) for more in ((), ("--kernel",))]
        hashes = node.kepd.ctl("trace", "--from", network["pod3"].v4, "--to", f"{VIP}:80")
        reply = network.node.caller.connect("127.0.0.1", NODE_PORT, source="127.0.0.1")
        differences = node.kepd.ctl("diff")

    assert f"localhost {target}, relayed by kepd" in told
    assert "251 slots" in told
    assert [(one.returncode, "=> service/shop/web: relay to one of" in one.stdout) for one in traced] == [(0, True)] * 2
    assert "by a hash of addresses and ports" in hashes.stdout
    assert (reply.outcome, reply.server in ("pod1", "pod2")) == ("answered", True)
    assert (differences.returncode, differences.stdout) == (0, "")
