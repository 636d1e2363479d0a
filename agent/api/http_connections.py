# SPDX-License-Identifier: Apache-2.0
"""Connections of an HTTP port: taken, read, answered and closed, one question each.

A stream and a task for each would cost four times as much, and with 10 000 connections keep /livez waiting for seconds.
Bounds: so many connections, of which the oldest gives way to the next; so many bytes of a question; so long.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

HEAD_BYTES = 8192
READ_BYTES = 64 << 10
END = b"\r\n\r\n"
REQUEST_LIMIT_S, ANSWER_LIMIT_S = 5.0, 10.0
MAX_CONNECTIONS = 64
# In one turn of the loop: others have theirs meanwhile.
TAKEN_AT_ONCE = 16
# Until descriptors are free again.
PAUSE_S = 0.5


class HttpClient(Protocol):
    """A socket, or what is between one and TLS."""

    def fileno(self) -> int: ...

    def recv(self, size: int, /) -> bytes: ...

    def send(self, data: memoryview, /) -> int: ...

    def close(self) -> None: ...


class TlsClient(HttpClient, Protocol):
    @property
    def is_known(self) -> bool: ...


Wrap = Callable[[socket.socket], TlsClient]


class Connections:
    """`answer` makes of what came the answer, or what will be one; it may be the head of a question, more than one may
    have, or part of one whose sender is done; and it hears whether its sender showed a certificate, where that is
    asked, and the sender's address. `wrap`: each connection is one of TLS; it raises OSError."""

    def __init__(
        self,
        listener: socket.socket,
        answer: Callable[[bytes, bool, str], bytes | Coroutine[Any, Any, bytes]],
        wrap: Wrap | None = None,
    ) -> None:
        self._listener = listener
        self._answer = answer
        self._wrap = wrap
        self._open: dict[_Connection, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        for timer in (self._timer, self._pause):
            if timer is not None:
                timer.cancel()
        for one in list(self._open):
            self._end(one)
        self._listener.close()

    def _resume(self) -> None:
        self._loop.add_reader(self._listener, self._take)

    def _take(self) -> None:
        for _ in range(TAKEN_AT_ONCE):
            try:
                client, (address, *_) = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError:
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(PAUSE_S, self._resume)
                return
            client.setblocking(False)
            if len(self._open) >= MAX_CONNECTIONS:
                # Whoever asks and reads at once is never kept out by those who do not.
                self._end(next(iter(self._open)))
            self._begin(client, address)
            if self._timer is None and self._open:
                self._timer = self._loop.call_later(REQUEST_LIMIT_S, self._end_late)

    def _begin(self, client: socket.socket, address: str) -> None:
        until_s = self._loop.time() + REQUEST_LIMIT_S
        if self._wrap is None:
            one = _Connection(client, address, until_s)
        else:
            try:
                one = _Connection(self._wrap(client), address, until_s)
            except OSError:
                # It is gone already.
                client.close()
                return
        self._open[one] = None
        self._read(one)

    def _end_late(self) -> None:
        self._timer = None
        for one in list(self._open):
            if one.until_s > self._loop.time():
                self._timer = self._loop.call_at(one.until_s, self._end_late)
                return
            self._end(one)

    def _read(self, one: "_Connection") -> None:
        try:
            some = one.client.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            if not one.is_watched:
                one.is_watched = True
                self._loop.add_reader(one.client, self._read, one)
            return
        except OSError:
            self._end(one)
            return
        if not some and not one.came:
            # It only connected; a storm of such costs no more than that.
            self._end(one)
            return
        one.came += some
        if not some or END in one.came or len(one.came) > HEAD_BYTES:
            if one.is_watched:
                self._loop.remove_reader(one.client)
                one.is_watched = False
            answer = self._answer(bytes(one.came), getattr(one.client, "is_known", True), one.address)
            if isinstance(answer, bytes):
                one.answer = memoryview(answer)
                self._write(one)
            else:
                # Something has to be looked at first; who waits has as much longer as everybody has.
                one.until_s = self._loop.time() + ANSWER_LIMIT_S
                self._open[one] = self._open.pop(one)
                one.task = self._loop.create_task(self._write_later(one, answer), name="http-page")
        elif not one.is_watched:
            one.is_watched = True
            self._loop.add_reader(one.client, self._read, one)

    async def _write_later(self, one: "_Connection", answer: Coroutine[Any, Any, bytes]) -> None:
        one.answer = memoryview(await answer)
        one.task = None
        self._write(one)

    def _write(self, one: "_Connection") -> None:
        try:
            with suppress(BlockingIOError, InterruptedError):
                one.answer = one.answer[one.client.send(one.answer) :]
        except OSError:
            self._end(one)
            return
        if not one.answer:
            self._end(one)
        elif not one.is_writing:
            one.is_writing = True
            self._loop.add_writer(one.client, self._write, one)

    def _end(self, one: "_Connection") -> None:
        self._open.pop(one, None)
        if one.is_watched:
            self._loop.remove_reader(one.client)
        if one.is_writing:
            self._loop.remove_writer(one.client)
        if one.task is not None:
            one.task.cancel()
        one.client.close()


class _Connection:
    __slots__ = ("address", "answer", "came", "client", "is_watched", "is_writing", "task", "until_s")

    def __init__(self, client: HttpClient, address: str, until_s: float) -> None:
        self.client, self.address, self.until_s = client, address, until_s
        self.came = bytearray()
        self.answer = memoryview(b"")
        self.is_watched = self.is_writing = False
        self.task: asyncio.Task[None] | None = None
