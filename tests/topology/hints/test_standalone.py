# SPDX-License-Identifier: Apache-2.0
"""Hints for Services from manifests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.quantity import parse_quantity
from agent.topology.hints.mode import MODE_ANNOTATION
from agent.topology.hints.slices import Endpoint, Slice
from agent.topology.hints.standalone import (
    THRESHOLD_ANNOTATION,
    HintOptions,
    HintStatus,
    complete_endpoints,
    fill_hints,
    told_transition,
)
from agent.topology.manifest.facts import SelectingService
from tests.topology.builders import endpoint, hint_letters, node, nodes, piece

AUTO = SelectingService("default", "web", {MODE_ANNOTATION: "Auto"})
CLUSTER = nodes(a="2", b="2", c="4")


def filled(zones, service=AUTO, cluster=CLUSTER, options=HintOptions(), **more):  # noqa: B008 - frozen
    return fill_hints(service, "IPv4", [piece("s", zones)], cluster, options, **more)


def test_hints_are_computed_from_manifests_alone():
    """TOP-46, TOP-47."""
    result = filled("aabb")

    assert result.status == HintStatus("active")
    assert hint_letters(result.slices) == list("cacb")


def test_a_refusal_is_a_status_with_its_reason():
    """TOP-51."""
    result = filled("abbcc")

    assert result.status == HintStatus("refused", "overload")
    assert str(result.status) == "refused (overload)"
    assert hint_letters(result.slices) == ["-"] * 5


@given(st.permutations(["s1", "s2", "s3"]))
def test_every_node_gets_the_same_answer_in_whatever_order_it_read_the_files(order):
    """TOP-47: slices are sorted by name and history does not count."""
    pieces = {"s1": piece("s1", "aab"), "s2": piece("s2", "ab"), "s3": piece("s3", "b")}
    expected = fill_hints(AUTO, "IPv4", pieces.values(), CLUSTER)

    assert fill_hints(AUTO, "IPv4", [pieces[name] for name in order], CLUSTER[::-1]).slices == expected.slices
    assert [one.name for one in expected.slices] == ["s1", "s2", "s3"]


def test_missing_conditions_and_zones_are_filled_in_and_reported():
    """TOP-48: without it, a hand-written endpoint would block topology for its whole Service."""
    sparse = Slice("s", (Endpoint(("10.0.0.1",), node="n-b"), endpoint("10.0.0.2", "a"), Endpoint(("10.0.0.3",))))
    done, notes = complete_endpoints("default/web", [sparse], CLUSTER)

    assert [(one.ready, one.zone) for one in done[0].endpoints] == [(True, "b"), (True, "a"), (True, None)]
    assert [str(note) for note in notes] == [
        "default/web: endpoint 10.0.0.1: conditions.ready taken as true, zone b taken from node n-b",
        "default/web: endpoint 10.0.0.3: conditions.ready taken as true",
    ]


def test_an_endpoint_that_is_written_unready_stays_unready():
    """TOP-48: only what is absent is filled in."""
    done, notes = complete_endpoints("x", [Slice("s", (endpoint("1", "z", ready=False, node="n-b"),))], CLUSTER)

    assert done[0].endpoints[0].ready is False
    assert done[0].endpoints[0].zone == "z"
    assert notes == ()


def test_hints_in_the_manifests_are_left_as_written():
    """TOP-49: a single endpoint with hints is enough."""
    given_slices = [piece("s", "aab", hints=["c", None, None])]
    result = fill_hints(AUTO, "IPv4", given_slices, CLUSTER)

    assert result.status == HintStatus("manifest")
    assert hint_letters(result.slices) == ["c", "-", "-"]
    assert result.assignment is None


def test_mode_off_and_mode_manifest_compute_nothing():
    """TOP-49."""
    assert filled("aabb", options=HintOptions(mode="off")).status == HintStatus("off")
    assert filled("aabb", options=HintOptions(mode="manifest")).status == HintStatus("manifest")
    off = fill_hints(AUTO, "IPv4", [piece("s", "a", hints="a")], CLUSTER, HintOptions(mode="off"))
    assert hint_letters(off.slices) == ["-"]


def test_a_service_that_asks_for_nothing_gets_nothing():
    """TOP-2."""
    assert filled("aabb", SelectingService("default", "web")).status == HintStatus("none")


def test_traffic_distribution_needs_no_capacity():
    """TOP-34."""
    result = filled("ab", SelectingService("default", "web", traffic_distribution="PreferSameZone"), ())

    assert result.status == HintStatus("distribution")
    assert hint_letters(result.slices) == ["a", "b"]


def test_a_table_of_zones_replaces_the_nodes():
    """TOP-50."""
    table = HintOptions(zones={"a": parse_quantity("1"), "b": parse_quantity("1")})

    assert filled("ab", cluster=(), options=table).status == HintStatus("active")


def test_only_nodes_that_carry_clients_count_when_asked():
    """TOP-53."""
    cluster = (*CLUSTER[:2], node("db", "c", "64", labels={"pool": "db"}))
    web = HintOptions(node_selector={"pool": "web"})

    assert filled("ab", cluster=cluster, options=web).status == HintStatus("refused", "node-info")
    assert len(filled("ab", cluster=cluster, options=web).reading.left_out) == 3


def test_the_threshold_comes_from_the_annotation_then_from_the_options():
    """TOP-52."""
    own = SelectingService("default", "web", {MODE_ANNOTATION: "Auto", THRESHOLD_ANNOTATION: "0.4"})

    assert filled("abbcc", own).status == HintStatus("active")
    assert filled("abbcc", options=HintOptions(overload_threshold=0.4)).status == HintStatus("active")


@pytest.mark.parametrize("value", ["", "a lot", "-0.1", "1.1", "nan", "inf"])
def test_a_wrong_threshold_is_told_and_not_used(value):
    """TOP-52: a wrong annotation is ignored, not guessed."""
    own = SelectingService("default", "web", {MODE_ANNOTATION: "Auto", THRESHOLD_ANNOTATION: value})
    result = filled("abbcc", own)

    assert result.threshold == 0.2
    assert [note.path for note in result.notes] == [f"metadata.annotations[{THRESHOLD_ANNOTATION}]"]
    assert "0 to 1" in result.notes[0].text


def test_a_change_of_status_is_told_once():
    """TOP-51: no line as long as nothing changes."""
    active, refused = HintStatus("active"), HintStatus("refused", "overload")

    assert told_transition(None, active) == "active"
    assert told_transition(active, active) is None
    assert told_transition(active, refused) == "active -> refused (overload)"
    assert told_transition(refused, HintStatus("refused", "node-info")) is not None
