# SPDX-License-Identifier: Apache-2.0
"""Follows the many endpoints of one service port through changes of its slices, at the cost of what changed.

A port of 5 000 endpoints changes by one or two of them, in one slice. What is the same stays the same object, so that
a comparison of two lists sees it at once, and a step says what differs. The endpoints of one slice for a port are made
on demand and kept as long as the slice stays the same: one object of 160 KiB may hold three million pairs that are
never needed.
"""

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from agent.model.services.service import Backend, PortKey, SliceFacts
from agent.services.objects.addresses import endpoint_key

LEAST_FOLLOWED = 256
"""Fewer are merged anew as fast."""
MOST_FOLLOWED = 64
"""More changes at once make a new list."""
_KEY = attrgetter("key")
Parts = Sequence[tuple[Backend, ...]]
_PORT_BYTES = 4


class Step(NamedTuple):
    """How one list of endpoints became the next."""

    before: tuple[Backend, ...]
    gone: tuple[Backend, ...]
    come: tuple[Backend, ...]


class Merged:
    """`whole` is in order of the keys, and each key is there once. Never changes; `follow` makes the next."""

    __slots__ = ("_here", "_odd", "_parts", "step", "whole")

    def __init__(self, parts: Parts, whole: tuple[Backend, ...], step: Step | None = None, odd: int = -1) -> None:
        self.whole = whole
        self.step = step
        self._parts = parts
        self._odd = sum(map(_is_odd, whole)) if odd < 0 else odd
        self._here: dict[str, tuple[Backend, ...]] = {}

    @property
    def is_plain(self) -> bool:
        """All are ready, and none has a hint."""
        return not self._odd

    def here(self, node: str) -> tuple[Backend, ...]:
        """Those on a node."""
        if node not in self._here:
            self._here[node] = tuple([one for one in self.whole if one.node == node])
        return self._here[node]

    def follow(self, parts: Parts) -> "Merged | None":
        """The endpoints of these slices; None: too much is different, and they have to be merged anew."""
        if len(parts) != len(self._parts) or len(self.whole) < sum(map(len, self._parts)):
            return None
        found, gone, come = list(self.whole), list[Backend](), list[Backend]()
        for before, after in zip(self._parts, parts, strict=True):
            if before is after:
                continue
            had, has = set(map(id, before)), set(map(id, after))
            gone += [one for one in before if id(one) not in has]
            come += [one for one in after if id(one) not in had]
            if len(gone) + len(come) > MOST_FOLLOWED:
                return None
        if not gone and not come:
            return self
        if not _moved(found, gone, come):
            return None
        odd = self._odd + sum(map(_is_odd, come)) - sum(map(_is_odd, gone))
        made = Merged(parts, tuple(found), Step(self.whole, tuple(gone), tuple(come)), odd)
        moved = {one.node for one in (*gone, *come)}
        made._here.update((node, here) for node, here in self._here.items() if node not in moved)
        return made


class Endpoints(msgspec.Struct, frozen=True, gc=False):
    """Of one service port, whatever their condition. `many`: what is known of more than a few."""

    whole: tuple[Backend, ...] = ()
    many: Merged | None = None
    unjudged: tuple[Backend, ...] = ()
    """As the API server has them, where some are set back because they are dead."""


def _is_odd(one: Backend) -> bool:
    return not one.is_ready or bool(one.zones) or bool(one.nodes)


def _moved(found: list[Backend], gone: Sequence[Backend], come: Sequence[Backend]) -> bool:
    """Whether each of these was found once; else two slices have the same endpoint."""
    for one in gone:
        at = bisect_left(found, one.key, key=_KEY)
        if at == len(found) or found[at] is not one:
            return False
        del found[at]
    for one in come:
        at = bisect_left(found, one.key, key=_KEY)
        if at < len(found) and found[at].key == one.key:
            return False
        found.insert(at, one)
    return True


def kept(before: Sequence[Backend], after: Sequence[Backend]) -> tuple[Backend, ...]:
    """The latter, with the objects of the former where they are equal."""
    known = dict(zip(map(_KEY, before), before, strict=True))
    return tuple([old if (old := known.get(one.key)) == one and old is not None else one for one in after])


class SlicePorts:
    """One slice with several ports. Most have one, and need none of this."""

    __slots__ = ("_before", "_kept", "_numbers", "facts", "made")

    def __init__(self, facts: SliceFacts) -> None:
        self.facts = facts
        self._numbers: dict[PortKey, tuple[int, ...]] | None = None
        self.made: dict[int, tuple[Backend, ...]] | None = None
        self._before: dict[int, tuple[Backend, ...]] = {}
        self._kept: list[int] = []

    def numbers(self, port: PortKey) -> tuple[int, ...]:
        """What the slice says for this port; almost always one number or none."""
        if self._numbers is None:
            self._numbers = {}
            for key, number in self.facts.ports:
                self._numbers[key] = (*self._numbers.get(key, ()), number)
        return self._numbers.get(port, ())

    def backends(self, port: PortKey) -> list[tuple[Backend, ...]]:
        return [self._with(number) for number in self.numbers(port)]

    def take_over(self, before: "SlicePorts") -> None:
        """Pairs that were asked for of the slice as it was, of endpoints that stay as they were: of
        thousands one or two change."""
        if before.made is None or not self.facts.ports or before.facts.ports[0] != self.facts.ports[0]:
            return
        olds = before.facts.endpoints
        places = {one.key: place for place, one in enumerate(olds)}
        found = [places.get(one.key, -1) for one in self.facts.endpoints]
        pairs = zip(found, self.facts.endpoints, strict=True)
        self._kept = [place if place >= 0 and olds[place] is one else -1 for place, one in pairs]
        self._before = before.made

    def _with(self, number: int) -> tuple[Backend, ...]:
        if number == self.facts.ports[0][1]:
            return self.facts.endpoints
        if self.made is None:
            self.made = {}
        if number not in self.made:
            tail = number.to_bytes(2, "big") + bytes(2)
            made = self._before.get(number)
            self.made[number] = (
                tuple([_at_port(one, number, tail) for one in self.facts.endpoints])
                if made is None
                else tuple(
                    [
                        made[place] if place >= 0 else _at_port(one, number, tail)
                        for place, one in zip(self._kept, self.facts.endpoints, strict=True)
                    ]
                )
            )
        return self.made[number]


def _at_port(one: Backend, number: int, tail: bytes) -> Backend:
    return Backend(
        endpoint_key(one.address, number),
        one.data[:-_PORT_BYTES] + tail,
        one.node,
        one.is_ready,
        one.is_serving,
        one.is_terminating,
        one.zones,
        one.nodes,
    )
