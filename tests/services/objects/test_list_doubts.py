# SPDX-License-Identifier: Apache-2.0
"""SVN-129: a list that lacks much counts once it has stayed so for its time, and no earlier."""

import pytest

from agent.services.objects.bounds import Doubts
from agent.services.objects.list_doubts import ListDoubts, ObjectKey

FIVE = Doubts(time_s=300.0)


def names(*texts: str) -> set[ObjectKey]:
    return {("shop", one) for text in texts for one in text}


def why(one: ListDoubts, known: set[ObjectKey], listed: set[ObjectKey], now_s: float) -> str:
    return one.why("Service", known, listed, now_s, FIVE, has_rules=True)


def test_it_counts_after_its_time_and_then_anew() -> None:
    one = ListDoubts()
    assert why(one, names("abcd"), names("a"), 0.0) == "of 4 that were known 1 are listed"
    assert why(one, names("abcd"), names("a"), 299.0)
    assert why(one, names("abcd"), names("a"), 300.0) == ""

    assert why(one, names("abcd"), names("a"), 301.0), "a doubt of its own"


def test_a_whole_list_ends_the_doubt() -> None:
    one = ListDoubts()
    assert why(one, names("abcd"), set(), 0.0)
    assert why(one, names("abcd"), names("abcd"), 200.0) == ""

    assert why(one, names("abcd"), set(), 400.0)


def test_what_a_watch_adds_meanwhile_makes_no_list_whole() -> None:
    """A restored server gets new objects at once, of whoever notices that they are missing."""
    one = ListDoubts()
    assert why(one, names("abcd"), set(), 0.0)

    assert why(one, names("abcdwxyz"), names("wxyz"), 60.0) == "of 4 that were known 0 are listed"


def test_what_a_watch_deletes_meanwhile_is_not_missing() -> None:
    one = ListDoubts()
    assert why(one, names("abcd"), names("a"), 0.0)

    assert why(one, names("ab"), names("a"), 60.0) == ""


@pytest.mark.parametrize(("away_s", "believed_s"), [(0.0, 300.0), (400.0, 700.0)])
def test_time_without_a_server_does_not_count(away_s: float, believed_s: float) -> None:
    one = ListDoubts()
    assert why(one, names("abcd"), set(), 0.0)
    one.silent("Service", 10.0)
    one.silent("Service", 20.0)
    one.heard("Service", 10.0 + away_s)
    one.heard("Service", 20.0 + away_s)
    assert why(one, names("abcd"), set(), believed_s - 1.0)

    assert why(one, names("abcd"), set(), believed_s) == ""
