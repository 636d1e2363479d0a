# SPDX-License-Identifier: Apache-2.0
"""The spread filter: counting, verdicts, their order, and what-ifs."""

import pytest

from agent.model.nodes.node import HOSTNAME_LABEL, ZONE_LABEL, Taint, Toleration
from agent.model.selector import LabelSelector, Requirement
from agent.topology.manifest.facts import SelectingService
from agent.topology.spread.filter import AS_IT_IS, SpreadQuestion, WhatIf, evaluate_spread
from tests.topology.builders import constraint, node, pod, pods_on

ABC = (node("n1", "a"), node("n2", "b"), node("n3", "c"))
TAINT = Taint("dedicated", "NoSchedule", "x")


def ask(cluster, existing, *constraints, what_if=AS_IT_IS, **more):
    return evaluate_spread(SpreadQuestion(pod(constraints=constraints, **more), cluster, existing), what_if)


def verdicts(result):
    return [verdict.excluded_by for verdict in result.nodes]


def test_only_the_emptiest_zone_is_left():
    """Reference 1/1/0 with maxSkew 1: skew 2/2/1."""
    result = ask(ABC, pods_on(n1=1, n2=1), constraint())

    assert [verdict.skew for verdict in result.nodes] == [(2,), (2,), (1,)]
    assert result.candidates == ("n3",)


def test_min_domains_above_the_number_of_zones_makes_the_minimum_zero():
    """Reference 2/2/2 with minDomains 5 and maxSkew 2: skew 3 everywhere, no node."""
    result = ask(ABC, pods_on(n1=2, n2=2, n3=2), constraint(max_skew=2, min_domains=5))

    assert result.constraints[0].global_min == 0
    assert result.constraints[0].is_zeroed_by_min_domains
    assert [verdict.skew for verdict in result.nodes] == [(3,)] * 3
    assert result.candidates == ()


def test_an_empty_tainted_zone_keeps_the_pod_pending_unless_taints_are_honored():
    """Reference a=1, b=1, tainted c=0; TOP-75, kubernetes/kubernetes#106127."""
    cluster = (*ABC[:2], node("n3", "c", taints=(TAINT,)))
    ignoring = ask(cluster, pods_on(n1=1, n2=1), constraint())
    honoring = ask(cluster, pods_on(n1=1, n2=1), constraint(node_taints_policy="Honor"))

    assert verdicts(ignoring) == ["skew", "skew", "taint"]
    assert ignoring.constraints[0].global_min == 0
    assert honoring.candidates == ("n1", "n2")
    assert honoring.constraints[0].domains == {"a": 1, "b": 1}


def test_by_hostname_only_the_empty_node_is_left():
    """Reference: nodes with 1, 2, 2, 0, 1 pods."""
    cluster = tuple(node(f"n{number}") for number in range(5))
    result = ask(cluster, pods_on(n0=1, n1=2, n2=2, n4=1), constraint(HOSTNAME_LABEL))

    assert result.candidates == ("n3",)


@pytest.mark.parametrize(
    "other",
    [
        pod("x", "n1", is_terminating=True),
        pod("x", "n1", phase="Succeeded"),
        pod("x", "n1", phase="Failed"),
        pod("x", "gone"),
        pod("x", None),
        pod("x", "n1", labels={"app": "db"}),
    ],
)
def test_pods_that_do_not_count(other):
    """TOP-67."""
    assert ask(ABC, (other,), constraint()).constraints[0].domains == {"a": 0, "b": 0, "c": 0}


def test_pods_of_another_namespace_do_not_count():
    """TOP-67."""
    stranger = type(pod())("other", "x", {"app": "web"}, "n1")

    assert ask(ABC, (stranger,), constraint()).constraints[0].domains["a"] == 0


def test_a_pending_pod_that_is_bound_counts():
    """TOP-67."""
    assert ask(ABC, (pod("x", "n1", phase="Pending"),), constraint()).constraints[0].domains["a"] == 1


def test_an_empty_selector_counts_nobody_and_matches_the_pod_itself():
    """TOP-61: so it never blocks."""
    counts = ask(ABC, pods_on(n1=3), constraint(selector=LabelSelector())).constraints[0]

    assert (counts.domains["a"], counts.self_match, counts.global_min) == (0, 1, 0)


def test_an_absent_selector_never_holds_a_pod_back():
    """TOP-61."""
    result = ask(ABC, pods_on(n1=9), constraint(selector=None))

    assert result.constraints[0].self_match == 0
    assert result.candidates == ("n1", "n2", "n3")


def test_label_keys_restrict_the_count_to_the_own_revision():
    """TOP-62, KEP-3243: old pods do not disturb a rollout; a key the pod lacks is ignored."""
    old = pod("old", "n1", labels={"app": "web", "rev": "1"})
    result = ask(ABC, (old,), constraint(match_label_keys=("rev", "absent")), labels={"app": "web", "rev": "2"})

    assert result.constraints[0].domains == {"a": 0, "b": 0, "c": 0}


def test_an_unusable_hard_selector_stops_everything_and_a_soft_one_only_scoring():
    """TOP-61."""
    broken = LabelSelector(match_expressions=(Requirement("a", "In"),))
    hard = ask(ABC, (), constraint(selector=broken))
    soft = ask(ABC, (), constraint(selector=broken, action="ScheduleAnyway"))

    assert (hard.prefilter, hard.nodes) == ("Error", ())
    assert "labelSelector.matchExpressions[0].values" in hard.prepared.hard_error
    assert (soft.prefilter, soft.candidates, soft.score.outcome) == ("Skip", ("n1", "n2", "n3"), "error")


def test_without_hard_constraints_the_filter_is_skipped():
    """TOP-64."""
    result = ask(ABC, ())

    assert (result.prefilter, result.constraints, verdicts(result)) == ("Skip", (), ["ok"] * 3)


def test_a_node_needs_the_keys_of_all_hard_constraints_to_be_counted():
    """TOP-65: the test for labels is common, the policies are not."""
    cluster = (*ABC, node("n4", "d", labels={"rack": "r1"}))
    result = ask(cluster, (), constraint(), constraint("rack"))

    assert result.constraints[0].domains == {"d": 0}
    assert result.constraints[1].domains == {"r1": 0}
    assert [verdict.failed_constraint for verdict in result.nodes] == [1, 1, 1, None]
    assert verdicts(result) == ["missing-label"] * 3 + ["ok"]


def test_an_empty_label_value_is_a_domain():
    """TOP-65."""
    assert ask((node("n1", ""), node("n2", "b")), (), constraint()).constraints[0].domains == {"": 0, "b": 0}


def test_affinity_narrows_the_domains_unless_it_is_ignored():
    """TOP-65, TOP-71: an excluded node still passes spread itself, with a count of 0."""
    cluster = (node("n1", "a", labels={"pool": "x"}), node("n2", "b", labels={"pool": "x"}), node("n3", "c"))
    honoring = ask(cluster, pods_on(n1=1, n2=1), constraint(), node_selector={"pool": "x"})
    ignoring = ask(cluster, pods_on(n1=1, n2=1), constraint(node_affinity_policy="Ignore"), node_selector={"pool": "x"})

    assert honoring.constraints[0].domains == {"a": 1, "b": 1}
    assert (honoring.nodes[2].excluded_by, honoring.nodes[2].spread) == ("affinity", "ok")
    assert honoring.candidates == ("n1", "n2")
    assert ignoring.candidates == ()


def test_the_first_obstacle_in_the_fixed_order_is_told():
    """TOP-71: cordon, taint, affinity, spread."""
    cluster = (
        node("n1", None, taints=(TAINT,), is_unschedulable=True),
        node("n2", None, taints=(TAINT,)),
        node("n3", None),
        node("n4", None, labels={"pool": "x"}),
    )
    result = ask(cluster, (), constraint(), node_selector={"pool": "x"})

    assert verdicts(result) == ["unschedulable", "taint", "affinity", "missing-label"]


def test_only_skew_may_go_away_by_preemption():
    """TOP-70."""
    result = ask((*ABC, node("n4", None)), pods_on(n1=1, n2=1), constraint())

    assert [verdict.is_preemptible for verdict in result.nodes] == [True, True, False, False]


def test_the_first_failing_constraint_is_told_and_every_skew_is_shown():
    """TOP-70."""
    cluster = (node("n1", "a"), node("n2", "a"))
    result = ask(cluster, pods_on(n1=1), constraint(HOSTNAME_LABEL, 5), constraint(HOSTNAME_LABEL), constraint())

    assert result.nodes[0].failed_constraint == 1
    assert result.nodes[0].skew == (2, 2, 1)
    assert result.candidates == ("n2",)


def test_a_pod_outside_its_own_selector_may_go_where_the_skew_is_equal_already():
    """TOP-69: self is 0, so one less is needed."""
    result = ask(ABC, pods_on(n1=1, n2=1), constraint(), labels={"app": "db"})

    assert result.constraints[0].self_match == 0
    assert result.candidates == ("n1", "n2", "n3")
    assert result.constraints[0].most_allowed == 1


@pytest.mark.parametrize(
    ("toleration", "open_"),
    [
        (Toleration(operator="Exists"), True),
        (Toleration("node.kubernetes.io/unschedulable", "Exists"), True),
        (Toleration("node.kubernetes.io/unschedulable", "Equal", "", "NoSchedule"), True),
        (Toleration("node.kubernetes.io/unschedulable", "Equal", "x"), False),
        (Toleration("other", "Exists"), False),
    ],
)
def test_a_cordoned_node_is_open_to_pods_that_tolerate_the_taint_it_stands_for(toleration, open_):
    """TOP-74."""
    result = ask((node("n1", is_unschedulable=True),), (), tolerations=(toleration,))

    assert (verdicts(result) == ["ok"]) is open_


def test_a_cordon_without_its_taint_is_invisible_to_the_taint_policy():
    """TOP-74: only the taint on the node counts there."""
    cluster = (*ABC[:2], node("n3", "c", is_unschedulable=True))

    assert ask(cluster, (), constraint(node_taints_policy="Honor")).constraints[0].domains == {"a": 0, "b": 0, "c": 0}


def test_what_if_honors_taints():
    """TOP-86."""
    cluster = (*ABC[:2], node("n3", "c", taints=(TAINT,)))

    assert ask(cluster, pods_on(n1=1, n2=1), constraint(), what_if=WhatIf(honors_taints=True)).candidates == (
        "n1",
        "n2",
    )


def test_what_if_takes_other_min_domains():
    """TOP-86."""
    result = ask(ABC, pods_on(n1=1, n2=1, n3=1), constraint(min_domains=5), what_if=WhatIf(min_domains=3))

    assert result.candidates == ("n1", "n2", "n3")


def test_what_if_drops_a_node():
    """TOP-86."""
    result = ask(ABC, pods_on(n1=1, n2=1), constraint(), what_if=WhatIf(dropped_nodes=frozenset({"n3"})))

    assert result.candidates == ("n1", "n2")
    assert [verdict.name for verdict in result.nodes] == ["n1", "n2"]


def test_what_if_ignores_dead_domains_for_the_minimum_but_not_for_their_number():
    """TOP-86: the proposal of KEP-5980."""
    cluster = (*ABC[:2], node("n3", "c", taints=(TAINT,)))
    result = ask(cluster, pods_on(n1=1, n2=1), constraint(min_domains=3), what_if=WhatIf(ignores_dead_domains=True))

    assert result.constraints[0].dead == {"c"}
    assert (result.constraints[0].global_min, len(result.constraints[0].domains)) == (1, 3)
    assert result.candidates == ("n1", "n2")


def test_defaults_apply_only_to_pods_without_constraints_and_need_a_service():
    """TOP-63."""
    service = SelectingService("default", "web", selector={"app": "web"})
    question = SpreadQuestion(pod(), ABC, pods_on(n1=2), (service,))

    assert evaluate_spread(question).prepared.source == "system-defaults"
    assert evaluate_spread(question).score.constraints[1].constraint.topology_key == ZONE_LABEL
    assert evaluate_spread(SpreadQuestion(pod(), ABC, pods_on(n1=2))).score.outcome == "skipped"
    assert ask(ABC, (), constraint()).prepared.source == "pod"
