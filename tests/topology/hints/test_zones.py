# SPDX-License-Identifier: Apache-2.0
"""The plan over numbers of replicas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.quantity import parse_quantity
from agent.topology.hints.by_cpu import assign_hints
from agent.topology.hints.capacity import read_capacity
from agent.topology.hints.zones import activating_counts, parse_replicas, parse_zones, place_evenly, plan_zones
from tests.topology.builders import capacity, new, nodes, piece


def activating(**cpu):
    return activating_counts(capacity(**cpu))


def spelled(text):
    """Reads "1-4 6" as a set of numbers."""
    bounds = [tuple(map(int, part.split("-"))) for part in text.split()]
    return {n for low_high in bounds for n in range(low_high[0], low_high[-1] + 1)}


@pytest.mark.parametrize(
    ("zones", "inactive"),
    [
        (2, "1 3 5"),
        (3, "1 2 4 5 8 11"),
        (4, "1 2 3 5 6 7 10 11 15"),
        (5, "1-4 6-9 12-14 19 24"),
        (6, "1-5 8-11 15-17 22 23 29"),
    ],
)
def test_equal_zones_are_off_for_exactly_these_numbers(zones, inactive):
    """TOP-95: the table that nobody can guess."""
    counts = activating(**{f"z{number}": "4" for number in range(zones)})
    off = set(range(1, counts.always_from)) - set(counts.listed)

    assert off == spelled(inactive)
    assert counts.always_from == max(off) + 1


def test_two_two_four_activates_at_four_seven_to_nine_and_from_eleven_on():
    """Reference 2/2/4."""
    counts = activating(a="2", b="2", c="4")

    assert str(counts) == "4, 7, 8, 9 and from 11 on"
    assert counts.nearest(5) == (4, 7)
    assert counts.nearest(10) == (9, 11)
    assert counts.nearest(1) == (None, 4)
    assert counts.nearest(11) == (9, 12)
    assert counts.nearest(40) == (39, 41)


def test_a_plan_row_has_the_numbers_of_a_real_sync():
    """TOP-94: min, placement, donation and result for one number."""
    plan = plan_zones(read_capacity(nodes(a="2", b="2", c="4")), 4, 5, "abc")

    assert plan.rows[0].refusal is None
    assert plan.rows[0].placed == {"a": 2, "b": 1, "c": 1}
    assert plan.rows[0].per_zone == {"a": 1, "b": 1, "c": 2}
    assert plan.rows[0].donated == 1
    assert (plan.rows[1].refusal, plan.rows[1].least_total, plan.rows[1].per_zone) == ("overload", 7, None)
    assert plan.always_from == 11


def test_without_node_information_every_row_says_so():
    """TOP-10 in a plan: one zone is not enough."""
    plan = plan_zones(read_capacity(nodes(a="2")), 1, 2, "a")

    assert [(row.refusal, row.least, row.least_total) for row in plan.rows] == [("node-info", None, None)] * 2
    assert plan.always_from is None
    assert str(plan.activating) == "no number"


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 32), min_size=2),
    st.integers(1, 40),
    st.sets(st.sampled_from("abcde"), min_size=1),
)
def test_a_plan_agrees_with_a_sync_of_the_same_placement(cpu, n, placement):
    """The plan is computed from counts, a sync from endpoints; they must not differ."""
    cluster = nodes(**{zone: str(amount) for zone, amount in cpu.items()})
    row = plan_zones(read_capacity(cluster), n, n, sorted(placement)).rows[0]
    zones = "".join(zone * count for zone, count in place_evenly(n, sorted(placement)).items())
    result = assign_hints(new(piece("s", zones)), read_capacity(cluster).capacity)

    assert row.refusal == result.refusal
    if result.is_active:
        assert {zone: count for zone, count in row.per_zone.items() if count} == result.per_zone
        assert row.donated == sum(result.donated.values())


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 64000), min_size=2))
def test_nothing_below_the_limit_is_missed_and_everything_above_activates(milli):
    """TOP-94: `alwaysFrom` is the smallest such number."""
    usable = capacity(**{zone: f"{amount}m" for zone, amount in milli.items()})
    counts = activating_counts(usable)
    ready = {n for n in range(1, 8 * len(milli)) if assign_hints(new(piece("s", "a" * n)), usable).is_active}

    assert counts.always_from <= 6 * len(milli)
    assert ready == {n for n in range(1, 8 * len(milli)) if n in counts.listed or n >= counts.always_from}


def test_a_threshold_of_zero_never_becomes_safe():
    """TOP-52: with no overload allowed only exact shares fit, so the search must end by itself."""
    counts = activating_counts(capacity(a="1", b="1"), 0.0)

    assert counts.always_from is None
    assert counts.listed == tuple(range(2, 21, 2))


def test_shares_above_one_in_sum_do_not_break_the_search():
    """TOP-94: below a milli-CPU rounding makes the shares exceed 1, and the theorem does not hold."""
    counts = activating(a="100u", b="100u", c="100u")

    assert counts.always_from is None


def test_the_first_zones_get_one_more():
    """TOP-94."""
    assert place_evenly(8, "cab") == {"a": 3, "b": 3, "c": 2}
    assert place_evenly(3, "") == {}


def test_zones_are_read_from_the_command_line():
    """The form of `--zones`."""
    assert parse_zones("a=2, b=500m") == {"a": parse_quantity("2"), "b": parse_quantity("500m")}


@pytest.mark.parametrize("text", ["", "a", "a=", "=2", "a=2,a=3", "a=-1", "a=0", "a=two", "a=2,,b=2"])
def test_bad_zones_are_refused_with_what_is_right(text):
    """One line, nothing guessed."""
    with pytest.raises(ValueError, match="expected"):
        parse_zones(text)


def test_replicas_are_a_number_or_a_range():
    """The form of `--replicas`."""
    assert parse_replicas("1..30") == range(1, 31)
    assert parse_replicas(" 5 ") == range(5, 6)


@pytest.mark.parametrize("text", ["", "..", "1..", "..5", "0..5", "6..5", "1-5", "1..999999", "١..٢", "-1..5"])
def test_bad_replicas_are_refused_with_what_is_right(text):
    """One line, nothing guessed; a giant range is refused before it is computed."""
    with pytest.raises(ValueError, match="expected"):
        parse_replicas(text)
