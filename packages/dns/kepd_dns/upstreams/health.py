# SPDX-License-Identifier: Apache-2.0
"""What is known of servers, and whom to ask next.

Order by round trip, now and then another first so that its figure stays true. Three time-outs in a row put a server out
for a while that doubles; then one question decides. Where all are out each question still tries one, in turn.
"""

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from kepd_dns.upstreams.addresses import Server

EXPLORE = 0.1
OUT_AFTER = 3
FIRST_OUT_S, LONGEST_OUT_S = 1.0, 30.0
PLAIN_S = 900.0
LEAST_HEDGE_S = 0.05
WEIGHT = 0.2
MISSPELLED = 2
SAMPLES = 31
# The median is taken anew after so many answers.
EACH = 16


class ServerHealth(msgspec.Struct):
    """`plain_until_s`: takes no EDNS. `misspelled`: how often it answered with another spelling (0x20)."""

    server: Server
    label: str = ""
    smoothed_s: float = 0.0
    samples: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=SAMPLES))
    failures: int = 0
    out_s: float = 0.0
    out_until_s: float = 0.0
    is_trying: bool = False
    """A question was let through to see whether it answers again."""
    plain_until_s: float = 0.0
    misspelled: int = 0
    asked: int = 0
    answers: int = 0
    last_s: float = -1.0
    hedge_s: float = LEAST_HEDGE_S
    """How long it may be silent before another is asked as well."""

    def is_out(self, now_s: float) -> bool:
        return self.out_s > 0 and (now_s < self.out_until_s or self.is_trying)

    def answered(self, took_s: float) -> None:
        """Answers that came together to questions that went together are one sample."""
        if took_s == self.last_s and not self.failures:
            return
        self.last_s = took_s
        smoothed_s = self.smoothed_s
        self.smoothed_s = smoothed_s + WEIGHT * (took_s - smoothed_s) if smoothed_s else took_s
        self.samples.append(took_s)
        self.answers = answers = self.answers + 1
        if not answers % EACH or answers < EACH:
            self.hedge_s = max(LEAST_HEDGE_S, 4 * sorted(self.samples)[len(self.samples) // 2])
        if self.failures:
            self.failures, self.out_s, self.is_trying = 0, 0.0, False

    def failed(self, now_s: float) -> bool:
        """Whether it is out from now on and was not before."""
        was_out = self.out_s > 0
        self.failures += 1
        self.is_trying = False
        if self.failures < OUT_AFTER and not was_out:
            return False
        self.out_s = min(LONGEST_OUT_S, 2 * self.out_s) if was_out else FIRST_OUT_S
        self.out_until_s = now_s + self.out_s
        return not was_out


class Healths:
    """Of all servers that are asked; those that are asked no more are forgotten."""

    def __init__(self) -> None:
        self._all: dict[Server, ServerHealth] = {}
        self._known: tuple[Sequence[Server], list[ServerHealth]] = (), []
        """Those that were asked for last, which nearly always are asked for next."""
        self._turn = 0
        self.all_out = 0
        """Questions that came when every server was out."""

    def of(self, server: Server) -> ServerHealth:
        found = self._all.get(server)
        if found is None:
            found = self._all[server] = ServerHealth(server, str(server))
        return found

    def retain(self, servers: Iterable[Server]) -> None:
        wanted = set(servers)
        self._all = {server: one for server, one in self._all.items() if server in wanted}
        self._known = (), []

    def nearest(self, servers: Sequence[Server], dice: float) -> ServerHealth | None:
        """The first of `order` where that is plain: none was out and none is to be explored."""
        if dice < EXPLORE:
            return None
        known = self._known[1]
        if servers is not self._known[0]:
            known = [self.of(one) for one in servers]
            self._known = servers, known
        if len(known) == 1:
            return known[0]
        best = None
        for one in known:
            if one.out_s:
                return None
            if best is None or one.smoothed_s < best.smoothed_s:
                best = one
        return best

    def order(self, servers: Sequence[Server], now_s: float, dice: float) -> list[Server]:
        """`dice` is from 0 to 1; whoever is out comes only where no other is left, or for one question of trial."""
        if len(servers) == 1:
            return list(servers)
        known = [self.of(one) for one in servers]
        up = sorted((one for one in known if not one.is_out(now_s)), key=lambda one: one.smoothed_s)
        if not up:
            self.all_out += 1
            self._turn += 1
            at = self._turn % len(servers)
            return [*servers[at:], *servers[:at]]
        if len(up) > 1 and dice < EXPLORE:
            other = 1 + int(dice / EXPLORE * (len(up) - 1))
            up.insert(0, up.pop(min(other, len(up) - 1)))
        for one in up[:1]:
            one.is_trying = one.out_s > 0
        return [one.server for one in up]
