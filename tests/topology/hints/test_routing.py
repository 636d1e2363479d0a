# SPDX-License-Identifier: Apache-2.0
"""What a proxy makes of hints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.topology.hints.routing import choose_endpoints, is_usable_now, zone_uses_hints
from agent.topology.hints.slices import Endpoint, Hints


def ep(address, zones="", nodes=(), ready=True, serving=None, terminating=None):
    return Endpoint((address,), ready=ready, serving=serving, terminating=terminating, hints=Hints(tuple(zones), nodes))


def chosen(endpoints, node="n1", zone="a"):
    route = choose_endpoints(endpoints, node, zone)
    return route.level, "".join(one.address for one in route.endpoints)


def test_endpoints_hinted_for_the_own_zone_are_used_alone():
    """TOP-41."""
    assert chosen([ep("1", "a"), ep("2", "b"), ep("3", "ab")]) == ("zone", "13")


def test_node_hints_come_before_zone_hints():
    """TOP-40."""
    assert chosen([ep("1", "a", ("n1",)), ep("2", "a", ("n2",))]) == ("node", "1")


@pytest.mark.parametrize("second", [("n2",), ()])
def test_node_hints_that_do_not_help_fall_back_to_the_zone(second):
    """TOP-40, TOP-41: nobody names this node, or one endpoint names none."""
    first = ("n2",) if second else ("n1",)

    assert chosen([ep("1", "a", first), ep("2", "b", second)]) == ("zone", "1")


def test_one_ready_endpoint_without_a_hint_switches_topology_off():
    """TOP-42."""
    level, addresses = chosen([ep("1", "a"), ep("2", "")])

    assert (level, addresses) == ("all", "12")
    assert "endpoint 2 has no zone hint" in choose_endpoints([ep("1", "a"), ep("2", "")], "n1", "a").why


def test_an_unready_endpoint_without_a_hint_does_not_matter():
    """TOP-39."""
    assert chosen([ep("1", "a"), ep("2", "", ready=False)]) == ("zone", "1")


def test_a_zone_that_nobody_is_hinted_for_uses_all():
    """TOP-44: it never drops traffic."""
    assert chosen([ep("1", "b"), ep("2", "c")]) == ("all", "12")


def test_without_a_ready_endpoint_those_that_serve_while_terminating_are_used():
    """TOP-39, TOP-45: serving absent means true, terminating absent means false."""
    endpoints = [
        ep("1", "a", ready=False, terminating=True),
        ep("2", "b", ready=False, serving=True, terminating=True),
        ep("3", "a", ready=False, serving=False, terminating=True),
        ep("4", "a", ready=False, serving=True),
    ]

    assert chosen(endpoints) == ("terminating", "12")
    assert chosen(endpoints[2:]) == ("none", "")


def test_a_missing_ready_condition_is_ready_to_a_proxy():
    """TOP-45: and so blocks hints that were computed without it."""
    assert is_usable_now(Endpoint(("1",)))
    assert chosen([ep("1", "a"), Endpoint(("2",))]) == ("all", "12")


@pytest.mark.parametrize("zone", [None, ""])
def test_a_node_without_a_zone_label_matches_only_a_hint_with_an_empty_name(zone):
    """TOP-43."""
    empty = Endpoint(("1",), ready=True, hints=Hints(("",)))

    assert chosen([ep("2", "a"), ep("3", "b")], zone=zone) == ("all", "23")
    assert chosen([empty, ep("2", "a")], zone=zone) == ("zone", "1")


def test_no_hints_object_and_an_empty_one_are_the_same_to_a_proxy():
    """TOP-42."""
    assert chosen([Endpoint(("1",), ready=True), ep("2", "a")]) == ("all", "12")
    assert not zone_uses_hints([Endpoint(("1",), ready=True), ep("2", "a")], "a")


names = st.lists(st.sampled_from("abc"), max_size=2).map(tuple)
flags = st.sampled_from([True, False, None])
anything = st.lists(
    st.builds(
        Endpoint,
        addresses=st.tuples(st.text("0123", max_size=3)),
        ready=flags,
        serving=flags,
        terminating=flags,
        hints=st.none() | st.builds(Hints, zones=names, nodes=names),
    ),
    max_size=6,
)


@given(anything, st.sampled_from("abcd"), st.sampled_from("abcd"))
def test_traffic_never_loses_its_last_endpoint_to_hints(endpoints, node, zone):
    """TOP-42, TOP-44: as long as something is ready, something is used, in the order given."""
    route = choose_endpoints(endpoints, node, zone)
    ready = [one for one in endpoints if is_usable_now(one)]

    assert bool(route.endpoints) or not ready
    assert [one for one in endpoints if any(one is used for used in route.endpoints)] == list(route.endpoints)
    assert not ready or all(is_usable_now(one) for one in route.endpoints)
    assert route.why
