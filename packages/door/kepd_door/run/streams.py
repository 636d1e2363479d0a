# SPDX-License-Identifier: Apache-2.0
"""Streams of a container: the bytes of a connection, handed to the runtime's own streaming server and back.

Whether a client speaks SPDY or WebSocket is the runtime's to answer. Owns: both connections until one of them ends.
Never: looks into what it passes on, nor holds more of it than the other side has room for.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import cast
from urllib.parse import urlsplit

from aiohttp import web

from kepd_door.shape.statuses import Failure

CONNECT_S = 10.0
# Headers of the way from the client to us; the runtime gets the others.
OURS = frozenset({"host", "authorization", "content-length", "transfer-encoding", "cookie"})
AWAY = "the runtime's streaming server does not answer"


class Taken(web.Response):
    """In the place of an answer: the connection is no longer HTTP, and nothing is to be written to it."""

    async def prepare(self, request: web.BaseRequest) -> None:
        request.protocol.force_close()

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing follows."""


class _Half(asyncio.Protocol):
    """One end: what comes in goes out at the other one, which slows this one down when it has no room."""

    def __init__(self, ended: asyncio.Event) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Half | None = None
        self.is_lost = False
        self._ended = ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        if self.other is not None and self.other.transport is not None and self.other.transport.can_write_eof():
            self.other.transport.write_eof()
            return True
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_lost = True
        self._ended.set()

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()


async def pass_on(request: web.BaseRequest, url: str) -> web.StreamResponse:
    """Until either end closes."""
    client = request.transport
    if client is None or not isinstance(client, asyncio.Transport):
        raise Failure(400, "the connection is gone")
    parts = urlsplit(url)
    ended = asyncio.Event()
    runtime, own = _Half(ended), _Half(ended)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            to_runtime, _ = await loop.create_connection(lambda: runtime, parts.hostname or "", parts.port or 80)
    except (OSError, TimeoutError) as error:
        raise Failure(503, f"{AWAY}: {error}") from error
    own.transport, own.other, runtime.other = client, runtime, own
    try:
        client.set_protocol(own)
        to_runtime.write(_head(request.method, parts.path, parts.query, parts.netloc, request.headers))
        await ended.wait()
    finally:
        # What was written reaches its end before each is closed.
        to_runtime.close()
        if own.is_lost:
            request.protocol.connection_lost(None)
        else:
            client.set_protocol(request.protocol)
            client.close()
    return Taken()


def _head(method: str, path: str, query: str, host: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {path}{'?' if query else ''}{query} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in _passed(headers.items()) if "\n" not in value and "\r" not in value]
    return "\r\n".join((*lines, "Content-Length: 0", "", "")).encode("latin-1", "replace")


def _passed(headers: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    return ((name, value) for name, value in headers if name.lower() not in OURS)
