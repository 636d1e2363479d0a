# SPDX-License-Identifier: Apache-2.0
"""FX-2: what one client of the proxy may cost, whatever it sends."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.model.allowance import Share
from agent.proxy.frames import layout as http2
from agent.proxy.frames.hpack import LARGEST_TABLE_BYTES, HeaderDecoder, HeadersInvalid, plain_block
from agent.proxy.run import link as link_module
from agent.proxy.run import link_limits
from agent.proxy.run import server as server_module
from agent.proxy.run.call import Refusal
from agent.proxy.run.side import MOST_UNREAD_BYTES
from tests.proxy.run.test_link import ECHO, PREFACE, SETTINGS, echo, until, works
from tests.proxy.wire import Wire, wired

CREATE = "/runtime.v1.RuntimeService/CreateContainer"
LARGE = struct.pack(">BI", 0, 16 << 20)


@pytest.fixture
async def wire(short_path: Path) -> AsyncIterator[Wire]:
    async with wired(short_path) as found:
        found.runtime.methods = {ECHO: echo}
        yield found


def begin(stream: int) -> bytes:
    names = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", CREATE.encode()), (b":authority", b"localhost")]
    block = plain_block([*names, (b"content-type", b"application/grpc"), (b"te", b"trailers")])
    return http2.frame(http2.HEADERS, http2.END_HEADERS, stream, block)


def given_up(first: int, many: int) -> bytes:
    streams = range(first, first + 2 * many, 2)
    return b"".join(begin(stream) + http2.reset_frame(stream) for stream in streams)


async def said_to(wire: Wire, sent: bytes) -> bytes:
    """Until the proxy hangs up."""
    reader, writer = await asyncio.open_unix_connection(str(wire.through))
    writer.write(PREFACE + SETTINGS + sent)
    found = b""
    async with asyncio.timeout(30):
        try:
            while some := await reader.read(1 << 16):
                found += some
        except ConnectionError:
            pass
    writer.close()
    return found


async def test_who_gives_up_more_calls_than_it_can_want_waits(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy client whose calls are held gives up hundreds a second, and loses no other call for it. A flood costs no
    more than that (CVE-2023-44487)."""
    monkeypatch.setitem(link_limits.METERED, link_limits.RESETS, Share(10, 200))
    reader, writer = await asyncio.open_unix_connection(str(wire.through))
    writer.write(PREFACE + SETTINGS + given_up(1, 100))
    await until(lambda: any(link.front.rests for link in wire.server.links))
    writer.write(http2.frame(http2.PING, 0, 0, b"are you?"))
    async with asyncio.timeout(30):
        found = b""
        while b"are you?" not in found:
            some = await reader.read(1 << 16)
            assert some, "hung up"
            found += some
    assert not any(link.front.rests for link in wire.server.links)
    writer.close()
    await works(wire)


async def test_settings_without_end_cost_what_they_are_worth(wire: Wire) -> None:
    """25 000 of them held all other clients for four seconds."""
    said = await said_to(wire, SETTINGS * 25_000)

    assert b"SETTINGS are not confirmed" in said
    await works(wire)


async def test_frames_without_a_call_wait_once_they_are_too_many(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood takes no more of the loop than its share, and others are served meanwhile."""
    monkeypatch.setitem(link_limits.METERED, link_limits.OTHERS, Share(100, 100))
    _, writer = await asyncio.open_unix_connection(str(wire.through))
    writer.write(PREFACE + SETTINGS + http2.frame(0x77, 0, 0, b"") * 20_000)
    await until(lambda: any(link.front.rests for link in wire.server.links))
    await works(wire)

    assert any(link.front.rests for link in wire.server.links)
    writer.close()


async def test_calls_under_way_on_a_connection_have_a_bound(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MOST_CALLS", 50)
    said = await said_to(wire, b"".join(begin(2 * n + 1) for n in range(60)))

    assert b"calls at once" in said
    await until(lambda: not any(link.calls for link in wire.server.links))
    await works(wire)


async def test_a_block_of_headers_has_a_bound(wire: Wire) -> None:
    first = http2.frame(http2.HEADERS, 0, 1, bytes(100))
    said = await said_to(wire, first + http2.frame(http2.CONTINUATION, 0, 1, b"\0" * 16_000) * 5)

    assert b"bytes of headers" in said
    await works(wire)


def test_a_table_of_headers_has_a_bound() -> None:
    decoder = HeaderDecoder()
    decoder.decode(b"\x3f\xe1\xff\x03")

    assert decoder._most_bytes == LARGEST_TABLE_BYTES
    with pytest.raises(HeadersInvalid):
        decoder.decode(b"\x3f\xe2\xff\x03")


async def test_requests_that_are_read_along_share_a_room(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """What finds none passes unread, and arrives."""
    monkeypatch.setattr(link_limits, "MOST_KEPT_OF_ALL_BYTES", 20_000)

    async def whole(requests, context):  # type: ignore[no-untyped-def]
        async for one in requests:
            yield b"%d" % len(one)

    wire.runtime.methods[CREATE] = whole
    _, writer = await asyncio.open_unix_connection(str(wire.through))
    writer.write(PREFACE + SETTINGS)
    for stream in (1, 3, 5):
        writer.write(begin(stream) + http2.data_frame(stream, LARGE + bytes(10_000)))
    await until(lambda: wire.server._room.kept_bytes > 20_000)
    async with wire.channel() as through:
        answer = await through.unary_unary(CREATE)(bytes(30_000), timeout=5)
    kept = wire.server._room.kept_bytes
    writer.close()
    await until(lambda: not wire.server.links)

    assert answer == b"30000"
    assert kept < 40_000
    assert wire.server._room.kept_bytes == 0
    assert len(wire.judge.finished) == 4


async def test_connections_have_a_bound_and_no_process_takes_all(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MOST_OF_PROCESS", 5)
    clients = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    for one in clients:
        one.connect(str(wire.through))
    await until(lambda: wire.server.accepted == 20)
    await until(lambda: len(wire.server.links) == 5)
    assert sum(wire.server._callers.values()) == 5
    for one in clients:
        one.close()
    await until(lambda: not wire.server.links)
    assert not wire.server._callers
    await works(wire)


async def test_answers_of_ours_that_are_not_read_fill_no_memory(wire: Wire) -> None:
    """A client that asks for what is refused, and reads nothing."""
    wire.judge.verdict = lambda _call, _message: Refusal(9, "x" * 1000)
    call = b"".join(
        begin(2 * n + 1) + http2.data_frame(2 * n + 1, struct.pack(">BI", 0, 1) + b"x", ends=True)
        for n in range(20_000)
    )
    _, writer = await asyncio.open_unix_connection(str(wire.through))
    writer.write(PREFACE + SETTINGS + call)
    await until(lambda: any(link.front.is_unread for link in wire.server.links))
    (link,) = wire.server.links
    assert link.front.transport is not None
    # What came in one reading is answered, and no more of it is read.
    assert MOST_UNREAD_BYTES // 2 < link.front.transport.get_write_buffer_size() < 4 * MOST_UNREAD_BYTES
    await works(wire)
    writer.transport.abort()
    await until(lambda: not wire.server.links)


async def test_calls_of_connections_that_end_are_ended_in_turns(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen connections with thousands of calls each held everybody else while they ended together."""
    turns: list[int] = []
    wire.runtime.methods[CREATE] = echo
    wire.server._room._turn_s = 0.0
    passes = link_module.ProxyConnection._end_in_turns

    def in_turns(link: link_module.ProxyConnection, over: list[link_module.ProxyCall]) -> None:
        turns.append(len(over))
        passes(link, over)

    monkeypatch.setattr(link_module.ProxyConnection, "_end_in_turns", in_turns)
    _, writer = await asyncio.open_unix_connection(str(wire.through))
    writer.write(PREFACE + SETTINGS + b"".join(begin(stream) for stream in range(1, 100, 2)))
    await until(lambda: any(len(link.calls) == 50 for link in wire.server.links))
    writer.close()
    await until(lambda: not wire.server.links)

    assert turns == list(range(50, 0, -1))
    await works(wire)
