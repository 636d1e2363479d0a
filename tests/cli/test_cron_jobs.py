# SPDX-License-Identifier: Apache-2.0
"""CronJobs on the command line: listed, described, explained, made."""

import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.cli.texts.explained_cron_job import explained_cron_job
from tests.cli.node_in_process import Node, running_node
from tests.objects.test_applying import objects_in
from tests.pods.workloads.test_cron_job import cron_job

CREATED_S = time.time() - 5.5 * 86_400
LAST = datetime.fromtimestamp(CREATED_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
STATUS: Mapping[str, Any] = {
    "active": [{"kind": "Job", "name": "backup-1"}],
    "lastScheduleTime": LAST,
    "lastSuccessfulTime": "2026-03-29T00:00:07Z",
    "nextScheduleTimes": ["2026-03-30T02:00:00+02:00", "2026-03-31T02:00:00+02:00"],
    "conditions": [
        {
            "type": "Scheduled", "status": "False", "reason": "JobAlreadyActive", "message": "job backup-1 still runs",
            "lastTransitionTime": "2026-03-29T01:00:00Z",
        }
    ],
}  # fmt: skip


class Made:
    """What the pods plane would have made."""

    def __init__(self) -> None:
        owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "backup", "uid": "u", "controller": True}
        metadata = {"name": "backup-1", "namespace": "default", "ownerReferences": [owner]}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {}}}
        self.files: Mapping[str, bytes] = {"CronJob default/backup": json.dumps(job).encode()}

    async def drop(self, key: tuple[str, str, str]) -> bool:
        if key == ("Job", "default", "backup-1"):
            self.files = {}
        return key[0] == "Job"


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    folder = tmp_path / "manifests"
    folder.mkdir(mode=0o755)
    (folder / "backup.yaml").write_bytes(cron_job("0 2 * * *", "  timeZone: Europe/Berlin"))
    return folder


@pytest.fixture
def node(short_path: Path, manifests: Path) -> Iterator[Node]:
    def fill(node: Node) -> None:
        made = Made()
        node.objects = lambda: objects_in(manifests, status=lambda _: STATUS, created_s=lambda _: CREATED_S, jobs=made)

    with running_node(short_path, fill) as node:
        yield node


@pytest.mark.parametrize("word", ["cronjobs", "cronjob", "cj"])
def test_cron_jobs_are_listed_in_kubectls_columns(node: Node, word: str) -> None:
    """CJ-7."""
    titles, row = node.out("get", word).splitlines()

    assert " ".join(titles.split()) == "NAMESPACE NAME SCHEDULE TIMEZONE SUSPEND ACTIVE LAST SCHEDULE AGE"
    cells = [one.strip() for one in row.split("  ") if one.strip()]
    assert cells == ["default", "backup", "0 2 * * *", "Europe/Berlin", "False", "1", "5d12h", "5d12h"]


def test_one_is_described_with_its_times_and_jobs(node: Node) -> None:
    """CJ-7."""
    shown = node.out("describe", "cj", "backup")

    for expected in (
        "Schedule:          0 2 * * *", "Time Zone:         Europe/Berlin", "Concurrency Policy: Allow",
        "Starting Deadline Seconds: <unset>", "2026-03-30 02:00:00+02:00  2026-03-30T00:00:00Z", "JobAlreadyActive",
        "backup-1", "Active Jobs:", "Events:  <none>",
    ):  # fmt: skip
        assert expected in shown, shown
    assert "Controlled By:     CronJob/backup" in node.out("describe", "job", "backup-1")
    assert "CronJob default/backup" in node.out("get", "jobs", "-o", "wide")


def test_one_is_explained_by_what_was_last_and_what_comes_next(node: Node) -> None:
    """CJ-7."""
    shown = node.out("explain", "cronjob", "backup").splitlines()

    assert shown[0] == 'CRONJOB default/backup  "0 2 * * *" in Europe/Berlin'
    assert "- 2026-03-29T01:00:00Z: JobAlreadyActive: job backup-1 still runs" in shown
    assert "- next: 2026-03-30 02:00:00+02:00  (2026-03-30T00:00:00Z)" in shown
    assert shown == node.out("explain", "backup").splitlines()


def test_a_clock_that_is_behind_a_fault_and_a_suspension_are_explained() -> None:
    made: dict[str, Any] = {"metadata": {"name": "b"}, "spec": {"schedule": "@daily", "suspend": True}}
    unknown = list(explained_cron_job(made, 0.0))
    behind = list(explained_cron_job({**made, "status": {"lastScheduleTime": "2040-01-01T00:00:00Z"}}, 0.0))
    never = list(explained_cron_job({"spec": {"schedule": "0 0 31 2 *"}, "status": {"conditions": []}}, 0.0))

    assert "its manifest has a fault" in unknown[1]
    assert "the clock is behind" in behind[1]
    assert "suspend: true" in behind[2]
    assert never[1] == "- no time comes any more: none of the months that it names has such a day"


def test_one_is_made_of_words_and_a_job_of_one(node: Node, manifests: Path) -> None:
    """CJ-7."""
    words = ("create", "cronjob", "tidy", "--image", "i:1", "--schedule", "*/5 * * * *", "--", "sh", "-c", "true")
    assert node.out(*words) == "cronjob/default/tidy created\n"
    assert node.out("create", "job", "now", "--from", "cronjob/backup") == "job/default/now created\n"
    tidy = yaml.safe_load((manifests / "kepctl-CronJob.default.tidy.yaml").read_text())
    now = yaml.safe_load((manifests / "kepctl-Job.default.now.yaml").read_text())

    assert tidy["spec"]["schedule"] == "*/5 * * * *"
    pod = tidy["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert (pod["restartPolicy"], pod["containers"][0]["command"]) == ("OnFailure", ["sh", "-c", "true"])
    assert now["metadata"]["annotations"] == {"a": "b", "cronjob.kubernetes.io/instantiate": "manual"}
    assert now["metadata"]["labels"] == {"app": "backup"}
    assert now["spec"]["template"]["spec"]["containers"][0]["image"] == "i"


@pytest.mark.parametrize(
    "words",
    [(), ("--from", "cronjob/backup", "--image", "i"), ("--from", "cj/backup", "--", "sh"), ("--from", "job/x")],
)
def test_a_job_is_of_an_image_or_of_a_cron_job(node: Node, words: tuple[str, ...]) -> None:
    done = node.ctl("create", "job", "now", *words)

    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_a_bad_schedule_is_refused_and_nothing_is_written(node: Node, manifests: Path) -> None:
    done = node.ctl("create", "cronjob", "tidy", "--image", "i:1", "--schedule", "* * * * 7")

    assert "spec.schedule" in done.stderr
    assert "Sunday is 0 or sun" in done.stderr
    assert [one.name for one in manifests.iterdir()] == ["backup.yaml"]


def test_its_jobs_are_deleted_like_others(node: Node) -> None:
    """CJ-6."""
    assert node.out("delete", "job", "backup-1") == "job/default/backup-1 deleted\n"
    assert "no jobs" in node.ctl("get", "jobs").stderr + node.ctl("get", "jobs").stdout
    assert node.out("events", "--for", "cronjob/backup") == ""
