# SPDX-License-Identifier: Apache-2.0
"""What holds for hints whatever the input is."""

from hypothesis import given
from hypothesis import strategies as st

from agent.model.quantity import Quantity
from agent.topology.hints.allocation import allocate
from agent.topology.hints.by_cpu import assign_hints
from agent.topology.hints.capacity import read_zone_quantities
from agent.topology.hints.distribution import distribute_hints
from agent.topology.hints.donation import TOO_LITTLE, WORTH_MOVING, plan_donations
from agent.topology.hints.mode import DISTRIBUTIONS
from agent.topology.hints.slices import Endpoint, Hints, Slice, SliceLists, ready_endpoints, strip_hints, without_hints

ZONES = "abcd"

capacities = st.dictionaries(st.sampled_from(ZONES), st.integers(1, 64000), min_size=2).map(
    lambda milli: read_zone_quantities({zone: Quantity(nanos=cpu * 10**6) for zone, cpu in milli.items()}).capacity
)
hint_objects = st.none() | st.builds(Hints, zones=st.lists(st.sampled_from(ZONES), max_size=2).map(tuple))


def endpoints(zones):
    return st.builds(
        Endpoint,
        addresses=st.tuples(st.integers(0, 10**9).map(str)),
        zone=zones,
        ready=st.sampled_from([True, True, True, False, None]),
        hints=hint_objects,
    )


def pieces(zones):
    return st.lists(
        st.builds(Slice, name=st.text("xyz", max_size=3), endpoints=st.lists(endpoints(zones), max_size=8).map(tuple)),
        max_size=3,
    ).map(tuple)


def all_lists(zones):
    return st.builds(SliceLists, to_create=pieces(zones), to_update=pieces(zones), unchanged=pieces(zones))


anywhere = all_lists(st.sampled_from([*ZONES, *ZONES, "elsewhere", "", None]))


@given(anywhere, capacities)
def test_every_ready_endpoint_has_a_hint_or_none_has(lists, capacity):
    """TOP-42: a single one without would switch topology off for all."""
    ready = ready_endpoints(assign_hints(lists, capacity).slices.all)
    hinted = [endpoint for endpoint in ready if endpoint.hints is not None and endpoint.hints.zones]

    assert len(hinted) in (0, len(ready))


@given(anywhere, capacities)
def test_a_hint_names_a_zone_with_nodes_or_the_home_of_its_endpoint(lists, capacity):
    """TOP-17, TOP-24: nothing is ever donated to a zone without nodes."""
    for endpoint in ready_endpoints(assign_hints(lists, capacity).slices.all):
        assert all(zone in capacity.milli or zone == endpoint.zone for zone in (endpoint.hints or Hints()).zones)


@given(anywhere, capacities)
def test_a_refusal_leaves_no_hints_object_anywhere(lists, capacity):
    """TOP-20."""
    result = assign_hints(lists, capacity)

    assert result.is_active or all(one == without_hints(one) for one in result.slices.all)


@given(anywhere, capacities)
def test_a_sync_neither_loses_nor_invents_slices_or_endpoints(lists, capacity):
    """Only hints may differ between what goes in and what comes out."""
    after = assign_hints(lists, capacity).slices

    assert sorted(map(str, map(without_hints, lists.all))) == sorted(map(str, map(without_hints, after.all)))
    assert len(after.to_create) == len(lists.to_create)
    assert set(map(str, after.unchanged)) <= set(map(str, lists.unchanged))


@given(anywhere, capacities)
def test_counts_are_those_of_the_hints_that_were_set(lists, capacity):
    """TOP-28: the record must agree with the slices."""
    result = assign_hints(lists, capacity)
    counted = {}
    for endpoint in ready_endpoints(result.slices.all):
        for zone in (endpoint.hints or Hints()).zones:
            counted[zone] = counted.get(zone, 0) + 1

    assert not result.is_active or {zone: count for zone, count in result.per_zone.items() if count} == counted


@given(anywhere, capacities)
def test_donated_endpoints_are_the_first_of_their_zone(lists, capacity):
    """TOP-24: whoever computes it, the same endpoints are chosen."""
    result = assign_hints(lists, capacity)
    work = ready_endpoints(result.slices.to_create + result.slices.to_update)
    for zone in result.donated:
        at_home = [endpoint.hints == Hints((zone,)) for endpoint in work if endpoint.zone == zone]

        assert at_home == sorted(at_home)
        assert at_home.count(False) == result.donated[zone]


@given(capacities, st.dictionaries(st.sampled_from([*ZONES, "e"]), st.integers(0, 40)))
def test_no_more_is_donated_than_is_worth_moving(capacity, have):
    """TOP-23: no zone gives and receives, each move had half an endpoint on both sides, and none is left undone."""
    allocation = allocate(capacity, sum(have.values()))
    desired = {zone: row.desired for zone, row in allocation.zones.items()}
    plan = plan_donations(desired, have)
    surplus = {zone: have.get(zone, 0) - plan.give.get(zone, 0) - target for zone, target in desired.items()}
    need = {zone: target - have.get(zone, 0) - plan.receive.get(zone, 0) for zone, target in desired.items()}
    left, wanted = max(surplus.values()), max(need.values())

    assert not plan.give.keys() & plan.receive.keys()
    assert sum(plan.give.values()) == sum(plan.receive.values())
    assert all(surplus[zone] + 1 >= TOO_LITTLE - 1e-9 for zone in plan.give)
    assert all(need[zone] + 1 >= TOO_LITTLE - 1e-9 for zone in plan.receive)
    assert max(left, wanted) < WORTH_MOVING + 1e-9 or min(left, wanted) < TOO_LITTLE + 1e-9


@given(st.lists(endpoints(st.sampled_from(ZONES)), max_size=24).map(tuple), capacities)
def test_what_a_sync_leaves_behind_is_not_changed_by_the_next_one(content, capacity):
    """STY-03: applying the plan and planning again gives the same hints."""
    once = assign_hints(SliceLists(to_create=(Slice("s", content),)), capacity).slices.all
    twice = assign_hints(SliceLists(unchanged=once), capacity).slices.all

    assert twice == once


@given(anywhere)
def test_removing_hints_twice_finds_nothing_left_to_write(lists):
    """TOP-20."""
    once = strip_hints(lists)
    again = strip_hints(SliceLists(unchanged=once.all))

    assert again == SliceLists(unchanged=once.all)


@given(anywhere, st.sampled_from([*DISTRIBUTIONS, None, "PreferFar"]))
def test_distribution_hints_are_stable_once_written(lists, value):
    """TOP-35, TOP-36: a second pass has nothing to update."""
    once = distribute_hints(lists, value)
    again = distribute_hints(SliceLists(unchanged=once.all), value)

    assert again == SliceLists(unchanged=once.all)


@given(capacities, st.integers(0, 200))
def test_six_endpoints_per_zone_are_always_enough(capacity, more):
    """TOP-94: the bound of the search."""
    ready = 6 * len(capacity.ratios) + more

    assert allocate(capacity, ready).refusal is None


@given(capacities, st.integers(0, 60))
def test_the_minimums_of_an_active_allocation_fit_and_none_is_zero(capacity, ready):
    """TOP-12: what is spare may go to any one zone."""
    allocation = allocate(capacity, ready)
    if allocation.refusal is None:
        assert allocation.least_total <= ready
        assert all(1 <= row.least <= row.most for row in allocation.zones.values())
