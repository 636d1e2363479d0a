# SPDX-License-Identifier: Apache-2.0
"""A CronJob on real containers: an outage, deaths of kepd, and what a user sees of its Jobs with kepctl."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.node.pods import pods_daemon
from tests.node.test_workloads import apply, names

pytestmark = [pytest.mark.node, pytest.mark.timeout(240)]

HOUR_S = 3600
CRON_JOB = """
apiVersion: batch/v1
kind: CronJob
metadata: {name: tidy}
spec:
  schedule: "@every 1h"
  successfulJobsHistoryLimit: LIMIT
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          terminationGracePeriodSeconds: 1
          volumes: [{name: out, hostPath: {path: OUT}}]
          containers:
          - name: main
            image: IMAGE
            imagePullPolicy: IfNotPresent
            volumeMounts: [{name: out, mountPath: /out}]
            command: [sh, -c, "echo run >> /out/runs; while [ ! -e /out/done ]; do sleep 0.1; done"]
"""


@pytest.fixture
def kepd(lab: Lab, short_path: Path, free_port: int) -> Iterator[Kepd]:
    with pods_daemon(lab, short_path, free_port, "reducedBackoff: true") as daemon:
        yield daemon


def record(kepd: Kepd) -> Path | None:
    """What kepd has on its disk of the CronJob."""
    return next((one for one in kepd.folder.rglob("cronjobs/*.json")), None)


def killed(kepd: Kepd) -> None:
    assert kepd.process is not None
    os.kill(kepd.process.pid, signal.SIGKILL)
    kepd.process.wait()


def slept(kepd: Kepd) -> None:
    """The last time is two and a half hours ago, as far as the record knows."""
    path = record(kepd)
    assert path is not None
    made = json.loads(path.read_bytes())
    for name in ("since_s", "last_s"):
        made[name] = made[name] and made[name] - HOUR_S * 5 // 2
    path.write_text(json.dumps(made))


def cron_status(kepd: Kepd) -> dict[str, Any]:
    found: dict[str, Any] = kepd.json("get", "cj", "tidy").get("status") or {}
    return found


def jobs(kepd: Kepd) -> list[str]:
    return sorted(one["metadata"]["name"] for one in kepd.json("get", "jobs")["items"])


def runs(out: Path) -> int:
    return len((out / "runs").read_text().splitlines()) if (out / "runs").exists() else 0


def test_after_an_outage_one_job_runs_once_however_often_kepd_is_killed(kepd: Kepd, lab: Lab, short_path: Path) -> None:
    """CJ-3, CJ-4, CJ-6."""
    out = short_path / "out"
    out.mkdir()
    apply(kepd, CRON_JOB, lab.push(Image(name="node/cron")), OUT=out, LIMIT=3)
    kepd.wait(lambda: cron_status(kepd).get("conditions"), "the CronJob is known")
    assert (jobs(kepd), runs(out)) == ([], 0)
    killed(kepd)
    slept(kepd)
    kepd.start("--planes", "pods").wait_ready()
    kepd.wait(lambda: runs(out), "the missed time is made up for")
    (job,) = jobs(kepd)
    assert [one["name"] for one in cron_status(kepd)["active"]] == [job]
    assert "CronJob/tidy" in kepd.ctl("describe", "job", job).stdout
    for _ in range(3):
        killed(kepd)
        kepd.start("--planes", "pods").wait_ready()
        kepd.wait(lambda: cron_status(kepd).get("active"), "it is found")
    (out / "done").touch()
    kepd.wait(lambda: cron_status(kepd).get("lastSuccessfulTime"), "it has ended well")

    assert (jobs(kepd), runs(out)) == ([job], 1)
    assert job in kepd.ctl("describe", "cj", "tidy").stdout
    assert "- next: " in kepd.ctl("explain", "cronjob", "tidy").stdout
    refused = kepd.ctl("scale", "--replicas", "2", f"job/{job}")
    assert refused.returncode != 0
    assert kepd.ctl("create", "job", "now", "--from", "cronjob/tidy").returncode == 0
    kepd.wait(lambda: runs(out) == 2, "a Job by hand runs")
    assert kepd.ctl("delete", "job", job).returncode == 0
    kepd.wait(lambda: jobs(kepd) == ["now"], "the Job is gone")
    assert kepd.ctl("delete", "cronjob", "tidy").returncode == 0
    kepd.wait(lambda: record(kepd) is None, "its record is gone")
    assert kepd.ctl("delete", "job", "now").returncode == 0
    kepd.wait(lambda: not names(kepd), "all pods are gone")


def test_with_its_cron_job_a_job_that_runs_ends(kepd: Kepd, lab: Lab, short_path: Path) -> None:
    """CJ-6."""
    out = short_path / "out"
    out.mkdir()
    apply(kepd, CRON_JOB, lab.push(Image(name="node/cron")), OUT=out, LIMIT=0)
    kepd.wait(lambda: cron_status(kepd).get("conditions"), "the CronJob is known")
    killed(kepd)
    slept(kepd)
    kepd.start("--planes", "pods").wait_ready()
    kepd.wait(lambda: runs(out), "it runs")
    assert kepd.ctl("delete", "cronjob", "tidy").returncode == 0
    kepd.wait(lambda: not names(kepd), "its pod is gone")

    assert (jobs(kepd), record(kepd)) == ([], None)
