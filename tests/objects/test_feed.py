# SPDX-License-Identifier: Apache-2.0
"""Versions of objects: they only grow, and who asks with one gets every change after it once, or is told to list."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.objects import feed as feeds
from agent.objects.feed import ObjectFeed, OutOfReach, Versions

NAMES = st.sampled_from("abc")
DEEDS = st.lists(st.tuples(NAMES, st.one_of(st.none(), st.integers(0, 2))), max_size=40)


def made(name: str, value: int) -> dict[str, Any]:
    return {"metadata": {"name": name}, "value": value}


def carried_out(feed: ObjectFeed, deeds: list[tuple[str, int | None]]) -> None:
    for name, value in deeds:
        feed.put(("", name), None if value is None else made(name, value))


@given(DEEDS, DEEDS)
def test_a_list_and_the_changes_after_it_are_what_there_is(before: Any, after: Any) -> None:
    feed = ObjectFeed(Versions(1000))
    carried_out(feed, before)
    since, seen = feed.version, {key: entry.made for key, entry in feed.entries.items()}
    carried_out(feed, after)
    versions = []
    for change in feed.after(since):
        versions.append(change.version)
        told = change.now or change.before
        assert told is not None
        if change.now is None:
            del seen[told.key]
        else:
            seen[told.key] = told.made

    assert seen == {key: entry.made for key, entry in feed.entries.items()}
    assert versions == sorted(set(versions))
    assert all(entry.version <= feed.version for entry in feed.entries.values())


@given(DEEDS, DEEDS)
def test_what_is_replaced_by_the_same_has_not_changed(deeds: Any, others: Any) -> None:
    feed, other = ObjectFeed(Versions(1)), ObjectFeed(Versions(1))
    carried_out(feed, deeds)
    carried_out(other, others)
    now = {key: entry.made for key, entry in other.entries.items()}
    feed.replace(now)
    version = feed.version
    feed.replace(now)

    assert {key: entry.made for key, entry in feed.entries.items()} == now
    assert feed.version == version


def test_versions_that_are_too_old_or_of_another_process_are_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "MOST_CHANGES", 2)
    feed = ObjectFeed(Versions(100))
    carried_out(feed, [("a", 1), ("a", 2), ("a", 0)])

    assert [change.version for change in feed.after(101)] == [102, 103]
    with pytest.raises(OutOfReach) as old:
        feed.after(100)
    with pytest.raises(OutOfReach) as other:
        feed.after(104)
    assert (old.value.is_too_old, other.value.is_too_old) == (True, False)
