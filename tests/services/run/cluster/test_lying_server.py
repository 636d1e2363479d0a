# SPDX-License-Identifier: Apache-2.0
"""An API server that lies: whatever it says of others, a Service that it leaves alone is in the kernel all the time,
and the next change arrives. The table is in docs/services.md."""

import asyncio
import copy
import json
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from agent.drivers.clock.driver import SystemClock
from agent.model.component import Board, State
from agent.model.services.nft_table import Batch
from agent.services.objects.node_state import NodeSettings
from agent.services.run.cluster.source import KubeServices
from agent.services.run.intake import ServiceInputs
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane
from tests.drivers.kube.api_server import ApiServer, serving
from tests.drivers.kube.certificates import Certificates, make_certificates, renew_server
from tests.drivers.kube.fake_objects import FakeObjects
from tests.drivers.kube.following import client_of, service
from tests.fakes.nft import FakeKernel, FakeNft
from tests.services.run.cluster.test_service_source import slice_of

WITHIN_S = 30.0
WEB, AFTER, MOVED = "10.0.0.10", "10.0.0.77", "10.0.0.20"
FOLLOWED = 4
FOREIGN: tuple[Any, ...] = (None, "x", -1, 10**30, 1.5, True, [], {}, [None], [{}], {"x": None}, "\u0000")


class Table(FakeNft):
    """Notes if the Service that nobody touches is ever without an endpoint."""

    losses = 0

    async def apply(self, batch: Batch) -> None:
        had = self.has(WEB)
        await super().apply(batch)
        self.losses += had and not self.has(WEB)

    def has(self, ip: str, endpoint: str = "") -> bool:
        key, table = bytes(map(int, ip.split("."))), self.kernel.tables.get("IPv4")
        want = bytes(map(int, endpoint.split("."))) if endpoint else b""
        found = table.content["eps"].items() if table is not None else ()
        return any(one.startswith(key) and isinstance(data, bytes) and data.startswith(want) for one, data in found)


class Jumping(SystemClock):
    """The time of day may be any; what waits does not."""

    ahead_s = 0.0

    def wall_s(self) -> float:
        return super().wall_s() + self.ahead_s


class Node:
    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.clock = Jumping()
        self.table = Table("IPv4", FakeKernel())
        settings = NodeSettings(node="node-a", addresses=("192.168.0.10",))
        self.intake = ServiceInputs(settings, tell=lambda _: None, started_s=0.0)
        self.plane = ServicesPlane(self.intake, {"IPv4": NftRuleset(self.table)}, clock=self.clock, tell=lambda _: None)

    def put(self, name: str, ip: str, *endpoints: str) -> None:
        self.server.objects.put("services", service(name, clusterIP=ip))
        self.server.objects.put("endpointslices", slice_of(name, *endpoints))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not condition():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def node_beside(server: ApiServer) -> AsyncIterator[Node]:
    made = Node(server)
    made.put("web", WEB, "10.1.0.1")
    made.put("other", MOVED, "10.1.0.2")
    async with client_of(server) as client:
        source = KubeServices(lambda: client, made.intake, "node-a", has_rules=lambda: made.plane.stands)
        running = [
            asyncio.create_task(source.run()),
            asyncio.create_task(made.plane.run(Board(lambda: 0.0).add("services", State.STARTING))),
        ]
        try:
            await made.until(lambda: made.table.has(WEB) and made.table.has(MOVED))
            yield made
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def line(kind: str, item: object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def spoilt(item: Any) -> Any:
    """The object with each of its places in turn as something that does not belong there."""
    places: list[tuple[Any, ...]] = []

    def walk(at: Any, path: tuple[Any, ...]) -> None:
        for step, inner in at.items() if isinstance(at, dict) else enumerate(at) if isinstance(at, list) else ():
            places.append((*path, step))
            walk(inner, (*path, step))

    walk(item, ())
    for place in places:
        for foreign in FOREIGN:
            made = copy.deepcopy(item)
            at = made
            for step in place[:-1]:
                at = at[step]
            at[place[-1]] = foreign
            yield made


async def foreign_types(node: Node) -> None:
    odd = service("odd", clusterIP="10.0.0.50", externalIPs=["203.0.113.9"])
    ends = slice_of("odd", "10.1.0.5")
    for item in (*spoilt(odd), *spoilt(ends)):
        if isinstance(item["metadata"], dict):
            item["metadata"].setdefault("resourceVersion", str(node.server.objects.resource_version))
        with suppress(ConnectionError):
            await node.server.send_raw(line("MODIFIED", item))


async def told_twice_and_late(node: Node) -> None:
    for _ in range(20):
        old = {**slice_of("other", "10.1.0.3")}
        old["metadata"]["resourceVersion"] = "1"
        await node.server.send_raw(line("MODIFIED", old) + line("ADDED", old) + line("ADDED", old))
    node.put("other", MOVED, "10.1.0.4")
    await node.until(lambda: node.table.has(MOVED, "10.1.0.4"))


async def cut_off(node: Node) -> None:
    for _ in range(5):
        with suppress(ConnectionError):
            await node.server.cut_mid_line()


async def forgotten_versions(node: Node) -> None:
    for _ in range(10):
        await node.server.send_error_event()


async def a_slice_that_moves(node: Node) -> None:
    moved = slice_of("other", "10.1.0.2")
    moved["metadata"]["labels"]["kubernetes.io/service-name"] = "web"
    for _ in range(5):
        node.server.objects.put("endpointslices", moved)
        await node.until(lambda: node.table.has(WEB, "10.1.0.2") and not node.table.has(MOVED))
        node.server.objects.put("endpointslices", slice_of("other", "10.1.0.2"))
        await node.until(lambda: node.table.has(MOVED) and not node.table.has(WEB, "10.1.0.2"))


async def an_empty_store(node: Node) -> None:
    whole = node.server.objects
    node.server.objects = FakeObjects(resource_version=2_000_000)
    node.server.objects.compact()
    node.server.drop_connections()
    await node.until(
        lambda: {key[2] for key in node.intake.findings if key[0] == "List"} >= {"Service", "EndpointSlice"}
    )
    assert node.table.has(MOVED)
    node.server.objects = whole
    whole.resource_version = 3_000_000
    node.server.drop_connections()


async def a_server_that_comes_back(node: Node) -> None:
    await node.server.stop()
    await asyncio.sleep(0.05)
    await node.server.start()


async def versions_of_the_future(node: Node) -> None:
    for number in (1, 2):
        await node.server.until(lambda server: len({watch.kind.plural for watch in server.watches}) == FOLLOWED)
        node.server.objects.resource_version -= 400
        node.server.objects.history.clear()
        node.server.drop_connections()
        node.put("other", MOVED, f"10.1.0.{30 + number}")
        await node.until(lambda number=number: node.table.has(MOVED, f"10.1.0.{30 + number}"))  # type: ignore[misc]


async def clocks_that_jump(node: Node) -> None:
    """This node's, and the server's."""
    for number, years in enumerate((30, -30, 0)):
        node.clock.ahead_s = years * 365 * 86_400.0
        moved = slice_of("other", f"10.1.0.{40 + number}")
        moved["metadata"]["creationTimestamp"] = f"{2026 + years}-01-01T00:00:00Z"
        node.server.objects.put("endpointslices", moved)
        await node.until(lambda number=number: node.table.has(MOVED, f"10.1.0.{40 + number}"))  # type: ignore[misc]


async def a_renewed_certificate(node: Node) -> None:
    assert node.server.certificates is not None
    renew_server(node.server.certificates)
    await node.server.refuse()
    await node.server.accept()


async def another_authority(node: Node) -> None:
    """Refused until the file with the authority says otherwise."""
    own = node.server.certificates
    assert own is not None
    other = own.directory / "other"
    other.mkdir()
    foreign = node.server.certificates = Foreign(make_certificates(other).directory)
    await node.server.refuse()
    await node.server.accept()
    node.put("other", MOVED, "10.1.0.50")
    await node.until(lambda: foreign.greeted > 5)
    assert not node.table.has(MOVED, "10.1.0.50")
    own.ca.write_bytes(foreign.ca.read_bytes())
    await node.until(lambda: node.table.has(MOVED, "10.1.0.50"))


class Foreign(Certificates):
    """Counts who begins to speak to the server."""

    greeted = 0

    def server_context(self) -> ssl.SSLContext:
        def count(*_: object) -> None:
            Foreign.greeted += 1

        context = super().server_context()
        context.sni_callback = count
        return context


LIES: list[Callable[[Node], Coroutine[None, None, None]]] = [
    foreign_types, told_twice_and_late, cut_off, forgotten_versions, a_slice_that_moves, an_empty_store,
    a_server_that_comes_back, versions_of_the_future, clocks_that_jump, a_renewed_certificate, another_authority,
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=lambda one: one.__name__)
async def test_no_lie_about_others_takes_a_service_away_or_holds_up_the_next_change(
    lie: Callable[[Node], Coroutine[None, None, None]],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SVN-110, SY-2, IN-12."""
    monkeypatch.setattr("agent.services.run.cluster.source.AGAIN_S", 0.05)
    certificates = make_certificates(tmp_path_factory.mktemp("certificates"))
    async with serving(certificates) as server, node_beside(server) as node:
        await lie(node)
        node.put("after", AFTER, "10.1.0.9")
        await node.until(lambda: node.table.has(AFTER))

        assert node.table.losses == 0
        assert node.table.has(WEB, "10.1.0.1")
