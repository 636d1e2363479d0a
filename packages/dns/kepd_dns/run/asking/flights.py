# SPDX-License-Identifier: Apache-2.0
"""Questions that servers are asked: equal ones once, each for 4.5 s at most, in bounded number.

A flight is an entry in a table and in a timer wheel, not a task. Its end is the first of: an answer that may be given
on, every server's refusal, the time. Whoever waits hears of exactly one of these, or of a stale answer before it.
Source of behaviour: RFC 8767, 9520.
"""

import asyncio
from collections.abc import Callable

from kepd_dns.cache.cache import Cache
from kepd_dns.cache.entry import Entry
from kepd_dns.run.asking.asks import Ask
from kepd_dns.run.asking.flight import UpstreamQuery, Waiter
from kepd_dns.run.asking.randomness import Randomness
from kepd_dns.run.asking.timer_wheel import Wheel
from kepd_dns.run.asking.upstream_tcp import TcpAsker
from kepd_dns.run.asking.upstream_udp import UdpAsker
from kepd_dns.run.counters import Counters
from kepd_dns.upstreams.addresses import Server
from kepd_dns.upstreams.health import MISSPELLED, PLAIN_S, Healths, ServerHealth
from kepd_dns.wire.answer import FilteredAnswer, ReadAnswer, keep, read_answer
from kepd_dns.wire.names import Malformed
from kepd_dns.wire.plain import read_plain
from kepd_dns.wire.question import ANY, FORMERR, NOERROR, NOTIMP, NXDOMAIN, REFUSED, SERVFAIL, TC, Question
from kepd_dns.wire.writing import BLOCKED, NETWORK_ERROR, NO_UPSTREAM, answer_bytes, error_bytes, spelled
from kepd_dns.zones.choice import Zone
from kepd_dns.zones.rebinding import names_protected

MOST_FLIGHTS, MOST_WAITERS = 4096, 256
MOST_OF_SOURCE = MOST_FLIGHTS // 4
TRY_S, WHOLE_S, STALE_AFTER_S, REFRESH_S = 2.0, 4.5, 1.8, 30.0
MOST_PREFETCHES = MOST_FLIGHTS // 10


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
        self.wheel: Wheel[UpstreamQuery] = Wheel(self._due)
        self.flights: dict[bytes, UpstreamQuery] = {}
        self.sources: dict[str, int] = {}
        self.prefetching = 0

    def now_s(self) -> float:
        return self._loop.time()

    def start(self, waiter: Waiter, zone: Zone, now_s: float) -> None:
        """Ask, or wait for who asks already."""
        question, client = waiter.question, waiter.client
        key, source, flights = question.key, client.source, self.flights
        of_source = self.sources.get(source, 0)
        flight = flights.get(key)
        if flight is not None:
            if len(flight.waiters) >= MOST_WAITERS:
                self._overload(waiter, "waiters", now_s)
                return
            self._counters.merged += 1
            flight.waiters.append(waiter)
            self.sources[source] = of_source + 1
            if flight.has_stale:
                self._send_stale(flight, now_s)
            return
        failure = self._cache.failure(key, now_s) if self._cache.failures else None
        if failure is not None:
            if not self._reply_stale(waiter, now_s):
                waiter.reply(waiter, error_bytes(question, SERVFAIL, failure.note), SERVFAIL, "cache", now_s)
        elif len(flights) >= MOST_FLIGHTS:
            self._overload(waiter, "flights", now_s)
        elif of_source >= MOST_OF_SOURCE:
            self._overload(waiter, "source", now_s)
        else:
            self.sources[source] = of_source + 1
            self._take_off(UpstreamQuery(key, question, zone, now_s, client.protocol == "tcp", [waiter]), now_s)

    def refresh(self, question: Question, zone: Zone, now_s: float) -> None:
        """Ask ahead of the end of an entry; nobody waits."""
        is_busy = self.prefetching >= MOST_PREFETCHES or len(self.flights) >= MOST_FLIGHTS // 2
        if is_busy or question.key in self.flights or self._cache.failure(question.key, now_s) is not None:
            return
        self.prefetching += 1
        self._counters.prefetches += 1
        flight = UpstreamQuery(question.key, question, zone, now_s, False, is_prefetch=True)
        self._take_off(flight, now_s)

    def _overload(self, waiter: Waiter, reason: str, now_s: float) -> None:
        self._counters.overload[reason] += 1
        if not self._reply_stale(waiter, now_s):
            text = error_bytes(waiter.question, SERVFAIL, NETWORK_ERROR)
            waiter.reply(waiter, text, SERVFAIL, "refused", now_s)

    def _reply_stale(self, waiter: Waiter, now_s: float) -> bool:
        entry = self._cache.stale(waiter.question.key, now_s)
        if entry is not None:
            waiter.reply(waiter, entry.stale_answer(waiter.question), entry.code, "stale", now_s)
        return entry is not None

    def _take_off(self, flight: UpstreamQuery, now_s: float) -> None:
        self.flights[flight.key] = flight
        self._ask_next(flight, now_s)
        if not flight.is_done:
            slot = flight.slot = self.wheel.slot(min(now_s + STALE_AFTER_S, flight.hedge_s))
            slot[flight] = None

    def _next_look(self, flight: UpstreamQuery) -> float:
        end_s = flight.started_s + (WHOLE_S if flight.has_stale else STALE_AFTER_S)
        return min(end_s, flight.hedge_s)

    def _ask_next(self, flight: UpstreamQuery, now_s: float) -> None:
        """Another server than before, as long as there is one."""
        servers = self._servers(flight.zone)
        dice = self.random.id() / 65536 if len(servers) > 1 else 1.0
        if not flight.asked:
            health = self.healths.nearest(servers, dice)
            if health is not None:
                server = health.server
                flight.asked = (server,)
                if self._ask(flight, health, now_s, server.protocol == "tcp" or flight.is_reliable):
                    # A single server has no other to be asked beside it.
                    hedge_s = health.hedge_s if len(servers) > 1 else TRY_S
                    flight.hedge_s = now_s + min(TRY_S, hedge_s)
                    return
        order = self.healths.order(servers, now_s, dice) if servers else []
        left = [one for one in order if one not in flight.asked]
        if not left and not flight.open and len(flight.asked) < len(servers):
            left = [one for one in servers if one not in flight.asked]
        for server in left:
            flight.asked = (*flight.asked, server)
            health = self.healths.of(server)
            if self._ask(flight, health, now_s, server.protocol == "tcp" or flight.is_reliable):
                flight.hedge_s = now_s + min(TRY_S, health.hedge_s)
                return
        flight.hedge_s = now_s + TRY_S
        if not flight.open:
            self._no_server_left(flight, now_s)

    def _ask(self, flight: UpstreamQuery, health: ServerHealth, now_s: float, is_tcp: bool) -> bool:
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

    def _due(self, flight: UpstreamQuery, now_s: float) -> None:
        if flight.is_done:
            return
        for ask in [one for one in flight.open if now_s - one.started_s >= TRY_S]:
            flight.open.remove(ask)
            self.udp.give_up(ask)
            self._failed(ask, "timeout")
        if now_s - flight.started_s >= WHOLE_S:
            self._give_up(flight, now_s)
            return
        if now_s - flight.started_s >= STALE_AFTER_S and not flight.has_stale:
            flight.has_stale = True
            self._send_stale(flight, now_s)
        if now_s >= flight.hedge_s:
            if not flight.open and len(flight.asked) >= len(self._servers(flight.zone)):
                flight.asked = ()
            self._ask_next(flight, now_s)
        if not flight.is_done:
            slot = flight.slot = self.wheel.slot(max(now_s + 0.01, self._next_look(flight)))
            slot[flight] = None

    def _send_stale(self, flight: UpstreamQuery, now_s: float) -> None:
        """The flight goes on for whoever asks next; of the cluster zone only when all servers fail, or no API server
        answers either."""
        if not flight.zone.bounds.gives_stale_early or self._cache.stale(flight.key, now_s) is None:
            return
        for waiter in self._take_waiters(flight):
            if not self._reply_stale(waiter, now_s):
                flight.waiters.append(waiter)

    def _take_waiters(self, flight: UpstreamQuery) -> list[Waiter]:
        waiters, flight.waiters = flight.waiters, []
        for waiter in waiters:
            source = waiter.client.source
            left = self.sources[source] - 1
            if left:
                self.sources[source] = left
            else:
                del self.sources[source]
        return waiters

    def answered(self, ask: Ask, data: bytes, now_s: float) -> None:
        flight = ask.flight
        if not isinstance(flight, UpstreamQuery) or flight.is_done:
            return
        kept = read_plain(data, ask.section, flight.question)
        if kept is not None:
            self._took(ask.health, now_s - ask.started_s)
            self._keep(flight, kept, now_s)
            return
        if ask in flight.open:
            flight.open.remove(ask)
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
            flight.codes = (*flight.codes, answer.code)
            self._counters.failures[ask.health.label, "servfail" if answer.code == SERVFAIL else "refused"] += 1
            self._after_failure(flight, now_s)
            return
        self._land(flight, ask, data, answer, now_s)

    def _took(self, health: ServerHealth, took_s: float) -> None:
        health.answered(took_s)
        self._counters.upstream_times[health.label].note(took_s)

    def _check(self, ask: Ask, answer: ReadAnswer) -> None:
        """The question comes back byte for byte, with our spelling; errors may be without it."""
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

    def _land(self, flight: UpstreamQuery, ask: Ask, data: bytes, answer: ReadAnswer, now_s: float) -> None:
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

    def _keep(self, flight: UpstreamQuery, kept: FilteredAnswer, now_s: float) -> None:
        if flight.zone.kind == "other" and names_protected(kept, self._protected()):
            self._deliver(
                flight, now_s, lambda asked: (answer_bytes(asked, 0, b"", 0, 0, note=BLOCKED), NOERROR, "refused")
            )
            return
        zone = flight.zone
        entry = self._cache.put(flight.key, kept, zone.bounds, now_s, zone.number)
        for waiter in self._end(flight):
            waiter.reply(waiter, entry.answer(waiter.question, now_s), entry.code, "upstream", now_s)

    def _deliver(self, flight: UpstreamQuery, now_s: float, make: Callable[[Question], tuple[bytes, int, str]]) -> None:
        for waiter in self._end(flight):
            waiter.reply(waiter, *make(waiter.question), now_s)

    def _end(self, flight: UpstreamQuery) -> list[Waiter]:
        """Who waited for it to the last."""
        flight.is_done = True
        del self.flights[flight.key]
        if flight.slot is not None:
            flight.slot.pop(flight, None)
        if flight.is_prefetch:
            self.prefetching -= 1
        if flight.open:
            for ask in flight.open:
                self.udp.give_up(ask)
            flight.open.clear()
        return self._take_waiters(flight)

    def failed(self, ask: Ask, reason: str) -> None:
        flight = ask.flight
        if not isinstance(flight, UpstreamQuery) or flight.is_done:
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

    def _after_failure(self, flight: UpstreamQuery, now_s: float) -> None:
        """The next server at once; when none is left and none is waited for, that was it."""
        if not flight.open and not flight.is_done:
            self._ask_next(flight, now_s)

    def _no_server_left(self, flight: UpstreamQuery, now_s: float) -> None:
        servers = self._servers(flight.zone)
        if flight.is_crowded:
            # Nobody failed; there was no room to ask.
            for waiter in self._end(flight):
                self._overload(waiter, "upstream", now_s)
            return
        if flight.codes and len(flight.codes) >= len(servers):
            code = SERVFAIL if SERVFAIL in flight.codes else REFUSED
            if code == REFUSED:
                self._deliver(flight, now_s, lambda asked: (error_bytes(asked, REFUSED), REFUSED, "upstream"))
                return
        self._give_up(flight, now_s)

    def _give_up(self, flight: UpstreamQuery, now_s: float) -> None:
        """Stale if there is something, and not asked again for a while."""
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
        self.tcp.sweep()

    def close(self) -> None:
        self.wheel.close()
        self.udp.close()
        self.tcp.close()
