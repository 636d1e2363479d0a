# SPDX-License-Identifier: Apache-2.0
"""What a node makes of hints for traffic of the Cluster policy (TOP-38), and what the table of zones says of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.topology.hints.routing import zone_uses_hints
from agent.topology.hints.slices import Endpoint, Hints
from tests.services.routes.hint_choice import select_hinted


def ep(address, zones="", nodes=(), ready=True, serving=None, terminating=None):
    return Endpoint(
        (f"10.0.0.{address}",), ready=ready, serving=serving, terminating=terminating, hints=Hints(tuple(zones), nodes)
    )


def chosen(endpoints, node="n1", zone="a"):
    found = select_hinted(endpoints, node, zone)
    how = "terminating" if found.is_last_resort and found.cluster else found.mode
    return how, "".join(one.address[-1] for one in found.cluster)


def test_endpoints_hinted_for_the_own_zone_are_used_alone():
    """TOP-41."""
    assert chosen([ep("1", "a"), ep("2", "b"), ep("3", "ab")]) == ("PreferSameZone", "13")


def test_node_hints_come_before_zone_hints():
    """TOP-40."""
    assert chosen([ep("1", "a", ("n1",)), ep("2", "a", ("n2",))]) == ("PreferSameNode", "1")


@pytest.mark.parametrize("second", [("n2",), ()])
def test_node_hints_that_do_not_help_fall_back_to_the_zone(second):
    """TOP-40, TOP-41: nobody names this node, or one endpoint names none."""
    first = ("n2",) if second else ("n1",)

    assert chosen([ep("1", "a", first), ep("2", "b", second)]) == ("PreferSameZone", "1")


def test_one_ready_endpoint_without_a_hint_switches_topology_off():
    """TOP-42."""
    found = select_hinted([ep("1", "a"), ep("2", "")], "n1", "a")

    assert [one.address for one in found.cluster] == ["10.0.0.1", "10.0.0.2"]
    assert [(one.kind, one.missing, one.example) for one in found.ignored] == [("zone", 1, "10.0.0.2:80")]


def test_an_unready_endpoint_without_a_hint_does_not_matter():
    """TOP-39."""
    assert chosen([ep("1", "a"), ep("2", "", ready=False)]) == ("PreferSameZone", "1")


def test_a_zone_that_nobody_is_hinted_for_uses_all():
    """TOP-44: it never drops traffic."""
    assert chosen([ep("1", "b"), ep("2", "c")]) == ("", "12")


def test_without_a_ready_endpoint_those_that_serve_while_terminating_are_used():
    """TOP-39, TOP-45: serving absent means true, terminating absent means false."""
    endpoints = [
        ep("1", "a", ready=False, terminating=True),
        ep("2", "b", ready=False, serving=True, terminating=True),
        ep("3", "a", ready=False, serving=False, terminating=True),
        ep("4", "a", ready=False, serving=True),
    ]

    assert chosen(endpoints) == ("terminating", "12")
    assert chosen(endpoints[2:]) == ("", "")


def test_a_missing_ready_condition_is_ready_to_a_proxy():
    """TOP-45: and so blocks hints that were computed without it."""
    assert chosen([ep("1", "a"), Endpoint(("10.0.0.2",))]) == ("", "12")
    assert not zone_uses_hints([ep("1", "a"), Endpoint(("10.0.0.2",))], "a")


@pytest.mark.parametrize("zone", [None, ""])
def test_a_node_without_a_zone_label_matches_only_a_hint_with_an_empty_name(zone):
    """TOP-43."""
    empty = Endpoint(("10.0.0.1",), ready=True, hints=Hints(("",)))

    assert chosen([ep("2", "a"), ep("3", "b")], zone=zone) == ("", "23")
    assert chosen([empty, ep("2", "a")], zone=zone) == ("PreferSameZone", "1")


def test_no_hints_object_and_an_empty_one_are_the_same_to_a_proxy():
    """TOP-42."""
    assert chosen([Endpoint(("10.0.0.1",), ready=True), ep("2", "a")]) == ("", "12")
    assert not zone_uses_hints([Endpoint(("10.0.0.1",), ready=True), ep("2", "a")], "a")


names = st.lists(st.sampled_from("abc"), max_size=2).map(tuple)
flags = st.sampled_from([True, False, None])
anything = st.lists(
    st.builds(
        Endpoint,
        addresses=st.tuples(st.from_regex(r"10\.0\.0\.[1-9]", fullmatch=True)),
        ready=flags,
        serving=flags,
        terminating=flags,
        hints=st.none() | st.builds(Hints, zones=names, nodes=names),
    ),
    max_size=6,
    unique_by=lambda one: one.address,
)


@given(anything, st.sampled_from("abcd"), st.sampled_from("abcd"))
def test_traffic_never_loses_its_last_endpoint_to_hints(endpoints, node, zone):
    """TOP-42, TOP-44: as long as something is ready, something ready is used."""
    used = {one.address for one in select_hinted(endpoints, node, zone).cluster}
    ready = {one.address for one in endpoints if one.ready is not False}

    assert bool(used) or not ready
    assert not ready or used <= ready


@given(anything, st.sampled_from("abcd"))
def test_the_table_of_zones_says_what_nodes_do(endpoints, zone):
    """TOP-41, TOP-42: on a node that no hint names."""
    assert zone_uses_hints(endpoints, zone) == (select_hinted(endpoints, "n9", zone).mode == "PreferSameZone")
