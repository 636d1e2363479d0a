# SPDX-License-Identifier: Apache-2.0
"""Spread says where endpoints may be, CPU says what hints want."""

import pytest

from agent.model.nodes.node import Taint
from agent.model.selector import LabelSelector, Requirement
from agent.topology.hints.zones_for_pod import plan_zones_for_pod
from tests.topology.builders import constraint, node, pod

CLUSTER = (
    node("n1", "a", labels={"pool": "web"}),
    node("n2", "b", labels={"pool": "web"}),
    node("n3", "c", labels={"pool": "db"}),
)


def plan(cluster=CLUSTER, *constraints, **more):
    return plan_zones_for_pod(pod(constraints=constraints, **more), cluster, range(1, 13))


def test_a_zone_with_capacity_and_no_eligible_node_lives_on_donations():
    """TOP-96: the two sets of zones differ, which is what the command is for."""
    result = plan(CLUSTER, constraint(), node_selector={"pool": "web"})

    assert result.placement == ("a", "b")
    assert result.reading.zones == ("a", "b", "c")
    assert any("zone c" in remark and "donations" in remark for remark in result.remarks)
    assert result.rows[11].placed == {"a": 6, "b": 6}
    assert result.rows[11].per_zone == {"a": 4, "b": 4, "c": 4}


def test_a_zone_that_counts_without_capacity_is_told():
    """TOP-96, TOP-17."""
    unready = node("n4", "d", ready="False")
    result = plan((*CLUSTER, unready), constraint())

    assert result.placement == ("a", "b", "c", "d")
    assert any("zone d" in remark and "no capacity" in remark for remark in result.remarks)


def test_the_taint_policy_decides_which_zones_take_part():
    """TOP-96, TOP-65."""
    tainted = (*CLUSTER[:2], node("n3", "c", taints=(Taint("k", "NoSchedule"),)))

    assert plan(tainted, constraint()).placement == ("a", "b", "c")
    assert plan(tainted, constraint(node_taints_policy="Honor")).placement == ("a", "b")


def test_a_soft_constraint_will_do_when_there_is_no_hard_one():
    """TOP-96."""
    result = plan(CLUSTER, constraint(action="ScheduleAnyway"), node_selector={"pool": "db"})

    assert result.placement == ("c",)


def test_without_a_zone_constraint_the_even_placement_is_called_an_assumption():
    """TOP-96: nothing guessed silently."""
    result = plan(CLUSTER, constraint(key="rack"))

    assert result.placement == ("a", "b", "c")
    assert "assumed" in result.remarks[0]


def test_an_empty_zone_label_is_left_out_and_told():
    """TOP-18: an endpoint there would refuse hints for all."""
    result = plan((*CLUSTER, node("n4", "")), constraint())

    assert "" not in result.placement
    assert any("empty zone label" in remark for remark in result.remarks)


def test_matching_sets_need_no_remark():
    """TOP-96."""
    assert plan(CLUSTER, constraint()).remarks == ()


def test_a_selector_that_cannot_be_used_is_an_error():
    """TOP-61."""
    broken = constraint(selector=LabelSelector(match_expressions=(Requirement("a", "In"),)))
    with pytest.raises(ValueError, match="expected"):
        plan(CLUSTER, broken)
