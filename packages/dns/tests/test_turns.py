# SPDX-License-Identifier: Apache-2.0
"""Whose question is next."""

from kepd_dns.run.turns import Turns


def test_each_asker_has_its_turn_and_its_own_order() -> None:
    """DNS-94."""
    turns = Turns[str](100, 100)
    for who, what in ((b"a", "a1"), (b"a", "a2"), (b"a", "a3"), (b"b", "b1"), (b"c", "c1"), (b"c", "c2")):
        turns.put(who, what)
    first = [turns.take() for _ in range(2)]
    turns.put(b"b", "b2")

    assert first + [turns.take() for _ in range(len(turns))] == ["a1", "b1", "c1", "a2", "b2", "c2", "a3"]


def test_room_is_bounded_for_each_and_for_all() -> None:
    """DNS-94."""
    turns = Turns[int](3, 2)
    turns.put(b"a", 1)
    turns.put(b"a", 2)
    of_one = turns.has_room(b"a"), turns.has_room(b"b")
    turns.put(b"b", 3)
    full = turns.has_room(b"b")
    turns.take()

    assert (of_one, full, turns.has_room(b"c")) == ((False, True), False, True)
