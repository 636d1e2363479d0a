# SPDX-License-Identifier: Apache-2.0
"""Rollouts of any shape: they keep to their bounds at every step, and they arrive."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.pods.workloads.rollout import ON_DELETE, RECREATE, OwnedPod, RolloutRules, Steps, plan_rollout

MOST_STEPS = 400


@st.composite
def rolling(draw: st.DrawFn) -> RolloutRules:
    unavailable = draw(st.integers(0, 4))
    surge = draw(st.integers(0 if unavailable else 1, 4))
    return RolloutRules(replicas=draw(st.integers(0, 6)), most_unavailable=unavailable, most_surge=surge)


PODS = st.lists(
    st.builds(
        OwnedPod, uid=st.just(""), revision=st.sampled_from(["a", "b", "c"]), is_ready=st.booleans(),
        is_ending=st.booleans(),
    ),
    max_size=9,
).map(
    lambda pods: tuple(
        replace(one, uid=f"p{place}", age=place, is_available=one.is_ready) for place, one in enumerate(pods)
    )
)  # fmt: skip


def alive(pods: Sequence[OwnedPod]) -> list[OwnedPod]:
    return [one for one in pods if not one.is_ending]


def available(pods: Sequence[OwnedPod]) -> int:
    return sum(one.is_available for one in alive(pods))


def carried_out(steps: Steps, revision: str, pods: Sequence[OwnedPod]) -> tuple[OwnedPod, ...]:
    youngest = max((one.age for one in pods), default=0)
    made = [
        OwnedPod(uid=f"p{youngest + 1 + place}", revision=revision, age=youngest + 1 + place)
        for place in range(steps.make)
    ]
    return (*(replace(one, is_ending=one.is_ending or one.uid in steps.end) for one in pods), *made)


def moved_on(draw: st.DrawFn, pods: Sequence[OwnedPod]) -> tuple[OwnedPod, ...]:
    """The world between two looks: some pods are gone at last, some have become available, none fails for good."""
    left = [one for one in pods if not one.is_ending or draw(st.booleans())]
    return tuple(replace(one, is_ready=True, is_available=True) if draw(st.booleans()) else one for one in left)


@settings(max_examples=300, deadline=None)
@given(rolling(), PODS, st.data())
def test_a_rolling_change_keeps_to_its_bounds_at_every_step(
    rules: RolloutRules, pods: tuple[OwnedPod, ...], data: st.DataObject
) -> None:
    """WL-2: by its own doing never fewer available than allowed, never more pods than replicas and surge; and a kepd
    that dies in the middle of a step has done nothing that the next one would not do."""
    for _ in range(12):
        steps = plan_rollout(rules, "a", pods)
        part = Steps(
            make=data.draw(st.integers(0, steps.make)),
            end=tuple(uid for uid in steps.end if data.draw(st.booleans())),
        )
        done = carried_out(part, "a", pods)
        least = rules.replicas - rules.most_unavailable
        assert available(done) >= min(available(pods), least)
        assert len(alive(done)) <= max(len(alive(pods)), rules.replicas + rules.most_surge)
        if steps.make:
            assert len(alive(pods)) + steps.make <= rules.replicas + rules.most_surge
        pods = moved_on(data.draw, done)


@settings(max_examples=300, deadline=None)
@given(rolling() | st.just(RolloutRules(strategy=RECREATE, replicas=3)), PODS)
def test_every_change_arrives_where_new_pods_become_available(rules: RolloutRules, pods: tuple[OwnedPod, ...]) -> None:
    for _ in range(MOST_STEPS):
        steps = plan_rollout(rules, "a", pods)
        if steps == Steps() and all(one.is_available and not one.is_ending for one in pods):
            break
        pods = tuple(
            replace(one, is_ready=True, is_available=True) for one in carried_out(steps, "a", pods) if not one.is_ending
        )

    assert [one.revision for one in alive(pods)] == ["a"] * rules.replicas


@settings(deadline=None)
@given(st.integers(0, 5), PODS)
def test_recreate_begins_nothing_before_all_of_the_former_template_is_gone(
    replicas: int, pods: tuple[OwnedPod, ...]
) -> None:
    steps = plan_rollout(RolloutRules(strategy=RECREATE, replicas=replicas), "a", pods)
    former = [one for one in pods if one.revision != "a"]

    assert not (former and steps.make)
    assert {one.uid for one in alive(former)} <= {*steps.end}


@given(st.integers(0, 5), PODS)
def test_on_delete_replaces_only_what_somebody_deletes(replicas: int, pods: tuple[OwnedPod, ...]) -> None:
    steps = plan_rollout(RolloutRules(strategy=ON_DELETE, replicas=replicas), "a", pods)

    assert len(alive(pods)) + steps.make - len(steps.end) == replicas


def test_a_scale_down_gives_up_what_does_not_serve_and_then_the_newest() -> None:
    pods = [
        OwnedPod(uid="old", revision="a", age=1, is_ready=True, is_available=True),
        OwnedPod(uid="young", revision="a", age=3, is_ready=True, is_available=True),
        OwnedPod(uid="broken", revision="a", age=0),
    ]

    assert plan_rollout(RolloutRules(replicas=2), "a", pods).end == ("broken",)
    assert plan_rollout(RolloutRules(replicas=1), "a", pods).end == ("broken", "young")


def test_old_pods_that_have_not_been_probed_yet_are_not_taken_for_broken() -> None:
    """After a restart of kepd in the middle of a change nothing is ready for a moment."""
    pods = [OwnedPod(uid=f"o{place}", revision="b", age=place) for place in range(3)]
    pods.append(OwnedPod(uid="n", revision="a", age=9))

    assert plan_rollout(RolloutRules(replicas=3, most_surge=1), "a", pods) == Steps()
