# SPDX-License-Identifier: Apache-2.0
"""What the API server would say to spread constraints."""

import pytest

from agent.model.selector import LabelSelector, Requirement
from agent.topology.spread.admission import admit
from tests.topology.builders import WEB, constraint, pod

PATH = "topologySpreadConstraints[0]"


def errors(*constraints, labels=None):
    return [(one.field, one.type) for one in admit(pod(constraints=constraints, labels=labels)).errors]


@pytest.mark.parametrize(
    ("changes", "field", "kind"),
    [
        ({"max_skew": 0}, "maxSkew", "FieldValueInvalid"),
        ({"max_skew": -1}, "maxSkew", "FieldValueInvalid"),
        ({"key": ""}, "topologyKey", "FieldValueRequired"),
        ({"action": ""}, "whenUnsatisfiable", "FieldValueNotSupported"),
        ({"action": "doNotSchedule"}, "whenUnsatisfiable", "FieldValueNotSupported"),
        ({"min_domains": 0}, "minDomains", "FieldValueInvalid"),
        ({"min_domains": 2, "action": "ScheduleAnyway"}, "minDomains", "FieldValueInvalid"),
        ({"node_affinity_policy": "honor"}, "nodeAffinityPolicy", "FieldValueNotSupported"),
        ({"node_taints_policy": ""}, "nodeTaintsPolicy", "FieldValueNotSupported"),
        ({"selector": None, "match_label_keys": ("rev",)}, "matchLabelKeys", "FieldValueForbidden"),
        ({"match_label_keys": ("ok", "-bad")}, "matchLabelKeys[1]", "FieldValueInvalid"),
    ],
)
def test_each_check_names_field_and_type(changes, field, kind):
    """TOP-82a to TOP-82i."""
    assert errors(constraint(**changes)) == [(f"{PATH}.{field}", kind)]


def test_both_complaints_about_min_domains_are_made():
    """TOP-82e, TOP-82f: all checks run."""
    assert len(errors(constraint(min_domains=-1, action="ScheduleAnyway"))) == 2


def test_a_pair_that_comes_again_is_told_once_for_each_earlier_one():
    """TOP-82d: the last of three is no duplicate of a later one."""
    field = "{topologyKey, whenUnsatisfiable}"

    assert errors(constraint(), constraint(max_skew=2), constraint(max_skew=3)) == [
        (f"topologySpreadConstraints[0].{field}", "FieldValueDuplicate"),
        (f"topologySpreadConstraints[1].{field}", "FieldValueDuplicate"),
    ]
    assert errors(constraint(), constraint(action="ScheduleAnyway")) == []


def test_a_label_key_that_the_selector_has_already_is_told_by_its_index():
    """TOP-82j: without the name of the field, and the last of equal keys counts."""
    assert errors(constraint(match_label_keys=("rev", "app"))) == [(f"{PATH}[1]", "FieldValueInvalid")]
    assert errors(constraint(match_label_keys=("rev", "rev")), labels={"rev": "1"}) == [
        (f"{PATH}[1]", "FieldValueInvalid")
    ]


def test_a_label_key_the_pod_lacks_is_no_conflict_with_an_expression():
    """TOP-82j, TOP-84: nothing is merged, so nothing is there twice."""
    selector = LabelSelector(match_expressions=(Requirement("rev", "Exists"),))

    assert errors(constraint(selector=selector, match_label_keys=("rev",))) == []
    assert errors(constraint(selector=selector, match_label_keys=("rev",)), labels={"rev": "1"}) == [
        (f"{PATH}[0]", "FieldValueInvalid")
    ]


@pytest.mark.parametrize(
    ("requirement", "field", "kind"),
    [
        (Requirement("a", "In"), "values", "FieldValueRequired"),
        (Requirement("a", "NotIn"), "values", "FieldValueRequired"),
        (Requirement("a", "Exists", ("x",)), "values", "FieldValueForbidden"),
        (Requirement("a", "DoesNotExist", ("x",)), "values", "FieldValueForbidden"),
        (Requirement("a", "Near", ("x",)), "operator", "FieldValueInvalid"),
        (Requirement("a b", "Exists"), "key", "FieldValueInvalid"),
        (Requirement("a", "In", ("x", "y z")), "values[1]", "FieldValueInvalid"),
    ],
)
def test_faults_of_the_selector_come_with_their_full_path(requirement, field, kind):
    """TOP-82k."""
    selector = LabelSelector(match_expressions=(requirement,))

    assert errors(constraint(selector=selector)) == [(f"{PATH}.labelSelector.matchExpressions[0].{field}", kind)]


def test_every_text_says_what_is_right():
    """Bad input gets the value and what would be allowed."""
    everything_wrong = constraint("", 0, "Never", LabelSelector({"-": "-"}), min_domains=0, match_label_keys=("-",))
    texts = [one.text for one in admit(pod(constraints=(everything_wrong,) * 2)).errors]

    assert len(texts) == 17
    assert [text for text in texts if "expected" not in text] == []


def test_label_keys_are_merged_in_order_as_in_expressions():
    """TOP-84."""
    merged = admit(
        pod(
            labels={"app": "web", "b": "2", "a": "1"},
            constraints=(constraint(match_label_keys=("b", "c", "a")), constraint("x", selector=None)),
        )
    ).selectors

    assert merged[0] == LabelSelector(
        WEB.match_labels, (Requirement("b", "In", ("2",)), Requirement("a", "In", ("1",)))
    )
    assert merged[1] is None


def test_warnings_come_per_constraint_key_before_selector():
    """TOP-83."""
    verdict = admit(
        pod(constraints=(constraint(), constraint("failure-domain.beta.kubernetes.io/zone", selector=None)))
    )

    assert [(one.position, one.code) for one in verdict.warnings] == [(1, "deprecated-key"), (1, "null-selector")]
    assert "topology.kubernetes.io/zone" in verdict.warnings[0].text
    assert verdict.errors == ()
