# SPDX-License-Identifier: Apache-2.0
"""PodDisruptionBudgets: counted as Kubernetes counts, and spent by one pod at a time."""

from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.config.strict_yaml import parse_documents
from agent.model.finding import Finding
from agent.pods.plan.disruption import GuardedPod, kept_back, state_of
from agent.pods.workloads.budget import Budget, read_budget
from agent.pods.workloads.workload import Selector

WEB = ("Deployment", "default", "web")
SCALES = {WEB: 4, ("Deployment", "default", "db"): 3}
COUNTS = st.one_of(st.integers(0, 6), st.integers(0, 100).map(lambda share: f"{share}%"))
BUDGETS = st.builds(
    lambda key, value, ends, labels: Budget(
        namespace="default", name="b", selector=Selector(match_labels=labels), ends_unhealthy=ends, **{key: value}
    ),
    st.sampled_from(["min_available", "max_unavailable"]), COUNTS, st.booleans(),
    st.sampled_from([{}, {"app": "web"}, {"app": "db"}]),
)  # fmt: skip
PODS = st.lists(
    st.builds(
        GuardedPod, uid=st.just(""), key=st.just(""), labels=st.sampled_from([{"app": "web"}, {"app": "db"}, {}]),
        owner=st.sampled_from([WEB, ("Deployment", "default", "db"), None]), is_ready=st.booleans(),
        is_idle=st.booleans(), is_ending=st.booleans(),
    ),
    max_size=7,
).map(lambda pods: tuple(numbered(place, one) for place, one in enumerate(pods)))  # fmt: skip


def numbered(place: int, one: GuardedPod) -> GuardedPod:
    return GuardedPod(
        uid=f"p{place}", key=f"default/p{place}", labels=one.labels, owner=one.owner,
        is_ready=one.is_ready and not one.is_idle, is_idle=one.is_idle, is_ending=one.is_ending,
    )  # fmt: skip


def counted(budget: Budget, pods: tuple[GuardedPod, ...]) -> dict[str, int]:
    """Written from Kubernetes' rules, and from nothing of the code."""
    wanted = budget.selector.match_labels if budget.selector is not None else {}
    own = [one for one in pods if all(one.labels.get(name) == value for name, value in wanted.items())]
    healthy = len([one for one in own if one.is_ready and not one.is_ending])
    scale = sum(SCALES[owner] for owner in {one.owner for one in own} if owner is not None)

    def of(value: Any) -> int:
        return value if isinstance(value, int) else ceil(int(value[:-1]) * scale / 100)

    if budget.max_unavailable is not None:
        expected, desired = scale, max(0, scale - of(budget.max_unavailable))
    elif isinstance(budget.min_available, int):
        expected, desired = len(own), budget.min_available
    else:
        expected, desired = scale, of(budget.min_available)
    return {"expected": expected, "desired": desired, "healthy": healthy,
            "allowed": max(healthy - desired, 0) if expected > 0 else 0}  # fmt: skip


@settings(max_examples=2000, deadline=None)
@given(BUDGETS, PODS)
def test_a_budget_is_counted_as_kubernetes_counts_it(budget: Budget, pods: tuple[GuardedPod, ...]) -> None:
    """WL-26"""
    state = state_of(budget, pods, SCALES)

    found = {name: getattr(state, name) for name in ("expected", "desired", "healthy", "allowed")}
    assert found == counted(budget, pods)


@settings(max_examples=2000, deadline=None)
@given(BUDGETS, PODS)
def test_no_order_of_ends_goes_below_a_budget(budget: Budget, pods: tuple[GuardedPod, ...]) -> None:
    """WL-26: those who have leave end together, and the budget holds all the same."""
    kept = kept_back([one.uid for one in pods], [budget], pods, SCALES)
    left = tuple(
        GuardedPod(**{**{name: getattr(one, name) for name in one.__struct_fields__}, "is_ending": True})
        if one.uid not in kept and not one.is_idle else one
        for one in pods
    )  # fmt: skip
    before, after = counted(budget, pods), counted(budget, left)

    assert after["healthy"] >= min(before["healthy"], before["desired"])
    for one in pods:
        is_guarded = one.uid in kept
        assert not (is_guarded and (one.is_idle or one.is_ending))
        if is_guarded and not one.is_ready:
            assert not budget.ends_unhealthy
            assert before["healthy"] < before["desired"] or before["desired"] == 0 or before["expected"] == 0


def test_each_of_several_budgets_has_to_allow_it() -> None:
    pods = [GuardedPod(uid=n, key=n, labels={"app": "web"}, owner=WEB, is_ready=True) for n in "abcd"]
    loose = Budget(namespace="default", name="loose", min_available=0, selector=Selector())
    tight = Budget(namespace="default", name="tight", max_unavailable=1, selector=Selector(match_labels={"app": "web"}))

    assert kept_back(["a"], [loose, tight], pods, SCALES) == {}
    kept = kept_back(["a", "b"], [loose, tight], pods, SCALES)
    assert kept == {"b": "PodDisruptionBudget default/tight wants 3 healthy pods, and there are 3"}


def read(text: str) -> tuple[Budget | None, list[str]]:
    findings: list[Finding] = []
    (tree,), _ = parse_documents(f"apiVersion: policy/v1\nkind: PodDisruptionBudget\n{text}".encode(), "f")
    return read_budget(tree, "f", findings), [str(one) for one in findings]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("{minAvailable: 1, maxUnavailable: 1}", "spec.maxUnavailable: Forbidden: only one of"),
        ("{selector: {}}", "spec.minAvailable: Required value"),
        ("{minAvailable: -1}", "spec.minAvailable: Invalid value: -1: must be a number from 0 on"),
        ("{minAvailable: 120%}", 'spec.minAvailable: Invalid value: "120%": must be at most 100%'),
        ("{maxUnavailable: some}", 'spec.maxUnavailable: Invalid value: "some"'),
        ("{minAvailable: 1, unhealthyPodEvictionPolicy: Never}", "spec.unhealthyPodEvictionPolicy: Unsupported value"),
        ("{minAvailable: 1, min: 2}", "spec.min: not supported by this version"),
        ("{minAvailable: 1, selector: {matchExpressions: [{key: a, operator: In}]}}", "spec.selector.matchExpressions"),
        ("[]", "spec: "),
    ],
)
def test_a_bad_budget_is_one_clear_line(spec: str, expected: str) -> None:
    budget, findings = read(f"metadata: {{name: b}}\nspec: {spec}\n")

    assert budget is None
    assert [one for one in findings if expected in one], findings
