# SPDX-License-Identifier: Apache-2.0
"""DNS servers that answer as they are told, and clients that count what they get, in namespaces of tests.

Owns: sockets, which close with the `async with`. Never: believes our codec; dnspython makes and reads the messages.
"""

import asyncio
import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

import dns.flags
import dns.message
import dns.query
import dns.rcode
import dns.rdatatype
import dns.rrset

from tests.lab.namespace import Namespace

SO_RCVBUFFORCE = 33
TRIES, AT_ONCE = 20, 64
Answerer = Callable[["ScriptedDns", bytes, str], Iterable[bytes]]
"""From a question's bytes and how it came to what is sent, in order; nothing is silence."""


HALF = b"half"
"""For an answer of which a part is sent before the connection is reset."""


def reset_mid_message(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\1\0half")
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


def opened(namespace: Namespace | None, address: str, port: int, kind: socket.SocketKind) -> socket.socket:
    def make() -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = socket.socket(family, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
        try:
            made.bind((address, port))
        except OSError:
            made.close()
            raise
        made.setblocking(False)
        if kind == socket.SOCK_STREAM:
            made.listen(64)
        return made

    return make() if namespace is None else namespace.call(make)


def opened_pair(namespace: Namespace | None, address: str, port: int) -> tuple[socket.socket, socket.socket]:
    """UDP and TCP at one port; one that is free for the first may be another test's for the second."""
    for _ in range(TRIES):
        udp = opened(namespace, address, port, socket.SOCK_DGRAM)
        try:
            return udp, opened(namespace, address, udp.getsockname()[1], socket.SOCK_STREAM)
        except OSError:
            udp.close()
            if port:
                raise
    raise OSError(f"no port of {address} is free for UDP and TCP after {TRIES} tries")


def answered(data: bytes, address: str, *, ttl: int = 30, code: int = 0) -> bytes:
    """What was asked before is answered at once: clients come by the thousand."""
    return data[:2] + _answered(data[2:], address, ttl, code)


@lru_cache(4096)
def _name(rest: bytes) -> str:
    return dns.message.from_wire(b"\0\0" + rest).question[0].name.to_text().lower()


@lru_cache(4096)
def _answered(rest: bytes, address: str, ttl: int, code: int) -> bytes:
    asked = dns.message.from_wire(b"\0\0" + rest)
    made = dns.message.make_response(asked, recursion_available=True)
    made.set_rcode(code)
    question = asked.question[0]
    kind = dns.rdatatype.to_text(question.rdtype)
    if code == 0 and kind in ("A", "AAAA") and (":" in address) == (kind == "AAAA"):
        made.answer.append(dns.rrset.from_text(question.name, ttl, "IN", kind, address))
    else:
        soa = [".", "5", "IN", "SOA", "ns. host. 1 2 3 4 5"]
        made.authority.append(dns.rrset.from_text(soa[0], 5, "IN", "SOA", soa[4]))
    return made.to_wire()[2:]


def ordinary(server: "ScriptedDns", data: bytes, _way: str) -> Iterable[bytes]:
    return (answered(data, server.says),)


@dataclass
class ScriptedDns:
    """`says` is the address it answers every name with, so that clients see who answered."""

    address: str
    says: str
    namespace: Namespace | None = None
    port: int = 53
    answers: Answerer = ordinary
    delay_s: float = 0.0
    asked: list[tuple[str, str]] = field(default_factory=list)
    """By name and way."""
    connections: int = 0
    _servers: list[Any] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._udp, tcp = opened_pair(self.namespace, self.address, self.port)
        loop.add_reader(self._udp, self._read)
        self.port = self._udp.getsockname()[1]
        self._servers = [await asyncio.start_server(self._serve, sock=tcp)]
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._udp)
        self._udp.close()
        for one in self._servers:
            one.close()

    def _note(self, data: bytes, way: str) -> None:
        with suppress(dns.exception.DNSException):
            self.asked.append((_name(data[2:]), way))

    def _read(self) -> None:
        """A few, for whoever asks by TCP would else wait until nobody asks by UDP."""
        with suppress(BlockingIOError):
            for _ in range(AT_ONCE):
                data, peer = self._udp.recvfrom(4096)
                self._note(data, "udp")
                made = list(self.answers(self, data, "udp"))
                if self.delay_s:
                    asyncio.get_running_loop().call_later(self.delay_s, self._send, made, peer)
                else:
                    self._send(made, peer)

    def _send(self, made: list[bytes], peer: Any) -> None:
        for one in made:
            with suppress(OSError):
                self._udp.sendto(one, peer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(2), "big")
                data = await reader.readexactly(size)
                self._note(data, "tcp")
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                for one in self.answers(self, data, "tcp"):
                    if one == HALF:
                        reset_mid_message(writer)
                        return
                    writer.write(len(one).to_bytes(2, "big") + one)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()


def ask(
    namespace: Namespace | None, server: str, name: str, kind: str = "A", *, tcp: bool = False, within_s: float = 3.0,
    port: int = 53, options: bool = True,
) -> dns.message.Message | None:  # fmt: skip
    """None: silence, or a connection that ended."""
    question = dns.message.make_query(name, kind, use_edns=0 if options else False)
    any_ = "::" if ":" in server else "0.0.0.0"
    way = socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM

    def connected() -> socket.socket:
        made = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, way)
        made.bind((any_, 0))
        made.settimeout(within_s)
        return made

    with connected() if namespace is None else namespace.call(connected) as asking:
        try:
            asking.connect((server, port))
            if tcp:
                dns.query.send_tcp(asking, question, time.time() + within_s)
                return dns.query.receive_tcp(asking, time.time() + within_s)[0]
            asking.send(question.to_wire())
            while True:
                found = dns.message.from_wire(asking.recv(65536))
                if found.id == question.id:
                    return found
        except (OSError, EOFError, dns.exception.Timeout):
            return None


def addresses(found: dns.message.Message | None) -> list[str]:
    return sorted(one.to_text() for section in found.answer for one in section) if found is not None else []


@dataclass
class Stream:
    """Questions at a steady rate from one socket; who answered each, by number."""

    sent: int = 0
    who: dict[int, str] = field(default_factory=dict)
    twice: int = 0
    longest_s: float = 0.0

    @property
    def lost(self) -> int:
        return self.sent - len(self.who)


def stream(
    namespace: Namespace, server: str, name: str, *, count: int, rate: float, kinds: Sequence[str] = ("A",),
    linger_s: float = 1.0, is_new: bool = False, found: Stream | None = None,
) -> Stream:  # fmt: skip
    """In a thread of its own. The number of a question is its id; kinds take turns. `is_new`: its first label is that
    number and another one, so that no name was asked for before. `found` is for whoever looks at it meanwhile."""
    texts = [bytearray(dns.message.make_query(name, kind, use_edns=False).to_wire()) for kind in kinds]
    asking = namespace.call(
        lambda: socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
    )
    found, begun_s = found or Stream(), time.monotonic()
    sent_s: dict[int, float] = {}
    with asking:
        asking.setblocking(False)
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 21)
        end_s = begun_s + count / rate + linger_s
        while (now_s := time.monotonic()) < end_s and (found.sent < count or found.lost):
            while found.sent < min(count, (now_s - begun_s) * rate):
                text = texts[found.sent % len(texts)]
                text[:2] = found.sent.to_bytes(2, "big")
                if is_new:
                    text[12 : 13 + text[12]] = b"\x0a%010x" % (found.sent << 16 | id(found) & 0xFFFF)
                sent_s[found.sent] = now_s
                with suppress(OSError):
                    asking.sendto(text, (server, 53))
                found.sent += 1
            if not select.select([asking], [], [], 0.002)[0]:
                continue
            with suppress(BlockingIOError, ConnectionRefusedError):
                while True:
                    data = asking.recv(4096)
                    number = int.from_bytes(data[:2], "big")
                    found.twice += number in found.who
                    found.who[number] = data[-4:].hex() if data[3] & 0xF == 0 else f"code {data[3] & 0xF}"
                    found.longest_s = max(found.longest_s, time.monotonic() - sent_s.get(number, now_s))
    return found
