# SPDX-License-Identifier: Apache-2.0
"""What tests of the client share: a clock without waiting, a client for a server, and a feed of news to wait on."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

from msgspec.structs import replace

from agent.drivers.kube.access import Cluster, KubeAccess, Pem, Secret, User
from agent.drivers.kube.client import KubeClient
from agent.drivers.kube.connection import KubeTiming
from tests.drivers.kube.api_server import ApiServer

__all__ = ["FAST", "Feed", "QuickClock", "access_to", "client_of", "feeding", "service"]

DEADLINE_S = 20.0
FAST = KubeTiming(
    connect_s=2.0, answer_s=3.0, watch_answer_s=1.0, body_silence_s=2.0, watch_s=300.0, watch_slack_s=30.0
)


class QuickClock:
    """Sleeping takes no time and moves the clock."""

    def __init__(self) -> None:
        self.moved_s = 0.0
        self.slept: list[float] = []

    def now_s(self) -> float:
        return self.moved_s

    def wall_s(self) -> float:
        return 1_800_000_000.0 + self.moved_s

    async def sleep(self, duration_s: float) -> None:
        self.slept.append(duration_s)
        self.moved_s += duration_s
        await asyncio.sleep(0.001)


class Feed:
    """The news of one follower, as they come."""

    def __init__(self) -> None:
        self.news: list[Any] = []
        self._more = asyncio.Event()

    async def run(self, source: AsyncGenerator[Any, None]) -> None:
        async with aclosing(source):
            async for news in source:
                self.news.append(news)
                self._more.set()

    async def until(self, kind: type, holds: Callable[[Any], bool] = lambda _news: True, *, count: int = 1) -> Any:
        """The latest news of that kind for which `holds`, once there are `count` of them."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = [news for news in self.news if isinstance(news, kind) and holds(news)]
                if len(found) >= count:
                    return found[count - 1]
                self._more.clear()
                await self._more.wait()

    def of(self, kind: type) -> list[Any]:
        return [news for news in self.news if isinstance(news, kind)]


@asynccontextmanager
async def feeding(source: AsyncGenerator[Any, None]) -> AsyncIterator[Feed]:
    """Follow in the background for the time of a test."""
    feed = Feed()
    task = asyncio.create_task(feed.run(source))
    try:
        yield feed
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def access_to(*servers: ApiServer, token: str = "good-token", **changes: Any) -> KubeAccess:
    """As kubeconfig would say it."""
    certificates = servers[0].certificates
    ca = Pem(str(certificates.ca), certificates.ca) if certificates else None
    cluster = Cluster(servers=tuple(server.url for server in servers), ca=ca)
    access = KubeAccess(source="test", cluster=cluster, user=User(where="test", token=Secret(token.encode())))
    return replace(access, **changes)


@asynccontextmanager
async def client_of(*servers: ApiServer, access: KubeAccess | None = None, **options: Any) -> AsyncIterator[KubeClient]:
    """A client for the time of a test: quick clock, no luck, no limit."""
    settings = {"clock": QuickClock(), "qps": 1e6, "burst": 10**6, "timing": FAST, "luck": lambda: 0.0, **options}
    client = KubeClient(access or access_to(*servers), **settings)
    try:
        yield client
    finally:
        await client.close()


def service(name: str, namespace: str = "default", **spec: Any) -> dict[str, Any]:
    """A Service as JSON."""
    body = {"clusterIP": "10.0.0.1", "ports": [{"name": "http", "protocol": "TCP", "port": 80}], **spec}
    meta = {"name": name, "namespace": namespace, "labels": {}, "managedFields": [{"manager": "x", "fieldsV1": {}}]}
    return {"metadata": meta, "spec": body, "status": {"loadBalancer": {}}}
