# SPDX-License-Identifier: Apache-2.0
"""What holds for spread whatever the cluster looks like."""

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent.model.nodes.node import HOSTNAME_LABEL, ZONE_LABEL, Node, Taint
from agent.model.selector import LabelSelector
from agent.topology.explain.spread import explain_question
from agent.topology.hints.zones import place_evenly
from agent.topology.manifest.facts import PodFacts, SpreadConstraint
from agent.topology.spread.filter import SpreadQuestion, WhatIf, evaluate_spread

TAINTS = (Taint("k", "NoSchedule"), Taint("k", "PreferNoSchedule"), Taint("l", "NoExecute", "v"))
LABELS = {"app": "web"}
SELECTOR = LabelSelector(LABELS)


@st.composite
def clusters(draw):
    nodes = []
    for number in range(draw(st.integers(1, 7))):
        labels = {HOSTNAME_LABEL: f"n{number}"}
        zone = draw(st.sampled_from(["a", "b", "c", "", None]))
        labels |= {} if zone is None else {ZONE_LABEL: zone}
        taints = draw(st.lists(st.sampled_from(TAINTS), max_size=1).map(tuple))
        nodes.append(Node(f"n{number}", labels, taints=taints, is_unschedulable=draw(st.integers(0, 7)) == 0))
    return tuple(nodes)


constraints = st.builds(
    SpreadConstraint,
    max_skew=st.integers(1, 3),
    topology_key=st.sampled_from([ZONE_LABEL, HOSTNAME_LABEL]),
    when_unsatisfiable=st.sampled_from(["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"]),
    label_selector=st.sampled_from([SELECTOR, SELECTOR, LabelSelector(), None]),
    min_domains=st.none() | st.integers(1, 4),
    node_taints_policy=st.sampled_from([None, "Honor", "Ignore"]),
)


@st.composite
def questions(draw, least_constraints=0):
    nodes = draw(clusters())
    placed = draw(st.lists(st.sampled_from([*(node.name for node in nodes), "gone"]), max_size=12))
    pods = tuple(
        PodFacts("default", f"p{number}", draw(st.sampled_from([LABELS, LABELS, {}])), name)
        for number, name in enumerate(placed)
    )
    mine = draw(st.lists(constraints, min_size=least_constraints, max_size=3).map(tuple))
    return SpreadQuestion(PodFacts("default", "incoming", LABELS, constraints=mine), nodes, pods)


def with_constraints(question, mine):
    return msgspec.structs.replace(question, pod=msgspec.structs.replace(question.pod, constraints=tuple(mine)))


@given(questions(least_constraints=1), st.data())
def test_a_smaller_max_skew_never_admits_more_nodes(question, data):
    """TOP-70: candidates shrink when maxSkew shrinks."""
    tighter = [
        msgspec.structs.replace(one, max_skew=data.draw(st.integers(1, one.max_skew)))
        for one in question.pod.constraints
    ]

    assert set(evaluate_spread(with_constraints(question, tighter)).candidates) <= set(
        evaluate_spread(question).candidates
    )


@given(questions(least_constraints=1), constraints)
def test_one_more_constraint_never_admits_more_nodes(question, extra):
    """TOP-70 with TOP-65: not even the common test for labels may let somebody in who was out for another reason."""
    hard = [one for one in (*question.pod.constraints, extra) if one.topology_key == HOSTNAME_LABEL]
    few, all_ = with_constraints(question, hard[:1]), with_constraints(question, hard)
    if hard:
        assert set(evaluate_spread(all_).candidates) <= set(evaluate_spread(few).candidates)


@given(questions(), constraints)
def test_a_pod_more_in_the_fullest_domain_never_makes_that_domain_feasible(question, one):
    """TOP-68, TOP-70: the minimum may only rise if the fullest domain is also the emptiest."""
    question = with_constraints(question, [msgspec.structs.replace(one, when_unsatisfiable="DoNotSchedule")])
    before = evaluate_spread(question)
    counts = before.constraints[0]
    if not counts.domains:
        return
    fullest = max(counts.domains, key=lambda value: counts.domains[value])
    inside = [node for node in question.nodes if node.labels.get(counts.constraint.topology_key) == fullest]
    extra = PodFacts("default", "extra", LABELS, inside[0].name)
    after = evaluate_spread(msgspec.structs.replace(question, pods=(*question.pods, extra)))
    names = {node.name for node in inside}

    assert names & set(after.candidates) <= names & set(before.candidates)


@given(questions())
def test_the_order_of_pods_does_not_matter(question):
    """TOP-66: counting has no history."""
    backwards = msgspec.structs.replace(question, pods=question.pods[::-1])

    assert evaluate_spread(backwards) == evaluate_spread(question)


@given(questions())
def test_normalised_scores_stay_between_0_and_100_and_the_best_gets_100_or_all_are_ignored(question):
    """TOP-80."""
    score = evaluate_spread(question).score
    if score is not None and score.outcome == "scored":
        assert all(0 <= value <= 100 for value in score.normalized.values())
        assert len(score.ignored) == len(score.normalized) or max(score.normalized.values()) == 100


@given(questions())
def test_dropping_a_node_equals_not_having_it(question):
    """TOP-86."""
    name = question.nodes[0].name
    without = msgspec.structs.replace(question, nodes=question.nodes[1:])

    assert evaluate_spread(question, WhatIf(dropped_nodes=frozenset({name}))) == evaluate_spread(without)


@given(questions())
def test_an_explanation_tells_what_the_filter_decided(question):
    """STY-22: same candidates, same skew, every counted domain in the table, and help exactly when nothing is left."""
    result, told = evaluate_spread(question), explain_question(question)

    assert told.candidates == result.candidates
    assert [node.skew for node in told.nodes] == [verdict.skew for verdict in result.nodes]
    for explained, counts in zip(told.constraints, result.constraints, strict=True):
        assert {one.value: one.pods for one in explained.domains if one.is_counted} == counts.domains
        assert all(one.remark for one in explained.domains if not one.is_counted)
    assert bool(told.changes) == (not result.candidates)
    assert told.exit_code == (0 if result.candidates else 1)


@given(questions())
def test_every_suggested_skew_really_admits_the_nodes_it_names(question):
    """TOP-93: a suggestion is a promise."""
    for change in explain_question(question).changes:
        if not change.text.startswith("maxSkew: "):
            continue
        words = change.text.removeprefix("maxSkew: ").split()
        skew, position = int(words[0]), int(words[3])
        hard = [one for one in question.pod.constraints if one.when_unsatisfiable == "DoNotSchedule"]
        hard[position] = msgspec.structs.replace(hard[position], max_skew=skew)

        assert set(change.admits) <= set(evaluate_spread(with_constraints(question, hard)).candidates)


@given(questions(least_constraints=1))
def test_a_node_in_a_new_domain_always_admits_the_pod(question):
    """TOP-93: the last suggestion, tried."""
    fresh = Node("fresh", {HOSTNAME_LABEL: "fresh", ZONE_LABEL: "fresh"})
    result = evaluate_spread(msgspec.structs.replace(question, nodes=(*question.nodes, fresh)))

    assert "fresh" in result.candidates


@given(st.integers(1, 12), st.integers(1, 4))
def test_placing_pods_one_by_one_with_max_skew_one_ends_in_an_even_placement(pods, zones):
    """TOP-94: what the plan takes for granted."""
    nodes = tuple(Node(f"n{number}", {ZONE_LABEL: f"z{number}"}) for number in range(zones))
    constraint = SpreadConstraint(1, ZONE_LABEL, "DoNotSchedule", SELECTOR)
    placed = []
    for number in range(pods):
        incoming = PodFacts("default", f"p{number}", LABELS, constraints=(constraint,))
        chosen = evaluate_spread(SpreadQuestion(incoming, nodes, tuple(placed))).candidates[-1]
        placed.append(msgspec.structs.replace(incoming, node_name=chosen))
    counts = Counter({f"n{number}": 0 for number in range(zones)} | Counter(one.node_name for one in placed))

    assert sorted(counts.values()) == sorted(place_evenly(pods, [f"z{number}" for number in range(zones)]).values())
