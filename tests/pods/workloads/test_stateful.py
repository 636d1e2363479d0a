# SPDX-License-Identifier: Apache-2.0
"""StatefulSets of any shape: one pod per name, in order, within their bounds at every step, and they arrive."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.pods.workloads.rollout import ON_DELETE, ROLLING, OwnedPod
from agent.pods.workloads.stateful import Place, StatefulRules, StatefulSteps, is_rolled_out, plan_stateful

OLD, NEW = "a", "b"
MOST_TURNS = 300

RULES = st.builds(
    StatefulRules, replicas=st.integers(0, 5), start=st.integers(0, 2), is_ordered=st.booleans(),
    strategy=st.sampled_from([ROLLING, ROLLING, ON_DELETE]), partition=st.integers(0, 6),
    most_unavailable=st.integers(1, 3),
)  # fmt: skip
PODS = st.lists(
    st.builds(
        OwnedPod, uid=st.just(""), revision=st.sampled_from([OLD, NEW, "z"]), ordinal=st.integers(0, 7),
        is_ready=st.booleans(), is_up=st.booleans(), is_ending=st.booleans(), phase=st.sampled_from(["", "", "Failed"]),
    ),
    max_size=8, unique_by=lambda one: one.ordinal,
).map(lambda pods: tuple(named(one) for one in pods))  # fmt: skip


def named(one: OwnedPod) -> OwnedPod:
    is_ready = one.is_ready and not one.phase
    return replace(
        one, uid=f"{one.ordinal}-{one.revision}", is_ready=is_ready, is_available=is_ready, is_up=one.is_up or is_ready
    )


def missing(rules: StatefulRules, pods: Sequence[OwnedPod]) -> int:
    there = [one for one in pods if one.ordinal in rules.ordinals and one.is_available and not one.is_ending]
    return rules.replicas - len(there)


def carried_out(steps: StatefulSteps, pods: Sequence[OwnedPod], turn: int) -> tuple[OwnedPod, ...]:
    made = [OwnedPod(uid=f"{one.ordinal}-{turn}", revision=one.revision, ordinal=one.ordinal) for one in steps.make]
    return (*(replace(one, is_ending=one.is_ending or one.uid in steps.end) for one in pods), *made)


@settings(max_examples=600, deadline=None)
@given(RULES, PODS, st.data())
def test_a_set_keeps_to_its_names_order_and_bounds_at_every_step(
    rules: StatefulRules, pods: tuple[OwnedPod, ...], data: st.DataObject
) -> None:
    """WL-20. A kepd that dies in the middle of a step has done nothing that the next one would not do."""
    for turn in range(12):
        steps = plan_stateful(rules, OLD, NEW, pods)
        taken = {one.ordinal for one in pods}
        by_uid = {one.uid: one for one in pods}
        ended = [by_uid[uid] for uid in steps.end]
        assert not taken & {one.ordinal for one in steps.make}
        assert all(one.ordinal in rules.ordinals for one in steps.make)
        assert not any(one.is_ending for one in ended)
        if rules.is_ordered and steps.make:
            first = steps.make[0].ordinal
            assert len(steps.make) == 1
            assert not ended
            below = [one for one in pods if rules.start <= one.ordinal < first]
            assert len(below) == first - rules.start
            assert all(one.is_available and not one.is_ending for one in below)
        serving = [one for one in ended if one.is_available and one.ordinal in rules.ordinals]
        if serving:
            assert missing(rules, pods) + len(serving) <= rules.most_unavailable
            assert all(one.ordinal >= rules.start + rules.partition and one.revision != NEW for one in serving)
        part = StatefulSteps(
            make=tuple(one for one in steps.make if data.draw(st.booleans())),
            end=tuple(uid for uid in steps.end if data.draw(st.booleans())),
        )
        done = carried_out(part, pods, turn)
        left = [one for one in done if not one.is_ending or data.draw(st.booleans())]
        pods = tuple(
            replace(one, is_ready=True, is_available=True, is_up=True)
            if not one.phase and data.draw(st.booleans())
            else one
            for one in left
        )


@settings(max_examples=400, deadline=None)
@given(RULES, PODS)
def test_a_set_arrives_where_its_manifest_wants_it(rules: StatefulRules, pods: tuple[OwnedPod, ...]) -> None:
    """WL-20: from any state, if pods become ready that can."""
    for turn in range(MOST_TURNS):
        steps = plan_stateful(rules, OLD, NEW, pods)
        if steps == StatefulSteps() and all(one.is_available and not one.is_ending for one in pods):
            break
        left = [one for one in carried_out(steps, pods, turn) if not one.is_ending]
        pods = tuple(one if one.phase else replace(one, is_ready=True, is_available=True, is_up=True) for one in left)

    wanted = [(ordinal, rules.revision_for(ordinal, OLD, NEW)) for ordinal in rules.ordinals]
    assert [one.ordinal for one in sorted(pods, key=lambda one: one.ordinal)] == list(rules.ordinals)
    if rules.strategy == ROLLING:
        above = [one for one in wanted if one[0] >= rules.start + rules.partition]
        found = sorted((one.ordinal, one.revision) for one in pods if one.ordinal >= rules.start + rules.partition)
        assert above == found


def ready(ordinal: int, revision: str) -> OwnedPod:
    return OwnedPod(uid=f"p{ordinal}", revision=revision, ordinal=ordinal, is_ready=True, is_available=True)


def test_a_change_goes_from_the_highest_ordinal_to_the_partition() -> None:
    """WL-21"""
    rules = StatefulRules(replicas=4, partition=2)
    pods = [ready(n, OLD) for n in range(4)]

    assert plan_stateful(rules, OLD, NEW, pods).end == ("p3",)

    pods[3] = ready(3, NEW)

    assert plan_stateful(rules, OLD, NEW, pods).end == ("p2",)

    pods[2] = ready(2, NEW)

    assert plan_stateful(rules, OLD, NEW, pods) == StatefulSteps()
    assert plan_stateful(rules, OLD, NEW, pods[1:]).make == (Place(ordinal=0, revision=OLD),)


def test_as_many_end_at_a_time_as_may_be_missing() -> None:
    """WL-21: KEP-961"""
    pods = [ready(n, OLD) for n in range(5)]

    for is_ordered in (True, False):
        rules = StatefulRules(replicas=5, most_unavailable=2, is_ordered=is_ordered)
        assert plan_stateful(rules, OLD, NEW, pods).end == ("p4", "p3")
    late = [*pods[:3], replace(ready(3, NEW), is_ready=False, is_available=False), pods[4]]
    assert plan_stateful(StatefulRules(replicas=5, most_unavailable=2, is_ordered=False), OLD, NEW, late).end == ("p4",)


def test_a_broken_template_gives_way_to_the_next_one() -> None:
    """WL-22: where Kubernetes would wait for the pod that never becomes ready."""
    broken = OwnedPod(uid="x", revision="bad", ordinal=2, is_up=False)
    rules = StatefulRules(replicas=3)

    assert plan_stateful(rules, OLD, NEW, [ready(0, OLD), ready(1, OLD), broken]).end == ("x",)


def test_after_a_restart_of_kepd_pods_that_run_are_waited_for() -> None:
    """WL-22: none is ready until its probe has run."""
    unknown = [replace(ready(n, OLD), is_ready=False, is_available=False) for n in range(3)]

    assert plan_stateful(StatefulRules(replicas=3), OLD, NEW, unknown) == StatefulSteps()


def test_a_shrinking_set_in_order_waits_for_the_others_of_its_quorum() -> None:
    """WL-20"""
    pods = [ready(0, OLD), ready(1, OLD), replace(ready(2, OLD), is_ready=False, is_available=False), ready(3, OLD)]
    rules = StatefulRules(replicas=1)

    assert plan_stateful(rules, OLD, OLD, pods).end == ("p3",)
    assert plan_stateful(rules, OLD, OLD, pods[:3]).end == ("p2",)
    assert plan_stateful(rules, OLD, OLD, [*pods[:3], replace(pods[3], is_ending=True)]).end == ()


def test_a_template_is_in_force_once_all_pods_have_it() -> None:
    """WL-21"""
    rules = StatefulRules(replicas=2)

    assert is_rolled_out(rules, NEW, [ready(0, NEW), ready(1, NEW)])
    assert not is_rolled_out(rules, NEW, [ready(0, NEW), ready(1, OLD)])
    assert not is_rolled_out(rules, NEW, [ready(0, NEW)])
