# SPDX-License-Identifier: Apache-2.0
"""The present objects of one kind, and their changes for whoever follows.

Never: waits for a follower; one that does not keep up is cut off with `FeedLagged` and has to begin again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

Item = TypeVar("Item")
MOST_BUFFERED = 1000
# No topic of an object.
EVERYTHING = ""


class ChangeKind(StrEnum):
    """What happened to an object. A bookmark has none: everything up to its version has been told."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    BOOKMARK = "bookmark"


class FeedLagged(Exception):
    """A follower left more than `MOST_BUFFERED` changes unread."""


class FeedChange(msgspec.Struct, Generic[Item], frozen=True):
    kind: ChangeKind
    item: Item | None
    version: int


class Feed(Generic[Item]):
    """Changed by its plane alone; read by all. `topic`: what a follower may choose objects by, so that a change costs
    only those who want it."""

    def __init__(self, topic: Callable[[Item], str] | None = None) -> None:
        self._items: dict[str, Item] = {}
        self._version = 1
        self._topic = topic
        self._followers: set[asyncio.Queue[FeedChange[Item]]] = set()
        self._by_topic: dict[str, set[asyncio.Queue[FeedChange[Item]]]] = {}

    @property
    def items(self) -> Mapping[str, Item]:
        return self._items

    @property
    def version(self) -> int:
        return self._version

    def put(self, key: str, item: Item) -> None:
        """An object is new or has changed; one that equals the last is no change."""
        before = self._items.get(key)
        if before != item:
            self._items[key] = item
            self._publish(ChangeKind.ADDED if before is None else ChangeKind.MODIFIED, item)

    def remove(self, key: str) -> None:
        item = self._items.pop(key, None)
        if item is not None:
            self._publish(ChangeKind.DELETED, item)

    async def follow(self, topics: Collection[str] | None = None) -> AsyncIterator[FeedChange[Item]]:
        """Everything there is, or what is of these topics, then a bookmark, then changes."""
        queue: asyncio.Queue[FeedChange[Item]] = asyncio.Queue(MOST_BUFFERED)
        topic = self._topic
        items = [
            item for item in self._items.values() if topics is None or (topic is not None and topic(item) in topics)
        ]
        initial = [FeedChange(ChangeKind.ADDED, item, self._version) for item in items]
        bookmark: FeedChange[Item] = FeedChange(ChangeKind.BOOKMARK, None, self._version)
        self._followers.add(queue)
        wanted = [EVERYTHING] if topics is None else list(topics)
        for one in wanted:
            self._by_topic.setdefault(one, set()).add(queue)
        try:
            for change in (*initial, bookmark):
                yield change
            while queue in self._followers:
                yield await queue.get()
            raise FeedLagged
        finally:
            self._followers.discard(queue)
            for one in wanted:
                self._by_topic[one].discard(queue)
                if not self._by_topic[one]:
                    del self._by_topic[one]

    def _publish(self, kind: ChangeKind, item: Item) -> None:
        self._version += 1
        change = FeedChange(kind, item, self._version)
        wanting = [*self._by_topic.get(EVERYTHING, ())]
        if self._topic is not None:
            wanting += self._by_topic.get(self._topic(item), ())
        for queue in wanting:
            if queue.full():
                self._followers.discard(queue)
            elif queue in self._followers:
                queue.put_nowait(change)
