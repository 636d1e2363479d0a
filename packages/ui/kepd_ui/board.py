# SPDX-License-Identifier: Apache-2.0
"""What is known of the node: pods, pulls, Services and events as the watches tell them.

Owns: which objects are there after a watch was broken off and began again, their order, and connections a second.
Never: asks, reads the clock, or knows of a terminal.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from agent.kinds.ages import seconds_of
from agent.kinds.table import FACTS, Object, names_of
from agent.wire.kepd.v1 import list_pb2, node_pb2

MOST_EVENTS = 1000
PANELS = ("pods", "pulls", "services", "events")
STAGES_AT_WORK = ("credentials", "resolving", "downloading", "unpacking", "verifying", "lazy")


class News(msgspec.Struct, frozen=True):
    """What a watch of one panel told: a change, and the object that it is of."""

    panel: str
    change: int
    item: Object | None = None


class Began(msgspec.Struct, frozen=True):
    """A watch begins: until its bookmark come all objects that there are."""

    panel: str


class Lost(msgspec.Struct, frozen=True):
    """A watch has ended, and why."""

    panel: str
    text: str


class Head(msgspec.Struct, frozen=True):
    """The node and its planes."""

    node: node_pb2.Node
    planes: Sequence[Object]


class Counted(msgspec.Struct, frozen=True):
    """Connections of Services so far, by `namespace/name`."""

    at_s: float
    connections: dict[str, int]


Told = News | Began | Lost | Head | Counted


class ObjectTable:
    """The objects of one panel, by key."""

    def __init__(self, rank: Callable[[Object], Any], most: int = 0) -> None:
        """`most`: beyond that many, those that come last go; 0 = no bound but the daemon's."""
        self.items: dict[str, Object] = {}
        self.trouble = ""
        self.is_complete = False
        self._rank = rank
        self._most = most
        self._gathered: set[str] | None = None
        self._order: list[str] | None = None

    def begin(self) -> None:
        self._gathered = set()

    def take(self, change: int, key: str, item: Object) -> None:
        if change == list_pb2.CHANGE_TYPE_DELETED:
            self._order = None if self.items.pop(key, None) is not None else self._order
            return
        before = self.items.get(key)
        if before is None or self._rank(before) != self._rank(item):
            self._order = None
        self.items[key] = item
        if self._gathered is not None:
            self._gathered.add(key)
        if self._most and len(self.items) > self._most * 2:
            self._drop()

    def end_of_list(self) -> None:
        """A bookmark. What was not told again is gone."""
        self.trouble, self.is_complete = "", True
        if self._gathered is None:
            return
        for key in self.items.keys() - self._gathered:
            del self.items[key]
            self._order = None
        self._gathered = None

    def order(self) -> Sequence[str]:
        if self._order is None:
            self._order = sorted(self.items, key=lambda key: self._rank(self.items[key]))
        return self._order[: self._most] if self._most else self._order

    def _drop(self) -> None:
        self.items = {key: self.items[key] for key in self.order()}
        self._order = None


class Board:
    """Everything the screen shows."""

    def __init__(self) -> None:
        self.node = node_pb2.Node()
        self.planes: Sequence[Object] = ()
        self.pods = ObjectTable(names_of)
        self.pulls = ObjectTable(_pull_rank)
        self.services = ObjectTable(names_of)
        self.events = ObjectTable(_event_rank, MOST_EVENTS)
        self.rates: dict[str, float] = {}
        self._counted: Counted | None = None

    def table(self, panel: str) -> ObjectTable:
        table: ObjectTable = getattr(self, panel)
        return table

    def take(self, told: Told) -> None:
        if isinstance(told, Head):
            self.node, self.planes = told.node, told.planes
        elif isinstance(told, Counted):
            self._count(told)
        elif isinstance(told, Began):
            self.table(told.panel).begin()
        elif isinstance(told, Lost):
            self.table(told.panel).trouble = told.text
        elif told.item is None or told.change == list_pb2.CHANGE_TYPE_BOOKMARK:
            self.table(told.panel).end_of_list()
        else:
            self.table(told.panel).take(told.change, key_of(told.item), told.item)

    def _count(self, now: Counted) -> None:
        """Counters begin anew when a Service is programmed again; then nothing is known until the next look."""
        before, self._counted = self._counted, now
        if before is None or now.at_s <= before.at_s:
            self.rates = {}
            return
        grown = ((key, count - before.connections.get(key, count + 1)) for key, count in now.connections.items())
        self.rates = {key: more / (now.at_s - before.at_s) for key, more in grown if more >= 0}


def key_of(item: Object) -> str:
    return "/".join(filter(None, names_of(item)))


def counted(at_s: float, services: Iterable[Object]) -> Counted:
    return Counted(at_s, {key_of(service): int(service[FACTS]["connections"]) for service in services})


def _pull_rank(made: Object) -> tuple[int, str, int, str]:
    """At work, then those in the queue in their order, then those that ended, the last first."""
    pull = made["status"]
    if pull["stage"] in STAGES_AT_WORK:
        return 0, pull.get("startedAt", ""), 0, pull["id"]
    if pull["stage"] == "queued":
        return 1, "", pull["position"], pull["id"]
    return 2, "", -seconds_of(pull.get("endedAt", "")), pull["id"]


def _event_rank(event: Object) -> tuple[int, str]:
    return -seconds_of(event["lastTimestamp"] or ""), names_of(event)[1]
