# SPDX-License-Identifier: Apache-2.0
"""Label selectors: matching, the four kinds of fault, and the operators of node affinity."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.selector import (
    LabelSelector,
    Matcher,
    Requirement,
    compile_selector,
    label_key_faults,
    label_value_faults,
    node_requirement_holds,
    parse_int64,
    selector_faults,
)


@pytest.mark.parametrize(
    ("requirement", "labels", "holds"),
    [
        (Requirement("a", "In", ("1", "2")), {"a": "2"}, True),
        (Requirement("a", "In", ("1", "2")), {}, False),
        (Requirement("a", "NotIn", ("1",)), {"a": "1"}, False),
        (Requirement("a", "NotIn", ("1",)), {}, True),
        (Requirement("a", "Exists"), {"a": ""}, True),
        (Requirement("a", "Exists"), {}, False),
        (Requirement("a", "DoesNotExist"), {}, True),
        (Requirement("a", "DoesNotExist"), {"a": ""}, False),
    ],
)
def test_each_operator_reads_a_missing_label_in_its_own_way(requirement, labels, holds):
    """TOP-61: NotIn holds for a pod without the label, In does not."""
    assert compile_selector(LabelSelector(match_expressions=(requirement,))).matches(labels) is holds


def test_no_selector_matches_nothing_and_an_empty_one_matches_everything():
    """TOP-61: the two are opposites, and the difference is one pair of braces in YAML."""
    assert not compile_selector(None).matches({"a": "1"})
    assert not compile_selector(None).is_empty
    assert compile_selector(LabelSelector()).matches({})
    assert compile_selector(LabelSelector()).is_empty


def test_narrowing_keeps_nothing_as_nothing_and_makes_empty_into_something():
    """TOP-62: matchLabelKeys cannot revive an absent selector, but they do turn an empty one into a normal one."""
    assert not compile_selector(None).narrowed({"rev": "7"}).matches({"rev": "7"})
    narrowed = compile_selector(LabelSelector()).narrowed({"rev": "7"})
    assert not narrowed.is_empty
    assert narrowed.matches({"rev": "7"})
    assert not narrowed.matches({"rev": "8"})


def test_every_fault_of_a_selector_is_found_not_just_the_first():
    """TOP-82k: users repair a manifest in one go."""
    selector = LabelSelector(
        {"bad key": "x y"},
        (
            Requirement("a", "In"),
            Requirement("b", "Exists", ("1",)),
            Requirement("c", "Equals", ("1",)),
            Requirement("-d", "NotIn", ("ok", "-bad")),
        ),
    )

    assert [(fault.path, fault.kind) for fault in selector_faults(selector)] == [
        ("matchLabels", "Invalid"),
        ("matchLabels", "Invalid"),
        ("matchExpressions[0].values", "Required"),
        ("matchExpressions[1].values", "Forbidden"),
        ("matchExpressions[2].operator", "Invalid"),
        ("matchExpressions[3].key", "Invalid"),
        ("matchExpressions[3].values[1]", "Invalid"),
    ]


@pytest.mark.parametrize("key", ["a", "A-1_b.c", "example.com/name", "x" * 63, f"{'a' * 63}.{'b' * 63}/n"])
def test_label_keys_that_kubernetes_takes_are_taken(key):
    """A wrong refusal is as bad as a wrong acceptance."""
    assert label_key_faults(key) == ()


@pytest.mark.parametrize(
    ("key", "count"),
    [("", 2), ("-a", 1), ("a/b/c", 1), ("/a", 1), ("Up.per/a", 1), ("a/", 2), ("x" * 64, 1), ("-" * 64, 2), ("a\n", 1)],
)
def test_label_keys_are_refused_with_one_fault_per_broken_rule(key, count):
    """TOP-82i: the API server reports each broken rule by itself, and vectors count them."""
    assert len(label_key_faults(key)) == count


@pytest.mark.parametrize(("value", "count"), [("", 0), ("a.b", 0), ("x" * 64, 1), ("é", 1), ("-", 1), ("-" * 64, 2)])
def test_label_values_are_refused_with_one_fault_per_broken_rule(value, count):
    """TOP-82k."""
    assert len(label_value_faults(value)) == count


@pytest.mark.parametrize(
    ("operator", "bound", "label", "holds"),
    [
        ("Gt", "5", "6", True),
        ("Gt", "5", "5", False),
        ("Lt", "5", "4", True),
        ("Lt", "5", "5", False),
        ("Gt", "5", "many", False),
        ("Gt", "5", "", False),
        ("Gt", "5", "9223372036854775808", False),
        ("Gt", "five", "6", None),
        ("Lt", "-5", "-6", None),
    ],
)
def test_gt_and_lt_compare_whole_numbers_of_64_bits_strictly(operator, bound, label, holds):
    """TOP-72: a bound that is not a number, or no label value as -5, makes the term malformed."""
    assert node_requirement_holds(Requirement("size", operator, (bound,)), {"size": label}) is holds


@pytest.mark.parametrize(
    "requirement",
    [
        Requirement("a", "In"),
        Requirement("a", "Exists", ("1",)),
        Requirement("a", "Gt", ("1", "2")),
        Requirement("a", "Near", ("1",)),
        Requirement("", "Exists"),
        Requirement("a", "In", ("x y",)),
    ],
)
def test_a_malformed_node_requirement_is_neither_true_nor_false(requirement):
    """TOP-72: NotIn must not hold just because the requirement is broken."""
    assert node_requirement_holds(requirement, {"a": "1"}) is None


def test_a_missing_label_is_not_greater_than_anything():
    """TOP-72."""
    assert node_requirement_holds(Requirement("size", "Gt", ("0",)), {}) is False


@pytest.mark.parametrize(
    ("text", "value"), [("7", 7), ("+7", 7), ("-7", -7), ("007", 7), ("1_0", None), (" 7", None), ("", None)]
)
def test_whole_numbers_are_read_as_go_reads_them(text, value):
    """TOP-72: Python's int() would take underscores, blanks and digits of other scripts."""
    assert parse_int64(text) == value


def test_selectors_print_as_kubectl_prints_them():
    """TOP-93 shows the selector as text."""
    selector = LabelSelector(
        {"b": "2", "a": "1"},
        (Requirement("c", "NotIn", ("x", "y")), Requirement("d", "Exists"), Requirement("e", "DoesNotExist")),
    )

    assert str(compile_selector(selector)) == "a=1,b=2,c notin (x,y),d,!e"
    assert str(compile_selector(None)) == "nothing (no selector)"
    assert str(Matcher()) == "everything (empty selector)"


@given(
    st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz")),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz")),
)
def test_narrowing_never_makes_a_selector_match_more(wanted, labels):
    """TOP-62."""
    matcher = compile_selector(LabelSelector({"a": "x"}))

    assert matcher.matches(labels) or not matcher.narrowed(wanted).matches(labels)
