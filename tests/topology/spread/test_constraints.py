# SPDX-License-Identifier: Apache-2.0
"""Constraints made ready: defaults, derived selectors, hard and soft."""

from agent.model.nodes.node import HOSTNAME_LABEL, ZONE_LABEL
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


def test_hard_and_soft_constraints_keep_the_order_and_place_of_the_pod():
    """TOP-60."""
    prepared = prepare_constraints(
        pod(constraints=(constraint("x", action="ScheduleAnyway"), constraint("y"), constraint("z")))
    )

    assert [(one.topology_key, one.position) for one in prepared.hard] == [("y", 1), ("z", 2)]
    assert [(one.topology_key, one.position) for one in prepared.soft] == [("x", 0)]


def test_what_is_not_written_gets_the_defaults_of_the_scheduler():
    """TOP-60: minDomains 1, affinity Honor, taints Ignore."""
    prepared = prepare_constraints(pod(constraints=(constraint(),))).hard[0]

    assert (prepared.min_domains, prepared.affinity_policy, prepared.taints_policy) == (1, "Honor", "Ignore")


def test_system_defaults_are_two_soft_constraints_with_a_derived_selector():
    """TOP-63."""
    prepared = prepare_constraints(pod(), [service({"app": "web"})])

    assert prepared.source == "system-defaults"
    assert [(one.topology_key, one.max_skew) for one in prepared.soft] == [(HOSTNAME_LABEL, 3), (ZONE_LABEL, 5)]
    assert {str(one.matcher) for one in prepared.soft} == {"app=web"}
    assert prepared.hard == ()
    assert not prepared.requires_all_keys


def test_an_administrators_list_may_be_hard_and_its_label_keys_have_no_effect():
    """TOP-63."""
    prepared = prepare_constraints(pod(), [service({"app": "web"})], LIST)

    assert prepared.source == "list-defaults"
    assert str(prepared.hard[0].matcher) == "app=web"
    assert prepared.soft[0].min_domains == 3
    assert prepared.requires_all_keys


def test_selectors_of_all_matching_services_and_of_the_owner_are_merged():
    """TOP-63."""
    owner = LabelSelector({"owner": "rs"}, (Requirement("tier", "Exists"),))
    prepared = prepare_constraints(
        pod(labels={"app": "web", "rev": "2"}),
        [
            service({"app": "web"}),
            service({"rev": "2"}),
            service({"rev": "1"}),
            service(None),
            service({"app": "web", "rev": "2"}, namespace="other"),
        ],
        owner_selector=owner,
    )

    assert str(prepared.soft[0].matcher) == "app=web,rev=2,owner=rs,tier"


def test_an_empty_derived_selector_means_no_constraints():
    """TOP-63: so that a pod nobody selects is not spread by itself."""
    assert prepare_constraints(pod(), [service({}), service(None)]).source == "none"
    assert prepare_constraints(pod(), [], LIST).hard == ()


def test_an_owner_alone_is_enough_and_an_unusable_owner_selector_is_left_out():
    """TOP-63."""
    broken = LabelSelector(match_expressions=(Requirement("a", "In"),))

    assert prepare_constraints(pod(), owner_selector=LabelSelector({"a": "b"})).source == "system-defaults"
    assert prepare_constraints(pod(), owner_selector=broken).source == "none"


def test_own_constraints_of_any_kind_switch_the_defaults_off():
    """TOP-63: a single soft one is enough."""
    prepared = prepare_constraints(
        pod(constraints=(constraint(action="ScheduleAnyway"),)), [service({"app": "web"})], LIST
    )

    assert prepared.source == "pod"
    assert prepared.hard == ()
    assert prepared.requires_all_keys
