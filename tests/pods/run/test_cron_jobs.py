# SPDX-License-Identifier: Apache-2.0
"""CronJobs at work: their Jobs begin when their time comes, survive kepd, and go with them."""

from pathlib import Path
from typing import Any

import pytest

from agent.drivers.clock.driver import SystemClock
from agent.model.refused import Refused
from agent.pods.run.workloads import cron_jobs
from agent.pods.run.workloads.cron_jobs import node_zone
from agent.pods.workloads.workload import Key
from tests.fakes.manifests import FakeManifestDirectory
from tests.fakes.state_files import FakeStateFiles
from tests.pods.plane import AT_ONCE, DISKS, Killed, Plane, Slow, running
from tests.pods.run.test_workloads import FILE, exit_of, job, manifests, pods, ready
from tests.pods.workloads.test_cron_job import cron_job

HOUR_S = 3600
KEY = ("CronJob", "default", "backup")


class SetClock(SystemClock):
    """The clock of the node, that somebody sets."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 0.0

    def wall_s(self) -> float:
        return super().wall_s() + self.ahead_s


@pytest.fixture
def cri() -> Slow:
    made = Slow()
    made.registry.add("j")
    return made


def jobs(plane: Plane) -> list[str]:
    """Those that kepd carries out."""
    return sorted(key[2] for key in plane.runner.workloads._known if key[0] == "Job")


def told(plane: Plane) -> list[str]:
    return [one.reason for one in plane.events if one.object_kind == "CronJob"]


def status(plane: Plane) -> dict[str, Any]:
    return dict(plane.runner.workloads.status(KEY) or {})


def set_clock(plane: Plane, clock: SetClock, by_s: float) -> None:
    """And somebody looks at it, as kepd itself does each minute."""
    clock.ahead_s += by_s
    plane.runner.workloads.cron._changed.add(KEY)
    plane.runner.workloads.cron._bell.set()


async def until_seen(plane: Plane) -> None:
    await plane.until(lambda: status(plane), "the CronJob is known")


async def until_runs(plane: Plane, count: int = 1) -> None:
    await plane.until(lambda: ready(plane) == count, f"{count} ready pods")


async def end_all(plane: Plane, cri: Slow, code: int = 0) -> None:
    for one in pods(plane):
        if one.phase == "Running":
            await exit_of(cri, one, code)
    plane.runner.rounds.due.set()


async def until_done(plane: Plane, cri: Slow) -> None:
    """Its Job may be over already."""
    await plane.until(lambda: ready(plane) or status(plane).get("lastSuccessfulTime"), "its pod runs, or has ended")
    await end_all(plane, cri)
    await plane.until(lambda: status(plane).get("lastSuccessfulTime"), "its end is remembered")


async def test_when_its_time_comes_a_job_begins_and_is_followed_to_its_end(cri: Slow, tmp_path: Path) -> None:
    """CJ-3."""
    clock = SetClock()
    async with running(cri, manifests(cron_job("@hourly")), tmp_path, clock=clock) as plane:
        await until_seen(plane)
        assert (jobs(plane), status(plane)["conditions"][0]["reason"]) == ([], "NotYet")
        set_clock(plane, clock, HOUR_S)
        await until_runs(plane)
        active = status(plane)["active"]
        content = plane.runner.workloads.cron.files["CronJob default/backup"]
        await end_all(plane, cri)
        await plane.until(lambda: "SawCompletedJob" in told(plane), "it has seen the end")
        after = status(plane)

    assert jobs(plane) == [active[0]["name"]]
    assert active[0]["name"].encode() in content
    assert told(plane) == ["SuccessfulCreate", "SawCompletedJob"]
    assert ("active" in after, after["lastScheduleTime"] <= after["lastSuccessfulTime"]) == (False, True)


async def test_a_job_and_its_pods_survive_kepd_and_the_edit_of_the_template(cri: Slow, tmp_path: Path) -> None:
    """CJ-3."""
    clock, files = SetClock(), manifests(cron_job("@hourly"))
    async with running(cri, files, tmp_path, clock=clock) as plane:
        await until_seen(plane)
        set_clock(plane, clock, HOUR_S)
        await until_runs(plane)
        before, uid = jobs(plane), pods(plane)[0].uid
    files.put(FILE, cron_job("@hourly", image="j"))
    async with running(cri, files, tmp_path, clock=clock) as plane:
        await until_seen(plane)
        await until_runs(plane)
        await plane.rounds()
        assert (jobs(plane), [one.uid for one in pods(plane)]) == (before, [uid])
        assert pods(plane)[0].spec.containers[0].image == "i"
        set_clock(plane, clock, HOUR_S)
        await until_runs(plane, 2)

    assert sorted(one.spec.containers[0].image for one in pods(plane)) == ["i", "j"]


class MortalFiles(FakeStateFiles):
    """The process ends before, or after, the write of so many."""

    def __init__(self, files: FakeStateFiles, left: int, *, writes: bool) -> None:
        super().__init__()
        self.files, self._left, self._writes = files.files, left, writes

    async def write(self, name: str, content: bytes, *, is_durable: bool = True) -> None:
        self._left -= 1
        if self._left == 0 and not self._writes:
            raise Killed
        await super().write(name, content, is_durable=is_durable)
        if self._left == 0:
            raise Killed


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("survived", range(1, 9))
async def test_a_kepd_that_dies_at_any_write_begins_no_time_twice_and_leaves_none_out(
    cri: Slow, tmp_path: Path, survived: int, writes: bool
) -> None:
    """CJ-3. From the first look at the CronJob to the end of its Job: before and after each write of the disk."""
    clock, files = SetClock(), manifests(cron_job("@hourly"))
    disk = DISKS[tmp_path] = FakeStateFiles()
    # The CronJob is known before, for a new one counts from now.
    async with running(cri, files, tmp_path, clock=clock) as plane:
        await until_seen(plane)
    DISKS[tmp_path] = MortalFiles(disk, survived, writes=writes)
    clock.ahead_s += HOUR_S
    try:
        async with running(cri, files, tmp_path, clock=clock) as plane:
            await plane.until(lambda: jobs(plane), "a job")
            await until_done(plane, cri)
    except* Killed:
        pass
    events = plane.events
    DISKS[tmp_path] = disk
    async with running(cri, files, tmp_path, clock=clock) as plane:
        await plane.until(lambda: jobs(plane), "the job is found or made")
        made = jobs(plane)
        await until_done(plane, cri)
        await plane.rounds()
        assert (jobs(plane), len(made), len(pods(plane))) == (made, 1, 1)

    created = [one.message for one in (*events, *plane.events) if one.message.startswith("Created job ")]
    assert created in ([], [f"Created job {made[0]}"])


async def test_a_job_that_somebody_deletes_ends_and_its_time_begins_no_other(cri: Slow, tmp_path: Path) -> None:
    """CJ-6."""
    clock = SetClock()
    async with running(cri, manifests(cron_job("@hourly")), tmp_path, clock=clock) as plane:
        await until_seen(plane)
        set_clock(plane, clock, HOUR_S)
        await until_runs(plane)
        key: Key = ("Job", "default", jobs(plane)[0])
        assert await plane.runner.workloads.cron.drop(key)
        assert not await plane.runner.workloads.cron.drop(key)
        await plane.until(lambda: not plane.runner.pods.items, "its pod is gone")
        set_clock(plane, clock, 1)
        await plane.rounds()

    assert jobs(plane) == []


async def test_with_the_cron_job_its_jobs_their_pods_and_all_records_go(cri: Slow, tmp_path: Path) -> None:
    """CJ-6."""
    clock, files = SetClock(), manifests(cron_job("@hourly"))
    async with running(cri, files, tmp_path, clock=clock) as plane:
        await until_seen(plane)
        set_clock(plane, clock, HOUR_S)
        await until_runs(plane)
        files.put(FILE, b"kind: [")
        await plane.rounds()
        assert len(jobs(plane)) == 1, "a slip of the pen takes nothing away"
        files.put(FILE, None)
        await plane.until(lambda: not plane.runner.pods.items, "its pod is gone")
        disk = DISKS[tmp_path].files
        await plane.until(lambda: not [one for one in disk if one.startswith(("cronjobs/", "jobs/"))], "no record")

    assert (jobs(plane), plane.runner.workloads.cron.files) == ([], {})


async def test_history_limits_take_jobs_away_with_their_pods_and_records(cri: Slow, tmp_path: Path) -> None:
    """CJ-6."""
    clock = SetClock()
    limits = "  successfulJobsHistoryLimit: 1\n  failedJobsHistoryLimit: 0"
    content = cron_job("@hourly", limits, "      backoffLimit: 0")
    async with running(cri, manifests(content), tmp_path, clock=clock, curve=AT_ONCE) as plane:
        await until_seen(plane)
        for count, code in enumerate((0, 0, 1), start=1):
            set_clock(plane, clock, HOUR_S)
            await until_runs(plane)
            await end_all(plane, cri, code)
            await plane.until(lambda seen=count: told(plane).count("SawCompletedJob") == seen, f"{count} have ended")
        await plane.until(lambda: len(jobs(plane)) == 1 and len(plane.runner.pods.items) == 1, "one is kept")
        records = DISKS[tmp_path].files
        await plane.until(lambda: len([one for one in records if one.startswith("jobs/")]) == 1, "one record of a Job")

    assert told(plane).count("SuccessfulDelete") == 2


async def test_a_disk_that_takes_no_record_makes_no_job_until_it_does(cri: Slow, tmp_path: Path) -> None:
    """CJ-3."""
    clock = SetClock()
    async with running(cri, manifests(cron_job("@hourly")), tmp_path, clock=clock) as plane:
        await until_seen(plane)
        disk = DISKS[tmp_path]
        disk.failure = OSError(28, "No space left on device")
        set_clock(plane, clock, HOUR_S)
        await plane.until(lambda: KEY in plane.runner.workloads.cron._wakes_s, "it is tried again")
        assert (jobs(plane), told(plane)) == ([], [])
        disk.failure = None
        set_clock(plane, clock, 5)
        await until_runs(plane)
        disk.failure = OSError(28, "No space left on device")
        with pytest.raises(Refused, match="No space left on device; the Job stays"):
            await plane.runner.workloads.cron.drop(("Job", "default", jobs(plane)[0]))
        disk.failure = None

    assert len(jobs(plane)) == 1


async def test_records_that_cannot_be_read_hinder_no_other(cri: Slow, tmp_path: Path) -> None:
    disk = DISKS[tmp_path] = FakeStateFiles()
    disk.files["cronjobs/x.json"] = b"{"
    async with running(cri, manifests(cron_job("@hourly")), tmp_path) as plane:
        await until_seen(plane)

    assert jobs(plane) == []


async def test_a_job_of_a_file_keeps_its_name_and_cron_makes_none_beside_it(cri: Slow, tmp_path: Path) -> None:
    clock = SetClock()
    due_s = int((clock.wall_s() + HOUR_S) // HOUR_S * HOUR_S)
    files = FakeManifestDirectory({
        FILE: cron_job("@hourly"),
        "/m/x.yaml": job().replace(b"name: work", f"name: backup-{due_s // 60}".encode()),
    })  # fmt: skip
    async with running(cri, files, tmp_path, clock=clock) as plane:
        await until_seen(plane)
        set_clock(plane, clock, due_s - clock.wall_s())
        await plane.until(lambda: "FailedCreate" in told(plane), "it is told")

    assert plane.runner.workloads.cron.files == {"CronJob default/backup": b""}
    assert jobs(plane) == [f"backup-{due_s // 60}"]


def test_the_zone_of_the_node_is_that_of_its_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CJ-1."""
    found = []
    for name in ("Asia/Tokyo", ":Asia/Tokyo", "", "Nowhere/X"):
        monkeypatch.setenv("TZ", name)
        found.append(str(node_zone()))
    monkeypatch.delenv("TZ")
    monkeypatch.setattr(cron_jobs, "LOCAL_ZONE", tmp_path / "localtime")
    found.append(str(node_zone()))
    (tmp_path / "localtime").symlink_to("/usr/share/zoneinfo/Europe/Berlin")
    found.append(str(node_zone()))

    assert found == ["Asia/Tokyo", "Asia/Tokyo", "UTC", "UTC", "UTC", "Europe/Berlin"]


async def test_a_fault_inside_is_tried_again(cri: Slow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SetClock()
    async with running(cri, manifests(cron_job("@hourly")), tmp_path, clock=clock) as plane:
        await until_seen(plane)
        cron = plane.runner.workloads.cron
        with monkeypatch.context() as broken:
            broken.setattr(cron_jobs, "plan_cron", lambda *_: 1 / 0)
            set_clock(plane, clock, HOUR_S)
            await plane.until(lambda: not cron._changed and not cron._bell.is_set(), "it has failed")
        assert jobs(plane) == []
        assert KEY in cron._wakes_s
