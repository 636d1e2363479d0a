# SPDX-License-Identifier: Apache-2.0
"""What a service offers of the kinds that are shown: objects made one by one, so that a page costs what it shows."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from inspect import isawaitable
from typing import TypeVar

from agent.api.paging import in_order
from agent.api.watching import followed
from agent.kinds.own_shape import own_object
from agent.kinds.shown import How, Offer
from agent.kinds.table import Object
from agent.model.feed import Feed, FeedChange
from agent.model.placed import Walk

Item = TypeVar("Item")
Items = Callable[[How], Iterable[Item] | Awaitable[Iterable[Item]]]
Show = Callable[[Item], Object]
ObjectWalk = Callable[[How, str], Walk[Object]]


def listed(items: Items[Item], place: Callable[[Item], str], shown: Show[Item]) -> ObjectWalk:
    """Of few, which are all known at once."""

    async def walk(how: How, after: str) -> Walk[Object]:
        found = items(how)
        async for where, item in in_order(await found if isawaitable(found) else found, place, after):
            yield where, shown(item)

    return walk


def walked(items: Callable[[str], Walk[Item]], shown: Show[Item]) -> ObjectWalk:
    async def walk(_how: How, after: str) -> Walk[Object]:
        async for where, item in items(after):
            yield where, shown(item)

    return walk


def own(
    kind: str, items: Items[Item], name: Callable[[Item], str], notes: Callable[[], Sequence[str]] | None = None
) -> Offer:
    """Reports of what only kepd has."""
    return Offer(listed(items, name, lambda report: own_object(kind, name(report), report)), notes=notes)


def following(
    feed: Callable[[], Feed[Item] | Awaitable[Feed[Item]]], shown: Show[Item]
) -> Callable[[], AsyncIterator[FeedChange[Object]]]:
    async def follow() -> AsyncIterator[FeedChange[Object]]:
        found = feed()
        async for change in followed(await found if isawaitable(found) else found):
            made = shown(change.item) if change.item is not None else None
            yield FeedChange(change.kind, made, change.version)

    return follow
