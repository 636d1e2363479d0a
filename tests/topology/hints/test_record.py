# SPDX-License-Identifier: Apache-2.0
"""What is remembered between syncs, and which events are sent."""

import pytest

from agent.topology.hints.by_cpu import assign_hints
from agent.topology.hints.record import HintRecord, after_drop, after_sync, event_text, needs_sync
from tests.topology.builders import capacity, new, piece

EVEN = capacity(a="4", b="4")
ACTIVE = assign_hints(new(piece("s", "ab")), EVEN)
REFUSED = assign_hints(new(piece("s", "a")), EVEN)


def test_success_is_announced_once_and_refusal_every_time():
    """TOP-21, TOP-28."""
    record, first = after_sync(HintRecord(), "IPv4", ACTIVE)
    record, second = after_sync(record, "IPv4", ACTIVE)
    record, third = after_sync(record, "IPv4", REFUSED)
    record, fourth = after_sync(record, "IPv4", REFUSED)

    assert (first.type, first.reason) == ("Normal", "TopologyAwareHintsEnabled")
    assert second is None
    assert (third.type, third.reason) == (fourth.type, fourth.reason) == ("Warning", "TopologyAwareHintsDisabled")
    assert record == HintRecord()


def test_a_refused_family_makes_the_other_one_announce_itself_again():
    """TOP-20, TOP-28: the flag is per Service, the record per family."""
    record, _ = after_sync(HintRecord(), "IPv4", ACTIVE)
    record, _ = after_sync(record, "IPv6", REFUSED)

    assert record.per_zone == {"IPv4": {"a": 1, "b": 1}}
    assert not record.is_active
    assert after_sync(record, "IPv4", ACTIVE)[1] is not None


def test_leaving_the_mode_is_told_once():
    """TOP-5, TOP-33."""
    record, _ = after_sync(HintRecord(), "IPv4", ACTIVE)
    record, event = after_drop(record, "IPv4")

    assert event.reason == "TopologyAwareHintsDisabled"
    assert record == HintRecord()
    assert after_drop(record, "IPv4")[1] is None


def test_a_service_needs_a_sync_when_any_family_is_overloaded():
    """TOP-30, TOP-31."""
    record, _ = after_sync(HintRecord(), "IPv4", ACTIVE)

    assert not needs_sync(record, EVEN)
    assert needs_sync(record, capacity(a="4", b="4", c="4"))
    assert needs_sync(record, None)
    assert not needs_sync(HintRecord(), None)


@pytest.mark.parametrize(
    ("zones", "cpu", "words"),
    [
        ("abbcc", {"a": "2", "b": "2", "c": "4"}, ("IPv6", "5 ready endpoints", "3 zones", "7 needed")),
        ("ab", {"a": "2", "b": "2", "c": "4"}, ("fewer ready endpoints than zones", "2 ready endpoints", "3 zones")),
        (["a", "b", None], {"a": "1", "b": "2"}, ("has no zone",)),
        ("aabb", {"a": "2", "b": "2"}, ("active", "4 ready endpoints")),
    ],
)
def test_events_carry_family_and_numbers(zones, cpu, words):
    """TOP-13: a refusal without numbers helps nobody."""
    text = event_text("IPv6", assign_hints(new(piece("s", zones)), capacity(**cpu)))

    assert [word for word in ("IPv6", *words) if word not in text] == []


def test_missing_node_information_is_told_without_zones():
    """TOP-11."""
    assert "1 ready endpoints" in event_text("IPv4", assign_hints(new(piece("s", "a")), None))
