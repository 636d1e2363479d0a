# SPDX-License-Identifier: Apache-2.0
"""What questions under way cost while a server says nothing."""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kepd_dns.cache.cache import Cache
from kepd_dns.handover.state import Settings
from kepd_dns.run.answering import Answering
from kepd_dns.run.asking import flights as flights_module
from kepd_dns.run.asking import servers as servers_module
from kepd_dns.run.asking.flight import DnsClient, Waiter
from kepd_dns.run.asking.flights import MOST_OF_SOURCE, Flights
from kepd_dns.run.asking.servers import Servers
from kepd_dns.run.counters import Counters
from kepd_dns.run.process import OPEN_FILES, allow_open_files
from packages.dns.tests.messages import question

FEW_FILES = 400
"""At least; more where this process has many open."""


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that hears and does not answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.bind(("127.0.0.1", 0))
        yield opened


class Asking:
    """Flights to that server."""

    def __init__(self, silent: socket.socket) -> None:
        self.counters, cache = Counters(), Cache(1 << 20)
        servers = Servers(lambda _text: None)
        self.flights = Flights(cache, self.counters, servers.of)
        self.answering = Answering(cache, self.counters, self.flights, str)
        servers.meet(self.flights, self.answering)
        stubs = {"example": (f"127.0.0.1:{silent.getsockname()[1]}",)}
        settings = Settings(resolv_conf="", stub_domains=stubs)
        self.answering.use(settings, None)
        servers.use(settings, ())
        self.ends = asyncio.Queue[int]()
        """The codes of answers."""

    def start(self, name: str, source: str = "192.0.2.1") -> None:
        client = DnsClient(source, "udp", "ipv4", lambda _place, _text: None)
        asked, now_s = question(name), self.flights.now_s()
        waiter = Waiter(asked, client, ".", now_s, lambda _one, _text, code, _source, _s: self.ends.put_nowait(code))
        self.flights.start(waiter, self.answering.zones.of(asked.name), now_s)


@pytest.fixture
async def asking(silent: socket.socket) -> AsyncIterator[Asking]:
    made = Asking(silent)
    yield made
    made.flights.close()


@pytest.fixture
def few_files() -> Iterator[int]:
    """As a process begins where nobody says how many it may have open; how many those are."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = max(FEW_FILES, 8 * len([*Path("/proc/self/fd").iterdir()]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
    yield few
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_question_without_an_answer_leaves_no_socket(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS-95: neither the first try of it nor the last."""
    monkeypatch.setattr(flights_module, "TRY_S", 0.02)
    monkeypatch.setattr(flights_module, "WHOLE_S", 0.2)
    asking.start("a.example")
    before = asking.flights.udp.count
    async with asyncio.timeout(30):
        code = await asking.ends.get()

    assert asking.counters.failures.total() > 1
    assert (before, code, asking.flights.udp.count) == (2, 2, 1)


async def test_a_look_for_loops_without_an_answer_leaves_no_socket(
    silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS-45, DNS-95: one goes out whenever servers change."""
    monkeypatch.setattr(servers_module, "LOOP_S", 0.02)
    asking = Asking(silent)
    before = asking.flights.udp.count
    async with asyncio.timeout(30):
        while asking.answering.loop_names:
            await asyncio.sleep(0)
    after = asking.flights.udp.count
    asking.flights.close()

    assert (before, after) == (1, 0)


@pytest.mark.usefixtures("few_files")
async def test_a_flood_from_one_leaves_room_for_new_names_of_another(silent: socket.socket) -> None:
    """DNS-94: with the files that the process allows itself."""
    allow_open_files()
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    asking = Asking(silent)
    for number in range(MOST_OF_SOURCE + 9):
        asking.start(f"x{number}.example")
    of_one = len(asking.flights.flights)
    asking.start("other.example", "192.0.2.2")
    of_both = len(asking.flights.flights)
    asking.flights.close()

    assert allowed == min(OPEN_FILES, most)
    assert (of_one, of_both) == (MOST_OF_SOURCE, MOST_OF_SOURCE + 1)
    assert asking.counters.overload == {"source": 9}


async def test_half_of_the_files_are_left_to_others(few_files: int, silent: socket.socket) -> None:
    """DNS-94: clients by TCP and the daemon are heard; names that find no room get an error."""
    asking = Asking(silent)
    for number in range(few_files):
        asking.start(f"x{number}.example", f"192.0.2.{number % 99}")
    sockets, left = asking.flights.udp.count, [socket.socket() for _ in range(few_files // 4)]
    for one in left:
        one.close()
    asking.flights.close()

    assert sockets == few_files // 2
    assert asking.counters.overload == {"upstream": few_files // 2 + 1}
