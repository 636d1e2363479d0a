# SPDX-License-Identifier: Apache-2.0
import asyncio

import pytest

from agent.model.feed import MOST_BUFFERED, ChangeKind, Feed, FeedLagged


async def test_a_follower_gets_everything_then_a_bookmark_then_changes() -> None:
    """API-02."""
    feed: Feed[int] = Feed()
    feed.put("a", 1)
    seen = []

    async def follow() -> None:
        async for change in feed.follow():
            seen.append((change.kind, change.item, change.version))
            if change.kind is ChangeKind.DELETED:
                return

    async with asyncio.TaskGroup() as group:
        group.create_task(follow())
        await asyncio.sleep(0)
        feed.put("a", 1)
        feed.put("a", 2)
        feed.put("b", 3)
        feed.remove("b")
        feed.remove("c")

    assert seen == [
        (ChangeKind.ADDED, 1, 2),
        (ChangeKind.BOOKMARK, None, 2),
        (ChangeKind.MODIFIED, 2, 3),
        (ChangeKind.ADDED, 3, 4),
        (ChangeKind.DELETED, 3, 5),
    ]


async def test_a_follower_that_does_not_keep_up_is_cut_off_and_others_are_not() -> None:
    """API-02: never more than 1 000 changes are kept for one reader."""
    feed: Feed[int] = Feed()
    slow = feed.follow()
    await anext(slow)
    for number in range(MOST_BUFFERED + 5):
        feed.put("a", number)

    with pytest.raises(FeedLagged):
        async for _ in slow:
            pass

    quick = feed.follow()
    assert (await anext(quick)).item == MOST_BUFFERED + 4
    await quick.aclose()  # type: ignore[attr-defined]


async def test_a_follower_of_a_topic_hears_of_nothing_else() -> None:
    """500 callers who wait for an image each cost as much as one, not 500 times as much."""
    feed: Feed[str] = Feed(lambda item: item[0])
    for item in ("a1", "b1", "c1"):
        feed.put(item, item)
    following = feed.follow(["a", "c"])
    initial = [(await anext(following)).item for _ in range(3)]
    feed.put("b2", "b2")
    feed.put("c2", "c2")
    feed.remove("a1")
    later = [(await anext(following)).item for _ in range(2)]
    await following.aclose()

    assert initial == ["a1", "c1", None]
    assert later == ["c2", "a1"]
    assert feed._by_topic == {}
    assert not feed._followers
