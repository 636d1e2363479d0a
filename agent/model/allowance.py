# SPDX-License-Identifier: Apache-2.0
"""So many at once, and from then on so many a second: of one caller, and of all callers of a door."""

from collections import OrderedDict
from collections.abc import Hashable, Mapping

import msgspec

LONGEST_DEBT_S = 60.0


class Allowance:
    def __init__(self, at_once: float, a_second: float, now_s: float) -> None:
        self._most, self._a_second = at_once, a_second
        self._left, self._at_s = at_once, now_s
        self._lacking = 0.0

    def take(self, now_s: float, count: float = 1, *, refuses: bool = False) -> bool:
        """Whether there were so many left. Who goes on in spite of a no waits the longer for the next yes, up to a
        minute; who is refused took nothing."""
        self._left = min(self._left + max(now_s - self._at_s, 0.0) * self._a_second, self._most)
        self._at_s = now_s
        self._lacking = max(count - self._left, 0.0)
        if not self._lacking or not refuses:
            self._left = max(self._left - count, -LONGEST_DEBT_S * self._a_second)
        return not self._lacking

    @property
    def owed_s(self) -> float:
        """Until there is what was lacking at the last look."""
        return self._lacking / self._a_second


class Share(msgspec.Struct, frozen=True):
    """What one caller may have of something, however many connections it opens."""

    at_once: float
    a_second: float


# Callers that a meter remembers, and how long one that went too far is barred: twice as long each time, up to a minute.
MOST_CALLERS = 4096
FIRST_BAR_S, LONGEST_BAR_S = 1.0, 60.0


class CallerMeter:
    """Every door has one, and one loop serves all doors. A caller is a user, a process or an address; `shares` says
    what each may take, by name. Those who take more wait, or are cut off and barred, as their door decides."""

    def __init__(self, shares: Mapping[str, Share]) -> None:
        self.shares = shares
        self._taken: OrderedDict[tuple[Hashable, str], Allowance] = OrderedDict()
        self._bars: OrderedDict[Hashable, tuple[float, float, str]] = OrderedDict()
        """Until when, for how long, and why."""

    def take(self, caller: Hashable, what: str, now_s: float, count: float = 1, *, refuses: bool = False) -> float:
        """0, or the seconds until the caller has room for what it took, or for what it is refused."""
        key = (caller, what)
        own = self._taken.get(key)
        if own is None:
            share = self.shares[what]
            own = self._taken[key] = Allowance(share.at_once, share.a_second, now_s)
            if len(self._taken) > MOST_CALLERS:
                self._taken.popitem(last=False)
        else:
            self._taken.move_to_end(key)
        return 0.0 if own.take(now_s, count, refuses=refuses) else own.owed_s

    def bar(self, caller: Hashable, why: str, now_s: float) -> float:
        """From now on, for how long; 0 where it is barred already."""
        until_s, last_s, _ = self._bars.pop(caller, (0.0, 0.0, ""))
        if until_s > now_s:
            self._bars[caller] = (until_s, last_s, why)
            return 0.0
        bar_s = min(last_s * 2, LONGEST_BAR_S) if last_s and now_s < until_s + LONGEST_BAR_S else FIRST_BAR_S
        self._bars[caller] = (now_s + bar_s, bar_s, why)
        if len(self._bars) > MOST_CALLERS:
            self._bars.popitem(last=False)
        return bar_s

    def barred(self, caller: Hashable, now_s: float) -> str:
        """Why it is; empty: it is not."""
        until_s, _, why = self._bars.get(caller, (0.0, 0.0, ""))
        return why if until_s > now_s else ""
