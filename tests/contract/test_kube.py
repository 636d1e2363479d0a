# SPDX-License-Identifier: Apache-2.0
"""One suite for the fake, for the client with the test API server, and, with KUBECONFIG set, for a real cluster.

In a real cluster it writes EndpointSlices of its own into the namespace `default` and removes them again; the broken
connection is a relay of ours that stops relaying.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
import pytest
from msgspec.structs import replace

from agent.drivers.kube import errors
from agent.drivers.kube.client import KubeClient
from agent.drivers.kube.connection import KubeRequest
from agent.drivers.kube.kubeconfig import load_kubeconfig
from agent.drivers.kube.resource import (
    ENDPOINT_SLICES,
    Changed,
    ChangeType,
    Disconnected,
    Malformed,
    Replaced,
    Resumed,
)
from tests.drivers.kube.api_server import ApiServer, serving
from tests.drivers.kube.certificates import make_certificates
from tests.drivers.kube.fake import FakeKube
from tests.drivers.kube.following import FAST, QuickClock, client_of, feeding

RUN = f"kepd-{uuid.uuid4().hex[:8]}"
LABEL = "kepd.dev/contract"
CHOSEN = ENDPOINT_SLICES.narrowed(namespace="default", label_selector=f"{LABEL}={RUN}")


def endpoint_slice(name: str, port: int = 80, label: str = RUN) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{RUN}-{name}", "namespace": "default", "labels": {LABEL: label}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.1"], "conditions": {"ready": True}}],
        "ports": [{"name": "http", "protocol": "TCP", "port": port}],
    }


class Cluster(Protocol):
    """What the suite needs beside the client."""

    client: KubeClient | FakeKube

    async def put(self, name: str, port: int = 80, label: str = RUN) -> None: ...
    async def delete(self, name: str) -> None: ...
    async def break_off(self) -> None: ...
    async def restore(self) -> None: ...


class Forgetful(Cluster, Protocol):
    """One whose history can be cut off, which no test can ask of a real server."""

    async def forget(self) -> None: ...


class InMemory:
    """The fake."""

    def __init__(self) -> None:
        self.client = FakeKube()

    async def put(self, name: str, port: int = 80, label: str = RUN) -> None:
        self.client.put("endpointslices", endpoint_slice(name, port, label))

    async def delete(self, name: str) -> None:
        self.client.delete("endpointslices", f"{RUN}-{name}", "default")

    async def break_off(self) -> None:
        self.client.break_off()

    async def restore(self) -> None:
        self.client.restore()

    async def forget(self) -> None:
        self.client.objects.compact()


class OverTheWire:
    """The client and the test API server."""

    def __init__(self, client: KubeClient, server: ApiServer) -> None:
        self.client = client
        self.server = server

    async def put(self, name: str, port: int = 80, label: str = RUN) -> None:
        self.server.objects.put("endpointslices", endpoint_slice(name, port, label))

    async def delete(self, name: str) -> None:
        self.server.objects.delete("endpointslices", "default", f"{RUN}-{name}")

    async def break_off(self) -> None:
        await self.server.refuse()

    async def restore(self) -> None:
        await self.server.accept()

    async def forget(self) -> None:
        self.server.objects.compact()


class Relay:
    """TCP from a loopback port to the API server, until it is told to stop."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server:
            self._server.close()
        for writer in self._open:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*self._to)
            self._open |= {writer, far_writer}
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await source.read(1 << 16):
            target.write(chunk)
            await target.drain()
    target.close()


class InACluster:
    """The client and the server of KUBECONFIG, through a relay."""

    def __init__(self, client: KubeClient, relay: Relay, direct: KubeClient) -> None:
        self.client = client
        self._relay = relay
        self._direct = direct

    async def put(self, name: str, port: int = 80, label: str = RUN) -> None:
        body = msgspec.json.encode(endpoint_slice(name, port, label))
        try:
            await self._send("PUT", f"{RUN}-{name}", body)
        except errors.Missing:
            await self._send("POST", "", body)

    async def delete(self, name: str) -> None:
        await self._send("DELETE", f"{RUN}-{name}", None)

    async def break_off(self) -> None:
        await self._relay.stop()

    async def restore(self) -> None:
        await self._relay.start()

    async def _send(self, method: str, name: str, body: bytes | None) -> None:
        path = CHOSEN.object_path(name) if name else CHOSEN.path
        await self._direct._once(KubeRequest(verb=method, what="endpointslices", path=path, method=method, body=body))

    async def clean(self) -> None:
        for name in ("a", "b", "c"):
            with suppress(errors.KubeError):
                await self.delete(name)


async def in_a_cluster(stack: AsyncExitStack) -> InACluster:
    access = load_kubeconfig(Path(os.environ["KUBECONFIG"]))
    url = urlsplit(access.cluster.servers[0])
    relay = Relay(url.hostname or "", url.port or 443)
    await relay.start()
    stack.push_async_callback(relay.stop)
    name = access.cluster.server_name or url.hostname or ""
    relayed = replace(access.cluster, servers=(f"https://127.0.0.1:{relay.port}",), server_name=name)
    direct = KubeClient(access, clock=QuickClock(), qps=1e6, burst=10**6)
    stack.push_async_callback(direct.close)
    client = KubeClient(replace(access, cluster=relayed), clock=QuickClock(), timing=FAST, qps=1e6, burst=10**6)
    stack.push_async_callback(client.close)
    cluster = InACluster(client, relay, direct)
    stack.push_async_callback(cluster.clean)
    return cluster


@pytest.fixture(params=["fake", "server", pytest.param("real", marks=pytest.mark.kube)])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        if request.param == "fake":
            yield InMemory()
        elif request.param == "server":
            server = await stack.enter_async_context(serving(make_certificates(tmp_path)))
            yield OverTheWire(await stack.enter_async_context(client_of(server)), server)
        else:
            yield await in_a_cluster(stack)


def port_of(change: Changed) -> int:
    return change.object.ports[0].port


async def test_everything_first_then_each_change_in_order(cluster: Cluster) -> None:
    await cluster.put("a")
    async with feeding(cluster.client.follow(CHOSEN)) as feed:
        first = await feed.until(Replaced)
        await cluster.put("b")
        await cluster.put("a", 81)
        await cluster.delete("b")
        await feed.until(Changed, lambda news: news.change is ChangeType.DELETED)
        await cluster.delete("a")
        await feed.until(Changed, lambda news: news.change is ChangeType.DELETED, count=2)

    assert [item.metadata.name for item in first.items] == [f"{RUN}-a"]
    changes = [(news.change.value, news.object.metadata.name[-1]) for news in feed.of(Changed)]
    assert changes == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b"), ("DELETED", "a")]
    assert port_of(feed.of(Changed)[1]) == 81


async def test_object_that_leaves_the_selection_is_deleted_for_the_follower(cluster: Cluster) -> None:
    """IN-1: a Service that gains the proxy-name label later is a delete."""
    await cluster.put("a", 80)
    async with feeding(cluster.client.follow(CHOSEN)) as feed:
        await feed.until(Replaced)
        await cluster.put("a", 81, label="other")
        left = await feed.until(Changed)
        await cluster.put("a", 82)
        back = await feed.until(Changed, count=2)

    assert (left.change, port_of(left)) == (ChangeType.DELETED, 80)
    assert (back.change, port_of(back)) == (ChangeType.ADDED, 82)


async def test_outage_is_told_and_its_changes_arrive_afterwards(cluster: Cluster) -> None:
    await cluster.put("a")
    async with feeding(cluster.client.follow(CHOSEN)) as feed:
        await feed.until(Replaced)
        await cluster.put("a", 81)
        await feed.until(Changed)
        await cluster.break_off()
        await feed.until(Disconnected)
        await cluster.put("b")
        await cluster.restore()
        await feed.until(Changed, lambda news: news.object.metadata.name.endswith("-b"))

    kinds = [type(news) for news in feed.news if not isinstance(news, Disconnected)]
    assert kinds == [Replaced, Changed, Resumed, Changed]


@pytest.mark.parametrize("cluster", ["fake", "server"], indirect=True)
async def test_changes_that_were_forgotten_come_as_a_whole(cluster: Forgetful) -> None:
    async with feeding(cluster.client.follow(CHOSEN)) as feed:
        await feed.until(Replaced)
        await cluster.break_off()
        await feed.until(Disconnected)
        await cluster.put("a")
        await cluster.forget()
        await cluster.restore()
        again = await feed.until(Replaced, count=2)

    assert [item.metadata.name for item in again.items] == [f"{RUN}-a"]
    assert not feed.of(Changed)


async def test_refused_object_is_named_once_and_the_others_go_on(cluster: Cluster) -> None:
    def fine(item: Any) -> str:
        if item.ports[0].port == 666:
            raise ValueError("ports[0].port: 666 is taken")
        return item.metadata.name

    await cluster.put("a", 666)
    await cluster.put("b")
    async with feeding(cluster.client.follow(CHOSEN, fine)) as feed:
        first = await feed.until(Replaced)
        await cluster.put("a", 80)
        await feed.until(Changed)
        await cluster.put("a", 666)
        await feed.until(Malformed, count=2)
        await cluster.delete("a")
        await feed.until(Malformed, lambda news: news.is_gone)

    assert first.items == [f"{RUN}-b"]
    assert [key.name for key in first.unreadable] == [f"{RUN}-a"]
    assert {news.text for news in feed.of(Malformed)} == {"ports[0].port: 666 is taken"}
    assert [news.is_gone for news in feed.of(Malformed)] == [False, False, True]


async def test_single_requests_fail_with_the_same_errors(cluster: Cluster) -> None:
    with pytest.raises(errors.Missing, match=f'endpointslices.discovery.k8s.io "{RUN}-c" not found'):
        await cluster.client.get(CHOSEN, f"{RUN}-c")
    await cluster.client.create(CHOSEN, endpoint_slice("c"))
    with pytest.raises(errors.Conflict, match="already exists"):
        await cluster.client.create(CHOSEN, endpoint_slice("c"))
    await cluster.client.patch(CHOSEN, f"{RUN}-c", {"ports": [{"name": "http", "port": 82}]})
    changed = await cluster.client.get(CHOSEN, f"{RUN}-c")
    with pytest.raises(errors.Conflict):
        await cluster.client.patch(CHOSEN, f"{RUN}-c", {"metadata": {"resourceVersion": "1"}})
    with pytest.raises(errors.Missing):
        await cluster.client.patch(CHOSEN, f"{RUN}-nobody", {"ports": []})

    assert changed.ports[0].port == 82


async def test_requests_during_an_outage_fail_at_once(cluster: Cluster) -> None:
    await cluster.break_off()
    with pytest.raises(errors.Unreachable):
        await cluster.client.get(CHOSEN, "x")
    await cluster.restore()
