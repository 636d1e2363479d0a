# SPDX-License-Identifier: Apache-2.0
"""Jobs whose pods have an index: of each index one succeeds, some may fail, and rules say what that means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.model.pods.container_fields import Container
from agent.model.pods.fields import PodFields
from agent.pods.plan.restart import RestartCurve
from agent.pods.workloads.job import JobPlan, JobRecord, JobRules, decode_job_record, plan_job
from agent.pods.workloads.job_rules import (
    ExitCodes,
    FailureRule,
    PodCondition,
    SuccessRule,
    action_for,
    indexed_spec,
    indexes_in,
    indexes_text,
    is_success,
)
from agent.pods.workloads.rollout import OwnedPod

CURVE = RestartCurve(first_s=10, longest_s=300)
NEW = JobRecord(namespace="default", name="j", revision="a")
RULES = JobRules(is_indexed=True, completions=4, parallelism=2, backoff_limit=100)


def pod(index: int, phase: str = "Running", number: int = 0, **more: object) -> OwnedPod:
    made = OwnedPod(uid=f"{index}-{number}", revision="a", ordinal=index, phase=phase, age=number)
    return replace(made, **more)


def plan(rules: JobRules, *pods: OwnedPod, record: JobRecord = NEW, now_s: float = 100.0) -> JobPlan:
    return plan_job(rules, record, list(pods), now_s, CURVE)


def test_the_lowest_indexes_come_first_and_each_has_one_pod() -> None:
    assert plan(RULES).indexes == (0, 1)
    done = plan(RULES, pod(0, "Succeeded"), pod(1))
    assert (done.indexes, done.record.indexed.succeeded, done.record.succeeded) == ((2,), (0,), 1)
    twice = plan(RULES, pod(1, number=1), pod(1, number=2))
    assert (twice.end, twice.indexes) == (("1-2",), ())


def test_an_index_that_fails_too_often_fails_alone_and_the_others_go_on() -> None:
    rules = replace(RULES, limit_per_index=1)
    first = plan(rules, pod(0, "Failed"), pod(1))
    assert (first.indexes, first.record.indexed.failed) == ((0,), ())
    second = plan(rules, pod(0, "Failed"), pod(0, "Failed", 1), pod(1), record=first.record)
    assert (second.indexes, second.record.indexed.failed) == ((2,), (0,))
    others = [pod(index, "Succeeded") for index in (1, 2, 3)]
    last = plan(rules, pod(0, "Failed"), pod(0, "Failed", 1), *others, record=second.record)
    assert (last.record.outcome, last.record.reason) == ("Failed", "FailedIndexes")
    most = plan(replace(rules, most_failed_indexes=0), pod(0, "Failed"), pod(0, "Failed", 1), record=first.record)
    assert (most.record.outcome, most.record.reason) == ("Failed", "MaxFailedIndexesExceeded")


def test_a_job_is_complete_once_all_indexes_or_enough_of_them_have_succeeded() -> None:
    all_done = plan(RULES, *(pod(index, "Succeeded") for index in range(4)))
    assert (all_done.record.outcome, all_done.record.reason) == ("Complete", "CompletionsReached")
    rules = replace(RULES, successes=(SuccessRule(succeeded_indexes="1,3"),))
    enough = plan(rules, pod(0), pod(1, "Succeeded"), pod(3, "Succeeded"))
    assert (enough.record.outcome, enough.record.reason, enough.end) == ("Complete", "SuccessPolicy", ("0-0",))


def test_a_rule_of_failures_decides_what_one_means() -> None:
    rules = (
        FailureRule(action="Ignore", on_pod_conditions=(PodCondition(type="DisruptionTarget"),)),
        FailureRule(action="FailJob", on_exit_codes=ExitCodes(operator="In", values=(3,))),
        FailureRule(action="FailIndex", on_exit_codes=ExitCodes(container_name="a", operator="NotIn", values=(1,))),
    )
    assert action_for(rules, [("a", 3)], ["DisruptionTarget"])[0] == "Ignore"
    assert action_for(rules, [("b", 3)], [])[0] == "FailJob"
    assert action_for(rules, [("a", 2)], [])[0] == "FailIndex"
    assert action_for(rules, [("a", 1), ("a", 0)], [])[0] == "Count"
    job = replace(RULES, failures=rules, limit_per_index=5)
    ignored = plan(job, pod(0, "Failed", conditions=("DisruptionTarget",)))
    assert (ignored.record.failed, ignored.record.failed_in_a_row, ignored.indexes) == (0, 0, (0, 1))
    failed = plan(job, pod(0, "Failed", ends=(("b", 3),)), pod(1))
    assert (failed.record.outcome, failed.record.reason, failed.end) == ("Failed", "PodFailurePolicy", ("1-0",))
    final = plan(job, pod(0, "Failed", ends=(("a", 2),)))
    assert (final.record.indexed.failed, final.indexes) == ((0,), (1, 2))


def test_a_record_of_before_has_no_indexes_yet() -> None:
    assert decode_job_record(b'{"namespace":"n","name":"j","revision":"a","format":1}').indexed.succeeded == ()


@given(st.sets(st.integers(0, 30)))
def test_indexes_are_written_as_they_are_read(indexes: set[int]) -> None:
    assert set(indexes_in(indexes_text(indexes))) == indexes


@pytest.mark.parametrize(
    ("rule", "succeeded", "expected"),
    [
        (SuccessRule(succeeded_count=2), {1, 5}, True),
        (SuccessRule(succeeded_indexes="0-2", succeeded_count=2), {0, 5}, False),
        (SuccessRule(succeeded_indexes="0-2"), {0, 1, 2, 5}, True),
        (SuccessRule(succeeded_indexes="0-2"), set(), False),
    ],
)
def test_a_success_is_by_count_by_indexes_or_by_both(rule: SuccessRule, succeeded: set[int], expected: bool) -> None:
    assert is_success([rule], succeeded) is expected


def test_a_pod_knows_its_index() -> None:
    spec = indexed_spec(PodFields(containers=(Container(name="a"),)), "job", 3)
    assert (spec.hostname, spec.containers[0].env[-1].value) == ("job-3", "3")
