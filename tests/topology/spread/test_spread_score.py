# SPDX-License-Identifier: Apache-2.0
"""The score of soft constraints."""

import math

import pytest

from agent.model.nodes.node import HOSTNAME_LABEL
from agent.topology.manifest.facts import SelectingService
from agent.topology.spread.constraints import SYSTEM_DEFAULTS
from agent.topology.spread.filter import SpreadQuestion, evaluate_spread
from agent.topology.spread.score import _rounded
from tests.topology.builders import constraint, node, pod, pods_on

FIVE = (node("a1", "a"), node("a2", "a"), node("b1", "b"), node("b2", "b"), node("c1", "c"))
PLACED = pods_on(a1=3, b1=2, c1=1)


def score(cluster, existing, *constraints, **more):
    return evaluate_spread(SpreadQuestion(pod(constraints=constraints, **more), cluster, existing)).score


def soft(key="topology.kubernetes.io/zone", max_skew=1, **more):
    return constraint(key, max_skew, "ScheduleAnyway", **more)


@pytest.mark.parametrize(
    ("max_skew", "raw", "normalized"),
    [(1, [5, 5, 3, 3, 2], [40, 40, 80, 80, 100]), (5, [9, 9, 7, 7, 6], [66, 66, 88, 88, 100])],
)
def test_fewer_pods_score_better_and_max_skew_waters_the_difference_down(max_skew, raw, normalized):
    """Reference soft zone with 3/2/1 pods, TOP-79, TOP-80."""
    result = score(FIVE, PLACED, soft(max_skew=max_skew))

    assert result.constraints[0].weight == math.log(5)
    assert list(result.raw.values()) == raw
    assert list(result.normalized.values()) == normalized


def test_everybody_gets_full_marks_when_nobody_has_pods():
    """TOP-80."""
    assert set(score(FIVE, (), soft()).normalized.values()) == {100}


def test_a_candidate_without_the_key_is_ignored_and_gets_nothing():
    """TOP-76."""
    result = score((*FIVE, node("x", None)), PLACED, soft())

    assert result.ignored == ("x",)
    assert (result.raw["x"], result.normalized["x"]) == (0, 0)
    assert result.constraints[0].counts == {"a": 3, "b": 2, "c": 1}


def test_only_ignored_candidates_leave_no_score_to_share_out():
    """TOP-80."""
    assert score((node("x", None),), (), soft()).normalized == {"x": 0}


def test_the_hostname_is_counted_on_the_node_and_weighed_by_the_number_of_nodes():
    """TOP-77, TOP-78."""
    result = score(FIVE, PLACED, soft(HOSTNAME_LABEL))

    assert result.constraints[0].weight == math.log(7)
    assert result.constraints[0].counts == {}
    assert result.raw == {"a1": 6, "a2": 0, "b1": 4, "b2": 0, "c1": 2}


def test_pods_on_nodes_that_are_no_candidates_count_in_a_tracked_domain():
    """TOP-78: unless a policy excludes the node."""
    cluster = (node("a1", "a", labels={"pool": "x"}), node("a2", "a"))
    ignoring = score(cluster, pods_on(a2=4), soft(node_affinity_policy="Ignore"), node_selector={"pool": "x"})
    honoring = score(cluster, pods_on(a2=4), soft(), node_selector={"pool": "x"})

    assert ignoring.constraints[0].counts == {"a": 4}
    assert honoring.constraints[0].counts == {"a": 0}


def test_domains_without_a_candidate_are_not_tracked():
    """TOP-77."""
    cluster = (node("a1", "a", labels={"pool": "x"}), node("b1", "b"))

    assert score(cluster, pods_on(b1=4), soft(), node_selector={"pool": "x"}).constraints[0].counts == {"a": 0}


def test_system_defaults_keep_nodes_without_a_zone_in_the_race():
    """TOP-76, TOP-77: the missing label reads as an empty value."""
    service = SelectingService("default", "web", selector={"app": "web"})
    cluster = (*FIVE, node("x", None))
    result = evaluate_spread(SpreadQuestion(pod(), cluster, (*PLACED, *pods_on(x=1)), (service,))).score

    assert result.ignored == ()
    assert result.constraints[1].counts == {"a": 3, "b": 2, "c": 1, "": 1}
    assert [one.max_skew for one in SYSTEM_DEFAULTS.constraints] == [3, 5]


def test_without_a_candidate_there_is_no_score_and_without_soft_constraints_none_is_needed():
    """TOP-76."""
    assert score((node("n", is_unschedulable=True),), (), soft()) is None
    assert score(FIVE, (), constraint()).outcome == "skipped"


@pytest.mark.parametrize(("value", "whole"), [(2.5, 3), (3.5, 4), (-2.5, -3), (2.4999999999999996, 2), (0.0, 0)])
def test_halves_are_rounded_away_from_zero(value, whole):
    """TOP-79: Python's round would make 2 of 2.5."""
    assert _rounded(value) == whole
