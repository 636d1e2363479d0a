# SPDX-License-Identifier: Apache-2.0
"""Questions over real sockets of loopback."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from msgspec.structs import replace

from agent.drivers.probe_client.driver import NetworkProbeClient, _request
from agent.model.pods.http_question import HttpAnswer, HttpQuestion
from tests.fakes.probe_client import FakeProbeClient

Answer = Callable[[bytes], bytes]


@asynccontextmanager
async def serving(answer: Answer, *, keeps_open: bool = False) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server of raw answers; its port, and what it was asked."""
    asked: list[bytes] = []
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            asked.append(head)
            writer.write(answer(head))
            await writer.drain()
            if keeps_open:
                await done.wait()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        try:
            yield server.sockets[0].getsockname()[1], asked
        finally:
            done.set()


def plain(status: int, body: str = "", *more: str) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *more, "", body)).encode()


def question(port: int, path: str = "/", **more: object) -> HttpQuestion:
    return HttpQuestion(host="127.0.0.1", port=port, path=path, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("keeps_open", [False, True])
async def test_an_answer_has_status_and_body(keeps_open: bool) -> None:
    """Also of a server that does not close when it is asked to."""
    async with serving(lambda _head: plain(503, "not now"), keeps_open=keeps_open) as (port, asked):
        async with asyncio.timeout(30):
            answer = await NetworkProbeClient().http_get(
                question(port, "/a?b=c", headers=[("X-A", "1"), ("Host", "h")])
            )

    assert answer == HttpAnswer(status=503, body=b"not now")
    (head,) = asked
    assert head.startswith(b"GET /a?b=c HTTP/1.1\r\nX-A: 1\r\nHost: h\r\nConnection: close\r\n")


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("raw", "status", "body"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", 304, b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b""),
        (CHUNKED + b"0\r\n\r\n", 200, b""),
        (CHUNKED + b"3\r\nabc\r\n4;why=not\r\nde\r\n\r\n0\r\nTrailer: x\r\n\r\n", 200, b"abcde\r\n"),
        (CHUNKED + b"A\r\n0\r\n\r\n12345\r\n0\r\n\r\n", 200, b"0\r\n\r\n12345"),
        (CHUNKED + b"FFFFFFFF\r\n" + b"x" * 20000, 200, b"x" * 10240),
    ],
)
async def test_an_answer_ends_where_its_head_says_although_the_connection_stays(
    raw: bytes, status: int, body: bytes
) -> None:
    """FP-16."""
    async with serving(lambda _head: raw, keeps_open=True) as (port, _):
        async with asyncio.timeout(30):
            answer = await NetworkProbeClient().http_get(question(port))

    assert answer == HttpAnswer(status=status, body=body)


@pytest.mark.parametrize("chunks", [b"", b"x\r\n", b"-1\r\n", b"5\r\nabc", b"1_0\r\n"])
async def test_chunks_that_are_none_or_end_early_are_told(chunks: bytes) -> None:
    """FP-16."""
    async with serving(lambda _head: CHUNKED + chunks) as (port, _):
        with pytest.raises(ValueError, match="chunk"):
            await NetworkProbeClient().http_get(question(port))


async def test_redirects_on_the_same_host_are_followed_and_others_told() -> None:
    """PRB-08, HOK-07."""

    def answer(head: bytes) -> bytes:
        if b"GET /away" in head:
            return plain(302, "bye", "Location: http://192.0.2.1/")
        return plain(200, "there") if b"GET /end" in head else plain(302, "", "Location: /end")

    async with serving(answer) as (port, asked):
        assert (await NetworkProbeClient().http_get(question(port))).status == 200
        assert len(asked) == 2
        away = await NetworkProbeClient().http_get(question(port, "/away"))
    assert (away.is_redirect_elsewhere, away.body) == (True, b"bye")


async def test_a_circle_of_redirects_ends() -> None:
    async with serving(lambda _head: plain(302, "", "Location: /")) as (port, asked):
        with pytest.raises(ValueError, match="stopped after 10 redirects"):
            await NetworkProbeClient().http_get(question(port))

    assert len(asked) == 11


@pytest.mark.parametrize("raw", [b"hello\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 2"])
async def test_what_is_no_http_is_told(raw: bytes) -> None:
    async with serving(lambda _head: raw) as (port, _):
        with pytest.raises(ValueError, match="malformed HTTP response"):
            await NetworkProbeClient().http_get(question(port))


async def test_a_plain_answer_to_a_tls_question_has_its_own_words() -> None:
    """HOK-08 needs them."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(plain(400))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ValueError, match="server gave HTTP response to HTTPS client"):
            await NetworkProbeClient().http_get(question(port, is_tls=True))


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r", "\x00", "\x7f"])
@pytest.mark.parametrize("part", ["path", "host", "name", "value"])
async def test_no_part_of_a_question_makes_another(part: str, end: str) -> None:
    """NP-10: a probe asks as root in the node's network, and asks GET alone."""
    text = f"/a HTTP/1.1{end}Host: x{end}{end}POST /b"
    header = (text, "b") if part == "name" else ("X", text) if part == "value" else ("X", "b")
    given: dict[str, Any] = {part: text} if part in ("path", "host") else {}
    asked = replace(question(1), headers=[header], **given)

    with pytest.raises(ValueError, match="would make another request"):
        _request(asked)


def test_a_space_in_a_path_is_part_of_the_path() -> None:
    assert _request(replace(question(1), path="/a b")).startswith(b"GET /a%20b HTTP/1.1\r\n")


async def test_connections_and_refusals(free_port: int) -> None:
    """PRB-09."""
    async with serving(lambda _head: b"") as (port, _):
        await NetworkProbeClient().tcp_connect("127.0.0.1", port)
    with pytest.raises(ConnectionRefusedError):
        await NetworkProbeClient().tcp_connect("127.0.0.1", free_port)
    with pytest.raises(ConnectionRefusedError):
        await NetworkProbeClient().http_get(question(free_port))


async def test_probes_leave_no_sockets_behind() -> None:
    """PRB-16: a hundred connects, and nothing waits for its time to pass."""
    async with serving(lambda _head: plain(200, "ok"), keeps_open=True) as (port, _):
        before = waiting_at(port)
        for _ in range(50):
            await NetworkProbeClient().tcp_connect("127.0.0.1", port)
            await NetworkProbeClient().http_get(question(port))

        assert waiting_at(port) <= before


def waiting_at(port: int) -> set[str]:
    """Client entries in TIME_WAIT; an earlier server may have had the same port."""
    with open("/proc/net/tcp", encoding="ascii") as table:  # noqa: PTH123  # a table of the kernel
        rows = [line.split() for line in table.readlines()[1:]]
    return {row[1] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "06"}


@asynccontextmanager
async def health_server(*, has_health: bool = True) -> AsyncIterator[tuple[int, health.aio.HealthServicer]]:
    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    if has_health:
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port, servicer
    finally:
        await server.stop(0)


async def test_grpc_services_that_serve_or_do_not() -> None:
    """PRB-10."""
    async with health_server() as (port, servicer):
        await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        await servicer.set("db", health_pb2.HealthCheckResponse.NOT_SERVING)
        assert await NetworkProbeClient().grpc_check("127.0.0.1", port, "", 5) == ""
        assert await NetworkProbeClient().grpc_check("127.0.0.1", port, "db", 5) == (
            'service unhealthy (responded with "NOT_SERVING")'
        )
    async with health_server(has_health=False) as (port, _):
        text = await NetworkProbeClient().grpc_check("127.0.0.1", port, "", 5)
        assert text.startswith("error: this server does not implement the grpc health protocol")


async def test_a_grpc_status_that_nobody_knows_is_a_failure() -> None:
    """FP-27: only SERVING is a success."""

    class Strange(health_pb2_grpc.HealthServicer):
        async def Check(self, _request: object, _context: object) -> health_pb2.HealthCheckResponse:  # noqa: N802
            return health_pb2.HealthCheckResponse(status=99)

    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(Strange(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        text = await NetworkProbeClient().grpc_check("127.0.0.1", port, "", 5)
    finally:
        await server.stop(0)

    assert text == 'service unhealthy (responded with "99")'


async def test_nobody_at_a_grpc_port_is_told_at_once_and_silence_at_the_deadline(free_port: int) -> None:
    """PRB-10: one deadline for all of it."""
    text = await NetworkProbeClient().grpc_check("127.0.0.1", free_port, "", 30)
    assert text.startswith(f'timeout: failed to connect service "127.0.0.1:{free_port}" within 30s: ')
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        text = await NetworkProbeClient().grpc_check("127.0.0.1", port, "", 0.2)
    assert text.startswith("timeout: ")


async def test_the_fake_answers_as_told() -> None:
    fake = FakeProbeClient()
    fake.answers = {80: 204, 81: ConnectionResetError("gone"), 82: "down"}

    assert (await fake.http_get(question(80))).status == 204
    with pytest.raises(ConnectionResetError):
        await fake.tcp_connect("h", 81)
    with pytest.raises(ConnectionRefusedError):
        await fake.tcp_connect("h", 99)
    assert await fake.grpc_check("h", 82, "", 1) == "down"
