# SPDX-License-Identifier: Apache-2.0
"""What a CronJob does next, for each policy, after outages, and when clock or schedule change."""

from datetime import UTC, datetime
from random import Random
from zoneinfo import ZoneInfo

import msgspec
import pytest

from agent.pods.manifest.objects import NodeIdentity, parse_objects
from agent.pods.workloads.cron_job import (
    CronJob,
    CronPlan,
    CronRecord,
    cron_status,
    decode_cron_record,
    finished,
    plan_cron,
    without_job,
)
from agent.pods.workloads.cron_reading import made_job
from tests.pods.workloads.cron_oracle import ZONES, all_times, random_moment, random_schedule

NODE = NodeIdentity("n", has_name_suffix=True)
START_S = int(datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC).timestamp())


def cron_job(schedule: str = "*/10 * * * *", more: str = "", job: str = "", image: str = "i") -> bytes:
    return f"""
apiVersion: batch/v1
kind: CronJob
metadata: {{name: backup}}
spec:
  schedule: "{schedule}"
{more}
  jobTemplate:
    metadata: {{labels: {{app: backup}}, annotations: {{a: b}}}}
    spec:
{job}
      template:
        spec:
          restartPolicy: Never
          containers: [{{name: a, image: {image}, imagePullPolicy: IfNotPresent}}]
""".encode()


def read(content: bytes) -> CronJob:
    found = parse_objects("/m/f", content, NODE)
    assert found.findings == []
    made = found.workloads[0]
    assert isinstance(made, CronJob)
    return made


def new(job: CronJob, now_s: float = START_S) -> CronRecord:
    return plan_cron(job, CronRecord(namespace="default", name="backup"), UTC, now_s).record


def reasons(plan: CronPlan) -> list[str]:
    return [one.reason for one in plan.news]


def names(record: CronRecord) -> list[str]:
    return [one.name for one in record.jobs]


def minute(text: str) -> int:
    return int(datetime.fromisoformat(f"2026-03-01T{text}Z").timestamp())


def over(record: CronRecord, *which: str, outcome: str = "Complete", at_s: float = START_S) -> CronRecord:
    for name in which:
        record, _ = finished(record, name, outcome, at_s)
    return record


def test_a_new_cron_job_makes_nothing_before_its_time_and_then_one_job_with_what_it_is_for() -> None:
    """CJ-3."""
    job = read(cron_job())
    first = plan_cron(job, CronRecord(namespace="default", name="backup"), UTC, START_S)
    early = plan_cron(job, first.record, UTC, minute("12:09:59"))
    due = plan_cron(job, first.record, UTC, minute("12:10:00"))

    assert ([], minute("12:10"), START_S) == (reasons(first), first.wake_s, first.record.created_s)
    assert first.record == early.record
    assert reasons(due) == ["SuccessfulCreate"]
    assert [f"backup-{minute('12:10') // 60}"] == names(due.record)
    assert (minute("12:10"), minute("12:20")) == (due.record.last_s, due.wake_s)
    made = made_job(due.record.jobs[0].document, "CronJob default/backup", "n", {})
    assert dict(made.labels) == {"app": "backup"}
    assert dict(made.annotations) == {
        "a": "b",
        "batch.kubernetes.io/cronjob-scheduled-timestamp": "2026-03-01T12:10:00+00:00",
    }
    owner = due.record.jobs[0].document["metadata"]["ownerReferences"][0]  # type: ignore[index]
    assert ("CronJob", "backup", job.uid, True) == (owner["kind"], owner["name"], owner["uid"], owner["controller"])


def test_the_same_moment_makes_no_second_job_however_often_it_is_looked_at() -> None:
    """CJ-3."""
    job = read(cron_job())
    due = plan_cron(job, new(job), UTC, minute("12:10"))
    again = plan_cron(job, due.record, UTC, minute("12:10"))
    deleted = plan_cron(job, without_job(due.record, names(due.record)[0]), UTC, minute("12:15"))

    assert (due.record, ()) == (again.record, again.news)
    assert (names(deleted.record), deleted.news) == ([], ())


def test_after_an_outage_the_latest_missed_time_alone_is_made_up_for() -> None:
    """CJ-4."""
    job = read(cron_job())
    back = plan_cron(job, new(job), UTC, minute("17:03"))

    assert reasons(back) == ["SuccessfulCreate"]
    assert [f"backup-{minute('17:00') // 60}"] == names(back.record)
    assert "180 s late" in back.record.verdict.message


def test_more_than_a_hundred_missed_times_are_warned_of_and_the_latest_begins_all_the_same() -> None:
    """CJ-4."""
    job, at_s = read(cron_job()), START_S + 3 * 86_400
    hundred = plan_cron(job, new(job), UTC, START_S + 100 * 600)
    more = plan_cron(job, new(job), UTC, START_S + 101 * 600)
    counted_back = plan_cron(read(cron_job(more="  startingDeadlineSeconds: 7200")), new(job), UTC, at_s)

    assert reasons(hundred) == ["SuccessfulCreate"]
    assert reasons(more) == ["TooManyMissedTimes", "SuccessfulCreate"]
    assert [one.is_warning for one in more.news] == [True, False]
    assert reasons(counted_back) == ["SuccessfulCreate"], "the deadline is counted back from now"


def test_a_start_beyond_its_deadline_is_missed_and_told_once() -> None:
    """CJ-4."""
    job = read(cron_job(more="  startingDeadlineSeconds: 60"))
    in_time = plan_cron(job, new(job), UTC, minute("12:11:00"))
    late = plan_cron(job, new(job), UTC, minute("12:11:01"))
    again = plan_cron(job, late.record, UTC, minute("12:12:00"))
    following = plan_cron(job, late.record, UTC, minute("12:20:00"))

    assert reasons(in_time) == ["SuccessfulCreate"]
    assert (reasons(late), names(late.record)) == (["MissSchedule"], [])
    assert reasons(again) == []
    assert minute("12:20") == again.wake_s
    assert reasons(following) == ["SuccessfulCreate"]


def test_forbid_waits_for_the_job_that_runs_and_then_makes_up_for_the_latest_time() -> None:
    """CJ-5."""
    job = read(cron_job(more="  concurrencyPolicy: Forbid"))
    first = plan_cron(job, new(job), UTC, minute("12:10"))
    held = plan_cron(job, first.record, UTC, minute("12:20"))
    told_once = plan_cron(job, held.record, UTC, minute("12:29"))
    later = plan_cron(job, held.record, UTC, minute("12:30"))
    freed = plan_cron(job, over(later.record, *names(first.record)), UTC, minute("12:31"))

    assert (["JobAlreadyActive"], names(first.record)) == (reasons(held), names(held.record))
    assert reasons(told_once) == []
    assert reasons(later) == ["JobAlreadyActive"]
    assert f"backup-{minute('12:30') // 60}" in names(freed.record)


def test_replace_ends_the_job_that_runs_and_allow_leaves_it() -> None:
    """CJ-5."""
    replacing, allowing = read(cron_job(more="  concurrencyPolicy: Replace")), read(cron_job())
    first = plan_cron(allowing, new(allowing), UTC, minute("12:10")).record
    replaced = plan_cron(replacing, first, UTC, minute("12:20"))
    both = plan_cron(allowing, first, UTC, minute("12:20"))

    assert reasons(replaced) == ["SuccessfulDelete", "SuccessfulCreate"]
    assert [f"backup-{minute('12:20') // 60}"] == names(replaced.record)
    assert [f"backup-{minute(at) // 60}" for at in ("12:10", "12:20")] == names(both.record)


def test_a_suspended_one_starts_nothing_and_makes_up_for_the_latest_time_when_it_goes_on() -> None:
    """CJ-4."""
    job, held = read(cron_job()), read(cron_job(more="  suspend: true"))
    quiet = plan_cron(held, new(job), UTC, minute("13:05"))
    on = plan_cron(job, quiet.record, UTC, minute("13:06"))

    assert (reasons(quiet), quiet.wake_s) == ([], None)
    assert [f"backup-{minute('13:00') // 60}"] == names(on.record)


@pytest.mark.parametrize("change", [{"schedule": "*/7 * * * *"}, {"more": "  timeZone: Asia/Tokyo"}])
def test_another_schedule_or_zone_counts_from_its_change_on(change: dict[str, str]) -> None:
    """CJ-4."""
    job = read(cron_job(**change))
    changed = plan_cron(job, new(read(cron_job())), UTC, minute("12:55"))

    assert ([], minute("12:55")) == (reasons(changed), changed.record.since_s)


def test_another_template_does_not_change_a_job_that_is_there_and_counts_for_the_next() -> None:
    """CJ-3."""
    first = plan_cron(read(cron_job()), new(read(cron_job())), UTC, minute("12:10")).record
    second = plan_cron(read(cron_job(image="j")), first, UTC, minute("12:20")).record
    templates = [made_job(one.document, "x", "n", {}).template.spec.containers[0].image for one in second.jobs]

    assert templates == ["i", "j"]


def test_a_clock_that_goes_back_starts_no_time_twice() -> None:
    """CJ-4."""
    job = read(cron_job())
    record = plan_cron(job, new(job), UTC, minute("12:30")).record
    made = []
    for at in ("12:10", "12:20", "12:29:59", "12:30", "12:31"):
        plan = plan_cron(job, record, UTC, minute(at))
        record, made = plan.record, made + reasons(plan)

    assert made == []
    assert reasons(plan_cron(job, record, UTC, minute("12:40"))) == ["SuccessfulCreate"]


def test_periods_below_a_minute_start_once_a_minute() -> None:
    """CJ-3. Jobs are called after their minute."""
    job = read(cron_job("@every 10s"))
    record, made = new(job), []
    for now_s in range(START_S, START_S + 180):
        plan = plan_cron(job, record, UTC, now_s)
        record, made = plan.record, made + [now_s] * ("SuccessfulCreate" in reasons(plan))

    assert 4 == len(made) == len(set(names(record)))


def test_the_oldest_jobs_that_are_over_go_beyond_the_limits() -> None:
    """CJ-6."""
    job = read(cron_job("* * * * *", "  successfulJobsHistoryLimit: 2\n  failedJobsHistoryLimit: 1"))
    record = new(job)
    for at in range(1, 8):
        record = plan_cron(job, record, UTC, START_S + 60 * at).record
    first, *rest = names(record)
    record = over(record, *rest[:3])
    record = over(record, *rest[3:5], outcome="Failed")
    plan = plan_cron(job, record, UTC, record.last_s + 1)

    assert reasons(plan) == ["SuccessfulDelete"] * 2
    assert [first, *rest[1:3], rest[4], rest[5]] == names(plan.record)
    none = read(cron_job("* * * * *", "  successfulJobsHistoryLimit: 0\n  failedJobsHistoryLimit: 0"))
    assert [first, rest[5]] == names(plan_cron(none, record, UTC, record.last_s + 1).record)


def test_ttl_of_the_template_takes_a_job_away_and_wakes_for_it() -> None:
    """CJ-6."""
    job = read(cron_job(job="      ttlSecondsAfterFinished: 30"))
    record = plan_cron(job, new(job), UTC, minute("12:10")).record
    record = over(record, *names(record), at_s=minute("12:11"))
    waits = plan_cron(job, record, UTC, minute("12:11:10"))
    gone = plan_cron(job, record, UTC, minute("12:11:30"))

    assert (minute("12:11:30"), 1) == (waits.wake_s, len(waits.record.jobs))
    assert (reasons(gone), names(gone.record)) == (["SuccessfulDelete"], [])


def test_the_end_of_a_job_is_told_once_and_a_good_one_is_remembered() -> None:
    job = read(cron_job())
    record = plan_cron(job, new(job), UTC, minute("12:10")).record
    ended, news = finished(record, names(record)[0], "Complete", minute("12:12"))

    assert [f"Saw completed job: {names(record)[0]}, condition: Complete"] == [one.message for one in news]
    assert (ended, ()) == finished(ended, names(record)[0], "Failed", minute("12:15"))
    assert (ended, ()) == finished(ended, "other", "Failed", minute("12:15"))
    assert minute("12:12") == ended.succeeded_s


def test_what_hinders_a_job_is_told_once_and_it_is_made_when_nothing_does() -> None:
    job = read(cron_job())
    held = plan_cron(job, new(job), UTC, minute("12:10"), lambda _: "no room")
    again = plan_cron(job, held.record, UTC, minute("12:11"), lambda _: "no room")
    free = plan_cron(job, again.record, UTC, minute("12:12"))

    assert reasons(held) == ["FailedCreate"]
    assert reasons(again) == []
    assert reasons(free) == ["SuccessfulCreate"]


def test_the_status_has_what_runs_what_was_last_and_what_comes_next() -> None:
    """CJ-7."""
    job = read(cron_job("0 2 * * *", "  timeZone: Europe/Berlin"))
    zone = ZoneInfo("Europe/Berlin")
    start_s = int(datetime(2026, 3, 27, 12, tzinfo=UTC).timestamp())
    record = plan_cron(job, new(job, start_s), zone, start_s + 86_400).record
    status = cron_status(job, record, "n", zone, start_s + 86_400)

    assert names(record) == [one["name"] for one in status["active"]]  # type: ignore[attr-defined]
    assert status["lastScheduleTime"] == "2026-03-28T01:00:00Z"
    assert [f"2026-{day}T02:00:00+02:00" for day in ("03-30", "03-31", "04-01", "04-02", "04-03")] == status[
        "nextScheduleTimes"
    ], "on the 29th the clock skips that hour"


def test_a_record_comes_back_from_the_disk_as_it_was_and_another_is_refused() -> None:
    job = read(cron_job())
    record = plan_cron(job, new(job), UTC, minute("12:10")).record

    assert record == decode_cron_record(msgspec.json.encode(record))
    for content in (b"", b"[]", b"{}", msgspec.json.encode(msgspec.structs.replace(record, format=2))):
        with pytest.raises(ValueError, match=r"."):
            decode_cron_record(content)


@pytest.mark.parametrize("part", range(4))
def test_random_outages_never_start_a_time_twice_and_always_the_latest(part: int) -> None:
    """CJ-4. Looks at random moments; now and then the clock is set back. What begins is what the oracle says."""
    random = Random(part)
    for _ in range(25):
        made, zone = random_schedule(random), ZoneInfo(random.choice(ZONES))
        job = read(cron_job(made.text.replace("\t", " "), f"  timeZone: {zone.key}"))
        now_s = random_moment(random, zone)
        record = plan_cron(job, CronRecord(namespace="default", name="backup"), zone, now_s).record
        used: list[int] = []
        base_s = now_s
        for _ in range(12):
            now_s += random.choice((-4_000, -60, 1, 59, 60, 3_600, 20_000, 90_000))
            before = record
            plan = plan_cron(job, record, zone, now_s)
            record = plan.record
            expected = all_times(made, zone, base_s, now_s) if now_s > base_s else []
            assert (expected[-1:] or [before.last_s]) == [record.last_s], (made.text, zone.key, now_s)
            if expected:
                base_s = expected[-1]
                used.append(base_s)
        assert len(used) == len(set(used)) == len(set(names(record)))


@pytest.mark.parametrize("has_run", [False, True])
def test_what_a_wrong_clock_used_up_comes_again_once_it_is_right(has_run: bool) -> None:
    """CJ-4. Its years are gone, with a word about it, and the Job that is there is not made again."""
    job, years_s = read(cron_job("@hourly")), 10 * 365 * 86_400
    record = new(job) if has_run else CronRecord(namespace="default", name="backup")
    record = plan_cron(job, record, UTC, START_S + years_s).record
    right = plan_cron(job, record, UTC, START_S + 60)
    again = plan_cron(job, right.record, UTC, START_S + 120)
    later = plan_cron(job, right.record, UTC, START_S + 2 * 3600)
    status = cron_status(job, right.record, "n", UTC, START_S + 60)

    assert len(record.jobs) == int(has_run)
    assert reasons(right) == ["ClockWasAhead"]
    assert (reasons(again), reasons(later)) == ([], ["SuccessfulCreate"])
    assert "times were used up to 203" in str(right.news[0].message)
    assert str(status["nextScheduleTimes"]).count("202") == 5
