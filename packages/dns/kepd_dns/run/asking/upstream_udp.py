# SPDX-License-Identifier: Apache-2.0
"""Asks by UDP: one connected socket for each question, so that the kernel checks who answers and chooses the port.

A socket lives for one answer, so they have an epoll of their own, which the loop watches as a whole: to have it watch
each of them costs as much as to ask. Source of behaviour: RFC 5452.
"""

import asyncio
import resource
import select
import socket
from contextlib import suppress

from kepd_dns.run.asking.asks import NOT_OPEN, Ask, Asker
from kepd_dns.run.asking.randomness import Randomness
from kepd_dns.wire.writing import question_bytes

MOST_WRONG = 8
# As many as flights, so that what one client's names wait for leaves room for others', but no more than half of the
# files that may be open: clients and the daemon need some to be heard.
MOST_SOCKETS = 4096
LARGEST = 4096
MOST_AT_ONCE = 64


class UdpAsker:
    def __init__(self, asker: Asker, random: Randomness) -> None:
        self._asker, self._random = asker, random
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, tuple[socket.socket, Ask, int, list[int]]] = {}
        self._most = min(MOST_SOCKETS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._epoll = select.epoll()
        self._loop.add_reader(self._epoll.fileno(), self._ready)

    @property
    def count(self) -> int:
        """Of questions that wait for their answer."""
        return len(self._open)

    @property
    def is_full(self) -> bool:
        return self.count >= self._most

    def ask(self, ask: Ask) -> bool:
        """False: it could not be sent; the reason has been counted by the caller."""
        server = ask.server
        family = socket.AF_INET6 if ":" in server.address else socket.AF_INET
        opened = None
        try:
            opened = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            opened.connect(target_of(server.address, server.port))
            id_ = self._random.id()
            flags, is_dnssec = ask.question.flags, ask.question.is_dnssec
            opened.send(question_bytes(id_, ask.section, flags, has_options=ask.has_options, is_dnssec=is_dnssec))
        except OSError:
            if opened is not None:
                opened.close()
            return False
        number = opened.fileno()
        ask.number = number
        self._open[number] = opened, ask, id_, [0]
        self._epoll.register(number, select.EPOLLIN)
        return True

    def _ready(self) -> None:
        """One that was closed meanwhile is unknown, or is another's by now, which has nothing to read yet."""
        now_s = self._loop.time()
        for number, _ in self._epoll.poll(0, MOST_AT_ONCE):
            self._read(number, now_s)

    def _read(self, number: int, now_s: float) -> None:
        found = self._open.get(number)
        if found is None:
            return
        opened, ask, id_, wrong = found
        for _ in range(MOST_WRONG + 1):
            try:
                data = opened.recv(LARGEST)
            except BlockingIOError:
                return
            except OSError:
                self._finish(number)
                self._asker.failed(ask, "refused")
                return
            if len(data) >= 12 and data[:2] == id_.to_bytes(2, "big") and data[2] & 0x80:
                self._finish(number)
                self._asker.answered(ask, data, now_s)
                return
            wrong[0] += 1
            if wrong[0] > MOST_WRONG:
                self._finish(number)
                self._asker.failed(ask, "spoofed")
                return

    def _finish(self, number: int) -> None:
        found = self._open.pop(number, None)
        if found is not None:
            found[1].number = NOT_OPEN
            # The kernel takes a socket that is closed out of the epoll.
            found[0].close()

    def give_up(self, ask: Ask) -> None:
        """Nothing of it is heard any more; its socket, if it has one, is closed."""
        ask.is_done = True
        if ask.number != NOT_OPEN:
            self._finish(ask.number)

    def close(self) -> None:
        for number in tuple(self._open):
            self._finish(number)
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()


def target_of(address: str, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
    host, _, scope = address.partition("%")
    if not scope:
        return host, port
    index = 0
    with suppress(OSError):
        index = int(scope) if scope.isdigit() else socket.if_nametoindex(scope)
    return host, port, 0, index
