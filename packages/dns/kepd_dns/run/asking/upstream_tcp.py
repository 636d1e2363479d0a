# SPDX-License-Identifier: Apache-2.0
"""Asks by TCP: a connection per server, a second one under load, many questions in each, answers in any order.

What a connection did not answer when it ends goes back to the asker. Source of behaviour: RFC 7766.
"""

import asyncio
import socket
import struct
from collections.abc import Collection
from contextlib import suppress

from kepd_dns.run.asking.asks import Ask, Asker
from kepd_dns.run.asking.randomness import Randomness
from kepd_dns.run.asking.upstream_udp import target_of
from kepd_dns.upstreams.addresses import Server
from kepd_dns.wire.writing import question_bytes

SECOND_FROM = 64
MOST_WAITING = 1024
IDLE_S, LINGER_S, CONNECT_S = 10.0, 2.0, 2.0
MOST_CONNECTIONS = 2
MOST_UNREAD = 1 << 17
READ_BYTES = 4096
SHORTEST = 12
FIRST = struct.Struct(">HH")
"""The length of a message and its id."""


class UpstreamConnection(asyncio.BufferedProtocol):
    """One connection. Changed by the pool and by its transport alone. It reads some forty answers at a time, so that
    whoever asks meanwhile is not kept waiting for thousands."""

    def __init__(self, server: Server, pool: "TcpAsker") -> None:
        self.server, self._pool = server, pool
        self.waiting: dict[int, Ask] = {}
        self.is_leaving = self.is_closed = False
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._rest = b""
        self._buffer = bytearray(READ_BYTES)
        self._is_flushing = False
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            return
        self._transport = transport
        opened = transport.get_extra_info("socket")
        with suppress(OSError):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        if self.is_closed:
            transport.abort()
            return
        self._flush()

    def send(self, ask: Ask) -> None:
        id_, waiting = self._pool.random.id(), self.waiting
        while id_ in waiting:
            id_ = (id_ + 1) & 0xFFFF
        waiting[id_] = ask
        question = ask.question
        text = question_bytes(
            id_, ask.section, question.flags, has_options=ask.has_options, is_dnssec=question.is_dnssec
        )
        self._out.append(len(text).to_bytes(2, "big") + text)
        if not self._is_flushing and self._transport is not None:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._transport is not None and self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = self._rest + self._buffer[:nbytes]
        now_s = self._loop.time()
        at, last = 0, len(data) - 4
        answered = self._pool.asker.answered
        while at <= last:
            length, id_ = FIRST.unpack_from(data, at)
            end = at + 2 + length
            if end > last + 4:
                break
            if length >= SHORTEST:
                ask = self.waiting.pop(id_, None)
                if ask is not None and not ask.is_done and data[at + 4] & 0x80:
                    answered(ask, data[at + 2 : end], now_s)
            at = end
        self._rest = data[at:]
        if self.is_closed:
            return
        if len(self._rest) > MOST_UNREAD:
            self.close("malformed")
        elif not self.waiting:
            self._pool.is_idle(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.close("closed")

    def close(self, reason: str) -> None:
        """Whoever waits hears of it once."""
        if self.is_closed:
            return
        self.is_closed = True
        self._pool.gone(self)
        if self._transport is not None:
            self._transport.abort()
        waiting, self.waiting = self.waiting, {}
        for ask in waiting.values():
            if not ask.is_done:
                self._pool.asker.failed(ask, reason)

    def forget_oldest(self) -> bool:
        """As long as they are over; whether there was one."""
        before = len(self.waiting)
        while self.waiting and self.waiting[oldest := next(iter(self.waiting))].is_done:
            del self.waiting[oldest]
        return len(self.waiting) < before

    def forget_done(self) -> None:
        """Answers that come later than their question's end have nobody."""
        for id_ in [id_ for id_, ask in self.waiting.items() if ask.is_done]:
            del self.waiting[id_]


class TcpAsker:
    def __init__(self, asker: Asker, random: Randomness) -> None:
        self.asker, self.random = asker, random
        self._loop = asyncio.get_running_loop()
        self._connections: dict[Server, list[UpstreamConnection]] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._idle: dict[UpstreamConnection, asyncio.TimerHandle] = {}

    def ask(self, ask: Ask) -> bool:
        """By the connection that waits for the fewest; a second one when that has many. False: there is no room."""
        best, fewest, count, all_waiting = None, SECOND_FROM, 0, 0
        for one in self._connections.get(ask.server, ()):
            waiting = len(one.waiting)
            all_waiting += waiting
            if not one.is_leaving:
                count += 1
                if best is None or waiting < fewest:
                    best, fewest = one, waiting
        if all_waiting >= MOST_WAITING and not self._has_forgotten(ask.server):
            return False
        if best is None or (fewest >= SECOND_FROM and count < MOST_CONNECTIONS):
            best = self._open(ask.server)
        if self._idle:
            idle = self._idle.pop(best, None)
            if idle is not None:
                idle.cancel()
        best.send(ask)
        return True

    def _has_forgotten(self, server: Server) -> bool:
        """Questions that are over hold no room, though their answers may still come."""
        return any(one.forget_oldest() for one in self._connections[server])

    def _open(self, server: Server) -> UpstreamConnection:
        made = UpstreamConnection(server, self)
        self._connections.setdefault(server, []).append(made)
        task = self._loop.create_task(self._connect(made))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return made

    async def _connect(self, connection: UpstreamConnection) -> None:
        host = target_of(connection.server.address, connection.server.port)
        try:
            async with asyncio.timeout(CONNECT_S):
                family = socket.AF_INET6 if ":" in connection.server.address else socket.AF_INET
                opened = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
                try:
                    await self._loop.sock_connect(opened, host)
                    await self._loop.create_connection(lambda: connection, sock=opened)
                except BaseException:
                    opened.close()
                    raise
        except TimeoutError:
            connection.close("timeout")
        except OSError:
            connection.close("refused")

    def is_idle(self, connection: UpstreamConnection) -> None:
        if connection.is_leaving:
            connection.close("closed")
        elif connection not in self._idle:
            self._idle[connection] = self._loop.call_later(IDLE_S, connection.close, "idle")

    def gone(self, connection: UpstreamConnection) -> None:
        idle = self._idle.pop(connection, None)
        if idle is not None:
            idle.cancel()
        found = self._connections.get(connection.server, [])
        if connection in found:
            found.remove(connection)
            if not found:
                del self._connections[connection.server]

    def retain(self, servers: Collection[Server]) -> None:
        """Others get no new question, and are closed when they have answered, or soon."""
        for server, found in tuple(self._connections.items()):
            if server in servers:
                continue
            for one in tuple(found):
                one.is_leaving = True
                if one.waiting:
                    self._loop.call_later(LINGER_S, one.close, "closed")
                else:
                    one.close("closed")

    def sweep(self) -> None:
        for found in tuple(self._connections.values()):
            for one in tuple(found):
                one.forget_done()
                if not one.waiting:
                    self.is_idle(one)

    def close(self) -> None:
        for found in tuple(self._connections.values()):
            for one in tuple(found):
                one.close("closed")
        for task in self._connecting:
            task.cancel()
