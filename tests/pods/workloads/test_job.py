# SPDX-License-Identifier: Apache-2.0
"""Jobs of any shape: each pod is counted once, whatever dies when, and each Job finishes as Kubernetes would say."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.model.pods.wall_clock import Boot
from agent.pods.plan.restart import RestartCurve
from agent.pods.workloads.job import (
    MOST_KEPT,
    JobPlan,
    JobRecord,
    JobRules,
    decode_job_record,
    plan_job,
)
from agent.pods.workloads.rollout import OwnedPod

CURVE = RestartCurve(first_s=10, longest_s=300)
NEW = JobRecord(namespace="default", name="j", revision="a")
DONE = OwnedPod(uid="x", revision="a", phase="Succeeded")
LOST = replace(DONE, phase="Failed")
RUNS = replace(DONE, phase="Running")


def plan(rules: JobRules, *pods: OwnedPod, record: JobRecord = NEW, now_s: float = 100.0) -> JobPlan:
    return plan_job(rules, record, [replace(one, uid=f"p{i}", age=i) for i, one in enumerate(pods)], now_s, CURVE)


def outcome(plan: JobPlan) -> tuple[str, str]:
    return plan.record.outcome, plan.record.reason


@settings(max_examples=300, deadline=None)
@given(
    st.builds(
        JobRules, completions=st.integers(0, 5), parallelism=st.integers(1, 4), backoff_limit=st.integers(0, 3),
        waits_for_ends=st.booleans(),
    ),
    st.data(),
)  # fmt: skip
def test_each_pod_is_counted_once_and_every_job_finishes_whenever_kepd_dies(
    rules: JobRules, data: st.DataObject
) -> None:
    """WL-5. Here kepd may die before the record is written, between it and the steps, and after some of them."""
    record, pods, now_s, made = NEW, (), 100.0, 0
    ended = {"Succeeded": 0, "Failed": 0}
    for turn in range(60):
        step = plan_job(rules, record, pods, now_s, CURVE)
        is_hostile = turn < 12
        if is_hostile and data.draw(st.booleans()):
            continue
        record = decode_job_record(msgspec.json.encode(step.record))
        now_s += 400
        if record.outcome:
            break
        make = data.draw(st.integers(0, step.make)) if is_hostile else step.make
        running = [one for one in pods if one.phase == ""]
        assert len(running) + make <= rules.parallelism
        fresh = tuple(OwnedPod(uid=f"p{made + place}", revision="a", age=made + place) for place in range(make))
        made += make
        after = []
        for one in (*(one for one in pods if one.uid not in step.end), *fresh):
            phase = data.draw(st.sampled_from(["", "Succeeded", "Failed"])) if is_hostile else "Succeeded"
            phase = phase if not one.phase else ""
            after.append(replace(one, phase=phase) if phase else one)
            if phase:
                ended[phase] += 1
        # What is over and counted may be deleted by anybody.
        pods = tuple(one for one in after if one.uid not in record.counted or data.draw(st.booleans()))
    else:
        raise AssertionError("it did not finish")

    assert (record.succeeded, record.failed) == (ended["Succeeded"], ended["Failed"])
    assert (record.outcome == "Failed") == (record.failed > rules.backoff_limit)
    assert record.outcome == "Failed" or record.succeeded >= (rules.completions or 0)


def test_it_makes_as_many_as_may_run_at_once_and_no_more_than_are_missing() -> None:
    assert plan(JobRules(completions=5, parallelism=2)).make == 2
    assert plan(JobRules(completions=5, parallelism=2), RUNS).make == 1
    assert plan(JobRules(completions=2, parallelism=2), DONE, RUNS).make == 0
    assert plan(JobRules(completions=5, parallelism=0)).make == 0
    assert len(plan(JobRules(completions=5, parallelism=1), RUNS, RUNS).end) == 1


def test_it_is_complete_with_a_reason() -> None:
    done = plan(JobRules(completions=1), DONE)

    assert outcome(done) == ("Complete", "CompletionsReached")
    assert (done.record.succeeded, done.record.finished_s, done.make, done.end) == (1, 100.0, 0, ())
    assert outcome(plan(JobRules(completions=0))) == ("Complete", "CompletionsReached")


def test_without_completions_the_first_success_lets_the_others_finish() -> None:
    rules = JobRules(completions=None, parallelism=2)

    assert plan(rules).make == 2
    assert (plan(rules, DONE, RUNS).make, outcome(plan(rules, DONE, RUNS))) == (0, ("", ""))
    assert outcome(plan(rules, DONE, LOST)) == ("Complete", "CompletionsReached")


def test_a_failure_is_tried_again_after_a_pause_until_the_limit() -> None:
    first = plan(JobRules(backoff_limit=1), LOST)
    later = plan(JobRules(backoff_limit=1), LOST, record=first.record, now_s=110.0)

    assert (first.make, first.wake_s, later.make) == (0, 110.0, 1)
    over = plan(JobRules(backoff_limit=1), LOST, LOST, RUNS, record=first.record)
    assert outcome(over) == ("Failed", "BackoffLimitExceeded")
    assert over.record.message == "2 pods have failed, and backoffLimit is 1"
    assert over.end == ("p2",)


def test_starts_inside_a_pod_count_as_well() -> None:
    rules = JobRules(backoff_limit=2, restarts_inside=True)

    assert outcome(plan(rules, replace(RUNS, restarts=1))) == ("", "")
    assert outcome(plan(rules, replace(RUNS, restarts=2))) == ("Failed", "BackoffLimitExceeded")
    assert outcome(plan(replace(rules, restarts_inside=False), replace(RUNS, restarts=2))) == ("", "")


def test_it_fails_when_its_time_is_over_and_the_time_begins_anew_after_a_pause() -> None:
    rules = JobRules(deadline_s=60)
    begun = plan(rules, RUNS)

    assert begun.wake_s == 160.0
    over = plan(rules, RUNS, record=begun.record, now_s=160.0)
    assert (outcome(over), over.end) == (("Failed", "DeadlineExceeded"), ("p0",))
    held = plan(replace(rules, is_suspended=True), RUNS, record=begun.record, now_s=150.0)
    assert (held.record.started_s, held.make, held.end) == (0.0, 0, ("p0",))
    assert plan(rules, record=held.record, now_s=500.0).record.started_s == 500.0


def test_what_ends_without_an_outcome_is_made_again_and_not_counted() -> None:
    gone = replace(RUNS, is_ending=True)

    assert (plan(JobRules(), gone).make, plan(JobRules(), gone).record.failed) == (1, 0)
    assert plan(JobRules(waits_for_ends=True), gone).make == 0


def test_pods_of_another_template_end_before_the_first_of_the_new_one() -> None:
    former = replace(RUNS, revision="b")

    assert (plan(JobRules(), former).make, plan(JobRules(), former).end) == (0, ("p0",))
    assert plan(JobRules(), replace(former, is_ending=True)).make == 0
    assert plan(JobRules()).make == 1


def test_what_finished_long_ago_may_go() -> None:
    finished = plan(JobRules(keeps_finished_s=30), DONE)

    assert (finished.wake_s, finished.is_expired) == (130.0, False)
    expired = plan(JobRules(keeps_finished_s=30), DONE, record=finished.record, now_s=130.0)
    assert (expired.is_expired, expired.wake_s) == (True, None)
    assert not plan(JobRules(), DONE, record=finished.record, now_s=9e9).is_expired


def test_of_many_pods_that_are_over_the_last_ones_stay_once_they_are_counted() -> None:
    pods = [DONE] * (MOST_KEPT + 2)

    assert plan(JobRules(completions=99), *pods).end == ("p0", "p1")


def test_a_clock_that_is_set_changes_no_duration() -> None:
    """WL-5: neither the pause after a failure nor the deadline; also over a restart of kepd."""
    day_s, rules = 86_400.0, JobRules(deadline_s=3600)
    early, late = Boot("b", 0.0), Boot("b", 1000 * day_s)
    begun = plan_job(rules, NEW, [], 60.0, CURVE, early).record
    after_ntp = plan_job(rules, begun, [RUNS], 1000 * day_s + 90.0, CURVE, late)
    over = plan_job(rules, after_ntp.record, [RUNS], 1000 * day_s + 3661.0, CURVE, late)
    failed = plan_job(JobRules(), begun, [LOST], 1000 * day_s + 90.0, CURVE, late).record
    back = plan_job(JobRules(), failed, [LOST], 101.0, CURVE, early)
    reboot = plan_job(JobRules(), failed, [LOST], 500.0, CURVE, Boot("c", 400.0))

    assert (after_ntp.record.outcome, after_ntp.wake_s) == ("", 1000 * day_s + 3660.0)
    assert over.record.reason == "DeadlineExceeded"
    assert (back.make, back.record.outcome) == (1, ""), "ten seconds have passed"
    assert (reboot.make, reboot.wake_s) == (0, 510.0), "a time ahead of now counts as now"
