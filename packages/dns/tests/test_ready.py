# SPDX-License-Identifier: Apache-2.0
"""Answers that are ready as bytes, and packets that travel many at a time."""

import socket
from typing import Any

import dns.message
import pytest

from kepd_dns.cache.cache import Bounds, Cache
from kepd_dns.cache.ready import CACHE_BYTES_EACH, Ready, ReadyAnswers, ready_of
from kepd_dns.run.datagrams import BATCH, FLAT, LENGTH_AT, Datagrams, text_of
from packages.dns.tests.messages import SOA, answer, ask, kept, question

BOUNDS = Bounds(least_s=2, most_s=30, most_negative_s=5, stale_s=10.0)
ROOM = 1 << 20


def put(cache: Cache, *records: str, now_s: float = 0.0, code: int = 0) -> None:
    asked = ask("a.b")
    made = answer(asked, list(records), [] if records else [SOA], code=code)
    cache.put(question("a.b").key, kept(asked, made), BOUNDS, now_s)


def ready(cache: Cache, now_s: float, **more: Any) -> Ready:
    asked = question("A.b", **more)
    entry = cache.get(asked.key, now_s)
    assert entry is not None
    return ready_of(entry, asked, now_s, [0, 0])


@pytest.mark.parametrize("options", [True, False])
def test_what_is_ready_is_what_would_be_written(options: bool) -> None:
    """DNS-50: at every moment of its life, byte for byte, and not a moment longer."""
    cache = Cache(ROOM)
    put(cache, "a.b. 20 IN CNAME c.b.", "c.b. 9 IN A 10.0.0.1")
    made = ready(cache, 0.3, options=options)
    asked = question("A.b", options=options)
    found = []
    for tenth in range(3, 90):
        now_s = tenth / 10
        assert now_s < made.until_s or made.renew(now_s)
        found.append(bytes(made.text) == made.entry.answer(asked, now_s))

    assert set(found) == {True}
    assert made.until_s == 9.0
    assert made.renew(9.0) is False


def test_what_is_ready_ends_with_what_it_was_made_of() -> None:
    """DNS-50, DNS-52: another answer, a denial, a flush."""
    deeds = {
        "other": lambda cache: put(cache, "a.b. 20 IN A 10.0.0.2", now_s=1.0),
        "denied": lambda cache: put(cache, now_s=1.0, code=3),
        "flushed": lambda cache: cache.flush(),
    }
    found = {}
    for name, deed in deeds.items():
        cache = Cache(ROOM)
        put(cache, "a.b. 20 IN A 10.0.0.1")
        made = ready(cache, 0.5)
        deed(cache)
        found[name] = made.changes != made.entry.changes, made.renew(1.5)

    assert found == dict.fromkeys(deeds, (True, False))


def test_addresses_that_are_ready_take_turns() -> None:
    """DNS-61: so such an answer is made anew for each who asks."""
    cache = Cache(ROOM)
    put(cache, "a.b. 20 IN A 10.0.0.1", "a.b. 20 IN A 10.0.0.2")
    made = ready(cache, 0.5)
    first = []
    for _ in range(4):
        made.entry.hits += 1
        assert made.renew(0.5)
        first.append(str(next(iter(dns.message.from_wire(bytes(made.text)).answer[0]))))

    assert made.until_s <= 0.5
    assert sorted(first) == ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2"]


def test_room_for_what_is_ready_is_bounded() -> None:
    """DNS-58: those that nobody asked for of late go, one at a time."""
    cache = Cache(ROOM)
    put(cache, "a.b. 20 IN A 10.0.0.1")
    made = ready(cache, 0.5)
    answers = ReadyAnswers(8 * CACHE_BYTES_EACH)
    for number in range(100):
        answers.keep(b"%d" % number, made)
        assert answers.renewed(b"0", 1.0) is made
        assert len(answers.recent) <= 8
    assert answers.renewed(b"50", 1.0) is None
    assert answers.renewed(b"99", 1.0) is made


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_packets_travel_many_at_a_time(family: int, address: str) -> None:
    """DNS-81: up to 64 with one call; one that cannot be sent keeps no other back."""
    with socket.socket(family, socket.SOCK_DGRAM) as server, socket.socket(family, socket.SOCK_DGRAM) as client:
        server.setblocking(False)
        server.bind((address, 0))
        client.bind((address, 0))
        client.settimeout(5.0)
        datagrams = Datagrams(family)
        nothing = datagrams.receive(server.fileno(), BATCH)
        for number in range(BATCH + 6):
            client.sendto(b"%d" % number, server.getsockname())
        counts = [datagrams.receive(server.fileno(), BATCH)]
        read = [bytes(datagrams.views[one][: datagrams.sizes[FLAT * one + LENGTH_AT]]) for one in range(BATCH)]
        name = datagrams.name(0)
        counts.append(datagrams.receive(server.fileno(), BATCH))
        nobody = name[:2] + bytes(len(name) - 2)
        datagrams.put([(name, b"first"), (nobody, b"lost"), (name, b"second")])
        faults = datagrams.send(server.fileno(), 3)
        heard = [client.recv(100) for _ in range(2)]

        assert (nothing, counts) == (0, [BATCH, 6])
        assert read == [b"%d" % number for number in range(BATCH)]
        assert (text_of(name), int.from_bytes(name[2:4], "big")) == client.getsockname()[:2]
        assert (len(faults), heard) == (1, [b"first", b"second"])
