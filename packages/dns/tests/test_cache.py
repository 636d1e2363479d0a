# SPDX-License-Identifier: Apache-2.0
"""The cache against a slow model, and rule by rule."""

import time
from typing import Any

import dns.message
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kepd_dns.cache.cache import Bounds, Cache
from kepd_dns.cache.entry import Entry, turn_of
from kepd_dns.handover.state import Settings
from kepd_dns.run.answering import Answering, DnsClient
from kepd_dns.run.counters import Counters
from kepd_dns.wire.names import to_wire
from packages.dns.tests.messages import SOA, answer, ask, kept, question

BOUNDS = Bounds(least_s=2, most_s=30, most_negative_s=5, stale_s=10.0)
ROOM = 1 << 20


def put(cache: Cache, name: str, *records: str, now_s: float = 0.0, bounds: Bounds = BOUNDS, code: int = 0) -> Entry:
    asked = ask(name)
    return cache.put(question(name).key, kept(asked, answer(asked, list(records), code=code)), bounds, now_s)


def deny(cache: Cache, name: str, *, kind: str = "A", now_s: float = 0.0, code: int = 3, soa: str = SOA) -> Entry:
    asked = ask(name, kind)
    made = answer(asked, [], [soa] if soa else [], code=code)
    return cache.put(question(name, kind).key, kept(asked, made), BOUNDS, now_s)


def shown(entry: Entry, name: str, now_s: float) -> Any:
    return dns.message.from_wire(entry.answer(question(name), now_s))


def test_an_answer_ages_and_ends() -> None:
    """DNS-50, DNS-51: everybody sees what is left."""
    cache = Cache(ROOM)
    put(cache, "a.b", "a.b. 20 IN A 10.0.0.1", "a.b. 20 IN A 10.0.0.2")

    found = cache.get(question("A.b").key, 15.0)

    assert found is not None
    assert [one.ttl for one in shown(found, "A.b", 15.0).answer] == [5]
    assert shown(found, "A.b", 15.0).question[0].name.to_text() == "A.b."
    assert cache.get(question("a.b").key, 20.0) is None


def test_a_life_stays_within_its_zone_and_shows_what_it_was_raised_to() -> None:
    """DNS-51."""
    cache = Cache(ROOM)
    short = put(cache, "a.b", "a.b. 1 IN A 10.0.0.1")
    put(cache, "c.b", "c.b. 3000 IN A 10.0.0.1")
    none = put(cache, "d.b", "d.b. 0 IN A 10.0.0.1")

    assert shown(short, "a.b", 0.0).answer[0].ttl == 2
    assert cache.get(question("c.b").key, 29.0) is not None
    assert cache.get(question("c.b").key, 31.0) is None
    assert shown(none, "d.b", 0.0).answer[0].ttl == 0
    assert cache.get(question("d.b").key, 0.0) is None


def test_a_name_that_is_not_there_has_no_type() -> None:
    """DNS-52: NXDOMAIN is for all types, an empty answer for one; without an SOA it lives a second."""
    cache = Cache(ROOM)
    deny(cache, "x.cluster.local")
    deny(cache, "y.cluster.local", code=0)
    deny(cache, "z.cluster.local", soa="")

    assert cache.get(question("x.cluster.local", "TXT").key, 4.9) is not None
    assert cache.get(question("y.cluster.local", "TXT").key, 4.9) is None
    assert cache.get(question("y.cluster.local").key, 4.9) is not None
    assert cache.get(question("z.cluster.local").key, 0.9) is not None
    assert cache.get(question("z.cluster.local").key, 1.1) is None


def test_below_a_name_that_is_not_there_is_nothing() -> None:
    """DNS-52, RFC 8020: only within the zone."""
    cache = Cache(ROOM)
    deny(cache, "x.cluster.local")
    zone = to_wire("cluster.local")

    assert cache.denied_above(question("a.b.x.cluster.local"), zone, 1.0) is not None
    assert cache.denied_above(question("a.y.cluster.local"), zone, 1.0) is None
    assert cache.denied_above(question("a.b.x.cluster.local"), zone, 9.0) is None


def test_what_has_ended_may_be_sent_for_a_while() -> None:
    """DNS-55: with TTL 30 and an extended error; not once the name is known not to exist."""
    cache = Cache(ROOM)
    entry = put(cache, "a.cluster.local", "a.cluster.local. 5 IN A 10.0.0.1")

    stale = cache.stale(question("a.cluster.local").key, 6.0)
    late = cache.stale(question("a.cluster.local").key, 16.0)
    sent = dns.message.from_wire(entry.stale_answer(question("a.cluster.local")))
    deny(cache, "a.cluster.local", now_s=6.0)

    assert (stale, late) == (entry, None)
    short = put(
        cache, "b.cluster.local", "b.cluster.local. 5 IN A 10.0.0.1",
        bounds=Bounds(most_s=30, stale_s=10.0, stale_ttl_s=5),
    )  # fmt: skip
    told = dns.message.from_wire(short.stale_answer(question("b.cluster.local")))
    assert [one.ttl for one in told.answer] == [5]
    assert (sent.answer[0].ttl, sent.options[0].to_text()) == (30, "EDE 3 (Stale Answer)")
    assert cache.stale(question("a.cluster.local").key, 6.0) is None


def test_what_fails_again_is_left_alone_longer() -> None:
    """DNS-53: and what could be sent stale is still there."""
    cache = Cache(ROOM)
    entry = put(cache, "a.b", "a.b. 5 IN A 10.0.0.1")
    key = question("a.b").key
    lives = []
    for _ in range(7):
        cache.fail(key, 22, 6.0)
        lives.append(cache.failures[key].life_s)

    assert lives == [1, 2, 4, 8, 16, 30, 30]
    assert cache.stale(key, 6.0) is entry
    assert cache.failure(key, 6.5) is not None
    assert cache.failure(key, 40.0) is None


def test_large_answers_are_given_and_not_kept() -> None:
    """DNS-54."""
    cache = Cache(ROOM)
    many = [f"a.b. 20 IN A 10.0.{one >> 8}.{one & 255}" for one in range(129)]

    entry = put(cache, "a.b", *many)

    assert entry.answers == 129
    assert cache.get(question("a.b").key, 0.0) is None


def test_negative_answers_keep_to_their_quarter() -> None:
    """DNS-58: a flood of names that do not exist pushes nothing else out."""
    cache = Cache(100_000)
    for one in range(100):
        put(cache, f"a{one}.b", f"a{one}.b. 20 IN A 10.0.0.1")
    before = len(cache.entries)
    for one in range(1000):
        deny(cache, f"x{one}.cluster.local")

    assert len(cache.entries) - cache.negatives == before == 100
    assert cache.negative_bytes <= 25_000
    assert cache.counts.negative_evictions > 900


def test_what_is_asked_for_stays() -> None:
    """DNS-58: the hand passes by who was used since it came last."""
    cache = Cache(20_000)
    put(cache, "hot.b", "hot.b. 30 IN A 10.0.0.1", bounds=Bounds())
    for one in range(500):
        cache.get(question("hot.b").key, 0.1)
        put(cache, f"a{one}.b", f"a{one}.b. 30 IN A 10.0.0.1", bounds=Bounds())

    assert cache.get(question("hot.b").key, 0.2) is not None
    assert cache.bytes <= 20_000


def test_an_entry_near_its_end_is_asked_for_again() -> None:
    """DNS-56."""
    cache = Cache(ROOM)
    entry = put(cache, "a.b", "a.b. 20 IN A 10.0.0.1")
    key = question("a.b").key
    for _ in range(3):
        cache.get(key, 1.0)

    assert [cache.wants_refresh(entry, now_s) for now_s in (17.0, 18.5)] == [False, True]


def test_addresses_take_turns() -> None:
    """DNS-61: whoever takes the first gets each in turn; nothing else moves."""
    cache = Cache(ROOM)
    put(cache, "a.b", "a.b. 20 IN CNAME c.d.", *(f"c.d. 20 IN A 10.0.0.{one}" for one in (1, 2, 3)))
    firsts = []
    for _ in range(3):
        found = cache.get(question("a.b").key, 1.0)
        assert found is not None
        sections = shown(found, "a.b", 1.0).answer
        firsts.append(next(iter(sections[1])).to_text())
        assert len(sections[1]) == 3
        assert sections[0].to_text().endswith("c.d.")

    assert sorted(firsts) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert turn_of(b"", (), 0) == (0, 0, 0)


def test_an_insertion_takes_no_time_that_grows_with_the_cache() -> None:
    """DNS-58: all entries are in use, and the next one moves the hand 256 steps at most."""
    cache = Cache(4 << 20)
    asked = ask("a.b")
    one = kept(asked, answer(asked, ["a.b. 30 IN A 10.0.0.1"]))
    for number in range(30_000):
        cache.put(number.to_bytes(4, "big") + b"\0" * 6, one, Bounds(), 0.0)
    for entry in cache.entries.values():
        entry.is_used = True
    refused, began_s = cache.counts.refused, time.process_time()

    cache.put(b"\3new\0\0\1\0\1\0", one, Bounds(), 0.0)

    assert cache.counts.refused - refused == 1
    assert time.process_time() - began_s < 0.1


NAMES = st.sampled_from([f"n{one}.b" for one in range(12)])


class Model(RuleBasedStateMachine):
    """Each name's last answer with its times; the cache may have less, never other or more."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache(3000)
        self.now_s = 0.0
        self.known: dict[str, tuple[float, float, str]] = {}

    @rule(seconds=st.floats(0.1, 12.0))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(name=NAMES, ttl=st.integers(0, 60), last=st.integers(1, 250))
    def an_answer_comes(self, name: str, ttl: int, last: int) -> None:
        put(self.cache, name, f"{name}. {ttl} IN A 10.0.0.{last}", now_s=self.now_s)
        if ttl:
            life_s = min(max(ttl, BOUNDS.least_s), BOUNDS.most_s)
            self.known[name] = self.now_s, self.now_s + life_s, f"10.0.0.{last}"

    @rule(name=NAMES)
    def a_name_is_denied(self, name: str) -> None:
        deny(self.cache, name, now_s=self.now_s, soa=SOA.replace("cluster.local. 30", "b. 30"))
        self.known[name] = self.now_s, self.now_s + 5, ""

    @rule(name=NAMES)
    def a_name_fails(self, name: str) -> None:
        self.cache.fail(question(name).key, 22, self.now_s)

    @rule(name=NAMES)
    def a_name_is_asked_for(self, name: str) -> None:
        found = self.cache.get(question(name).key, self.now_s)
        if found is None:
            return
        stored_s, until_s, address = self.known[name]
        message = shown(found, name, self.now_s)
        assert self.now_s < until_s
        if address:
            assert [one.to_text() for one in message.answer[0]] == [address]
            assert message.answer[0].ttl == round(until_s - stored_s) - int(self.now_s - stored_s)
        else:
            assert message.rcode() == 3

    @precondition(lambda self: self.cache.entries)
    @rule(name=NAMES)
    def a_name_is_flushed(self, name: str) -> None:
        self.cache.flush(name=to_wire(name))
        assert self.cache.get(question(name).key, self.now_s) is None

    @invariant()
    def its_room_is_kept_and_counted(self) -> None:
        entries = self.cache.entries.values()
        assert self.cache.bytes == sum(one.size for one in entries) <= 3000
        assert self.cache.negative_bytes == sum(one.size for one in entries if one.is_negative) <= 750
        assert self.cache.negatives == sum(one.is_negative for one in entries)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


def test_a_question_without_signatures_is_answered_from_an_answer_with_them() -> None:
    """DNS-46: they are taken out, and it ends when that ends."""
    cache = Cache(ROOM)
    asked = ask("a.b", is_dnssec=True)
    signature = "a.b. 20 IN RRSIG A 8 2 20 20300101000000 20200101000000 1 b. AAAA"
    made = answer(asked, ["a.b. 20 IN A 10.0.0.1", signature])
    cache.put(question("a.b", is_dnssec=True).key, kept(asked, made), BOUNDS, 0.0)
    answering = Answering(cache, Counters(), Silent(), str)  # type: ignore[arg-type]
    answering.use(Settings(per_source_qps=0), None)
    client = DnsClient("10.0.0.9", "tcp", "ipv4", list[Any]().append)

    signed, plain = (
        dns.message.from_wire(bytes(answering.take(ask("a.b", is_dnssec=one), client, 5.0) or b""))
        for one in (True, False)
    )
    unsigned = cache.get(question("a.b").key, 5.0)

    assert [one.rdtype.name for one in signed.answer] == ["A", "RRSIG"]
    assert [one.to_text() for one in plain.answer] == ["a.b. 15 IN A 10.0.0.1"]
    assert unsigned is not None
    assert unsigned.until_s == 20.0
    assert answering.take(ask("a.b", "AAAA"), client, 5.0) is None


class Silent:
    """Flights that never land."""

    def start(self, *_: object, **__: object) -> None: ...


def test_what_was_asked_most_is_chosen_in_small_portions() -> None:
    """DNS-15, DNS-58: no look at everything in one go; those with most hits, within the room."""
    cache = Cache(ROOM)
    for number in range(1000):
        put(cache, f"n{number}.b", f"n{number}.b. 20 IN A 10.0.0.1").hits = number
    size = next(iter(cache.entries.values())).size
    portions = list(cache.hottest(100 * size))
    chosen = [one.hits for portion in portions for one in portion]

    assert len(portions) == 2 * 4
    assert 95 <= len(chosen) <= 100
    assert min(chosen) >= 900
    assert len([one for portion in cache.hottest(ROOM) for one in portion]) == 1000
