# SPDX-License-Identifier: Apache-2.0
"""Selectors that constraints get of who owns a pod. The other defaults are recorded, in tests/vectors."""

from agent.model.selector import LabelSelector, Requirement
from agent.topology.manifest.facts import SelectingService
from agent.topology.spread.constraints import Defaulting, prepare_constraints
from tests.topology.builders import constraint, pod

LIST = Defaulting(
    "List",
    (
        constraint(selector=None, match_label_keys=("app",)),
        constraint("rack", 2, "ScheduleAnyway", selector=None, min_domains=3),
    ),
)


def service(selector, namespace="default"):
    return SelectingService(namespace, "s", selector=selector)


def test_an_owner_alone_is_enough_and_an_unusable_owner_selector_is_left_out():
    """TOP-63."""
    broken = LabelSelector(match_expressions=(Requirement("a", "In"),))

    assert prepare_constraints(pod(), owner_selector=LabelSelector({"a": "b"})).source == "system-defaults"
    assert prepare_constraints(pod(), owner_selector=broken).source == "none"
