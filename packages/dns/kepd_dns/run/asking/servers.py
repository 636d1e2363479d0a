# SPDX-License-Identifier: Apache-2.0
"""Which servers there are for which zone now: of the state, of stub domains, of the node's resolv.conf.

A server that leads back to us is found by its address or by a name that nobody else can ask for, and left out.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kepd_dns.handover.state import Settings, Upstream
from kepd_dns.run.asking.asks import Ask
from kepd_dns.upstreams.addresses import Server, read_resolv_conf
from kepd_dns.wire.names import to_wire
from kepd_dns.wire.question import HINFO, IN, RD, Question, key_of
from kepd_dns.zones.choice import Zone

if TYPE_CHECKING:
    from kepd_dns.run.answering import Answering
    from kepd_dns.run.asking.flights import Flights

LOOK_S = 1.0
LOOP_S = 5.0


class Servers:
    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._settings = Settings()
        self.cluster: tuple[Server, ...] = ()
        self.why: Mapping[Server, str] = {}
        self.node: tuple[Server, ...] = ()
        self.stubs: Mapping[str, tuple[Server, ...]] = {}
        self.looping: set[Server] = set()
        self._looked_s = 0.0
        self._stamp: tuple[int, int] = (0, 0)
        self._flights: Flights | None = None
        self._answering: Answering | None = None

    def meet(self, flights: "Flights", answering: "Answering") -> None:
        self._flights, self._answering = flights, answering

    def of(self, zone: Zone) -> tuple[Server, ...]:
        if zone.kind == "cluster":
            return self.cluster
        if zone.kind == "stub":
            return tuple(one for one in zone.servers if one not in self.looping)
        if zone.kind == "own":
            return ()
        now_s = self._loop.time()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._read_node()
        return tuple(one for one in self.node if one not in self.looping)

    def use(self, settings: Settings, upstreams: tuple[Upstream, ...]) -> None:
        self._settings = settings
        self.cluster = tuple(Server(one.address, one.port, "tcp") for one in upstreams)
        self.why = {Server(one.address, one.port, "tcp"): one.why for one in upstreams}
        self._stamp = (0, 0)
        self._read_node()
        self._changed()

    def _read_node(self) -> None:
        path = Path(self._settings.resolv_conf)
        try:
            found = os.stat(path)  # noqa: PTH116
            stamp = found.st_ino, found.st_mtime_ns
            if stamp == self._stamp:
                return
            servers = read_resolv_conf(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            return
        self._stamp = stamp
        if servers != self.node:
            self.node = servers
            self._log(" ".join(map(str, servers)))
            self._changed()

    def _changed(self) -> None:
        """Forget whom nobody asks any more, and look for loops among the rest."""
        stubs = [one for zone in self._answering.zones.all for one in zone.servers] if self._answering else []
        wanted = {*self.cluster, *self.node, *stubs}
        self.looping &= wanted
        own = set(self._settings.addresses)
        self.looping |= {one for one in wanted if one.address in own and one.protocol == "udp"}
        if self._flights is None:
            return
        self._flights.healths.retain(wanted)
        self._flights.tcp.retain({*wanted, *(Server(one.address, one.port, "udp") for one in wanted)})
        self._flights.settle()
        for one in {*self.node, *stubs} - self.looping:
            self._probe(one)

    def _probe(self, server: Server) -> None:
        """As CoreDNS does: a name of two random labels, which nobody asks for but we."""
        flights, answering = self._flights, self._answering
        if flights is None or answering is None or len(answering.loop_names) >= 64:
            return
        name = to_wire(f"{flights.random.bits(8)}.{flights.random.bits(8)}")
        section = name + HINFO.to_bytes(2, "big") + IN.to_bytes(2, "big")
        question = Question(0, RD, name, section, key_of(name, HINFO), HINFO, IN)

        def found() -> None:
            if server not in self.looping:
                self.looping.add(server)
                self._log(f"{server} leads back to kepd-dns and is left out")

        answering.loop_names[name] = found
        ask = Ask(server, flights.healths.of(server), None, question, section, False, self._loop.time())
        flights.udp.ask(ask)

        def forget() -> None:
            answering.loop_names.pop(name, None)
            flights.udp.give_up(ask)

        self._loop.call_later(LOOP_S, forget)
