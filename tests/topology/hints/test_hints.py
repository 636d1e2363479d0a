# SPDX-License-Identifier: Apache-2.0
"""One sync of CPU-proportional hints: reference numbers, refusals, keeping, donating."""

import pytest

from agent.topology.hints.allocation import allocate, overload_factor
from agent.topology.hints.by_cpu import assign_hints, is_overloaded
from agent.topology.hints.donation import plan_donations
from agent.topology.hints.slices import Hints, Slice, SliceLists
from tests.topology.builders import capacity, endpoint, hint_letters, new, piece, stored


def assigned(zones, **cpu):
    return assign_hints(new(piece("s", zones)), capacity(**cpu))


def test_ten_endpoints_over_three_equal_zones_are_active_and_nothing_moves():
    """Reference 8/8/8 with 3/3/4: a surplus of 0.67 is not worth moving."""
    result = assigned("aaabbbcccc", a="8", b="8", c="8")

    assert result.is_active
    assert result.allocation.least_total == 9
    assert {row.most for row in result.allocation.zones.values()} == {4}
    assert result.allocation.zones["a"].want == pytest.approx(3.3333333)
    assert result.per_zone == {"a": 3, "b": 3, "c": 4}
    assert result.donated == {}


def test_four_endpoints_placed_like_the_cpu_are_active():
    """Reference 2/2/4 with 1/1/2."""
    result = assigned("abcc", a="2", b="2", c="4")

    assert [row.least for row in result.allocation.zones.values()] == [1, 1, 2]
    assert result.per_zone == {"a": 1, "b": 1, "c": 2}


def test_a_fifth_endpoint_switches_hints_off():
    """Reference 2/2/4 with 1/2/2: the minimums are 2 + 2 + 3 = 7 and do not fit into 5."""
    result = assigned("abbcc", a="2", b="2", c="4")

    assert result.refusal == "overload"
    assert result.allocation.least_total == 7
    assert [row.want for row in result.allocation.zones.values()] == [1.25, 1.25, 2.5]
    assert hint_letters(result.slices.all) == ["-"] * 5


def test_two_zones_give_their_first_endpoint_to_the_empty_one():
    """Reference 2/2/4 with 2/2/0, TOP-24: the first endpoint of a and the first of b serve c."""
    result = assigned("aabb", a="2", b="2", c="4")

    assert hint_letters(result.slices.all) == list("cacb")
    assert (result.donated, result.received) == ({"a": 1, "b": 1}, {"c": 2})
    assert result.per_zone == {"a": 1, "b": 1, "c": 2}


@pytest.mark.parametrize(("zones", "active"), [("abcc", True), ("aaaa", True), ("abbcc", False), ("ccccc", False)])
def test_the_number_decides_and_not_the_place(zones, active):
    """TOP-13."""
    assert assigned(zones, a="2", b="2", c="4").is_active == active


def test_an_even_placement_is_no_guarantee():
    """Reference 8/8/8 with 4/4/3; kubernetes/kubernetes#122437."""
    result = assigned("aaaabbbbccc", a="8", b="8", c="8")

    assert (result.refusal, result.allocation.least_total) == ("overload", 12)


def test_doubles_decide_where_exact_numbers_would_have_fitted():
    """Reference 1/4 with 2/4, NUM-1: 1.2 x K is 1.0000000000000002 and rounds up to 2."""
    result = assigned("aabbbb", a="1", b="4")

    assert result.refusal == "overload"
    assert [row.least for row in result.allocation.zones.values()] == [2, 5]


def test_moving_stops_when_both_sides_are_below_one():
    """Reference 3/5 with 6/6, TOP-23: one of 1.5 moves, then 0.5 against 0.5 stays."""
    result = assigned("aaaaaabbbbbb", a="3", b="5")

    assert result.per_zone == {"a": 5, "b": 7}
    assert result.donated == {"a": 1}


def test_the_factor_is_the_one_double_that_the_controller_uses():
    """NUM-1: with a share of one fifth, six endpoints need a hair more than one."""
    assert overload_factor() == 0.8333333333333334
    assert 0.2 * 6 * overload_factor() == 1.0000000000000002


def test_another_threshold_needs_other_minimums():
    """TOP-52: with 40 % overload allowed, 5 endpoints fit."""
    assert allocate(capacity(a="2", b="2", c="4"), 5, 0.4).refusal is None
    assert allocate(capacity(a="2", b="2", c="4"), 5, 0.2).refusal == "overload"


@pytest.mark.parametrize(
    ("zones", "cpu", "refusal"),
    [
        ("ab", {"a": "2"}, "node-info"),
        ("ab", {"a": "2", "b": "2", "c": "2"}, "too-few-endpoints"),
        ("", {"a": "2", "b": "2"}, "too-few-endpoints"),
        ("abb", {"a": "2", "b": "2"}, "overload"),
        (["a", "b", None, "b"], {"a": "2", "b": "2"}, "endpoint-without-zone"),
        (["a", "b", "", "b"], {"a": "2", "b": "2"}, "endpoint-without-zone"),
    ],
)
def test_each_refusal_has_its_code(zones, cpu, refusal):
    """TOP-11, TOP-18."""
    usable = capacity(**cpu) if len(cpu) > 1 else None
    result = assign_hints(new(piece("s", zones)), usable)

    assert result.refusal == refusal
    assert result.per_zone is None
    assert set(hint_letters(result.slices.all)) <= {"-"}


def test_too_few_endpoints_comes_before_overload():
    """TOP-11: the order of the tests is the order users are told."""
    assert allocate(capacity(a="2", b="2", c="2"), 2).refusal == "too-few-endpoints"


def test_an_endpoint_with_unknown_readiness_is_not_ready_here():
    """A3: absent counts as not ready, so three endpoints of which one is unknown are two."""
    lists = new(Slice("s", (endpoint("1", "a"), endpoint("2", "b"), endpoint("3", "b", ready=None))))

    assert assign_hints(lists, capacity(a="2", b="2")).ready_count == 2


def test_a_kept_slice_stays_as_it_is_and_counts():
    """TOP-15, TOP-29: uneven hints remain as long as no zone exceeds its maximum."""
    kept = piece("old", "aabb", hints="abbb")
    result = assign_hints(stored(kept), capacity(a="4", b="12"))

    assert result.slices.unchanged == (kept,)
    assert result.slices.to_update == ()
    assert result.per_zone == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    "hints",
    [
        ["a", "b", None, "b"],
        ["a", "b", "", "b"],
        ["a", "b", "z", "b"],
        ["b", "b", "b", "b"],
    ],
    ids=["missing", "empty", "unknown zone", "above the maximum"],
)
def test_a_slice_that_cannot_be_kept_is_rewritten(hints):
    """TOP-15: and goes to the end of what is updated."""
    first = piece("first", "ab")
    result = assign_hints(SliceLists((), (first,), (piece("old", "abab", hints=hints),)), capacity(a="4", b="4"))

    assert [one.name for one in result.slices.to_update] == ["first", "old"]
    assert hint_letters(result.slices.to_update) == list("ababab")


def test_the_first_of_two_slices_uses_up_the_room_of_the_second():
    """TOP-15: the count runs along while slices are walked in order."""
    result = assign_hints(
        stored(piece("s1", "aaa", hints="aaa"), piece("s2", "aabb", hints="aabb")), capacity(a="4", b="4")
    )

    assert [one.name for one in result.slices.unchanged] == ["s1"]
    assert [one.name for one in result.slices.to_update] == ["s2"]


def test_an_endpoint_hinted_for_two_zones_counts_in_both():
    """TOP-15."""
    double = Slice("s", (endpoint("1", "a", hints="ab"), endpoint("2", "b", hints="b")))

    assert assign_hints(stored(double), capacity(a="1", b="1")).refusal is None
    assert assign_hints(stored(double), capacity(a="1", b="1")).slices.to_update[0].name == "s"


def test_unready_endpoints_keep_the_hints_they_have_until_a_refusal():
    """TOP-19, TOP-20: upstream clears a copy only, and strips them when hints go."""
    sleeping = endpoint("x", "a", ready=False, hints="q")
    awake = piece("s", "ab").endpoints
    active = assign_hints(new(Slice("s", (*awake, sleeping))), capacity(a="2", b="2"))
    refused = assign_hints(stored(Slice("s", (sleeping,)), piece("t", "a")), capacity(a="2", b="2"))

    assert hint_letters(active.slices.all) == ["a", "b", "q"]
    assert hint_letters(refused.slices.all) == ["-", "-"]
    assert [one.name for one in refused.slices.to_update] == ["s"]
    assert [one.name for one in refused.slices.unchanged] == ["t"]


def test_a_refusal_removes_empty_hints_objects_too():
    """TOP-20: even an empty object makes an unchanged slice one to write."""
    result = assign_hints(stored(Slice("s", (endpoint("1", "a", hints=""),))), None)

    assert [one.name for one in result.slices.to_update] == ["s"]
    assert hint_letters(result.slices.all) == ["-"]


def test_a_slice_moved_before_a_refusal_stays_moved():
    """TOP-18."""
    lists = SliceLists((piece("new", [None]),), (), (piece("bad", "b", hints=[None]), piece("good", "ab", hints="ab")))
    result = assign_hints(lists, capacity(a="2", b="2"))

    assert result.refusal == "endpoint-without-zone"
    assert [one.name for one in result.slices.to_update] == ["bad", "good"]


def test_an_endpoint_in_a_zone_without_capacity_keeps_a_hint_for_it():
    """TOP-17: legal, never donated, and of no use to proxies that have capacity."""
    result = assigned("zzzz", a="4", b="4")

    assert result.is_active
    assert hint_letters(result.slices.all) == list("zzzz")
    assert is_overloaded(result.per_zone, capacity(a="4", b="4"))


def test_a_need_without_a_donor_of_half_an_endpoint_is_left():
    """TOP-27: 97/3 with 14 endpoints in the large zone leaves the small one without a hint, and is active."""
    result = assigned("a" * 14, a="97", b="3")

    assert result.is_active
    assert result.per_zone == {"a": 14}
    assert is_overloaded(result.per_zone, capacity(a="97", b="3"))


def test_surplus_in_kept_slices_cannot_move():
    """TOP-26: the plan may promise more than the work list can give."""
    result = assign_hints(
        SliceLists((piece("new", "bb"),), (), (piece("old", "aaaaa", hints="aaaaa"),)), capacity(a="4", b="4")
    )
    moved = assign_hints(
        SliceLists((piece("new", "a"),), (), (piece("old", "aaaabb", hints="aaaabb"),)), capacity(a="2", b="5")
    )

    assert result.refusal is None or result.donated == {}
    assert sum(moved.donated.values()) <= sum(moved.planned.give.values())


def test_among_equals_the_lowest_zone_gives_and_receives():
    """TOP-25: upstream goes by map order, and this is one of its possible outcomes."""
    plan = plan_donations({"a": 1.0, "b": 1.0, "c": 3.0, "d": 3.0}, {"a": 3, "b": 3, "c": 1, "d": 1})

    assert plan.give == {"a": 2, "b": 2}
    assert plan.receive == {"c": 2, "d": 2}
    assert plan_donations({"a": 1.0, "b": 1.0, "c": 3.0}, {"a": 2, "b": 2, "c": 2}).give == {"a": 1}


def test_donations_are_walked_over_new_slices_before_updated_ones():
    """TOP-16, TOP-24."""
    result = assign_hints(SliceLists((piece("new", "a"),), (piece("upd", "aaa"),), ()), capacity(a="4", b="4"))

    assert hint_letters(result.slices.to_create) == ["b"]
    assert hint_letters(result.slices.to_update) == list("baa")


def test_node_hints_do_not_survive_a_sync():
    """TOP-17: hints are set to exactly the own zone."""
    before = endpoint("1", "a")
    before = type(before)(("1",), zone="a", ready=True, hints=Hints(("a",), ("n1",)))
    result = assign_hints(new(Slice("s", (before, endpoint("2", "b")))), capacity(a="2", b="2"))

    assert result.slices.to_create[0].endpoints[0].hints == Hints(("a",))


@pytest.mark.parametrize(
    ("per_zone", "overloaded"),
    [
        ({}, False),
        ({"a": 3, "b": 3}, False),
        ({"a": 3}, True),
        ({"a": 5, "b": 2}, True),
        ({"a": 3, "b": 3, "z": 6}, True),
    ],
)
def test_a_record_is_overloaded_when_a_zone_lacks_its_minimum(per_zone, overloaded):
    """TOP-30: hints in unknown zones inflate the total."""
    assert is_overloaded(per_zone, capacity(a="4", b="4")) is overloaded


def test_without_capacity_every_record_is_overloaded():
    """TOP-30."""
    assert is_overloaded({"a": 1}, None)
    assert not is_overloaded({}, None)
