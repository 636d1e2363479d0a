# SPDX-License-Identifier: Apache-2.0
"""Watches of the API: a feed of agent.model, with its end in the API's words."""

from collections.abc import AsyncIterator
from typing import TypeVar

from google.rpc import code_pb2

from agent.api.errors import ApiError, Reason
from agent.model.feed import MOST_BUFFERED, Change, ChangeKind, Feed, Overtaken
from agent.wire.kepd.v1 import list_pb2

__all__ = ["CHANGE_TYPES", "followed"]

Item = TypeVar("Item")
RETRY_AFTER_S = 1.0

CHANGE_TYPES = {
    ChangeKind.ADDED: list_pb2.CHANGE_TYPE_ADDED,
    ChangeKind.MODIFIED: list_pb2.CHANGE_TYPE_MODIFIED,
    ChangeKind.DELETED: list_pb2.CHANGE_TYPE_DELETED,
    ChangeKind.BOOKMARK: list_pb2.CHANGE_TYPE_BOOKMARK,
}


async def followed(feed: Feed[Item]) -> AsyncIterator[Change[Item]]:
    """Follow a feed; a reader that cannot keep up is told to come again."""
    try:
        async for change in feed.follow():
            yield change
    except Overtaken as error:
        raise ApiError(
            code_pb2.RESOURCE_EXHAUSTED,
            Reason.WATCHER_TOO_SLOW,
            f"more than {MOST_BUFFERED} changes are unread; watch again",
            retry_after_s=RETRY_AFTER_S,
        ) from error
