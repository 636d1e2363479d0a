# SPDX-License-Identifier: Apache-2.0
"""What a Job does next: which pods it makes and ends, and what is written down before.

The record comes first and is on the disk before a step is taken. Only what kepd wanted to run to its end is counted: a
pod that is deleted, or ended because the Job is suspended, is neither a success nor a failure, and is made again. Pods
are the first source, and they go: a pod is counted in the same write that notes its uid, and goes only afterwards, so
that no death of kepd counts it twice or never.
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from agent.model.pods.wall_clock import Boot, carried
from agent.model.text.json_text import decode_record
from agent.pods.plan.restart import RestartCurve
from agent.pods.workloads.job_rules import (
    FAIL_INDEX,
    FAIL_JOB,
    IGNORE,
    FailureRule,
    IndexedPart,
    SuccessRule,
    action_for,
    free_indexes,
    indexes_text,
    is_success,
)
from agent.pods.workloads.rollout import OwnedPod, worst_first

OVER = ("Succeeded", "Failed")
# Pods that are over stay for those who read their logs; of a Job with many the last ones.
MOST_KEPT = 10
FOLDER = "jobs"
FORMAT = 1
COMPLETE, FAILED = "Complete", "Failed"
NO_BOOT = Boot()


class JobRules(msgspec.Struct, frozen=True, kw_only=True):
    """`completions` None: it is complete when one pod has succeeded and no other runs."""

    completions: int | None = 1
    parallelism: int = 1
    backoff_limit: int = 6
    deadline_s: int | None = None
    keeps_finished_s: int | None = None
    is_suspended: bool = False
    waits_for_ends: bool = False
    """A pod that still ends counts as one that runs."""
    restarts_inside: bool = False
    """Containers that fail start again in their pod, and these starts count."""
    is_indexed: bool = False
    """Each pod has an index, and of each index one has to succeed."""
    limit_per_index: int | None = None
    most_failed_indexes: int | None = None
    failures: tuple[FailureRule, ...] = ()
    successes: tuple[SuccessRule, ...] = ()

    @property
    def most_pods(self) -> int:
        return 0 if self.is_suspended else self.parallelism


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Times are wall time, by the clock as it is set in `boot`; 0 for what has not happened. `revision` is the template
    that all of it is about."""

    kind: str = "Job"
    namespace: str
    name: str
    revision: str
    file: str = ""
    started_s: float = 0.0
    finished_s: float = 0.0
    succeeded: int = 0
    failed: int = 0
    failed_in_a_row: int = 0
    failed_s: float = 0.0
    counted: tuple[str, ...] = ()
    indexed: IndexedPart = IndexedPart()
    judged: str = ""
    """Why a pod's failure is that of the whole, by a rule of the Job."""
    outcome: str = ""
    reason: str = ""
    message: str = ""
    boot: Boot = Boot()
    format: int = FORMAT

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.namespace, self.name


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`record` is written before anything else is done. `is_expired`: it finished so long ago that it may go."""

    record: JobRecord
    make: int = 0
    indexes: tuple[int, ...] = ()
    """Of those that are made, where they have some."""
    end: tuple[str, ...] = ()
    wake_s: float | None = None
    is_expired: bool = False


def plan_job(
    rules: JobRules,
    record: JobRecord,
    pods: Sequence[OwnedPod],
    now_s: float,
    curve: RestartCurve,
    boot: Boot = NO_BOOT,
) -> JobPlan:
    record = _carried(record, boot, now_s)
    own = [one for one in pods if one.revision == record.revision]
    former = [one for one in pods if one.revision != record.revision]
    record = _begun(rules, _counted(rules, record, own, now_s), now_s)
    running = [one for one in own if one.phase not in OVER and not one.is_ending]
    ending = [one for one in own if one.phase not in OVER and one.is_ending]
    record = _judged(rules, record, own, now_s, is_idle=not running and not ending)
    dated = _dated(own, record)
    leaving = [one.uid for one in former if not one.is_ending] + dated
    if record.outcome:
        due_s = None if rules.keeps_finished_s is None else record.finished_s + rules.keeps_finished_s
        return JobPlan(
            record=record,
            end=(*leaving, *(one.uid for one in running)),
            wake_s=due_s if due_s is not None and due_s > now_s else None,
            is_expired=due_s is not None and now_s >= due_s and not running and not ending,
        )
    wanted = _wanted(rules, record)
    spare = worst_first(running)[: max(len(running) - wanted, 0)]
    held = len(ending) if rules.waits_for_ends else 0
    make = max(wanted - len(running) - held, 0)
    due_s = record.failed_s + curve.pause_s(record.failed_in_a_row)
    # Indexes have limits of their own, and one that fails keeps no other from its turn.
    is_paused = bool(record.failed_in_a_row) and now_s < due_s and rules.limit_per_index is None
    if former or is_paused:
        make = 0
    indexes: tuple[int, ...] = ()
    if rules.is_indexed and rules.completions is not None:
        spare += _twice([one for one in running if one not in spare], record)
        taken = {one.ordinal for one in (*running, *(ending if rules.waits_for_ends else ()))}
        indexes = free_indexes(record.indexed, rules.completions, taken, make)
        make = len(indexes)
    wakes = [due_s] if is_paused else []
    if rules.deadline_s is not None and record.started_s:
        wakes.append(record.started_s + rules.deadline_s)
    end = (*leaving, *(one.uid for one in spare))
    return JobPlan(record=record, make=make, indexes=indexes, end=end, wake_s=min(wakes, default=None))


def _twice(running: Sequence[OwnedPod], record: JobRecord) -> list[OwnedPod]:
    """Pods of an index that is over, or that an older one has."""
    seen, spare = set(record.indexed.over), []
    for one in sorted(running, key=lambda pod: pod.age):
        if one.ordinal in seen:
            spare.append(one)
        seen.add(one.ordinal)
    return spare


def _carried(record: JobRecord, boot: Boot, now_s: float) -> JobRecord:
    """With its times by the clock as it is set now."""
    started_s, failed_s, finished_s = (
        carried(wall_s, record.boot, boot, now_s) for wall_s in (record.started_s, record.failed_s, record.finished_s)
    )
    if boot.follows(record.boot):
        record = replace(record, boot=boot)
    return replace(record, started_s=started_s, failed_s=failed_s, finished_s=finished_s)


def _counted(rules: JobRules, record: JobRecord, own: Sequence[OwnedPod], now_s: float) -> JobRecord:
    over = [one for one in own if one.phase in OVER]
    known = set(record.counted)
    fresh = [one for one in over if one.uid not in known]
    counted = tuple(sorted(one.uid for one in over))
    if not fresh:
        return record if counted == record.counted else replace(record, counted=counted)
    part, judged, failed = record.indexed, record.judged, 0
    for one in fresh:
        if one.phase != "Failed":
            part = part.with_success(one.ordinal) if rules.is_indexed else part
            continue
        action, why = action_for(rules.failures, one.ends, one.conditions)
        if action == IGNORE:
            continue
        failed += 1
        judged = judged or (why if action == FAIL_JOB else "")
        if rules.is_indexed:
            part = part.with_failure(one.ordinal, rules.limit_per_index, is_final=action == FAIL_INDEX)
    done = sum(one.phase != "Failed" for one in fresh)
    in_a_row = record.failed_in_a_row if not done else 0
    return replace(
        record,
        counted=counted,
        indexed=part,
        judged=judged,
        succeeded=len(part.succeeded) if rules.is_indexed else record.succeeded + done,
        failed=record.failed + failed,
        failed_in_a_row=in_a_row + failed,
        failed_s=now_s if failed else record.failed_s,
    )


def _begun(rules: JobRules, record: JobRecord, now_s: float) -> JobRecord:
    """A Job that is suspended begins anew for its deadline when it goes on."""
    if record.outcome:
        return record
    if rules.is_suspended:
        return replace(record, started_s=0.0) if record.started_s else record
    return record if record.started_s else replace(record, started_s=now_s)


def _judged(rules: JobRules, record: JobRecord, own: Sequence[OwnedPod], now_s: float, *, is_idle: bool) -> JobRecord:
    if record.outcome:
        return record
    restarts = sum(one.restarts for one in own if one.phase not in OVER) if rules.restarts_inside else 0
    if record.judged:
        return replace(record, outcome=FAILED, reason="PodFailurePolicy", message=record.judged, finished_s=now_s)
    if rules.is_indexed and rules.completions is not None and (ended := _judged_indexes(rules, record)) is not None:
        return replace(ended, finished_s=now_s)
    if record.failed > rules.backoff_limit:
        text = f"{record.failed} pods have failed, and backoffLimit is {rules.backoff_limit}"
        return replace(record, outcome=FAILED, reason="BackoffLimitExceeded", message=text, finished_s=now_s)
    if restarts and restarts >= rules.backoff_limit:
        text = f"its containers were started again {restarts} times, and backoffLimit is {rules.backoff_limit}"
        return replace(record, outcome=FAILED, reason="BackoffLimitExceeded", message=text, finished_s=now_s)
    if rules.deadline_s is not None and record.started_s and now_s >= record.started_s + rules.deadline_s:
        text = f"it has run for longer than the {rules.deadline_s} seconds of activeDeadlineSeconds"
        return replace(record, outcome=FAILED, reason="DeadlineExceeded", message=text, finished_s=now_s)
    if rules.completions is None:
        is_complete, text = bool(record.succeeded) and is_idle, "a pod has succeeded, and no other runs"
    else:
        is_complete = record.succeeded >= rules.completions
        text = f"{record.succeeded} pods have succeeded, and completions is {rules.completions}"
    if not is_complete:
        return record
    return replace(record, outcome=COMPLETE, reason="CompletionsReached", message=text, finished_s=now_s)


def _judged_indexes(rules: JobRules, record: JobRecord) -> JobRecord | None:
    """None while indexes go on."""
    part, most = record.indexed, rules.most_failed_indexes
    if is_success(rules.successes, part.succeeded):
        text = f"indexes {indexes_text(part.succeeded)} have succeeded, and successPolicy asks for no more"
        return replace(record, outcome=COMPLETE, reason="SuccessPolicy", message=text)
    if most is not None and len(part.failed) > most:
        text = f"{len(part.failed)} indexes have failed, and maxFailedIndexes is {most}"
        return replace(record, outcome=FAILED, reason="MaxFailedIndexesExceeded", message=text)
    if part.failed and len(part.over) >= (rules.completions or 0):
        text = f"indexes {indexes_text(part.failed)} have failed"
        return replace(record, outcome=FAILED, reason="FailedIndexes", message=text)
    return None


def _wanted(rules: JobRules, record: JobRecord) -> int:
    """How many pods should run."""
    if rules.is_suspended:
        return 0
    if rules.completions is None:
        return 0 if record.succeeded else rules.parallelism
    return min(rules.parallelism, rules.completions - record.succeeded - len(record.indexed.failed))


def _dated(own: Sequence[OwnedPod], record: JobRecord) -> list[str]:
    over = sorted((one for one in own if one.phase in OVER and one.uid in record.counted), key=lambda one: one.age)
    return [one.uid for one in over[:-MOST_KEPT] if not one.is_ending]


def decode_job_record(content: bytes) -> JobRecord:
    """Raises ValueError for what cannot be read."""
    return decode_record(content, JobRecord, FORMAT)
