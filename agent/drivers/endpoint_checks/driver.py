# SPDX-License-Identifier: Apache-2.0
"""Asks many endpoints whether they answer: a connection by TCP, a datagram by UDP. From this process's own network.

One epoll for all, looked into when the caller comes by: two hundred checks a second are to cost next to nothing, and a
task with a future for each costs five times that. A connection that was made is reset, so that nothing of it stays.
UDP has a question that any name server answers for the port of names, else an empty datagram: most that listen do not
answer it, but a host without a listener refuses.
Never: waits, retries, or judges.
"""

import errno
import select
import socket
import struct
from collections import OrderedDict
from collections.abc import Iterator

from agent.model.services.check import Asked, Outcome

WAIT_S = 0.6
"""A handshake within a region takes a tenth of that."""
MOST_OPEN = 512
MOST_AT_ONCE = 64
"""Answers in one look; the kernel's list is as long."""
RESET = struct.pack("ii", 1, 0)
NAMES_PORT = 53
NAMES_QUESTION = b"\x4b\x45\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x01"
"""Who serves the root, without recursion."""
_V4_BYTES = 4
_PORT_BYTES = 2
_STREAM = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
_DATAGRAM = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
_OUTCOMES: dict[int, Outcome] = {
    0: "open",
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "refused",
    errno.EHOSTUNREACH: "unreachable",
    errno.EHOSTDOWN: "unreachable",
    errno.ETIMEDOUT: "silent",
}
"""All else is this node's own trouble."""


class EndpointChecks:
    """`begin` asks, `ended` tells of those that came to an end since. All wait for the same time."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._open: OrderedDict[int, tuple[socket.socket, Asked, float]] = OrderedDict()
        self._done: list[tuple[Asked, Outcome]] = []

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, asked: Asked, now_s: float) -> None:
        try:
            connection = self._connecting(asked)
        except OSError as error:
            self._done.append((asked, _OUTCOMES.get(error.errno or -1, "unknown")))
            return
        if connection is not None:
            self._open[connection.fileno()] = connection, asked, now_s + WAIT_S

    def _connecting(self, asked: Asked) -> socket.socket | None:
        if len(self._open) >= MOST_OPEN:
            raise OSError(errno.EMFILE, "too many checks at once")
        size = len(asked.data) - 2 * _PORT_BYTES
        family = socket.AF_INET if size == _V4_BYTES else socket.AF_INET6
        port = int.from_bytes(asked.data[size : size + _PORT_BYTES], "big")
        is_stream = asked.protocol == "TCP"
        connection = socket.socket(family, _STREAM if is_stream else _DATAGRAM)
        try:
            if is_stream:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            code = connection.connect_ex((socket.inet_ntop(family, asked.data[:size]), port))
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, "")
            if is_stream and code == 0:
                connection.close()
                self._done.append((asked, "open"))
                return None
            if not is_stream:
                connection.send(NAMES_QUESTION if port == NAMES_PORT else b"")
            self._poll.register(connection.fileno(), select.EPOLLOUT if is_stream else select.EPOLLIN)
        except BaseException:
            connection.close()
            raise
        return connection

    def ended(self, now_s: float) -> list[tuple[Asked, Outcome]]:
        done, self._done = self._done, []
        for number, _ in self._poll.poll(0, MOST_AT_ONCE) if self._open else ():
            connection, asked, _ = self._open.pop(number)
            outcome = _OUTCOMES.get(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "unknown")
            done.append((asked, "answered" if outcome == "open" and asked.protocol == "UDP" else outcome))
            connection.close()
        done += [(asked, "silent") for asked in self._late(now_s)]
        return done

    def _late(self, now_s: float) -> Iterator[Asked]:
        while self._open:
            connection, asked, until_s = next(iter(self._open.values()))
            if until_s > now_s:
                return
            self._open.popitem(last=False)
            connection.close()
            yield asked

    def drop(self) -> None:
        """Nobody wants to know any more."""
        for connection, _, _ in self._open.values():
            connection.close()
        self._open.clear()
        self._done = []

    def close(self) -> None:
        self.drop()
        self._poll.close()
