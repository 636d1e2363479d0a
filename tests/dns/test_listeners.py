# SPDX-License-Identifier: Apache-2.0
"""Who is heard first, and what a question costs that is known."""

import asyncio
import socket
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from agent.dns.cache.cache import Cache
from agent.dns.handover.state import Settings
from agent.dns.run import answering as answering_module
from agent.dns.run.answering import Answering
from agent.dns.run.counters import Counters
from agent.dns.run.datagrams import BATCH, Datagrams
from agent.dns.run.flights import MOST_FLIGHTS
from agent.dns.run.listeners import BUSY_BATCH, UdpListener
from agent.dns.wire.question import read_question
from tests.dns.messages import answer, kept
from tests.dns.messages import ask as question

HERE = "127.0.0.1"


class Waiting:
    """Flights, of which so many are under way."""

    def __init__(self, count: int) -> None:
        self.flights: dict[int, None] = dict.fromkeys(range(count))

    def start(self, *_: object, **__: object) -> None: ...


class Place:
    """A listener on loopback, and a client of it."""

    def __init__(self, under_way: int = 0, datagrams: Any = None, **settings: Any) -> None:
        self.counters = Counters()
        self.answering = Answering(Cache(1 << 20), self.counters, Waiting(under_way), str)  # type: ignore[arg-type]
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
        async with asyncio.timeout(5.0):
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
