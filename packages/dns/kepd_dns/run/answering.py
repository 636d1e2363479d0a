# SPDX-License-Identifier: Apache-2.0
"""From a client's bytes to its answer: own names, the cache, or a flight to a server.

The way of a question that is known costs a few steps in dictionaries and no task.
"""

from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from kepd_dns.cache.cache import Cache
from kepd_dns.cache.entry import Entry
from kepd_dns.cache.ready import Ready, ReadyAnswers, ready_of
from kepd_dns.handover.state import Settings
from kepd_dns.run.asking.flight import DnsClient, Waiter
from kepd_dns.run.asking.flights import Flights
from kepd_dns.run.counters import TYPES, Counters
from kepd_dns.run.datagrams import text_of
from kepd_dns.wire.answer import keep, plain_data, read_answer
from kepd_dns.wire.names import Malformed, suffixes, to_wire
from kepd_dns.wire.question import AA as AUTHORITATIVE
from kepd_dns.wire.question import (
    AAAA,
    ANY,
    AXFR,
    CH,
    HINFO,
    IN,
    IXFR,
    NOERROR,
    NOTIMP,
    NXDOMAIN,
    RD,
    REFUSED,
    SERVFAIL,
    TXT,
    A,
    BadQuestion,
    Dropped,
    Question,
    key_of,
    read_question,
)
from kepd_dns.wire.writing import (
    WrittenRecord,
    answer_bytes,
    cut_bytes,
    error_bytes,
    records_bytes,
    refusal_bytes,
)
from kepd_dns.zones.choice import Zone, Zones, is_beyond_schema, zones_of
from kepd_dns.zones.own import OwnAnswer, OwnZone

MOST_OWN = 16384
SAMPLE = 64
PROBE = to_wire("probe.kepd.invalid")
LOCALHOST, INVALID, ONION = to_wire("localhost"), to_wire("invalid"), to_wire("onion")
RESERVED = (LOCALHOST, INVALID, ONION)
# Types that are asked for by few, and answered here.
RARE = (AXFR, IXFR, ANY)
CHAOS = (to_wire("version.bind"), to_wire("id.server"))
LOOPBACK = {A: b"\x7f\0\0\1", AAAA: bytes(15) + b"\1"}
# An answer of each source's address is given within these.
BURST = 2
MOST_SOURCES = 65536
FAR = float("inf")
UNLIMITED = 1 << 62


class Answering:
    """`probe` says what the plane wants to know of this process."""

    def __init__(self, cache: Cache, counters: Counters, flights: Flights, probe: Callable[[], str]) -> None:
        self.cache, self.counters, self.flights, self._probe = cache, counters, flights, probe
        self.settings = Settings()
        self.zones: Zones = zones_of(self.settings)[0]
        self.own: OwnZone | None = None
        self.loop_names: dict[bytes, Callable[[], None]] = {}
        """Questions of ours that show a loop when they come back."""
        self._labels: dict[int, str] = {}
        self.ready = ReadyAnswers(self.settings.cache_bytes)
        self._own_answers: dict[bytes, Entry] = {}
        self.taken: dict[bytes, int] = {}
        """Answers by UDP that each address got of late; who has more than `most` of them is seen to by `take`."""
        self.most = UNLIMITED
        self._window_s = 0.0
        self._every = 0
        self.use(self.settings, self.own)

    def use(self, settings: Settings, own: OwnZone | None) -> None:
        if settings.per_source_qps != self.settings.per_source_qps:
            # Another limit counts from now on: what was answered before it, or without one, is forgotten.
            self.taken = {}
        self.settings, self.own = settings, own
        self.zones = zones_of(settings)[0]
        self._labels = {one.number: one.label for one in self.zones.all}
        self.ready.use(settings.cache_bytes)
        self.most = BURST * settings.per_source_qps or UNLIMITED
        self.own_changed()

    def own_changed(self) -> None:
        for one in self._own_answers.values():
            one.changes += 1
        self._own_answers.clear()

    def begin(self, now_s: float) -> None:
        """Of a batch: each second takes off what may be answered in one."""
        if now_s - self._window_s < 1.0:
            return
        passed = int(now_s - self._window_s) if self._window_s else 1
        self._window_s = now_s
        less = self.settings.per_source_qps * passed or UNLIMITED
        self.taken = {one: count - less for one, count in self.taken.items() if count > less}

    def renewed(self, raw: bytes, now_s: float) -> Ready | None:
        """What is ready for the bytes of a question, but was not right any more."""
        found = self.ready.renewed(raw, now_s)
        if found is not None:
            found.entry.last_s = now_s
            if self._wants_refresh(found.entry, now_s):
                question = read_question(b"\0\0" + raw)
                self.flights.refresh(question, self.zones.of(question.name), now_s)
        return found

    def _wants_refresh(self, entry: Entry, now_s: float) -> bool:
        return entry.hits > 2 and self.settings.does_prefetch and self.cache.wants_refresh(entry, now_s)

    def take(self, data: bytes, client: DnsClient, now_s: float, is_over: bool = False) -> bytes | bytearray | None:
        """The answer, or None: it comes later, or never. `is_over`: its source had too many of late."""
        is_over = is_over and PROBE not in data
        if is_over:
            # Every second one is not even read, and who only pretends to ask gets nothing to send on.
            self.counters.limited += 1
            if self.counters.limited % 2:
                return None
        try:
            question = read_question(data)
        except BadQuestion as error:
            self.counters.malformed[str(error)] += 1
            return None if is_over else refusal_bytes(error.id, error.flags, error.code, error.section)
        except Dropped as error:
            self.counters.malformed[str(error)] += 1
            return None
        if is_over:
            return cut_bytes(question)
        key = question.key
        entry = self._own_answers.get(key)
        if entry is None:
            entry = self.cache.get(key, now_s)
            if entry is None and self.cache.has_signed:
                entry = self._unsigned(question, now_s)
            if entry is None:
                return self._look(question, client, now_s)
            if self._wants_refresh(entry, now_s):
                self.flights.refresh(question, self.zones.of(question.name), now_s)
        else:
            entry.hits += 1
        source = "cache" if entry.until_s != FAR else "own"
        zone = self._labels.get(entry.zone, ".")
        self._count(client, question, zone, entry.code, source)
        if client.protocol != "udp":
            return entry.answer(question, now_s)
        ready = ready_of(entry, question, now_s, self.counters.tally(zone, question.type, entry.code, source))
        if len(ready.text) > question.size:
            return cut_bytes(question, entry.marks)
        self.ready.keep(data[2:], ready)
        return ready.text

    def _unsigned(self, question: Question, now_s: float) -> Entry | None:
        """Made of an answer with signatures that somebody else asked for."""
        signed = self.cache.signed(question, now_s)
        if signed is None:
            return None
        text = answer_bytes(question, signed.code, signed.shown(now_s), signed.answers, signed.authority)
        try:
            kept = keep(text, read_answer(text), question)
        except (Malformed, IndexError):
            return None
        return self.cache.put_unsigned(question, signed, kept, self.zones.of(question.name).bounds, now_s)

    def sample(self, count: int, data: bytes, name: bytes) -> None:
        """The last of `count` questions, now and then."""
        self._every += count
        if self._every >= SAMPLE:
            self._every %= SAMPLE
            with suppress(Malformed):
                self.counters.names.note(read_question(data).name)
                self.counters.sources.note(text_of(name))

    def _count(self, client: DnsClient, question: Question, zone: str, code: int, source: str) -> None:
        kind = TYPES.get(question.type, "other")
        self.counters.answers[client.protocol, client.family, zone, kind, code, source] += 1

    def _fit(self, client: DnsClient, question: Question, text: bytes) -> bytes:
        return cut_bytes(question) if client.protocol == "udp" and len(text) > question.size else text

    def _look(self, question: Question, client: DnsClient, now_s: float) -> bytes | None:
        name = question.name
        if question.type in RARE or question.klass != IN or name.endswith(RESERVED) or name in self.loop_names:
            special = self._special(question)
            if special is not None:
                self._count(client, question, ".", special[3] & 0xF, "own")
                return self._fit(client, question, special)
        own = self.own
        if own is not None and question.klass == IN and own.is_own(name):
            found = own.look(name, question.type)
            if not found.target:
                return self._own(question, client, found, now_s)
            self._follow(question, client, found, now_s)
            return None
        zone, settings = self.zones.of(name), self.settings
        if settings.cuts_searches and self.is_cut(name, zone):
            self._count(client, question, zone.label, NXDOMAIN, "own")
            return error_bytes(question, NXDOMAIN)
        if settings.is_negative_below and zone.kind == "cluster":
            above = self.cache.denied_above(question, zone.suffix, now_s)
            if above is not None:
                self._count(client, question, zone.label, NXDOMAIN, "cache")
                return self._fit(client, question, above.answer(question, now_s))
        if not question.flags & RD:
            self._count(client, question, zone.label, REFUSED, "refused")
            return error_bytes(question, REFUSED)
        self.flights.start(Waiter(question, client, zone.label, now_s, self._reply), zone, now_s)
        return None

    def is_cut(self, name: bytes, zone: Zone) -> bool:
        """Whether a search made it, and it is denied for that."""
        return self.settings.cuts_searches and zone.kind == "cluster" and is_beyond_schema(name, zone.suffix)

    def _reply(self, waiter: Waiter, text: bytes, code: int, source: str, now_s: float) -> None:
        question, client = waiter.question, waiter.client
        protocol = client.protocol
        kind = TYPES.get(question.type, "other")
        self.counters.answers[protocol, client.family, waiter.zone, kind, code, source] += 1
        self.counters.durations[source].note(now_s - waiter.since_s)
        if protocol == "udp" and len(text) > question.size:
            text = cut_bytes(question)
        client.send(client.place, text)

    def _special(self, question: Question) -> bytes | None:
        """Questions that concern nobody else."""
        name, kind = question.name, question.type
        if kind in (AXFR, IXFR):
            return error_bytes(question, NOTIMP)
        if question.klass == CH:
            return self._chaos(question)
        if kind == ANY:
            return _own_bytes(question, (WrittenRecord(name, HINFO, 3600, b"\x07RFC8482\0"),))
        if name == PROBE:
            text = self._probe().encode()
            return _own_bytes(question, (WrittenRecord(name, TXT, 0, bytes((len(text),)) + text),))
        looped = self.loop_names.get(name)
        if looped is not None:
            looped()
            return error_bytes(question, SERVFAIL)
        top = next((one for one in suffixes(name) if one in RESERVED), None)
        if top is None:
            return None
        if top != LOCALHOST:
            return error_bytes(question, NXDOMAIN)
        data = LOOPBACK.get(kind)
        return _own_bytes(question, (WrittenRecord(name, kind, 3600, data),) if data else ())

    def _chaos(self, question: Question) -> bytes:
        if not self.settings.tells_about_itself or question.name not in CHAOS or question.type != TXT:
            return error_bytes(question, REFUSED)
        return _own_bytes(question, (WrittenRecord(question.name, TXT, 0, b"\x04kepd", CH),))

    def _own(self, question: Question, client: DnsClient, found: OwnAnswer, now_s: float) -> bytes:
        tail, _ = records_bytes(question.name, (*found.answers, *found.authority, *found.extra))
        answers, authority, extra = len(found.answers), len(found.authority), len(found.extra)
        turn = _turn(found) if len(found.answers) > 1 and not extra else (0, 0, 0)
        entry = Entry(
            question.key, 1, found.code, AUTHORITATIVE, answers, authority, tail, (), (),
            is_negative=not answers, stored_s=now_s, until_s=FAR, keep_s=FAR, extra=extra, turn=turn,
        )  # fmt: skip
        if len(self._own_answers) >= MOST_OWN:
            self._own_answers.clear()
        self._own_answers[question.key] = entry
        label = self._labels.get(1, ".")
        self._count(client, question, label, found.code, "own")
        text = entry.answer(question, now_s)
        return self._fit(client, question, text)

    def _follow(self, question: Question, client: DnsClient, found: OwnAnswer, now_s: float) -> None:
        """The chain goes on at a name that others answer (section 7, ExternalName)."""
        section = found.target + question.section[-4:]
        marks = question.key[-1]
        target = replace(
            question, name=found.target, section=section, key=key_of(found.target, question.type, IN, marks)
        )
        zone = self.zones.of(found.target)

        def reply(_waiter: Waiter, text: bytes, code: int, source: str, _now_s: float) -> None:
            self._count(client, question, waiter.zone, code, source)
            client.send(client.place, self._fit(client, question, _joined(question, found, text, code)))

        waiter = Waiter(target, client, self._labels.get(1, "."), now_s, reply)
        entry = self.cache.get(target.key, now_s)
        if entry is not None:
            reply(waiter, entry.answer(target, now_s), entry.code, "cache", now_s)
        elif not question.flags & RD:
            reply(waiter, error_bytes(target, NOERROR), NOERROR, "own", now_s)
        else:
            self.flights.start(waiter, zone, now_s)


def _joined(question: Question, found: OwnAnswer, text: bytes, code: int) -> bytes:
    """Our part of a chain, and what the others say of its end."""
    records = list(found.answers)
    try:
        answer = read_answer(text)
        records += [WrittenRecord(one.owner, one.type, one.ttl, plain_data(text, one)) for one in answer.answers]
    except (Malformed, IndexError):
        code = SERVFAIL
    tail, _ = records_bytes(question.name, records)
    return answer_bytes(question, code, tail, len(records), 0)


def _own_bytes(question: Question, records: tuple[WrittenRecord, ...]) -> bytes:
    tail, _ = records_bytes(question.name, records)
    return answer_bytes(question, NOERROR, tail, len(records), 0, marks=AUTHORITATIVE)


def _turn(found: OwnAnswer) -> tuple[int, int, int]:
    """Addresses of a headless Service come in another order each time. Their owner is a pointer to the question."""
    size = 12 + len(found.answers[0].data)
    is_plain = all(one.type in (A, AAAA) for one in found.answers)
    return (0, size, len(found.answers)) if is_plain else (0, 0, 0)
