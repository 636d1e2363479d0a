# SPDX-License-Identifier: Apache-2.0
"""Which pods end when the node goes down, in simulated time."""

import heapq
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from agent.model.pods.fields import PodFields
from agent.pods.plan.admit import priority_of
from agent.pods.plan.drain import KILL_S, Candidate, Group, ShutdownRules, begin_drain, groups_for, plan_drain

CRITICAL = 2_000_000_000


def pod(name: str, priority: int = 0, grace_s: float = 30.0) -> Candidate:
    return Candidate(uid=name, key=name, priority=priority, grace_s=grace_s)


def group(priority: int, period_s: float) -> Group:
    return Group(priority=priority, period_s=period_s)


def play(
    pods: Sequence[Candidate],
    groups: Sequence[Group],
    lasts_s: Mapping[str, float | None] | None = None,
    most_s: float = 0.0,
) -> list[str]:
    """What is done when; `lasts_s` says how long the end of a pod takes, its grace if nothing is said, None hangs."""
    drain, now_s = begin_drain(pods, groups, most_s), 0.0
    ended: set[str] = set()
    ends: list[tuple[float, str]] = []
    lines = []
    while True:
        plan = plan_drain(drain, ended, now_s)
        drain = plan.then
        for step in plan.steps:
            lines.append(f"{now_s:g} {step.uid} {step.grace_s:g}")
            lasts = (lasts_s or {}).get(step.uid, step.grace_s)
            if lasts is not None:
                heapq.heappush(ends, (now_s + lasts, step.uid))
        if plan.is_over:
            return [*lines, f"{now_s:g} over"]
        now_s = min([at_s for at_s, _ in ends] + ([plan.wake_s] if plan.wake_s is not None else []))
        while ends and ends[0][0] <= now_s:
            ended.add(heapq.heappop(ends)[1])


def test_groups_go_from_low_to_high_and_each_begins_when_the_one_before_has_ended() -> None:
    """NSD-01, NSD-02."""
    pods = [pod("db", CRITICAL), pod("web", 5), pod("batch")]
    groups = [group(CRITICAL, 20), group(0, 10)]

    assert play(pods, groups, {"batch": 3, "web": 4, "db": 6}) == ["0 batch 10", "0 web 10", "4 db 20", "10 over"]


def test_a_group_whose_time_is_over_waits_for_nobody() -> None:
    """NSD-02, FP-31: a pod that hangs costs its group's time and that of a kill, no more."""
    pods = [pod("hangs"), pod("db", CRITICAL, 5)]

    assert play(pods, [group(0, 10), group(CRITICAL, 20)], {"hangs": None}) == ["0 hangs 10", "12 db 5", "17 over"]


def test_the_last_group_too_ends_when_its_time_is_over() -> None:
    """logind is not kept waiting beyond what it was asked for."""
    assert play([pod("hangs")], [group(0, 10)], {"hangs": None}) == ["0 hangs 10", "12 over"]


def test_a_pod_has_its_own_grace_if_that_is_shorter() -> None:
    """NSD-02: G = min(spec grace, seconds of the group)."""
    pods = [pod("short", grace_s=2), pod("long", grace_s=600)]

    assert play(pods, [group(0, 10)]) == ["0 long 10", "0 short 2", "10 over"]


def test_groups_without_pods_cost_no_time() -> None:
    """NSD-02."""
    groups = [group(0, 100), group(10, 100), group(20, 10)]

    assert play([pod("a", 25, 3)], groups) == ["0 a 3", "3 over"]


def test_a_priority_belongs_to_the_highest_group_not_above_it_else_to_the_lowest() -> None:
    """NSD-02."""
    groups = [group(10, 1), group(20, 2), group(30, 3)]
    pods = [pod("below", 5), pod("ten", 10), pod("nineteen", 19), pod("twenty", 20), pod("above", 99)]

    assert play(pods, groups) == ["0 below 1", "0 ten 1", "0 nineteen 1", "1 twenty 2", "3 above 3", "6 over"]


def test_without_groups_each_priority_ends_by_itself_and_takes_its_time() -> None:
    """What `kepctl drain` does on a node that configures nothing."""
    pods = [pod("high", 100, 5), pod("low", 0, 7), pod("low-too", 0, 60)]

    assert play(pods, [], {"low-too": 90}) == ["0 low 7", "0 low-too 60", "90 high 5", "95 over"]
    assert play(pods, [], most_s=3) == ["0 low 3", "0 low-too 3", "3 high 3", "6 over"]


def test_nothing_to_end_is_over_at_once() -> None:
    assert play([], [group(0, 10)]) == ["0 over"]
    assert play([], []) == ["0 over"]


def test_what_ended_before_its_turn_is_not_ended_again() -> None:
    drain = begin_drain([pod("a"), pod("b", 1), pod("c", 2)], [group(0, 5), group(1, 5), group(2, 5)])

    assert [step.uid for step in plan_drain(drain, {"a", "b"}, 0.0).steps] == ["c"]


def test_a_class_stands_for_its_priority_where_nobody_looked_it_up() -> None:
    assert priority_of(PodFields(priority_class_name="system-node-critical")) >= CRITICAL
    assert priority_of(PodFields(priority_class_name="system-cluster-critical")) == CRITICAL
    assert priority_of(PodFields(priority_class_name="system-node-critical", priority=7)) == 7
    assert priority_of(PodFields(priority_class_name="mine")) == 0


PODS = st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 30), st.one_of(st.none(), st.integers(0, 40))), max_size=8)
GROUPS = st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 20)), max_size=4, unique_by=lambda one: one[0])


@given(pods=PODS, groups=GROUPS)
def test_every_pod_is_ended_once_and_the_sum_of_periods_is_never_exceeded(
    pods: list[tuple[int, int, int | None]], groups: list[tuple[int, int]]
) -> None:
    given_pods = [pod(f"p{place}", priority, grace) for place, (priority, grace, _) in enumerate(pods)]
    lasts = {f"p{place}": took for place, (_, _, took) in enumerate(pods)}
    if not groups:
        lasts = {name: took or 0 for name, took in lasts.items()}
    *steps, over = play(given_pods, [group(*one) for one in groups], lasts)
    order = [line.split()[1] for line in steps]

    assert sorted(order) == sorted(one.uid for one in given_pods)
    if groups:
        rules = ShutdownRules(groups=tuple(group(*one) for one in groups))
        assert float(over.split()[0]) <= rules.delay_s


@given(pods=PODS, groups=GROUPS)
def test_planning_again_after_a_plan_was_carried_out_gives_nothing(
    pods: list[tuple[int, int, int | None]], groups: list[tuple[int, int]]
) -> None:
    """STY-03."""
    given_pods = [pod(f"p{place}", priority, grace) for place, (priority, grace, _) in enumerate(pods)]
    drain = begin_drain(given_pods, [group(*one) for one in groups])
    first = plan_drain(drain, (), 0.0)

    assert plan_drain(first.then, (), 0.0).steps == ()


@given(pods=PODS, longest_s=st.integers(1, 200))
def test_without_groups_every_pod_has_a_turn_within_the_longest_delay(
    pods: list[tuple[int, int, int | None]], longest_s: int
) -> None:
    """FP-22: and its whole grace where that fits."""
    given_pods = [pod(f"p{place}", priority, grace) for place, (priority, grace, _) in enumerate(pods)]
    lasts = {f"p{place}": took for place, (_, _, took) in enumerate(pods)}
    rules = ShutdownRules(longest_s=longest_s)
    groups = groups_for(given_pods, rules)
    *steps, over = play(given_pods, groups, lasts)

    assert len(steps) == len(given_pods)
    assert float(over.split()[0]) <= max(longest_s, KILL_S) + 1e-6
    assert all(float(line.split()[2]) >= 0 for line in steps)
    levels = {one.priority for one in given_pods}
    wanted_s = sum(max(one.grace_s for one in given_pods if one.priority == level) + KILL_S for level in levels)
    if wanted_s <= longest_s and KILL_S * len(levels) <= longest_s / 2:
        graces = {f"{line.split()[1]} {line.split()[2]}" for line in steps}
        assert graces == {f"{one.uid} {one.grace_s:g}" for one in given_pods}


def test_whom_something_keeps_holds_up_nobody_and_is_left() -> None:
    """WL-27"""
    drain = begin_drain([pod("a"), pod("b"), pod("c", 5)], [])
    first = plan_drain(drain, (), 0.0, {"a"})

    assert [step.uid for step in first.steps] == ["b"]

    second = plan_drain(first.then, {"b"}, 1.0, {"a"})
    assert [step.uid for step in second.steps] == ["c"]

    last = plan_drain(second.then, {"b", "c"}, 2.0, {"a"})
    assert (last.steps, last.is_over) == ((), True)

    freed = plan_drain(last.then, {"b", "c"}, 3.0)
    assert ([step.uid for step in freed.steps], freed.is_over) == (["a"], False)


def test_where_the_node_goes_down_it_ends_last_and_by_force() -> None:
    """WL-27: when the others have ended, or when no more than its grace is left."""
    pods = [pod("a"), pod("b")]
    drain = begin_drain(pods, [group(0, 60)])
    first = plan_drain(drain, (), 0.0, {"a"}, forces=True)

    assert [(step.uid, step.is_forced) for step in first.steps] == [("b", False)]
    after = plan_drain(first.then, {"b"}, 5.0, {"a"}, forces=True)
    assert [(step.uid, step.is_forced) for step in after.steps] == [("a", True)]
    late = plan_drain(first.then, (), 60.0 - pods[0].grace_s, {"a"}, forces=True)
    assert [(step.uid, step.is_forced) for step in late.steps] == [("a", True)]
