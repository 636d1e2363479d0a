# SPDX-License-Identifier: Apache-2.0
"""Who ends when the node runs out of something, and when."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.model.nodes.use import Amount, NodeLook
from agent.pods.plan.evict import SIGNALS, EvictionPlan, EvictionRules, Seen, Threshold, plan_eviction
from agent.pods.plan.scarcity.victims import ContainerShare, PossibleVictim, order_of_victims

MI = 1 << 20
GI = 1 << 30
HARD = Threshold(signal="memory.available", quantity=100 * MI)
SOFT = Threshold(signal="memory.available", quantity=200 * MI, grace_s=60.0)
DISK = Threshold(signal="nodefs.available", share=0.1)


def rules(*thresholds: Threshold, **given: Any) -> EvictionRules:
    return EvictionRules(thresholds=thresholds or (HARD,), **given)


def look(at_s: float = 0.0, **left: int) -> NodeLook:
    """`memory=61` are MiB of 4 GiB; `nodefs` are percent of 100 GiB."""
    amounts = {"memory.available": Amount(left["memory"] * MI, 4 * GI)} if "memory" in left else {}
    for name in ("nodefs", "imagefs"):
        if name in left:
            amounts[f"{name}.available"] = Amount(left[name] * GI, 100 * GI)
    return NodeLook(taken_s=at_s, amounts=amounts)


def pod(name: str, used: int = 0, requested: int = 0, **given: Any) -> PossibleVictim:
    return PossibleVictim(
        uid=f"u-{name}",
        key=f"default/{name}",
        used={"memory.available": used * MI, "nodefs.available": used * MI},
        requested={"memory": requested * MI},
        containers=(ContainerShare(name="main", used={"memory": used * MI}, requested={"memory": requested * MI}),),
        **given,
    )


NOTHING = Seen()
PODS = [pod("small", 50), pod("large", 812, 256), pod("modest", 300, 400)]


def plan(
    at: NodeLook | None, given: EvictionRules, seen: Seen = NOTHING, now_s: float = 0.0, pods: Any = PODS
) -> EvictionPlan:
    return plan_eviction(at, pods, given, seen, now_s)


def victim(one: EvictionPlan) -> str:
    return one.victim.key if one.victim is not None else ""


class TestThresholds:
    """EVN-04, EVN-05."""

    def test_nothing_is_met_at_the_line_itself(self) -> None:
        assert not plan(look(memory=100), rules()).begun
        assert plan(look(memory=99), rules()).begun == (HARD,)

    def test_a_share_is_of_the_capacity(self) -> None:
        assert not plan(look(nodefs=10), rules(DISK)).begun
        assert plan(look(nodefs=9), rules(DISK)).begun == (DISK,)

    def test_one_that_was_met_is_met_until_there_is_more_than_it_asks_for(self) -> None:
        of = rules(replace(HARD, reclaim=50 * MI))
        first = plan(look(memory=99), of, pods=[])
        between = plan(look(1.0, memory=149), of, first.seen, 1.0, [])
        after = plan(look(2.0, memory=150), of, between.seen, 2.0, [])

        assert [bool(one.seen.met_s) for one in (first, between, after)] == [True, True, False]
        assert not plan(look(memory=149), of).begun, "who was not met needs no more than the line"

    def test_a_soft_one_acts_when_it_is_met_for_its_grace_without_a_gap(self) -> None:
        of = rules(SOFT)
        first = plan(look(memory=150), of)
        waits = plan(look(59.0, memory=150), of, first.seen, 59.0)
        acts = plan(look(60.0, memory=150), of, waits.seen, 60.0)

        assert (victim(first), victim(waits), victim(acts)) == ("", "", "default/large")
        assert [one.until_s for one in waits.waits] == [60.0]
        gap = plan(look(30.0, memory=300), of, first.seen, 30.0)
        assert victim(plan(look(60.0, memory=150), of, gap.seen, 60.0)) == ""

    def test_figures_that_are_old_decide_nothing(self) -> None:
        assert plan(look(memory=1), rules(), now_s=20.0).victim is not None
        late = plan(look(memory=1), rules(), now_s=20.1)
        assert (late.victim, late.conditions) == (None, frozenset())
        assert plan(None, rules()).victim is None

    def test_what_cannot_be_seen_decides_nothing(self) -> None:
        assert plan(look(nodefs=50), rules(HARD, DISK)) == EvictionPlan(seen=Seen())

    def test_a_condition_is_kept_for_a_while(self) -> None:
        of = rules()
        first = plan(look(memory=99), of, pods=[])
        assert first.conditions == {"MemoryPressure"}
        for now_s, expected in ((299.0, {"MemoryPressure"}), (300.0, set())):
            assert plan(look(now_s, memory=900), of, first.seen, now_s, []).conditions == expected


class TestSteps:
    def test_memory_comes_first_then_inodes_then_space_and_hard_before_soft(self) -> None:
        listed = [Threshold(signal=one, quantity=1) for one in reversed(SIGNALS)]
        soft = [replace(one, grace_s=1.0) for one in listed]

        ordered = [one.key for one in rules(*soft, *listed).in_order()]
        assert ordered == [f"{signal}/{kind}" for signal in SIGNALS for kind in ("hard", "soft")]
        assert SIGNALS[0] == "memory.available"
        assert max(SIGNALS.index(f"{one}.inodesFree") for one in ("nodefs", "imagefs", "containerfs")) < min(
            SIGNALS.index(f"{one}.available") for one in ("nodefs", "imagefs", "containerfs")
        )

    def test_room_is_made_before_a_pod_ends_and_measured_again(self) -> None:
        first = plan(look(nodefs=5), rules(DISK))
        assert (first.collect, victim(first)) == ("nodefs.available", "")
        solved = plan(look(1.0, nodefs=20), rules(DISK), first.seen, 1.0)
        assert (solved.collect, victim(solved)) == ("", "")
        second = plan(look(1.0, nodefs=5), rules(DISK), first.seen, 1.0)
        assert (second.collect, victim(second)) == ("", "default/large")
        after = plan(look(60.0, nodefs=5), rules(DISK), second.seen, 60.0)
        assert after.collect == "nodefs.available", "what the pod that ended used is nobody's now"

    def test_room_is_made_once_for_all_disks_and_memory_does_not_wait_for_it(self) -> None:
        both = rules(HARD, DISK, Threshold(signal="imagefs.available", share=0.15))
        first = plan(look(memory=900, nodefs=5, imagefs=5), both)
        assert first.collect
        then = plan(look(1.0, memory=900, nodefs=5, imagefs=5), both, first.seen, 1.0)
        assert (then.collect, victim(then)) == ("", "default/large")
        assert victim(plan(look(memory=9, nodefs=5), both)) == "default/large"

    def test_pods_are_looked_at_only_where_one_has_to_end(self) -> None:
        assert not plan(look(memory=900), rules(), pods=None).needs_pods
        assert plan(look(memory=9), rules(), pods=None).needs_pods

    def test_one_at_a_time(self) -> None:
        """What ends for it is waited for, but not for ever; carried out and planned again it gives nothing."""
        first = plan(look(memory=9), rules())
        assert victim(first) == "default/large"
        leaving = [replace(one, is_ending=True, leaving_s=0.0) if one.key == "default/large" else one for one in PODS]
        again = plan(look(1.0, memory=9), rules(), first.seen, 1.0, leaving)
        assert victim(again) == ""
        late = plan(look(31.0, memory=9), rules(), again.seen, 31.0, leaving)
        assert victim(late) == "default/small"

    def test_kepd_that_began_anew_waits_for_what_ends_already(self) -> None:
        leaving = [replace(PODS[1], is_ending=True, leaving_s=0.0), PODS[0]]
        assert victim(plan(look(memory=9), rules(), Seen(), 5.0, leaving)) == ""

    def test_grace_and_words(self) -> None:
        """EVN-08."""
        hard = plan(look(memory=61), rules()).victim
        assert hard is not None
        assert (hard.grace_s, hard.kind) == (1.0, "hard")
        assert hard.message == (
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 61Mi. "
            "Container main was using 812Mi, request is 256Mi, has larger consumption of memory. "
        )
        soft = rules(replace(SOFT, grace_s=1.0), most_grace_s=20.0)
        begun = plan(look(memory=61), soft, pods=None)
        chosen = plan(look(2.0, memory=61), soft, begun.seen, 2.0, [pod("a", 10, grace_s=5.0)]).victim
        assert chosen is not None
        assert chosen.grace_s == 5.0


class TestOrder:
    """EVN-06, EVN-07."""

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (pod("a", 200, 100), pod("b", 900, 1000)),
            (pod("a", 20), pod("b", 900, 100, priority=1)),
            (pod("a", 900, 100), pod("b", 800, 100)),
            (pod("b", 100, started_s=2.0), pod("a", 100, started_s=1.0)),
            (pod("a", 100), pod("b", 100)),
        ],
    )
    def test_who_goes_first(self, first: PossibleVictim, second: PossibleVictim) -> None:
        for pods in ([first, second], [second, first]):
            assert [one.key for one in order_of_victims("memory.available", pods)] == [first.key, second.key]

    def test_a_pod_without_figures_goes_last(self) -> None:
        unknown = replace(pod("a"), used={})
        assert [one.key for one in order_of_victims("memory.available", [unknown, pod("b", 2, 100)])][-1] == "default/a"

    def test_who_stays(self) -> None:
        stays = [
            pod("a", 900, is_critical=True),
            pod("b", 900, is_ending=True),
            replace(pod("c"), used={"memory.available": MI - 1}),
        ]
        assert order_of_victims("memory.available", stays) == []

    def test_of_inodes_one_is_enough(self) -> None:
        few = replace(pod("a"), used={"nodefs.inodesFree": 1})
        assert order_of_victims(
            "nodefs.inodesFree", [few, replace(few, key="default/b", used={"nodefs.inodesFree": 0})]
        ) == [few]


CANDIDATES = st.builds(
    PossibleVictim,
    uid=st.uuids().map(str),
    key=st.text("abc", min_size=1, max_size=3).map(lambda name: f"default/{name}"),
    priority=st.integers(-2, 2),
    is_critical=st.booleans(),
    is_ending=st.booleans(),
    leaving_s=st.none() | st.floats(0, 100),
    used=st.dictionaries(st.sampled_from(SIGNALS), st.integers(0, GI)),
)


@given(
    st.lists(CANDIDATES, max_size=6, unique_by=lambda one: one.uid),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 300)), min_size=1, max_size=8),
)
def test_whatever_comes_one_pod_at_most_and_never_one_that_stays(
    pods: list[PossibleVictim], steps: list[tuple[int, int]]
) -> None:
    """EVN-04: also where kepd is killed between any two looks, which is to begin with nothing seen."""
    seen, now_s = Seen(), 0.0
    of = rules(HARD, SOFT, DISK)
    for wait_s, left in steps:
        now_s += wait_s
        made = plan_eviction(look(now_s, memory=left, nodefs=left % 20), pods, of, seen, now_s)
        seen = made.seen if left % 3 else Seen()
        if made.victim is None:
            continue
        assert not made.collect
        chosen = next(one for one in pods if one.uid == made.victim.uid)
        assert not chosen.is_critical
        assert not chosen.is_ending
        pods = [replace(one, is_ending=True, leaving_s=now_s) if one is chosen else one for one in pods]
        assert plan_eviction(look(now_s, memory=left, nodefs=left % 20), pods, of, made.seen, now_s).victim is None
