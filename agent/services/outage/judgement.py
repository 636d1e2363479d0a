# SPDX-License-Identifier: Apache-2.0
"""Judges endpoints while nobody else does: which to check when, and what the answers mean.

An endpoint is dead after two checks in a row that fail, alive again after two that do not. Whoever has failed once is
asked again soon, all others once in a round. A round lasts a second, longer where there are many endpoints, or many
nodes that all check the same ones. Two buckets bound what leaves this node: one for all, one for each node that is
asked, or one address where no node is known or more than one is named. Chance spreads first checks over a round and
each later one by a tenth.
Never: connects, reads a clock, rolls dice, or decides what a dead endpoint means for its Service.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from heapq import heapify, heappop, heappush

import msgspec

from agent.model.services.check import Asked, Outcome
from agent.model.services.service import Protocol

STRIKES = 2
"""So many answers in a row change a verdict."""
SOON_S = 0.25
SPREAD = 0.1
BURST_S = 0.1
NODES_PER_S = 50.0
"""So many nodes may ask one endpoint in a second, as far as each follows this."""
NODE_SHARE = 0.5
"""Of all checks, what one node is asked at most."""
MOST_PASSED_OVER = 100
"""In one look, so that many endpoints of one node cost no more than few."""
PORT_BYTES = 4
FILL = 0.9
"""Of the checks, what rounds use; the rest is for those that failed once."""


class Pace(msgspec.Struct, frozen=True):
    per_s: float = 200.0
    round_s: float = 1.0


class Verdict(msgspec.Struct):
    """`streak`: answers in a row that say the same, negative where they fail."""

    place: str | bytes
    """Its node, or its address where that is not known for sure."""
    streak: int = 0
    is_dead: bool = False
    has_answered: bool = False
    has_refused: bool = False
    """Its last failure was a refusal, not silence."""
    last: Outcome = "unknown"
    """That failed."""
    is_asked: bool = False


class _Bucket:
    """So many checks a second, and those of a short moment at once."""

    __slots__ = ("_at_s", "_left", "_most", "_per_s")

    def __init__(self, per_s: float, now_s: float) -> None:
        self.change(per_s)
        self._left, self._at_s = self._most, now_s

    def change(self, per_s: float) -> None:
        self._per_s, self._most = per_s, max(per_s * BURST_S, 1.0)

    def take(self, now_s: float) -> bool:
        self._left = min(self._most, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def put_back(self) -> None:
        self._left += 1.0


class Judgement:
    """`dead` is what verdicts come to; whoever looks at it need not ask for each."""

    def __init__(self, pace: Pace, now_s: float, luck: Callable[[], float]) -> None:
        self.dead: set[Asked] = set()
        self._told: frozenset[Asked] = frozenset()
        self._pace, self._luck = pace, luck
        self._known: dict[Asked, Verdict] = {}
        self._beside: dict[bytes, list[Asked]] = {}
        """What is asked by TCP of an address that is asked by UDP too."""
        self._due: list[tuple[float, Asked]] = []
        self._soon: list[tuple[float, Asked]] = []
        self._all = _Bucket(pace.per_s, now_s)
        self._places: dict[str | bytes, _Bucket] = {}
        """Of nodes, and of addresses."""
        self._node_count = 0

    def __len__(self) -> int:
        return len(self._known)

    @property
    def round_s(self) -> float:
        by_count = len(self._known) / (self._pace.per_s * FILL)
        return max(self._pace.round_s, by_count, (self._node_count + 1) / NODES_PER_S)

    def set_pace(self, pace: Pace) -> None:
        """From now on."""
        self._pace = pace
        self._all.change(pace.per_s)
        for one in self._places.values():
            one.change(pace.per_s * NODE_SHARE)

    def follow(self, targets: Mapping[Asked, str], now_s: float) -> set[Asked]:
        """These and no others, each with its node. Returns those that were dead and are forgotten."""
        forgotten = self.dead - targets.keys()
        self.dead -= forgotten
        fresh = [one for one in targets if one not in self._known]
        places = _places(targets)
        self._known = {one: self._known.get(one) or Verdict("") for one in targets}
        for one, verdict in self._known.items():
            verdict.place = places[one.data[:-PORT_BYTES]]
        self._beside = {one.data[:-PORT_BYTES]: [] for one in targets if one.protocol == "UDP"}
        for one in targets:
            if one.protocol == "TCP" and (found := self._beside.get(one.data[:-PORT_BYTES])) is not None:
                found.append(one)
        share = self._pace.per_s * NODE_SHARE
        self._places = {one: self._places.get(one) or _Bucket(share, now_s) for one in set(places.values())}
        self._node_count = sum(isinstance(one, str) for one in self._places)
        round_s = self.round_s
        self._due = [item for item in self._due if item[1] in self._known]
        self._due += [(now_s + round_s * self._luck(), one) for one in fresh]
        heapify(self._due)
        self._soon = [item for item in self._soon if item[1] in self._known]
        return forgotten

    def due(self, now_s: float) -> Iterator[Asked]:
        """Those to ask now, within the bounds; each is taken for asked."""
        later: list[tuple[float, Asked]] = []
        for waiting in (self._soon, self._due):
            while waiting and waiting[0][0] <= now_s and len(later) < MOST_PASSED_OVER:
                _, target = waiting[0]
                found = self._known.get(target)
                if found is None or found.is_asked:
                    heappop(waiting)
                    continue
                if not self._all.take(now_s):
                    break
                heappop(waiting)
                bucket = self._places[found.place]
                if not bucket.take(now_s):
                    # Its node has had its share; the next moment is another endpoint's turn.
                    self._all.put_back()
                    later.append((now_s + SOON_S * (1 + self._luck()), target))
                    continue
                found.is_asked = True
                yield target
        for item in later:
            heappush(self._due, item)

    def take(self, target: Asked, outcome: Outcome, now_s: float) -> bool:
        """What a check came to. Whether the verdict is another one now."""
        found = self._known.get(target)
        if found is None:
            return False
        found.is_asked = False
        step = _step(target.protocol, found, outcome, is_mute=self._is_mute(target, outcome))
        if step:
            found.has_answered |= outcome == "answered"
            found.has_refused = outcome != "silent" if step < 0 else found.has_refused
            found.last = outcome if step < 0 else found.last
            found.streak = found.streak + step if found.streak * step > 0 else step
        is_dead = found.streak <= -STRIKES or (found.is_dead and found.streak < STRIKES)
        found.is_dead = is_dead
        has_changed = self._settle(target)
        # One answer of another kind than the verdict: is it so?
        is_open = step != 0 and (found.streak < 0) is not is_dead
        wait_s = SOON_S if is_open else self.round_s * (1 + SPREAD * (2 * self._luck() - 1))
        heappush(self._soon if is_open else self._due, (now_s + wait_s, target))
        return has_changed

    def _is_mute(self, target: Asked, outcome: Outcome) -> bool:
        """Whether a host that says nothing by UDP says nothing by TCP either."""
        beside = self._beside.get(target.data[:-PORT_BYTES], ()) if outcome == "silent" else ()
        found = [self._known[one] for one in beside]
        return bool(found) and all(one.is_dead and not one.has_refused for one in found)

    def tell(self, dead: Collection[Asked]) -> set[Asked]:
        """Whoever knows better says that these are dead, and no others. Returns those whose verdict is another one."""
        moved, self._told = self._told ^ {one for one in dead if one in self._known}, frozenset(dead)
        return {one for one in moved if self._settle(one)}

    def _settle(self, target: Asked) -> bool:
        found, was_dead = self._known.get(target), target in self.dead
        is_dead = found is not None and (found.is_dead or target in self._told)
        (self.dead.add if is_dead else self.dead.discard)(target)
        return is_dead is not was_dead

    def last_failure(self, target: Asked) -> Outcome:
        found = self._known.get(target)
        return found.last if found is not None else "unknown"


def _places(targets: Mapping[Asked, str]) -> dict[bytes, str | bytes]:
    """Of each address what is asked with it."""
    found: dict[bytes, str | bytes] = {}
    for asked, node in targets.items():
        address = asked.data[:-PORT_BYTES]
        if found.setdefault(address, node or address) != (node or address):
            found[address] = address
    return found


def _step(protocol: Protocol, known: Verdict, outcome: Outcome, *, is_mute: bool) -> int:
    """What an answer counts: for the endpoint, against it, or nothing."""
    match outcome:
        case "open" | "answered":
            return 1
        case "refused" | "unreachable":
            return -1
        case "silent":
            return -STRIKES if is_mute else _of_udp_silence(known) if protocol == "UDP" else -1
        case "unknown":
            return 0


def _of_udp_silence(known: Verdict) -> int:
    """Most that listen by UDP answer no stranger, so silence speaks against those alone that have answered before.
    Where the host refused, or answered nothing at all, it is there again."""
    if known.has_answered and not (known.is_dead and known.has_refused):
        return -1
    return 1 if known.is_dead else 0
