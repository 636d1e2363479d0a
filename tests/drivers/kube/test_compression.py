# SPDX-License-Identifier: Apache-2.0
"""Lists come compressed where they travel, and a compressed answer can harm nobody."""

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from agent.drivers.kube.client import KubeClient
from agent.drivers.kube.errors import Missing
from agent.drivers.kube.gunzip import HARMLESS_BYTES, PIECE_BYTES, Gunzip
from agent.drivers.kube.resource import NODES, SERVICES, Changed, Disconnected, Replaced
from tests.drivers.kube import api_answers as say
from tests.drivers.kube.api_server import ApiServer
from tests.drivers.kube.certificates import Certificates
from tests.drivers.kube.following import access_to, client_of, feeding, service

MANY = 600


@pytest.fixture
async def server(certificates: Certificates) -> AsyncIterator[ApiServer]:
    """At an address that is none of loopback, though every connection to it is."""
    running = ApiServer(certificates)
    running.host = "0.0.0.0"
    running.offers_streaming = False
    await running.start()
    yield running
    await running.stop()


@asynccontextmanager
async def remote(server: ApiServer, *, compresses: bool = True) -> AsyncIterator[KubeClient]:
    access = replace(access_to(server), compresses=compresses)
    cluster = replace(access.cluster, server_name="localhost")
    async with client_of(server, access=replace(access, cluster=cluster)) as client:
        yield client


def packed(server: ApiServer, body: bytes, status: int = 200) -> None:
    """The next list is answered with this, which says that it is gzip."""

    async def fault(_request: web.BaseRequest) -> web.Response:
        return web.Response(body=body, status=status, headers={**say.base_headers(), "Content-Encoding": "gzip"})

    server.faults.append(("list", fault))


def encodings(server: ApiServer) -> dict[str, str]:
    return {seen.verb: seen.headers["Accept-Encoding"] for seen in server.seen}


def services(count: int) -> bytes:
    items = [service(f"s{number}") for number in range(count)]
    return json.dumps({"metadata": {"resourceVersion": "1000"}, "items": items}).encode()


async def listed(client: KubeClient) -> list[Any]:
    """News up to the first whole list."""
    found: list[Any] = []
    async with aclosing(client.follow(SERVICES)) as news:
        async for one in news:
            found.append(one)
            if isinstance(one, Replaced):
                break
    return found


async def test_a_list_of_another_machine_comes_compressed_and_a_watch_does_not(server: ApiServer) -> None:
    """FS-19, SVN-90."""
    for number in range(MANY):
        server.objects.put("services", service(f"s{number}"))
    async with remote(server) as client, feeding(client.follow(SERVICES)) as feed:
        everything = await feed.until(Replaced)
        server.objects.put("services", service("late"))
        change = await feed.until(Changed)

    assert len(everything.items) == MANY
    assert change.object.metadata.name == "late"
    assert encodings(server) == {"list": "gzip", "watch": "identity"}


async def test_nothing_is_compressed_on_the_same_machine(certificates: Certificates) -> None:
    """SVN-90."""
    server = ApiServer(certificates)
    server.offers_streaming = False
    await server.start()
    async with client_of(server) as client:
        await listed(client)
    await server.stop()

    assert encodings(server)["list"] == "identity"


async def test_nothing_is_compressed_where_it_is_not_wanted(server: ApiServer) -> None:
    """SVN-90: `kubernetes.compression: never`."""
    async with remote(server, compresses=False) as client:
        await listed(client)

    assert encodings(server)["list"] == "identity"


async def test_a_server_that_compresses_nothing_is_understood(server: ApiServer) -> None:
    """FS-19: small answers are never compressed."""
    server.objects.put("services", service("only"))
    async with remote(server) as client:
        (everything,) = await listed(client)

    assert [one.metadata.name for one in everything.items] == ["only"]


WHOLE = gzip.compress(services(50))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (WHOLE[: len(WHOLE) // 2], "cut short"),
        (WHOLE[:-4] + b"xxxx", "is no gzip"),
        (WHOLE + WHOLE, "something follows"),
        (services(1), "is no gzip"),
        (gzip.compress(bytes(HARMLESS_BYTES * 8)), "more than 100 times its size"),
    ],
)
async def test_a_bad_compressed_page_fails_and_is_asked_for_again(server: ApiServer, body: bytes, reason: str) -> None:
    """FS-19, SVN-90: nothing of it is taken."""
    server.objects.put("services", service("only"))
    packed(server, body)
    async with remote(server) as client:
        lost, everything = await listed(client)

    assert isinstance(lost, Disconnected)
    assert reason in lost.reason
    assert [one.metadata.name for one in everything.items] == ["only"]


async def test_a_compressed_refusal_is_still_said_in_the_servers_words(server: ApiServer) -> None:
    body = json.dumps({"kind": "Status", "message": "not today", "code": 404}).encode()
    packed(server, gzip.compress(body), 404)
    async with remote(server) as client, feeding(client.follow(SERVICES)) as feed:
        lost = await feed.until(Disconnected)

    assert "not today" in lost.reason
    assert isinstance(lost.error, Missing)


async def test_single_requests_are_not_compressed(server: ApiServer) -> None:
    server.objects.put("nodes", {"metadata": {"name": "n"}})
    async with remote(server) as client:
        await client.get(NODES, "n")

    assert encodings(server) == {"get": "identity"}


def test_pieces_are_small_whatever_arrives_at_once() -> None:
    """SVN-90."""
    text = services(3000)
    gunzip = Gunzip("list")
    gunzip.feed(gzip.compress(text))
    pieces = list(iter(gunzip.piece, b""))
    gunzip.finish()

    assert b"".join(pieces) == text
    assert max(map(len, pieces)) == PIECE_BYTES
