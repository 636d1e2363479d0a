# SPDX-License-Identifier: Apache-2.0
"""Where clients are heard: UDP in batches, TCP connection by connection."""

import asyncio
import errno
import socket
import struct
from collections import Counter
from contextlib import suppress
from functools import partial

from agent.model.allowance import CallerMeter, Share
from kepd_dns.run.answering import MOST_SOURCES as MOST_TAKEN
from kepd_dns.run.answering import Answering
from kepd_dns.run.asking.flight import DnsClient
from kepd_dns.run.asking.flights import MOST_FLIGHTS
from kepd_dns.run.asking.flights import MOST_OF_SOURCE as MOST_WAITING
from kepd_dns.run.counters import FAMILIES
from kepd_dns.run.datagrams import BATCH, FLAT, LENGTH_AT, OUT_BYTES, Datagrams, text_of
from kepd_dns.run.turns import Turns

BUSY_BATCH, BUSY_FLIGHTS = 32, 128
# Read at one wake-up where more lie in a socket than are answered at once.
MOST_BATCHES = 8
MOST_CLIENTS, MOST_OF_SOURCE, MOST_PIPELINED = 1024, 64, 100
# Of one address by TCP. Questions beyond it are read later; whoever connects more often is not let in.
CONNECTIONS, QUESTIONS = "connections", "questions"
METERED = {CONNECTIONS: Share(200, 100), QUESTIONS: Share(10_000, 5000)}
# Of one connection in one turn of the loop.
MOST_IN_TURN = 32
IDLE_S, UNFINISHED_S, UNREAD_S = 10.0, 5.0, 5.0
MOST_UNREAD = 1 << 16
SWEEP_S = 1.0
NEW = -1
RESET = struct.pack("ii", 1, 0)
# Texts of addresses that are at hand.
MOST_SOURCES = 1024


def family_of(opened: socket.socket) -> str:
    return "ipv6" if opened.family == socket.AF_INET6 else "ipv4"


class UdpListener:
    """One socket. Up to 64 questions are seen to at each wake-up, fewer while many wait for servers, whose answers then
    come first. Where more lie in it, what is ready goes out and the rest waits by who asked: of itself a socket has one
    order for all, in which a flood is before whoever comes after it. `datagrams` is shared by sockets of one family."""

    def __init__(self, opened: socket.socket, answering: Answering, datagrams: Datagrams) -> None:
        self._socket, self._number, self._answering, self._datagrams = opened, opened.fileno(), answering, datagrams
        self._loop = asyncio.get_running_loop()
        self._family = family_of(opened)
        self._index = FAMILIES.index(self._family)
        self._own = opened.getsockname()[:2]
        self._own_port = socket.htons(self._own[1])
        self._late: list[tuple[bytes, bytes]] = []
        self._sources: dict[bytes, str] = {}
        self._turns = Turns[tuple[bytes, DnsClient, bool]](MOST_FLIGHTS, MOST_WAITING)
        self._is_behind = self._is_catching_up = False
        self.questions = 0
        opened.setblocking(False)
        self._is_deferred = self._is_closed = False
        self._loop.add_reader(self._number, self._ready)

    def _ready(self) -> None:
        """While many wait for servers, what servers say at the same moment comes before new questions."""
        if len(self._answering.flights.flights) <= MOST_FLIGHTS // 2:
            self._read()
        elif not self._is_deferred:
            self._is_deferred = True
            self._loop.call_soon(self._read_deferred)

    def _read_deferred(self) -> None:
        self._is_deferred = False
        if not self._is_closed:
            self._read()

    def _most(self) -> int:
        return BATCH if len(self._answering.flights.flights) < BUSY_FLIGHTS else BUSY_BATCH

    def _read(self) -> None:
        most = self._most()
        for _ in range(MOST_BATCHES):
            began_s = self._loop.time()
            count = self._datagrams.receive(self._number, most)
            self._is_behind = count == most or len(self._turns) > 0
            if count:
                self._see_to(count, began_s)
            if count < most:
                break
        if self._turns and not self._is_catching_up:
            self._catch_up()

    def _see_to(self, count: int, began_s: float) -> None:
        waiting = len(self._turns)
        self._answering.begin(began_s)
        ready = self._answer(count, began_s)
        if ready:
            self._note(self._datagrams.send(self._number, ready))
        self.questions += count
        packet = self._datagrams.views[count - 1][: self._datagrams.sizes[FLAT * (count - 1) + LENGTH_AT]]
        self._answering.sample(count, packet.tobytes(), self._datagrams.name(count - 1))
        self._time(began_s, count - len(self._turns) + waiting)

    def _catch_up(self) -> None:
        self._is_catching_up = False
        if self._is_closed:
            return
        self._take_turns(self._most())
        if self._turns:
            self._is_catching_up = True
            self._loop.call_soon(self._catch_up)

    def _take_turns(self, most: int) -> None:
        began_s = self._loop.time()
        count = min(most, len(self._turns))
        for _ in range(count):
            data, client, is_over = self._turns.take()
            text = self._answering.take(data, client, began_s, is_over)
            if text is not None:
                self._send(client.place, text)
        self._time(began_s, count)

    def _time(self, began_s: float, count: int) -> None:
        if count:
            self._answering.counters.durations["cache"].note((self._loop.time() - began_s) / count, count)

    def _answer(self, count: int, now_s: float) -> int:
        """What is ready goes out without a look at the question, the rest by `take`; how many can be sent at once."""
        answering, datagrams, own_port, family = self._answering, self._datagrams, self._own_port, self._index
        recent, older, taken, most = answering.ready.recent, answering.ready.older, answering.taken, answering.most
        views, hosts, sizes, ports = datagrams.views, datagrams.hosts, datagrams.sizes, datagrams.ports
        out, out_sizes, out_places, places = (
            datagrams.out, datagrams.out_sizes, datagrams.out_places, datagrams.name_places,
        )  # fmt: skip
        at = done = 0
        for slot in range(count):
            view = views[slot]
            raw = view[2 : sizes[FLAT * slot + LENGTH_AT]].tobytes()
            host = hosts[slot].tobytes()
            got = taken.get(host, NEW)
            ready = recent.get(raw)
            if ready is None:
                if raw in older:
                    ready = answering.renewed(raw, now_s)
            elif ready.until_s <= now_s or ready.changes != ready.entry.changes:
                ready = answering.renewed(raw, now_s)
            if ready is None or not NEW < got < most or ports[16 * slot + 1] in (0, own_port):
                if got > NEW:
                    taken[host] = got + 1
                elif len(taken) < MOST_TAKEN:
                    taken[host] = 1
                text = self._take(slot, raw, host, now_s, got >= most)
                if text is None:
                    continue
            else:
                taken[host] = got + 1
                ready.entry.hits += 1
                ready.tally[family] += 1
                text = ready.text
                text[0], text[1] = view[0], view[1]
            size = len(text)
            out[at : at + size] = text
            out_sizes[2 * done + 1] = size
            out_places[8 * done] = places[slot]
            at += OUT_BYTES
            done += 1
        return done

    def _take(self, slot: int, raw: bytes, host: bytes, now_s: float, is_over: bool) -> bytes | bytearray | None:
        datagrams = self._datagrams
        if self._is_behind and not self._turns.has_room(host):
            self._answering.counters.overload["source"] += 1
            return None
        name = datagrams.name(slot)
        source = self._sources.get(host) or self._source(host, name)
        port = datagrams.ports[16 * slot + 1]
        if not port or (port == self._own_port and source == self._own[0]):
            self._answering.counters.malformed["port"] += 1
            return None
        client = DnsClient(source, "udp", self._family, self._send, name)
        data = datagrams.views[slot][:2].tobytes() + raw
        if self._is_behind:
            self._turns.put(host, (data, client, is_over))
            return None
        return self._answering.take(data, client, now_s, is_over)

    def _source(self, host: bytes, name: bytes) -> str:
        if len(self._sources) >= MOST_SOURCES:
            self._sources.clear()
        found = self._sources[host] = text_of(name)
        return found

    def _send(self, name: bytes, text: bytes | bytearray) -> None:
        """An answer that took longer, with others that come at the same moment."""
        if not self._late:
            self._loop.call_soon(self._send_late)
        # What is at hand for a question gets the next asker's id before this one has left.
        self._late.append((name, bytes(text)))

    def _send_late(self) -> None:
        late, self._late = self._late, []
        for first in range(0, len(late), BATCH):
            batch = late[first : first + BATCH]
            self._datagrams.put(batch)
            self._note(self._datagrams.send(self._number, len(batch)))

    def _note(self, faults: list[int]) -> None:
        for number in faults:
            self._answering.counters.overload[errno.errorcode.get(number, "send").lower()] += 1

    def close(self) -> None:
        """Nothing more is read. What was read is in no socket any more, so it is answered."""
        self._is_closed = True
        self._loop.remove_reader(self._number)
        self._take_turns(len(self._turns))
        self._send_late()

    def let_go(self) -> None:
        """Its address is gone from this node. What servers still say for clients of it goes nowhere: the number may be
        that of another socket by then."""
        self.close()
        self._number = NEW
        self._socket.close()


class TcpListener:
    """Connections of one or more sockets, and the sweep that ends those that do nothing."""

    def __init__(self, answering: Answering) -> None:
        self.answering = answering
        self.clients: set[ClientConnection] = set()
        self.sources: Counter[str] = Counter()
        self.meter = CallerMeter(METERED)
        self._loop = asyncio.get_running_loop()
        self._servers: dict[socket.socket, asyncio.Server] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    async def listen(self, opened: socket.socket) -> None:
        opened.setblocking(False)
        make = partial(ClientConnection, self, family_of(opened))
        self._servers[opened] = await self._loop.create_server(make, sock=opened, backlog=512)

    def let_go(self, opened: socket.socket) -> None:
        """No new connections there; it is closed."""
        self._servers.pop(opened).close()

    def join(self, client: "ClientConnection") -> bool:
        is_full = len(self.clients) >= MOST_CLIENTS or self.sources[client.source] >= MOST_OF_SOURCE
        if is_full or self.meter.take(client.source, CONNECTIONS, self._loop.time(), refuses=True):
            self.answering.counters.overload["clients"] += 1
            return False
        self.clients.add(client)
        self.sources[client.source] += 1
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)
        return True

    def leave(self, client: "ClientConnection") -> None:
        if client in self.clients:
            self.clients.discard(client)
            self.sources[client.source] -= 1
            if self.sources[client.source] <= 0:
                del self.sources[client.source]

    def _sweep(self) -> None:
        self._sweeping = None
        now_s = self._loop.time()
        for client in tuple(self.clients):
            client.check(now_s)
        if self.clients:
            self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)

    def stop(self) -> None:
        """No new connections, and no further questions of those there are."""
        for server in self._servers.values():
            for opened in server.sockets:
                self._loop.remove_reader(opened.fileno())
        for client in tuple(self.clients):
            client.finish()

    def close(self) -> None:
        for client in tuple(self.clients):
            client.abort()
        if self._sweeping is not None:
            self._sweeping.cancel()


class ClientConnection(asyncio.Protocol):
    def __init__(self, listener: TcpListener, family: str) -> None:
        self._listener, self._family = listener, family
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._in = bytearray()
        self._pending = 0
        self._seen_s = self._loop.time()
        self._unread_s = 0.0
        self._rests: asyncio.TimerHandle | None = None
        self._is_finishing = False
        self.source = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            return
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.source = peer[0] if peer else ""
        transport.set_write_buffer_limits(high=MOST_UNREAD)
        if not self._listener.join(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._listener.leave(self)
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._in += data
        self._seen_s = self._loop.time()
        if self._rests is None:
            self._work()

    def _rested(self) -> None:
        self._rests = None
        if self._transport is not None:
            self._transport.resume_reading()
        self._work()

    def _work(self) -> None:
        now_s = self._loop.time()
        done = 0
        while len(self._in) >= 2 and not self._is_finishing and self._transport is not None:
            end = 2 + (self._in[0] << 8 | self._in[1])
            if len(self._in) < end:
                break
            if self._pending >= MOST_PIPELINED:
                self._transport.pause_reading()
                return
            is_enough = done >= MOST_IN_TURN
            wait_s = 0.0 if is_enough else self._listener.meter.take(self.source, QUESTIONS, now_s, refuses=True)
            if is_enough or wait_s:
                self._transport.pause_reading()
                self._rests = self._loop.call_later(wait_s, self._rested)
                return
            done += 1
            message = bytes(self._in[2:end])
            del self._in[:end]
            self._pending += 1
            client = DnsClient(self.source, "tcp", self._family, self._send)
            text = self._listener.answering.take(message, client, now_s)
            if text is not None:
                self._send(b"", text)
            elif len(message) < 12 or message[2] & 0x80:
                self.abort()

    def _send(self, _place: bytes, text: bytes | bytearray) -> None:
        self._pending -= 1
        if self._transport is None:
            return
        self._transport.write(len(text).to_bytes(2, "big") + text)
        if self._transport.get_write_buffer_size() > MOST_UNREAD:
            self.abort()
        elif self._is_finishing and not self._pending:
            self._transport.close()
        elif self._pending == MOST_PIPELINED - 1 and not self._transport.is_reading():
            self._rests = self._rests or self._loop.call_later(0, self._rested)

    def check(self, now_s: float) -> None:
        """Who sends half a message, does not read, or says nothing."""
        if self._transport is None:
            return
        unread = self._transport.get_write_buffer_size()
        self._unread_s = (self._unread_s or now_s) if unread else 0.0
        idle_s = now_s - self._seen_s
        is_stuck = (self._in and idle_s > UNFINISHED_S) or (unread and now_s - self._unread_s > UNREAD_S)
        if is_stuck or (idle_s > IDLE_S and not self._pending):
            self.abort()

    def finish(self) -> None:
        self._is_finishing = True
        if self._transport is not None and not self._pending:
            self._transport.close()

    def abort(self) -> None:
        """Who did not read is reset, or the kernel would keep for it what it has."""
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size():
            with suppress(OSError):
                self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._transport.abort()
