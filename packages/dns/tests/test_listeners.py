# SPDX-License-Identifier: Apache-2.0
"""Who is heard first, and what a question costs that is known."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from agent.model.allowance import Share
from kepd_dns.cache.cache import Cache
from kepd_dns.handover.state import Settings
from kepd_dns.run import answering as answering_module
from kepd_dns.run import listeners as listeners_module
from kepd_dns.run.answering import Answering
from kepd_dns.run.asking.flight import DnsClient, Waiter
from kepd_dns.run.asking.flights import MOST_FLIGHTS
from kepd_dns.run.counters import Counters
from kepd_dns.run.datagrams import BATCH, Datagrams
from kepd_dns.run.listeners import BUSY_BATCH, MOST_IN_TURN, TcpListener, UdpListener
from kepd_dns.wire.names import to_text
from kepd_dns.wire.question import read_question
from packages.dns.tests.messages import answer, kept
from packages.dns.tests.messages import ask as question

HERE = "127.0.0.1"


class Waiting:
    """Flights, of which so many are under way."""

    def __init__(self, count: int) -> None:
        self.flights: dict[int, None] = dict.fromkeys(range(count))
        self.waiters: list[Waiter] = []

    @property
    def started(self) -> list[str]:
        return [to_text(one.question.name).rstrip(".") for one in self.waiters]

    def start(self, waiter: Waiter, *_: object) -> None:
        self.waiters.append(waiter)


class Place:
    """A listener on loopback, and a client of it."""

    def __init__(self, under_way: int = 0, datagrams: Any = None, **settings: Any) -> None:
        self.counters = Counters()
        self.flights = Waiting(under_way)
        self.answering = Answering(Cache(1 << 20), self.counters, self.flights, str)  # type: ignore[arg-type]
        self.answering.use(Settings(**{"per_source_qps": 0, **settings}), None)
        self._opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._opened.bind((HERE, 0))
        self.client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.client.bind((HERE, 0))
        self.client.settimeout(5.0)
        self.port = self._opened.getsockname()[1]
        self.datagrams = datagrams or Datagrams(socket.AF_INET)
        self.listener = UdpListener(self._opened, self.answering, self.datagrams)

    def send(self, *packets: bytes) -> None:
        for one in packets:
            self.client.sendto(one, self._opened.getsockname())

    def keep(self, name: str) -> None:
        """An address for it in the cache."""
        asked = question(name)
        made = kept(asked, answer(asked, [f"{name}. 60 IN A 10.0.0.1"]))
        reading = read_question(asked)
        zone = self.answering.zones.of(reading.name)
        now_s = asyncio.get_running_loop().time()
        self.answering.cache.put(reading.key, made, zone.bounds, now_s, zone.number)

    async def asked(self, count: int) -> None:
        async with asyncio.timeout(30):
            while self.listener.questions < count:
                await asyncio.sleep(0)

    def close(self) -> None:
        self.listener.close()
        self._opened.close()
        self.client.close()


@pytest.mark.parametrize(("under_way", "first", "most"), [(0, "question", BATCH), (MOST_FLIGHTS, "server", BUSY_BATCH)])
async def test_servers_are_heard_first_while_much_is_under_way(under_way: int, first: str, most: int) -> None:
    """DNS-83: and fewer questions at a time."""
    place = Place(under_way)
    order: list[str] = []
    take = place.answering.take

    def noted(*arguments: Any) -> Any:
        order.append("question")
        return take(*arguments)

    place.answering.take = noted  # type: ignore[method-assign]
    server, end = socket.socketpair()
    asyncio.get_running_loop().add_reader(end.fileno(), lambda: order.append("server") if end.recv(9) else None)
    place.send(*(question(f"n{number}.example") for number in range(40)))
    server.send(b"answer")
    await place.asked(1)
    at_once = order.count("question")
    await place.asked(40)
    asyncio.get_running_loop().remove_reader(end.fileno())
    for one in (server, end, place):
        one.close()

    assert order[0] == first
    assert at_once == min(most, 40)
    assert order.count("server") == 1


async def test_who_asks_little_is_not_behind_a_flood() -> None:
    """DNS-94: nor is a new name of it; what the flood asked is answered after it."""
    place = Place()
    place.keep("known.example")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as flooding:
        flooding.bind(("127.0.0.9", 0))
        for number in range(200):
            flooding.sendto(question(f"x{number}.example"), (HERE, place.port))
    place.send(question("known.example"), question("new.example"))
    await place.asked(202)
    async with asyncio.timeout(30):
        while len(place.flights.started) < 201:
            await asyncio.sleep(0)
    known = place.client.recv(4096)
    place.close()

    assert known[3] & 0xF == 0
    assert place.flights.started.index("new.example") < BATCH


async def test_what_was_read_is_answered_before_a_listener_ends() -> None:
    """DNS-12: whoever comes next finds it in no socket."""
    place = Place()
    place.keep("known.example")
    place.send(*(question(f"x{number}.example") for number in range(200)), question("known.example"))
    await place.asked(201)
    before = len(place.flights.started)
    place.listener.close()
    known = place.client.recv(4096)
    place.close()

    assert (before < 200, len(place.flights.started)) == (True, 200)
    assert known[3] & 0xF == 0


async def test_an_answer_that_waits_to_be_sent_keeps_its_own_id() -> None:
    """DNS-81: while the next one who asks the same gets the same bytes at once."""
    place = Place()
    place.send(question("new.example"))
    await place.asked(1)
    client, text = place.flights.waiters[0].client, bytearray(b"first")
    client.send(client.place, text)
    text[:2] = b"XX"
    await asyncio.sleep(0)
    heard = place.client.recv(4096)
    place.close()

    assert heard == b"first"


async def test_a_late_answer_leaves_by_no_other_socket() -> None:
    """DNS-12: where the address that was asked is let go meanwhile, and its number is another's."""
    place = Place()
    place.send(question("new.example"))
    await place.asked(1)
    client = place.flights.waiters[0].client
    place.listener.let_go()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM):
        client.send(client.place, b"late")
        await asyncio.sleep(0)
    place.client.setblocking(False)
    with pytest.raises(BlockingIOError):
        place.client.recv(4096)
    place.client.close()

    assert place.counters.overload == {"ebadf": 1}


async def test_a_known_question_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS-81: nor is a task made, whoever asks, in the same spelling; counted and answered with its own id it is."""
    place = Place()
    place.keep("a.example")
    read: list[bytes] = []
    monkeypatch.setattr(answering_module, "read_question", lambda data: read.append(data) or read_question(data))
    place.send(*(question("a.example", id_=100 + number) for number in range(30)))
    await place.asked(30)
    heard = [place.client.recv(4096) for _ in range(30)]
    tasks = asyncio.all_tasks()
    place.close()

    assert len(read) == 1
    assert sorted(int.from_bytes(one[:2], "big") for one in heard) == [100 + number for number in range(30)]
    assert len({one[2:] for one in heard}) == 1
    assert len(tasks) == 1
    assert place.counters.all_answers()["udp", "ipv4", ".", "A", 0, "cache"] == 30


class Claiming(Datagrams):
    """Packets say that they come from a port that they do not."""

    port = 0

    def receive(self, number: int, most: int) -> int:
        count = super().receive(number, most)
        for slot in range(count):
            self.ports[16 * slot + 1] = socket.htons(self.port)
        return count


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("is_own", [True, False])
async def test_packets_from_port_0_and_from_ourselves_are_dropped(is_known: bool, is_own: bool) -> None:
    """DNS-90: or two listeners would talk to each other for ever; whether the answer is ready or not."""
    place = Place(datagrams=Claiming(socket.AF_INET))
    if is_known:
        place.keep("a.example")
    place.send(question("a.example"))
    await place.asked(1)
    before = Counter(place.counters.malformed)
    if is_own:
        place.datagrams.port = place.port
    place.send(question("a.example"))
    await place.asked(2)
    place.close()

    assert (before, place.counters.malformed) == ({"port": 1}, {"port": 2})
    assert sum(place.counters.all_answers().values()) == 0


async def test_a_source_that_asks_too_much_is_told_to_come_by_tcp() -> None:
    """DNS-93: known questions count as others do; every second one beyond twice the limit is answered, cut."""
    place = Place(per_source_qps=10)
    place.keep("a.example")
    place.send(*[question("a.example")] * 60)
    await place.asked(60)
    place.client.settimeout(0.2)
    heard = []
    with suppress(TimeoutError):
        while True:
            heard.append(place.client.recv(4096))
    place.close()

    cut = [one for one in heard if one[2] & 2]
    assert (len(heard) - len(cut), len(cut)) == (20, 20)


async def test_what_was_asked_without_a_limit_does_not_count_when_there_is_one() -> None:
    """DNS-93: who asked much before is answered as anybody is."""
    place = Place()
    place.keep("a.example")
    place.send(*[question("a.example")] * 60)
    await place.asked(60)
    before = [place.client.recv(4096) for _ in range(60)]
    place.answering.use(Settings(per_source_qps=10), None)
    place.send(*[question("a.example")] * 20)
    await place.asked(80)
    after = [place.client.recv(4096) for _ in range(20)]
    place.close()

    assert [one[2] & 2 for one in (*before, *after)] == [0] * 80


@asynccontextmanager
async def by_tcp(place: Place) -> AsyncIterator[tuple[TcpListener, int]]:
    listener = TcpListener(place.answering)
    opened = socket.create_server((HERE, 0))
    await listener.listen(opened)
    try:
        yield listener, opened.getsockname()[1]
    finally:
        listener.let_go(opened)
        listener.close()
        await asyncio.sleep(0)


def in_stream(name: str, count: int) -> bytes:
    return b"".join(len(one).to_bytes(2, "big") + one for one in [question(name)] * count)


async def test_one_connection_cannot_hold_the_loop_with_all_it_sent() -> None:
    """A quarter of a megabyte of known questions held kepd-dns for a tenth of a second."""
    place = Place()
    place.keep("known.example")
    taken: list[int] = []
    async with by_tcp(place) as (listener, port):
        passes = place.answering.take

        def take(data: bytes, client: DnsClient, now_s: float, is_over: bool = False) -> bytes | bytearray | None:
            taken[-1] += 1
            return passes(data, client, now_s, is_over)

        place.answering.take = take  # type: ignore[method-assign]
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(in_stream("known.example", 500))
        async with asyncio.timeout(30):
            while sum(taken) < 500:
                taken.append(0)
                await asyncio.sleep(0)
            await reader.readexactly(500 * 40)
        writer.close()

    assert max(taken) <= MOST_IN_TURN
    assert not listener.clients
    place.close()


async def test_questions_of_one_address_by_tcp_wait_beyond_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(listeners_module.METERED, listeners_module.QUESTIONS, Share(10, 1 / 3600))
    place = Place()
    place.keep("known.example")
    async with by_tcp(place) as (listener, port):
        _, writer = await asyncio.open_connection(HERE, port)
        writer.write(in_stream("known.example", 50))
        async with asyncio.timeout(30):
            while not any(one._rests and one._rests.when() > one._loop.time() + 60 for one in listener.clients):
                await asyncio.sleep(0)
        writer.close()

    assert sum(place.counters.answers.values()) == 10
    place.close()


async def test_who_connects_too_often_by_tcp_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(listeners_module.METERED, listeners_module.CONNECTIONS, Share(3, 1 / 3600))
    place = Place()
    async with by_tcp(place) as (_, port):
        for _ in range(3):
            _, writer = await asyncio.open_connection(HERE, port)
            writer.close()
        reader, writer = await asyncio.open_connection(HERE, port)
        async with asyncio.timeout(30):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()

    assert place.counters.overload["clients"] == 1
    place.close()
