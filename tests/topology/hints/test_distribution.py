# SPDX-License-Identifier: Apache-2.0
"""Hints from trafficDistribution."""

import pytest

from agent.topology.hints.distribution import distribute_hints
from agent.topology.hints.slices import Endpoint, Hints, Slice, SliceLists
from tests.topology.builders import new, stored


def one(zone, node, ready=True, hints=None):
    return Endpoint(("10.0.0.1",), zone=zone, node=node, ready=ready, hints=hints)


def written(endpoint, value):
    return distribute_hints(new(Slice("s", (endpoint,))), value).to_create[0].endpoints[0].hints


@pytest.mark.parametrize(
    ("value", "zone", "node", "hints"),
    [
        ("PreferClose", "a", "n1", Hints(("a",))),
        ("PreferSameZone", "a", "n1", Hints(("a",))),
        ("PreferSameNode", "a", "n1", Hints(("a",), ("n1",))),
        ("PreferSameNode", None, "n1", Hints((), ("n1",))),
        ("PreferSameNode", "a", None, Hints(("a",))),
        ("PreferSameZone", None, "n1", None),
        ("PreferSameZone", "", None, Hints(("",))),
    ],
)
def test_an_endpoint_serves_its_own_zone_and_perhaps_its_own_node(value, zone, node, hints):
    """TOP-34: zone and node are independent, and an empty zone is a zone."""
    assert written(one(zone, node), value) == hints


@pytest.mark.parametrize("ready", [False, None])
def test_unready_endpoints_are_left_alone(ready):
    """TOP-34."""
    stale = Hints(("z",))

    assert written(one("a", "n1", ready, stale), "PreferSameZone") == stale


@pytest.mark.parametrize("value", [None, "", "prefersamezone"])
def test_any_other_value_takes_all_hints_away(value):
    """TOP-36: from unready endpoints as well."""
    stale = Slice("s", (one("a", "n1", ready=False, hints=Hints()),))
    clean = Slice("t", (one("a", "n1"),))
    after = distribute_hints(stored(stale, clean), value)

    assert after.unchanged == (clean,)
    assert [piece.name for piece in after.to_update] == ["s"]
    assert after.to_update[0].endpoints[0].hints is None


@pytest.mark.parametrize(
    ("hints", "rewritten"),
    [
        (Hints(("a",)), False),
        (Hints(("a",), ("n1",)), True),
        (Hints(("a", "a")), True),
        (Hints(("b",)), True),
        (Hints(), True),
        (None, True),
    ],
)
def test_an_unchanged_slice_is_rewritten_only_if_a_ready_endpoint_deviates(hints, rewritten):
    """TOP-35."""
    after = distribute_hints(stored(Slice("s", (one("a", "n1", hints=hints),))), "PreferSameZone")

    assert bool(after.to_update) is rewritten
    assert after.all[0].endpoints[0].hints == Hints(("a",))


def test_a_stale_hint_on_an_unready_endpoint_does_not_cause_a_write():
    """TOP-35."""
    piece = Slice("s", (one("a", "n1", ready=False, hints=Hints(("z",))),))

    assert distribute_hints(stored(piece), "PreferClose") == stored(piece)


def test_moved_slices_go_to_the_end_of_those_to_update():
    """TOP-35."""
    lists = SliceLists((), (Slice("u", (one("a", None),)),), (Slice("s", (one("b", None),)),))

    assert [piece.name for piece in distribute_hints(lists, "PreferClose").to_update] == ["u", "s"]
