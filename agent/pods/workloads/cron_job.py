# SPDX-License-Identifier: Apache-2.0
"""What a CronJob does next: which Job it makes, which of its Jobs go, and what is written down.

A record has both the last time that was used and the Jobs with all they say. One write of it makes a Job, so that no
death of kepd comes between the time and its Job: nothing begins twice, and a later edit changes no Job that is there.
Of all times that were missed the latest alone counts, and no time up to the last one used does. Where that is further
ahead of now than a clock is corrected by, the clock was wrong, and times count from now on.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo

import msgspec
from msgspec.structs import replace

from agent.model.pods.wall_clock import stamp
from agent.model.text.json_text import decode_record
from agent.pods.workloads.cron_schedule import Every, Schedule, count_times, latest_time, next_time
from agent.pods.workloads.job import COMPLETE
from agent.pods.workloads.workload import Workload, workload_uid

CRON_JOB, JOB = "CronJob", "Job"
ALLOW, FORBID, REPLACE = "Allow", "Forbid", "Replace"
FOLDER = "cronjobs"
FORMAT = 1
MOST_MISSED = 100
MOST_NEXT = 5
CORRECTED_S = 6 * 3600
"""By which a clock may be set back without a time that comes twice."""
SCHEDULED_AT = "batch.kubernetes.io/cronjob-scheduled-timestamp"
Status = dict[str, object]


class CronRules(msgspec.Struct, frozen=True, kw_only=True):
    """`zone` is empty for that of the node. `text` is the schedule as its manifest has it."""

    schedule: Schedule = Every(3600)
    text: str = ""
    zone: str = ""
    policy: str = ALLOW
    deadline_s: int | None = None
    is_suspended: bool = False
    keeps_succeeded: int = 3
    keeps_failed: int = 1


@dataclass(frozen=True, kw_only=True)
class CronJob(Workload):
    """As a workload it has the pods of one Job, and makes none itself. `job` is its jobTemplate as written."""

    cron: CronRules = field(default_factory=CronRules)
    job: Mapping[str, object] = field(default_factory=dict)


class MadeJob(msgspec.Struct, frozen=True, kw_only=True):
    """`document` is its manifest. `outcome` is empty while it is not over."""

    name: str
    scheduled_s: int
    document: dict[str, object]
    outcome: str = ""
    finished_s: float = 0.0
    keeps_finished_s: int | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the latest time that came."""

    due_s: int = 0
    reason: str = ""
    message: str = ""


class CronRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Wall time; 0 for what has not happened. No time up to `since_s` counts: then it, or its present schedule, was
    first seen."""

    namespace: str
    name: str
    file: str = ""
    created_s: float = 0.0
    schedule: tuple[str, str] = ("", "")
    since_s: int = 0
    last_s: int = 0
    succeeded_s: float = 0.0
    jobs: tuple[MadeJob, ...] = ()
    verdict: Verdict = Verdict()
    format: int = FORMAT

    @property
    def key(self) -> tuple[str, str, str]:
        return CRON_JOB, self.namespace, self.name

    @property
    def base_s(self) -> int:
        return max(self.since_s, self.last_s)

    @property
    def active(self) -> tuple[MadeJob, ...]:
        return tuple(one for one in self.jobs if not one.outcome)


class News(msgspec.Struct, frozen=True):
    reason: str
    message: str
    is_warning: bool = False


class CronPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`record` is written before anything is told or done."""

    record: CronRecord
    news: tuple[News, ...] = ()
    wake_s: float | None = None


def plan_cron(
    job: CronJob, record: CronRecord, zone: tzinfo, now_s: float, why_not: Callable[[str], str] = lambda _: ""
) -> CronPlan:
    """`why_not` says why a Job of that name cannot be made."""
    rules = job.cron
    schedule = (rules.text, rules.zone)
    if record.schedule != schedule or record.file != job.file:
        # With another schedule nothing is missed: what comes from now on counts.
        since_s = record.since_s if record.schedule == schedule else int(now_s)
        record = replace(record, schedule=schedule, since_s=since_s, file=job.file, created_s=record.created_s or now_s)
    record, news = _cleaned(rules, record, now_s)
    if record.base_s > now_s + CORRECTED_S:
        record, more = _set_back(record, zone, int(now_s))
        news = (*news, *more)
    if not rules.is_suspended and now_s >= record.base_s:
        due_s = latest_time(rules.schedule, zone, record.base_s, int(now_s))
        # A Job is called after its minute, so that no other can begin in it.
        if due_s is not None and due_s // 60 != record.last_s // 60:
            record, more = _judged(job, record, zone, due_s, int(now_s), why_not(job_name(job.name, due_s)))
            news = (*news, *more)
    wakes = [at_s for one in record.jobs if (at_s := _expires_s(one)) is not None and at_s > now_s]
    if not rules.is_suspended:
        next_s = next_time(rules.schedule, zone, record.base_s, int(now_s))
        wakes += [next_s] if next_s is not None else []
    return CronPlan(record=record, news=news, wake_s=min(wakes, default=None))


def _set_back(record: CronRecord, zone: tzinfo, now_s: int) -> tuple[CronRecord, tuple[News, ...]]:
    """What a clock that was ahead used up comes again."""
    text = f"the clock was ahead: times were used up to {_told_time(record.base_s, zone)}; they count from now on"
    verdict = Verdict(due_s=now_s, reason="ClockWasAhead", message=text)
    jobs = tuple(replace(made, finished_s=min(made.finished_s, now_s)) for made in record.jobs)
    record = replace(
        record, jobs=jobs, since_s=now_s, last_s=min(record.last_s, now_s), created_s=min(record.created_s, now_s),
        succeeded_s=min(record.succeeded_s, now_s), verdict=verdict,
    )  # fmt: skip
    return record, (News(verdict.reason, text, is_warning=True),)


def _judged(
    job: CronJob, record: CronRecord, zone: tzinfo, due_s: int, now_s: int, why_not: str
) -> tuple[CronRecord, tuple[News, ...]]:
    """A time has come that is not used yet: it makes a Job, or there is a reason against it."""
    rules = job.cron
    name, at = job_name(job.name, due_s), _told_time(due_s, zone)
    if rules.deadline_s is not None and due_s + rules.deadline_s < now_s:
        text = f"missed the start of {at} by {now_s - due_s} s; startingDeadlineSeconds is {rules.deadline_s}"
        return _refused(record, Verdict(due_s=due_s, reason="MissSchedule", message=text), is_warning=True)
    if rules.policy == FORBID and record.active:
        text = f"nothing starts for {at}: job {record.active[0].name} still runs, and concurrencyPolicy is Forbid"
        return _refused(record, Verdict(due_s=due_s, reason="JobAlreadyActive", message=text))
    if not why_not and any(made.name == name for made in record.jobs):
        why_not = "one of that name was made while the clock was ahead"
    if why_not:
        text = f"job {name} for {at} cannot be made: {why_not}"
        return _refused(record, Verdict(due_s=due_s, reason="FailedCreate", message=text), is_warning=True)
    news = []
    first_s = record.base_s if rules.deadline_s is None else max(record.base_s, now_s - rules.deadline_s)
    if count_times(rules.schedule, zone, first_s, due_s, MOST_MISSED + 1) > MOST_MISSED:
        text = f"more than {MOST_MISSED} starts were missed, and the latest alone is made up for"
        more = "set or decrease startingDeadlineSeconds, or see whether the clock was wrong"
        news.append(News("TooManyMissedTimes", f"{text}; {more}", is_warning=True))
    gone = record.active if rules.policy == REPLACE else ()
    news += [News("SuccessfulDelete", f"Deleted job {one.name}, which {name} replaces") for one in gone]
    news.append(News("SuccessfulCreate", f"Created job {name}"))
    made = MadeJob(
        name=name,
        scheduled_s=due_s,
        document=_document(job, name, due_s, zone),
        keeps_finished_s=getattr(job.rules, "keeps_finished_s", None),
    )
    late = f", {now_s - due_s} s late" if now_s - due_s >= 60 else ""
    verdict = Verdict(due_s=due_s, reason="SuccessfulCreate", message=f"job {name} was made for {at}{late}")
    kept = tuple(one for one in record.jobs if one not in gone)
    return replace(record, last_s=due_s, jobs=(*kept, made), verdict=verdict), tuple(news)


def _refused(record: CronRecord, verdict: Verdict, *, is_warning: bool = False) -> tuple[CronRecord, tuple[News, ...]]:
    """Told once for each time that comes."""
    if (record.verdict.due_s, record.verdict.reason) == (verdict.due_s, verdict.reason):
        return record, ()
    return replace(record, verdict=verdict), (News(verdict.reason, verdict.message, is_warning),)


def _cleaned(rules: CronRules, record: CronRecord, now_s: float) -> tuple[CronRecord, tuple[News, ...]]:
    """Without Jobs that are over for longer than they, or more than the CronJob, want to be kept."""
    over = sorted((one for one in record.jobs if one.outcome), key=lambda one: (one.scheduled_s, one.name))
    good = [one for one in over if one.outcome == COMPLETE]
    bad = [one for one in over if one.outcome != COMPLETE]
    gone = good[: max(len(good) - rules.keeps_succeeded, 0)] + bad[: max(len(bad) - rules.keeps_failed, 0)]
    gone += [one for one in over if one not in gone and (_expires_s(one) or now_s + 1) <= now_s]
    if not gone:
        return record, ()
    kept = tuple(one for one in record.jobs if one not in gone)
    return replace(record, jobs=kept), tuple(News("SuccessfulDelete", f"Deleted job {one.name}") for one in gone)


def _expires_s(one: MadeJob) -> float | None:
    return one.finished_s + one.keeps_finished_s if one.outcome and one.keeps_finished_s is not None else None


def finished(record: CronRecord, name: str, outcome: str, finished_s: float) -> tuple[CronRecord, tuple[News, ...]]:
    """A Job is over; told once."""
    if all(one.name != name or one.outcome for one in record.jobs):
        return record, ()
    jobs = tuple(
        replace(one, outcome=outcome, finished_s=finished_s) if one.name == name else one for one in record.jobs
    )
    succeeded_s = max(record.succeeded_s, finished_s) if outcome == COMPLETE else record.succeeded_s
    news = News("SawCompletedJob", f"Saw completed job: {name}, condition: {outcome}")
    return replace(record, jobs=jobs, succeeded_s=succeeded_s), (news,)


def without_job(record: CronRecord, name: str) -> CronRecord:
    """Somebody deletes it; its time counts as used."""
    return replace(record, jobs=tuple(one for one in record.jobs if one.name != name))


def job_name(name: str, scheduled_s: int) -> str:
    return f"{name}-{scheduled_s // 60}"


def owner_text(namespace: str, name: str) -> str:
    """Where Jobs are that no file has."""
    return f"{CRON_JOB} {namespace}/{name}"


def _document(job: CronJob, name: str, scheduled_s: int, zone: tzinfo) -> dict[str, object]:
    given = job.job.get("metadata")
    metadata = given if isinstance(given, dict) else {}
    annotations = metadata.get("annotations") or {}
    owner = {
        "apiVersion": "batch/v1", "kind": CRON_JOB, "name": job.name, "uid": job.uid,
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    return {
        "apiVersion": "batch/v1",
        "kind": JOB,
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": metadata.get("labels") or {},
            "annotations": {**annotations, SCHEDULED_AT: datetime.fromtimestamp(scheduled_s, zone).isoformat()},
            "ownerReferences": [owner],
        },
        "spec": job.job.get("spec") or {},
    }


def cron_status(job: CronJob, record: CronRecord, node: str, zone: tzinfo, now_s: float) -> Status:
    """As Kubernetes has it; the condition, about the latest time that came, and the next times are kepd's."""
    status: Status = {}
    if record.active:
        status["active"] = list(_references(job, record, node))
    if record.last_s:
        status["lastScheduleTime"] = stamp(record.last_s)
    if record.succeeded_s:
        status["lastSuccessfulTime"] = stamp(record.succeeded_s)
    verdict = record.verdict
    condition = {
        "type": "Scheduled",
        "status": str(verdict.reason == "SuccessfulCreate"),
        "reason": verdict.reason or "NotYet",
        "message": verdict.message or "no time has come since kepd first saw this schedule",
        "lastTransitionTime": stamp(verdict.due_s or record.since_s),
    }
    next_times = [
        datetime.fromtimestamp(one, zone).isoformat() for one in _next_times(job.cron, record, zone, int(now_s))
    ]
    return {**status, "conditions": [condition], "nextScheduleTimes": next_times}


def _next_times(rules: CronRules, record: CronRecord, zone: tzinfo, now_s: int) -> Iterator[int]:
    """None while it is suspended; what comes in the minute of another makes no Job."""
    base_s = at_s = record.base_s
    for _ in range(0 if rules.is_suspended else MOST_NEXT):
        next_s = next_time(rules.schedule, zone, base_s, max(at_s, now_s))
        if next_s is None:
            return
        yield next_s
        at_s = next_s


def _references(job: CronJob, record: CronRecord, node: str) -> Iterator[Mapping[str, str]]:
    for one in record.active:
        uid = workload_uid(JOB, job.namespace, one.name, node)
        yield {"apiVersion": "batch/v1", "kind": JOB, "name": one.name, "namespace": job.namespace, "uid": uid}


def _told_time(moment_s: int, zone: tzinfo) -> str:
    return datetime.fromtimestamp(moment_s, zone).isoformat(" ")


def decode_cron_record(content: bytes) -> CronRecord:
    """Raises ValueError for what cannot be read."""
    return decode_record(content, CronRecord, FORMAT)
