# SPDX-License-Identifier: Apache-2.0
"""Questions that servers are asked: equal ones once, each for 4.5 s at most, in bounded number.

A flight is an entry in a table and in a timer wheel, not a task. Its end is the first of: an answer that may be given
on, every server's refusal, the time. Whoever waits hears of exactly one of these, or of a stale answer before it.
Source of behaviour: RFC 8767, 9520; DNS-41 to DNS-44, DNS-53, DNS-55, DNS-57, DNS-92, DNS-94, DNS-95.
"""

import asyncio
from collections.abc import Callable

import msgspec

from agent.dns.cache.cache import Cache
from agent.dns.cache.entry import Entry
from agent.dns.run.asks import Ask
from agent.dns.run.counters import Counters
from agent.dns.run.randomness import Randomness
from agent.dns.run.upstream_tcp import TcpAsker
from agent.dns.run.upstream_udp import UdpAsker
from agent.dns.run.wheel import Wheel
from agent.dns.upstreams.addresses import Server
from agent.dns.upstreams.health import MISSPELLED, PLAIN_S, Health, Healths
from agent.dns.wire.answer import Answer, Kept, keep, read_answer
from agent.dns.wire.names import Malformed
from agent.dns.wire.plain import read_plain
from agent.dns.wire.question import ANY, FORMERR, NOERROR, NOTIMP, NXDOMAIN, REFUSED, SERVFAIL, TC, Question
from agent.dns.wire.writing import BLOCKED, NETWORK_ERROR, NO_UPSTREAM, answer_bytes, error_bytes, spelled
from agent.dns.zones.choice import Zone
from agent.dns.zones.rebinding import names_protected

MOST_FLIGHTS, MOST_WAITERS = 4096, 256
MOST_OF_SOURCE = MOST_FLIGHTS // 4
TRY_S, WHOLE_S, STALE_AFTER_S, REFRESH_S = 2.0, 4.5, 1.8, 30.0
MOST_PREFETCHES = MOST_FLIGHTS // 10

Reply = Callable[[bytes, int, str, float], None]
"""Hears the message, its code, where it is from (cache, stale, upstream or refused), and what time it is."""
Waiter = tuple[Question, Reply, str]
"""The last is the address."""


class Flight(msgspec.Struct, eq=False):
    """`is_reliable`: the client came by TCP. `asked`: servers so far, `open`: those that have not answered."""

    key: bytes
    question: Question
    zone: Zone
    started_s: float
    is_reliable: bool
    waiters: list[Waiter] = []
    open: list[Ask] = []
    asked: list[Server] = []
    codes: list[int] = []
    hedge_s: float = 0.0
    slot: int = 0
    is_done: bool = False
    has_stale: bool = False
    is_plain: bool = False
    is_prefetch: bool = False
    is_crowded: bool = False


class Flights:
    """`servers` says whom to ask for a zone, now. Changed by the loop alone."""

    def __init__(
        self,
        cache: Cache,
        counters: Counters,
        servers: Callable[[Zone], tuple[Server, ...]],
        protected: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._cache, self._counters, self._servers, self._protected = cache, counters, servers, protected
        self._loop = asyncio.get_running_loop()
        self.random = Randomness()
        self.healths = Healths()
        self.udp, self.tcp = UdpAsker(self, self.random), TcpAsker(self, self.random)
        self.wheel: Wheel[Flight] = Wheel(self._due)
        self.flights: dict[bytes, Flight] = {}
        self.sources: dict[str, int] = {}
        self.prefetching = 0

    def now_s(self) -> float:
        return self._loop.time()

    def start(
        self, question: Question, zone: Zone, reply: Reply, source: str, now_s: float, *, is_reliable: bool = False
    ) -> None:
        """Ask, or wait for who asks already. `is_reliable`: the client came by TCP."""
        key, of_source = question.key, self.sources.get(source, 0)
        flight = self.flights.get(key)
        if flight is not None:
            if len(flight.waiters) >= MOST_WAITERS:
                self._overload(question, reply, "waiters", now_s)
                return
            self._counters.merged += 1
            flight.waiters.append((question, reply, source))
            self.sources[source] = of_source + 1
            if flight.has_stale:
                self._send_stale(flight, now_s)
            return
        failure = self._cache.failure(key, now_s) if self._cache.failures else None
        if failure is not None:
            if not self._reply_stale(question, reply, now_s):
                reply(error_bytes(question, SERVFAIL, failure.note), SERVFAIL, "cache", now_s)
        elif len(self.flights) >= MOST_FLIGHTS:
            self._overload(question, reply, "flights", now_s)
        elif of_source >= MOST_OF_SOURCE:
            self._overload(question, reply, "source", now_s)
        else:
            self.sources[source] = of_source + 1
            self._take_off(Flight(key, question, zone, now_s, is_reliable, [(question, reply, source)]), now_s)

    def refresh(self, question: Question, zone: Zone, now_s: float) -> None:
        """Ask ahead of the end of an entry; nobody waits (DNS-56)."""
        is_busy = self.prefetching >= MOST_PREFETCHES or len(self.flights) >= MOST_FLIGHTS // 2
        if is_busy or question.key in self.flights or self._cache.failure(question.key, now_s) is not None:
            return
        self.prefetching += 1
        self._counters.prefetches += 1
        flight = Flight(question.key, question, zone, now_s, False, is_prefetch=True)
        self._take_off(flight, now_s)

    def _overload(self, question: Question, reply: Reply, reason: str, now_s: float) -> None:
        self._counters.overload[reason] += 1
        if not self._reply_stale(question, reply, now_s):
            reply(error_bytes(question, SERVFAIL, NETWORK_ERROR), SERVFAIL, "refused", now_s)

    def _reply_stale(self, question: Question, reply: Reply, now_s: float) -> bool:
        entry = self._cache.stale(question.key, now_s)
        if entry is not None:
            reply(entry.stale_answer(question), entry.code, "stale", now_s)
        return entry is not None

    def _take_off(self, flight: Flight, now_s: float) -> None:
        self.flights[flight.key] = flight
        self._ask_next(flight, now_s)
        if not flight.is_done:
            flight.slot = self.wheel.add(flight, min(now_s + STALE_AFTER_S, flight.hedge_s))

    def _next_look(self, flight: Flight) -> float:
        end_s = flight.started_s + (WHOLE_S if flight.has_stale else STALE_AFTER_S)
        return min(end_s, flight.hedge_s)

    def _ask_next(self, flight: Flight, now_s: float) -> None:
        """Another server than before, as long as there is one."""
        servers = self._servers(flight.zone)
        if len(servers) == 1 and not flight.asked:
            server = servers[0]
            flight.asked.append(server)
            health = self.healths.of(server)
            if self._ask(flight, health, now_s, server.protocol == "tcp" or flight.is_reliable):
                # Nobody else could be asked beside it.
                flight.hedge_s = now_s + TRY_S
                return
        order = self.healths.order(servers, now_s, self.random.bits(2) / 65536) if servers else []
        left = [one for one in order if one not in flight.asked]
        if not left and not flight.open and len(flight.asked) < len(servers):
            left = [one for one in servers if one not in flight.asked]
        for server in left:
            flight.asked.append(server)
            health = self.healths.of(server)
            if self._ask(flight, health, now_s, server.protocol == "tcp" or flight.is_reliable):
                flight.hedge_s = now_s + min(TRY_S, health.hedge_s)
                return
        flight.hedge_s = now_s + TRY_S
        if not flight.open:
            self._no_server_left(flight, now_s)

    def _ask(self, flight: Flight, health: Health, now_s: float, is_tcp: bool) -> bool:
        server = health.server
        has_options = not flight.is_plain and now_s >= health.plain_until_s
        question, section = flight.question, flight.question.section
        if is_tcp:
            ask = Ask(server, health, flight, question, section, has_options, now_s)
            if not self.tcp.ask(ask):
                flight.is_crowded = True
                return False
        elif self.udp.is_full:
            flight.is_crowded = True
            return False
        else:
            is_spelled = health.misspelled < MISSPELLED
            if is_spelled:
                section = spelled(section, self.random.bits(16))
            ask = Ask(server, health, flight, question, section, has_options, now_s, is_spelled=is_spelled)
            if not self.udp.ask(ask):
                health.asked += 1
                self._failed(ask, "network")
                return False
        health.asked += 1
        flight.open.append(ask)
        return True

    def _due(self, flight: Flight, now_s: float) -> None:
        if flight.is_done:
            return
        for ask in [one for one in flight.open if now_s - one.started_s >= TRY_S]:
            ask.is_done = True
            flight.open.remove(ask)
            self._failed(ask, "timeout")
        if now_s - flight.started_s >= WHOLE_S:
            self._give_up(flight, now_s)
            return
        if now_s - flight.started_s >= STALE_AFTER_S and not flight.has_stale:
            flight.has_stale = True
            self._send_stale(flight, now_s)
        if now_s >= flight.hedge_s:
            if not flight.open and len(flight.asked) >= len(self._servers(flight.zone)):
                flight.asked.clear()
            self._ask_next(flight, now_s)
        if not flight.is_done:
            flight.slot = self.wheel.add(flight, max(now_s + 0.01, self._next_look(flight)))

    def _send_stale(self, flight: Flight, now_s: float) -> None:
        """The flight goes on for whoever asks next (DNS-55); of the cluster zone only when all servers fail."""
        if flight.zone.kind in ("cluster", "own") or self._cache.stale(flight.key, now_s) is None:
            return
        for question, reply, source in self._take_waiters(flight):
            if not self._reply_stale(question, reply, now_s):
                flight.waiters.append((question, reply, source))

    def _take_waiters(self, flight: Flight) -> list[Waiter]:
        waiters, flight.waiters = flight.waiters, []
        for _, _, source in waiters:
            left = self.sources[source] - 1
            if left:
                self.sources[source] = left
            else:
                del self.sources[source]
        return waiters

    def answered(self, ask: Ask, data: bytes, now_s: float) -> None:
        flight = ask.flight
        if not isinstance(flight, Flight) or flight.is_done:
            return
        if ask in flight.open:
            flight.open.remove(ask)
        kept = read_plain(data, ask.section, flight.question)
        if kept is not None:
            self._took(ask.health, now_s - ask.started_s)
            self._keep(flight, kept, now_s)
            return
        try:
            answer = read_answer(data)
            self._check(ask, answer)
        except Malformed as error:
            self._failed(ask, "spelling" if str(error) == "spelling" else "malformed")
            if str(error) == "spelling" and self._ask(flight, ask.health, now_s, is_tcp=True):
                return
            self._after_failure(flight, now_s)
            return
        self._took(ask.health, now_s - ask.started_s)
        if answer.flags & TC and self._ask(flight, ask.health, now_s, is_tcp=True):
            return
        if answer.code in (FORMERR, NOTIMP) and ask.has_options:
            ask.health.plain_until_s = now_s + PLAIN_S
            if self._ask(flight, ask.health, now_s, ask.server.protocol == "tcp"):
                return
        if answer.code in (SERVFAIL, REFUSED):
            flight.codes.append(answer.code)
            self._counters.failures[ask.health.label, "servfail" if answer.code == SERVFAIL else "refused"] += 1
            self._after_failure(flight, now_s)
            return
        self._land(flight, ask, data, answer, now_s)

    def _took(self, health: Health, took_s: float) -> None:
        health.answered(took_s)
        self._counters.upstream_took(health.label, took_s)

    def _check(self, ask: Ask, answer: Answer) -> None:
        """DNS-92: the question comes back byte for byte, with our spelling; errors may be without it."""
        if not answer.section and answer.code in (FORMERR, NOTIMP, SERVFAIL, REFUSED):
            return
        if answer.section == ask.section:
            return
        if answer.section.lower() == ask.section.lower() and answer.section[-4:] == ask.section[-4:]:
            if not ask.is_spelled:
                return
            ask.health.misspelled += 1
            raise Malformed("spelling")
        raise Malformed("question")

    def _land(self, flight: Flight, ask: Ask, data: bytes, answer: Answer, now_s: float) -> None:
        try:
            kept = keep(data, answer, flight.question)
        except (Malformed, IndexError):
            self._failed(ask, "malformed")
            self._after_failure(flight, now_s)
            return
        if answer.code not in (NOERROR, NXDOMAIN) or flight.question.type == ANY:
            self._deliver(flight, now_s, lambda asked: (error_bytes(asked, answer.code), answer.code, "upstream"))
            return
        self._keep(flight, kept, now_s)

    def _keep(self, flight: Flight, kept: Kept, now_s: float) -> None:
        if flight.zone.kind == "other" and names_protected(kept, self._protected()):
            self._deliver(
                flight, now_s, lambda asked: (answer_bytes(asked, 0, b"", 0, 0, note=BLOCKED), NOERROR, "refused")
            )
            return
        zone = flight.zone
        entry = self._cache.put(flight.key, kept, zone.bounds, now_s, zone.number)
        self._end(flight)
        for question, reply, _ in self._take_waiters(flight):
            reply(entry.answer(question, now_s), entry.code, "upstream", now_s)

    def _deliver(self, flight: Flight, now_s: float, make: Callable[[Question], tuple[bytes, int, str]]) -> None:
        self._end(flight)
        for question, reply, _ in self._take_waiters(flight):
            reply(*make(question), now_s)

    def _end(self, flight: Flight) -> None:
        flight.is_done = True
        del self.flights[flight.key]
        self.wheel.drop(flight, flight.slot)
        if flight.is_prefetch:
            self.prefetching -= 1
        if flight.open:
            for ask in flight.open:
                ask.is_done = True
                if ask.server.protocol == "udp":
                    self.udp.give_up(ask)
            flight.open.clear()

    def failed(self, ask: Ask, reason: str) -> None:
        flight = ask.flight
        if not isinstance(flight, Flight) or flight.is_done:
            return
        if ask in flight.open:
            flight.open.remove(ask)
        self._failed(ask, reason)
        now_s = self._loop.time()
        if reason == "spoofed":
            self._counters.spoofed += 1
            if self._ask(flight, ask.health, now_s, is_tcp=True):
                return
        self._after_failure(flight, now_s)

    def _failed(self, ask: Ask, reason: str) -> None:
        self._counters.failures[ask.health.label, reason] += 1
        if reason not in ("spelling", "spoofed"):
            ask.health.failed(self._loop.time())

    def _after_failure(self, flight: Flight, now_s: float) -> None:
        """The next server at once; when none is left and none is waited for, that was it."""
        if not flight.open and not flight.is_done:
            self._ask_next(flight, now_s)

    def _no_server_left(self, flight: Flight, now_s: float) -> None:
        servers = self._servers(flight.zone)
        if flight.is_crowded:
            # Nobody failed; there was no room to ask (DNS-94).
            self._end(flight)
            for question, reply, _ in self._take_waiters(flight):
                self._overload(question, reply, "upstream", now_s)
            return
        if flight.codes and len(flight.codes) >= len(servers):
            code = SERVFAIL if SERVFAIL in flight.codes else REFUSED
            if code == REFUSED:
                self._deliver(flight, now_s, lambda asked: (error_bytes(asked, REFUSED), REFUSED, "upstream"))
                return
        self._give_up(flight, now_s)

    def _give_up(self, flight: Flight, now_s: float) -> None:
        """Stale if there is something, and not asked again for a while (DNS-53, DNS-55)."""
        self._cache.fail(flight.key, NO_UPSTREAM, now_s)
        stale = self._cache.stale(flight.key, now_s)

        def last(question: Question) -> tuple[bytes, int, str]:
            if stale is not None:
                return stale.stale_answer(question), stale.code, "stale"
            return error_bytes(question, SERVFAIL, NO_UPSTREAM), SERVFAIL, "upstream"

        if stale is not None:
            self._note_refresh(stale, now_s)
        self._deliver(flight, now_s, last)

    def _note_refresh(self, entry: Entry, now_s: float) -> None:
        """A name that failed and has a stale answer is asked for again every 30 s at most."""
        failure = self._cache.failures.get(entry.key)
        if failure is not None:
            failure.until_s = now_s + REFRESH_S

    def settle(self) -> None:
        """After servers changed: those that are asked no more are let go."""
        self.udp.sweep()
        self.tcp.sweep()

    def close(self) -> None:
        self.wheel.close()
        self.udp.close()
        self.tcp.close()
