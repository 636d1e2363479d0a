# SPDX-License-Identifier: Apache-2.0
"""Watches of the API: a feed of agent.model, with its end in the API's words."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Hashable
from math import ceil
from typing import TypeVar

from google.protobuf.message import Message
from google.rpc import code_pb2

from agent.api.errors import ApiError, FailureReason
from agent.model.feed import MOST_BUFFERED, ChangeKind, Feed, FeedChange, FeedLagged

Item = TypeVar("Item")
RETRY_AFTER_S = 1.0
# Readers that hear of a new message in one turn of the loop.
HEARERS_A_TURN = 4


async def narrowed(
    changes: AsyncIterator[FeedChange[Item]], holds: Callable[[Item], bool], key: Callable[[Item], Hashable]
) -> AsyncIterator[FeedChange[Item]]:
    """Of some alone: an object that begins to match is added, one that no longer does is deleted."""
    sent: set[Hashable] = set()
    async for change in changes:
        if change.item is None:
            yield change
            continue
        name = key(change.item)
        if holds(change.item) and change.kind is not ChangeKind.DELETED:
            kind = ChangeKind.MODIFIED if name in sent else ChangeKind.ADDED
            sent.add(name)
        elif name in sent:
            kind = ChangeKind.DELETED
            sent.discard(name)
        else:
            continue
        yield FeedChange(kind, change.item, change.version)


async def followed(feed: Feed[Item], topics: Collection[str] | None = None) -> AsyncIterator[FeedChange[Item]]:
    """Follow a feed; a reader that cannot keep up is told to come again."""
    try:
        async for change in feed.follow(topics):
            yield change
    except FeedLagged as error:
        raise ApiError(
            code_pb2.RESOURCE_EXHAUSTED,
            FailureReason.WATCHER_TOO_SLOW,
            f"the client left more than {MOST_BUFFERED} changes unread; watch again",
            retry_after_s=RETRY_AFTER_S,
        ) from error


class SharedStream:
    """Messages that come each so many seconds: made and packed once for all who read them, however many do."""

    def __init__(self, source: Callable[[float], AsyncIterator[Message]]) -> None:
        self._source = source
        self._running: dict[int, _Sender] = {}

    async def follow(self, interval_s: float) -> AsyncGenerator[bytes, None]:
        """The last one at once, then each as it comes; who reads slowly misses some. Intervals are whole seconds, so
        that there are few."""
        key = ceil(interval_s)
        sender = self._running.get(key)
        if sender is None:
            sender = self._running[key] = _Sender(self._source(float(key)))
        inbox: asyncio.Queue[bytes | Exception] = asyncio.Queue(1)
        sender.inboxes[inbox] = None
        try:
            if sender.last:
                yield sender.last
            while not isinstance(packed := await inbox.get(), Exception):
                yield packed
            raise packed
        finally:
            del sender.inboxes[inbox]
            if not sender.inboxes or sender.task.done():
                sender.task.cancel()
                if self._running.get(key) is sender:
                    del self._running[key]


class _Sender:
    """One source, as long as somebody reads it."""

    def __init__(self, source: AsyncIterator[Message]) -> None:
        self.inboxes: dict[asyncio.Queue[bytes | Exception], None] = {}
        self.last = b""
        self.task = asyncio.create_task(self._run(source), name="api-shared-stream")

    async def _run(self, source: AsyncIterator[Message]) -> None:
        try:
            async for message in source:
                self.last = message.SerializeToString()
                await self._send(self.last)
        except Exception as error:  # noqa: BLE001  # each reader gets it, and answers its own caller
            await self._send(error)

    async def _send(self, packed: bytes | Exception) -> None:
        for number, inbox in enumerate(list(self.inboxes)):
            if inbox.full():
                inbox.get_nowait()
            inbox.put_nowait(packed)
            if number % HEARERS_A_TURN == 0:
                await asyncio.sleep(0)
