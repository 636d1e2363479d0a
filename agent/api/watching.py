# SPDX-License-Identifier: Apache-2.0
"""Watches of the API: a feed of agent.model, with its end in the API's words."""

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from google.rpc import code_pb2

from agent.api.errors import ApiError, FailureReason
from agent.model.feed import MOST_BUFFERED, ChangeKind, Feed, FeedChange, Overtaken
from agent.wire.kepd.v1 import list_pb2

Item = TypeVar("Item")
Shown = TypeVar("Shown")
RETRY_AFTER_S = 1.0

ADDED = list_pb2.CHANGE_TYPE_ADDED
MODIFIED = list_pb2.CHANGE_TYPE_MODIFIED


async def watched(
    feed: Feed[Item], convert: Callable[[Item], Shown], holds: Callable[[Shown], bool], key: Callable[[Shown], str]
) -> AsyncIterator[tuple[list_pb2.ChangeType, Shown | None, int]]:
    """A watch with a filter. An object that begins to match is added, one that no longer does is deleted."""
    sent: set[str] = set()
    async for change in followed(feed):
        if change.item is None:
            yield list_pb2.CHANGE_TYPE_BOOKMARK, None, change.version
            continue
        shown = convert(change.item)
        name = key(shown)
        if holds(shown) and change.kind is not ChangeKind.DELETED:
            yield (MODIFIED if name in sent else ADDED), shown, change.version
            sent.add(name)
        elif name in sent:
            sent.discard(name)
            yield list_pb2.CHANGE_TYPE_DELETED, shown, change.version


async def followed(feed: Feed[Item]) -> AsyncIterator[FeedChange[Item]]:
    """Follow a feed; a reader that cannot keep up is told to come again."""
    try:
        async for change in feed.follow():
            yield change
    except Overtaken as error:
        raise ApiError(
            code_pb2.RESOURCE_EXHAUSTED,
            FailureReason.WATCHER_TOO_SLOW,
            f"the client left more than {MOST_BUFFERED} changes unread; watch again",
            retry_after_s=RETRY_AFTER_S,
        ) from error
