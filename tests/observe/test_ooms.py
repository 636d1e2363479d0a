# SPDX-License-Identifier: Apache-2.0
"""Counting kills from three sources: none is counted twice, none is lost (OOM-01 to OOM-06)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.observe.kernel.group_text import GroupFigures, GroupLimits
from agent.observe.sample.ooms import (
    CONTAINER,
    NODE,
    POD,
    UNKNOWN,
    InstanceOoms,
    PodOoms,
    decode_ooms,
    encode_ooms,
    kills_of,
    scope_of,
)

NONE, NINE = GroupFigures(), GroupLimits(memory=9)


@given(st.lists(st.tuples(st.sampled_from(("read", "told")), st.integers(0, 5))))
def test_a_count_never_falls_and_is_the_most_that_any_source_says(steps: list[tuple[str, int]]) -> None:
    """OOM-02."""
    ooms, before, events = InstanceOoms(), 0, 0
    for source, count in steps:
        if source == "read":
            ooms.read = max(ooms.read, count)
        else:
            ooms.is_told = True
        kill = ooms.settle("i", CONTAINER)
        events += kill.count if kill else 0
        assert before <= ooms.count == max(ooms.read, int(ooms.is_told))
        assert sum(ooms.scopes.values()) == ooms.count == events
        assert ooms.settle("i", CONTAINER) is None, "looking again changes nothing"
        before = ooms.count


def test_counts_of_a_container_outlive_its_instances_and_the_daemon() -> None:
    """OOM-05."""
    pod = PodOoms(namespace="n", name="p", uid="u")
    pod.instance("main", "one").read = 2
    pod.instance("main", "one").settle("one", CONTAINER)
    pod.containers["main"].forget([])
    pod.instance("main", "two").is_told = True
    pod.instance("main", "two").settle("two", POD)
    again = decode_ooms(encode_ooms(pod))

    assert again.containers["main"].totals == {CONTAINER: 2, POD: 1}
    assert again == pod


def test_a_container_that_lost_nothing_shows_0() -> None:
    """OOM-05: so that the first kill is an increase."""
    pod = PodOoms(namespace="n", name="p", uid="u")
    pod.instance("main", "one")

    assert pod.containers["main"].totals == {CONTAINER: 0}
    assert not pod.has_any


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"namespace": 1}', b"\xff"])
def test_a_record_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever the decoder says
        decode_ooms(content)


def test_a_group_that_was_killed_as_a_whole_is_one_kill() -> None:
    """OOM-01."""
    assert kills_of(GroupFigures(oom_kills=7, group_kills=1)) == 1
    assert kills_of(GroupFigures(oom_kills=7, group_kills=0)) == 7
    assert kills_of(NONE) is None


@pytest.mark.parametrize(
    ("before", "after", "pod", "available", "expected"),
    [
        # Version 1: whose limit was met.
        ({"failures": 1}, {"failures": 2, "limits": NINE}, ({}, {}), None, CONTAINER),
        ({}, {"failures": 0}, ({"failures": 1}, {"failures": 2, "limits": NINE}), None, POD),
        ({}, {"limits": NINE}, ({"failures": 1}, {"failures": 2, "limits": NINE}), None, CONTAINER),
        ({}, {"failures": 0}, ({}, {}), 0.01, NODE),
        ({}, {"failures": 0}, ({}, {}), 0.5, UNKNOWN),
        # Version 2: the topmost group that had no way out.
        ({"own_ooms": 0}, {"own_ooms": 1}, ({"own_ooms": 0}, {"own_ooms": 0}), None, CONTAINER),
        ({"own_ooms": 0}, {"own_ooms": 1}, ({"own_ooms": 0}, {"own_ooms": 1}), None, POD),
        ({"own_ooms": 0}, {"own_ooms": 0}, ({"own_ooms": 0}, {"own_ooms": 0}), 0.01, NODE),
    ],
)  # fmt: skip
def test_the_scope_is_that_of_the_limit_that_was_met(
    before: dict[str, Any], after: dict[str, Any], pod: tuple[dict[str, Any], dict[str, Any]],
    available: float | None, expected: str,
) -> None:  # fmt: skip
    """OOM-06."""
    groups = (GroupFigures(**pod[0]), GroupFigures(**pod[1]))

    assert scope_of(GroupFigures(**before), GroupFigures(**after), groups, available) == expected
