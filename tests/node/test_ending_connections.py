# SPDX-License-Identifier: Apache-2.0
"""SVN-1 to SVN-7 with real packets: what a client sees whose endpoint is gone, in a pod and on the node, both families.

Draining is untouched, a reader on the node hears of it at once, and a kill between commit and end loses nothing.
"""

import asyncio
import json
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from agent.drivers.clock.driver import SystemClock
from agent.drivers.host_sockets.driver import HostSockets, open_diag_socket
from agent.model.services.nft_table import Family
from agent.model.services.service import ServiceKey
from agent.services.run.connection_ender import ConnectionEnder, EndingSettings
from tests.lab.network import PORT, Network
from tests.node.test_services import BACKENDS, Cluster, off_loop, require_legacy, served
from tests.node.test_services_daemon import VIP, Node

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

NOTE = {"annotations": {"kepd.dev/terminate-established": "on-endpoint-removal"}}
MANY, MANY_PORTS = 50_000, 10
SOON_S, SILENT_S, READING_S = 1.0, 1.0, 30.0


class EndingCluster(Cluster):
    def __init__(self, family: Family, network: Network, backend: str) -> None:
        super().__init__(family, network, backend)
        node = network.node

        async def addresses() -> Iterable[bytes]:
            return [ip_address(one).packed for one in (node.v4, node.v6)]

        self.ender = ConnectionEnder(
            self.plane, self.conntrack, HostSockets(opens=lambda: node.namespace.call(open_diag_socket)), SystemClock(),
            settings=lambda: EndingSettings(most_per_min=1_000_000), addresses=addresses,
        )  # fmt: skip
        self.plane.followers.append(self.ender.follow)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.ender.run())
            group.create_task(super().run())

    async def ended(self, count: int = 1) -> None:
        async with asyncio.timeout(30):
            while self.plane.measures.ended[self.family, "entry"] < count:
                await asyncio.sleep(0.002)


@pytest.fixture(params=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=BACKENDS)
async def cluster(network: Network, family: Family, request: pytest.FixtureRequest) -> AsyncIterator[EndingCluster]:
    """With each backend: what is ended is in connection tracking, which knows none of them."""
    if request.param == "iptables-legacy":
        require_legacy()
    async with served(EndingCluster(family, network, request.param), network) as made:
        yield made
    network.node.namespace.set("net.netfilter.nf_conntrack_tcp_loose", 1)


def hold(cluster: EndingCluster, place: str, port: int = 80) -> socket.socket:
    """A connection whose greeting was read."""
    made = cluster.network[place].caller.hold(cluster.vip, port)
    made.settimeout(5.0)
    made.recv(200)
    return made


def outcome_of_sending(connection: socket.socket) -> str:
    """What a client sees that sends once more and then waits."""
    connection.settimeout(SILENT_S)
    try:
        connection.send(b"more")
        return "closed" if connection.recv(200) == b"" else "answered"
    except ConnectionResetError:
        return "reset"
    except ConnectionAbortedError:
        return "aborted"
    except TimeoutError:
        return "silence"


@pytest.mark.parametrize("left", [("pod2",), ()], ids=["others", "none"])
async def test_a_pod_that_sends_once_more_gets_a_reset(cluster: EndingCluster, left: tuple[str, ...]) -> None:
    """SVN-2: from another endpoint, or by the rule for Services that have none."""
    await cluster.put("pod1", meta=NOTE)
    with closing(hold(cluster, "pod3")) as connection:
        await cluster.set_endpoints(*left)
        await cluster.ended()
        began_s = time.monotonic()
        outcome = await off_loop(lambda: outcome_of_sending(connection))
        took_s = time.monotonic() - began_s

    print(f"{cluster.family} {cluster.backend}: {outcome} after {1000 * took_s:.1f} ms")
    assert outcome == "reset"
    assert took_s < SOON_S


async def test_a_service_that_is_deleted_keeps_its_connections(cluster: EndingCluster) -> None:
    """SVN-5: its endpoints live, and no rule would answer with a reset."""
    await cluster.put("pod1", meta=NOTE)
    with closing(hold(cluster, "pod3")) as connection:
        cluster.intake.drop_service("shop", "web")
        async with asyncio.timeout(30):
            while len(cluster.plane.families[cluster.family].rules):
                await asyncio.sleep(0.01)
        outcome = await off_loop(lambda: outcome_of_sending(connection))

    assert outcome == "answered"


async def test_a_reader_on_the_node_is_told_at_once(cluster: EndingCluster) -> None:
    """SVN-3: its socket is ended, and that of another connection is not."""
    await cluster.put("pod1", "pod2", meta=NOTE)
    held: list[socket.socket] = []
    gone = cluster.address("pod1")

    def reading(connection: socket.socket) -> str:
        connection.settimeout(READING_S)
        try:
            return "data" if connection.recv(200) else "silence"
        except ConnectionAbortedError:
            return "aborted"

    try:
        doomed: set[str] = set()
        # An endpoint is drawn for each, so a dozen may all have the same.
        while not 0 < len(doomed) < len(held):
            assert len(held) < 60
            held += [hold(cluster, "node") for _ in range(12)]
            listed = await cluster.ender.end_connections(ServiceKey("shop", "web"), _address(gone), PORT, dry_run=True)
            doomed = {one.client for one in listed.connections}
        clients = [_text(one) for one in held]
        with ThreadPoolExecutor(len(held)) as readers:
            waiting = [asyncio.get_running_loop().run_in_executor(readers, reading, one) for one in held]
            await cluster.set_endpoints("pod2")
            await cluster.ended(len(doomed))
            # Who is not told by now is not meant: its reading is ended from here.
            for one in held:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RD)
            outcomes = await asyncio.gather(*waiting)
    finally:
        for one in held:
            one.close()

    assert [outcome == "aborted" for outcome in outcomes] == [client in doomed for client in clients]
    assert set(outcomes) == {"aborted", "silence"}
    assert cluster.plane.measures.ended[cluster.family, "socket"] == len(doomed)


def _address(text: str) -> Any:
    from agent.services.objects.addresses import read_address

    return read_address(text)


def _text(connection: socket.socket) -> str:
    host, port = connection.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def test_draining_and_services_without_the_annotation_are_untouched(cluster: EndingCluster) -> None:
    """SVN-1: the old endpoint still answers, as upstream has it."""
    leaving = {"ip": "pod1", "conditions": {"ready": False, "serving": True, "terminating": True}}
    await cluster.put("pod1", meta=NOTE)
    with closing(hold(cluster, "pod3")) as draining:
        await cluster.set_endpoints(leaving, "pod2")
        await asyncio.sleep(0.3)
        assert await off_loop(lambda: outcome_of_sending(draining)) != "reset"
    await cluster.put("pod1")
    with closing(hold(cluster, "pod3")) as plain:
        await cluster.set_endpoints("pod2")
        await asyncio.sleep(0.3)
        assert await off_loop(lambda: outcome_of_sending(plain)) != "reset"

    assert cluster.plane.measures.ended.total() == 0


async def test_where_it_would_hang_nothing_is_ended(cluster: EndingCluster) -> None:
    """SVN-4."""
    cluster.network.node.namespace.set("net.netfilter.nf_conntrack_tcp_loose", 0)
    flows = cluster.ender._flows

    async def loose() -> bool:
        path = Path("/proc/thread-self/net")  # the sysctl is of the caller's namespace; the driver reads its own
        return await off_loop(
            lambda: (
                cluster.network.node.namespace.run("sysctl", "-n", "net.netfilter.nf_conntrack_tcp_loose").strip()
                != "0"
                and bool(path)
            )
        )

    flows.follows_midstream = loose  # type: ignore[method-assign]
    await cluster.put("pod1", meta=NOTE)
    with closing(hold(cluster, "pod3")) as connection:
        await cluster.set_endpoints("pod2")
        await cluster.until(lambda: bool(cluster.ender.refusal))
        assert await off_loop(lambda: outcome_of_sending(connection)) != "reset"


async def test_fifty_thousand_entries_hold_up_no_sync(network: Network, family: Family) -> None:
    """SVN-2: in pieces, so that others have their turn between them; how late they are is printed."""
    cluster = EndingCluster(family, network, "nftables")
    running = asyncio.ensure_future(cluster.run())  # noqa: RUF100
    try:
        ports = [{"name": f"p{number}", "port": 80 + number} for number in range(MANY_PORTS)]
        await cluster.put("pod1", meta=NOTE, ports=ports)
        space = network.node.namespace
        source = "203.0.113." if family == "IPv4" else "fd00:77::"
        text = "".join(
            f"-I -p tcp -s {source}{number // 250 % 250 + 1} -d {cluster.vip} -r {cluster.address('pod1')}"
            f" -q {source}{number // 250 % 250 + 1} --sport {1024 + number} --dport {80 + number % MANY_PORTS}"
            f" --reply-port-src {PORT} --reply-port-dst {1024 + number} --state ESTABLISHED -t 600 -u SEEN_REPLY\n"
            for number in range(MANY)
        )
        await off_loop(lambda: space.run("conntrack", "--load-file", "-", text=text))
        late: list[float] = []

        async def ticking() -> None:
            while True:
                began_s = time.monotonic()
                await asyncio.sleep(0.005)
                late.append(time.monotonic() - began_s - 0.005)

        ticks = asyncio.ensure_future(ticking())  # noqa: RUF100
        began_s = time.monotonic()
        await cluster.set_endpoints("pod2", ports=ports)
        async with asyncio.timeout(60):
            while cluster.plane.measures.ended[family, "entry"] < MANY:
                await asyncio.sleep(0.01)
        took_s = time.monotonic() - began_s
        ticks.cancel()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await cluster.table.close()
        await cluster.conntrack.close()

    print(f"{family}: {MANY} entries in {took_s:.1f} s; the loop was at most {1000 * max(late):.0f} ms late")
    # How late says nothing on a machine that has other work; one that did it in one go would be late by all of it.
    assert max(late) < took_s / 3


@pytest.mark.parametrize("backend", ["nftables", "iptables"])
def test_a_process_killed_after_the_commit_leaves_the_rest_to_the_next(
    network: Network, short_path: Path, backend: str
) -> None:
    """SVN-5: it is killed the moment the new rules answer, again and again; the next one ends what is left."""
    node = Node(network, short_path, backend=backend)
    with node.kepd:
        spec = {"metadata_annotations": NOTE["annotations"]}
        _put(node, "pod1", "pod2", **spec)
        node.start()
        node.wait_used("pod1", "pod2")
        for _ in range(2):
            held, servers = _held(network, 8, "pod1")
            killed = threading.Thread(target=_kill_at_commit, args=(node,))
            killed.start()
            _put(node, "pod2", **spec)
            killed.join()
            node.start()
            doomed = [one for one, server in zip(held, servers, strict=True) if server == "pod1"]
            node.kepd.wait(lambda all_=doomed: all(map(_is_reset, all_)), "every connection reset", 15.0)
            for one in held:
                one.close()
            _put(node, "pod1", "pod2", **spec)
            node.wait_used("pod1", "pod2")


def _held(network: Network, least: int, server: str) -> tuple[list[socket.socket], list[str]]:
    """Connections and who answers them; as many as it takes, since chance decides who does."""
    held: list[socket.socket] = []
    servers: list[str] = []
    while len(held) < least or server not in servers:
        assert len(held) < 64, f"{server} answers none of {len(held)} connections"
        held.append(network["pod3"].caller.hold(VIP, 80))
        servers.append(held[-1].recv(200).decode().split()[0])
    return held, servers


def _kill_at_commit(node: Node) -> None:
    before = node.kepd.log.read_text().count("service_sync_finished")
    until_s = time.monotonic() + 10.0
    while node.kepd.log.read_text().count("service_sync_finished") <= before and time.monotonic() < until_s:
        time.sleep(0.0005)
    node.kepd.end(signal.SIGKILL)


def _is_reset(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        connection.send(b"?")
        connection.recv(200)
    except (ConnectionResetError, BrokenPipeError):
        return True
    except TimeoutError:
        return False
    return False


def _put(node: Node, *names: str, metadata_annotations: dict[str, str]) -> None:
    """As Node.put, with annotations on the Service."""
    node.put(*names)
    path = node.kepd.manifests / "web.json"
    found = json.loads(path.read_text())
    found["items"][0]["metadata"]["annotations"] = metadata_annotations
    draft = node.kepd.manifests / ".web.json"
    draft.write_text(json.dumps(found))
    draft.rename(path)


@pytest.mark.parametrize("backend", ["nftables"])
def test_the_command(network: Network, short_path: Path, backend: str) -> None:
    """SVN-7: a Service without the annotation, by hand."""
    node = Node(network, short_path, backend=backend)
    with node.kepd:
        node.put("pod1", "pod2")
        node.start()
        node.wait_used("pod1", "pod2")
        held, servers = _held(network, 8, "pod1")
        node.put("pod2")
        node.wait_used("pod2")
        dry = node.kepd.ctl("end", "connections", "shop/web", "--dry-run")
        assert dry.stdout.count(f"{network['pod1'].v4}:{PORT}") == servers.count("pod1")
        wrong = node.kepd.ctl("end", "connections", "shop/web", "--to", "nonsense")
        assert (wrong.returncode, "expected IP:PORT" in wrong.stderr) == (2, True)
        assert node.kepd.ctl("end", "connections", "shop/none").returncode != 0
        done = node.kepd.ctl("end", "connections", "shop/web")
        assert f"{servers.count('pod1')} ended" in done.stderr
        doomed = [one for one, server in zip(held, servers, strict=True) if server == "pod1"]
        node.kepd.wait(lambda: all(map(_is_reset, doomed)), "every connection reset", 15.0)
        assert not any(_is_reset(one) for one in held if one not in doomed)
        one = node.kepd.ctl("end", "connections", "shop/web", "--to", f"{network['pod2'].v4}:{PORT}")
        assert f"{servers.count('pod2')} ended" in one.stderr
        for connection in held:
            connection.close()
