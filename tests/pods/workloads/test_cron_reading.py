# SPDX-License-Identifier: Apache-2.0
"""Manifests of CronJobs: what they become, and what is refused by its path."""

import pytest

from agent.model.manifests.snapshot import ManifestSnapshot
from agent.pods.manifest.objects import parse_objects
from agent.pods.manifest.reading import ReadManifest
from agent.pods.workloads.cron_job import CronJob, CronRules
from agent.pods.workloads.cron_reading import manifest_warnings, zone_fault
from agent.pods.workloads.cron_schedule import parse_schedule
from agent.pods.workloads.job import JobRules
from tests.pods.reading import read_pods
from tests.pods.run.test_workloads import job
from tests.pods.workloads.test_cron_job import NODE, cron_job, read
from tests.pods.workloads.test_cron_schedule import BAD


def faults(content: bytes) -> list[str]:
    found = parse_objects("/m/f", content, NODE)
    assert not (found.findings and found.workloads)
    return [f"{one.path}: {one.text}" for one in found.findings]


def test_what_is_left_out_has_the_defaults_of_kubernetes() -> None:
    """CJ-1."""
    made = read(cron_job())

    assert made.cron == CronRules(schedule=parse_schedule("*/10 * * * *"), text="*/10 * * * *")
    rules = made.cron
    assert (rules.policy, rules.keeps_succeeded, rules.keeps_failed, rules.deadline_s) == ("Allow", 3, 1, None)
    assert isinstance(made.rules, JobRules)
    assert (made.kind, made.key, made.most_pods) == ("CronJob", ("CronJob", "default", "backup"), 1)


def test_all_its_fields_are_read() -> None:
    """CJ-1."""
    more = """
  timeZone: Europe/Berlin
  concurrencyPolicy: Replace
  startingDeadlineSeconds: 90
  suspend: true
  successfulJobsHistoryLimit: 0
  failedJobsHistoryLimit: 7"""
    rules = read(cron_job("@daily", more, "      parallelism: 3")).cron

    assert rules == CronRules(
        schedule=parse_schedule("0 0 * * *"), text="@daily", zone="Europe/Berlin", policy="Replace", deadline_s=90,
        is_suspended=True, keeps_succeeded=0, keeps_failed=7,
    )  # fmt: skip


@pytest.mark.parametrize("text", [one for one in BAD if one])
def test_a_bad_schedule_is_refused_by_its_path_in_one_line(text: str) -> None:
    """CJ-1."""
    (told,) = faults(cron_job(text))

    assert told.startswith("spec.schedule: Invalid value: ")
    assert "\n" not in told


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("  timeZone: ''", "spec.timeZone: Invalid value"),
        ("  timeZone: Local", "spec.timeZone: Invalid value"),
        ("  timeZone: LOCAL", "spec.timeZone: Invalid value"),
        ("  timeZone: Europe/Nowhere", "spec.timeZone: Invalid value"),
        ("  timeZone: ../../etc/passwd", "spec.timeZone: Invalid value"),
        ("  timeZone: /etc/localtime", "spec.timeZone: Invalid value"),
        ("  timeZone: Europe", "spec.timeZone: Invalid value"),
        ("  timeZone: Europe//Berlin", "spec.timeZone: Invalid value"),
        ("  timeZone: 'Europe/Berlin '", "spec.timeZone: Invalid value"),
        ('  timeZone: "UTC\\0"', "spec.timeZone: Invalid value"),
        ("  timeZone: 1", "spec.timeZone: 1 must be text"),
        ("  concurrencyPolicy: Never", "spec.concurrencyPolicy: Unsupported value"),
        ("  concurrencyPolicy: forbid", "spec.concurrencyPolicy: Unsupported value"),
        ("  concurrencyPolicy: ''", "spec.concurrencyPolicy: Unsupported value"),
        ("  startingDeadlineSeconds: -1", "spec.startingDeadlineSeconds: Invalid value: -1"),
        ("  startingDeadlineSeconds: 3000000000", "spec.startingDeadlineSeconds: Invalid value"),
        ("  startingDeadlineSeconds: 1.5", "spec.startingDeadlineSeconds: 1.5 must be a whole number"),
        ("  successfulJobsHistoryLimit: -1", "spec.successfulJobsHistoryLimit: Invalid value: -1"),
        ("  failedJobsHistoryLimit: 1001", "spec.failedJobsHistoryLimit: Invalid value: 1001"),
        ("  suspend: 'no'", "spec.suspend: 'no' must be true or false"),
        ("  timezone: UTC", "spec.timezone: not supported by this version; did you mean"),
        ("  template: {}", "spec.template: not supported by this version"),
    ],
)
def test_a_bad_field_is_refused_by_its_path_in_one_line(more: str, expected: str) -> None:
    """CJ-1."""
    (told,) = faults(cron_job(more=more))

    assert told.startswith(expected)
    assert "\n" not in told


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('  schedule: "*/10 * * * *"', "", "spec.schedule: Required value"),
        ('  schedule: "*/10 * * * *"', "  schedule: 5", "spec.schedule: 5 must be text"),
        ("name: backup", f"name: {'x' * 53}", "metadata.name: Invalid value"),
        ("name: backup", "name: Backup", "metadata.name: Invalid value"),
        ("batch/v1", "batch/v1beta1", "apiVersion: must be batch/v1"),
        ("restartPolicy: Never", "restartPolicy: Always", "spec.jobTemplate.spec.template.spec.restartPolicy: Unsupp"),
        ("image: i,", "imag: i,", "spec.jobTemplate.spec.template.spec.containers[0].imag: not supported"),
        ("      template:", "      backoffLimit: -1\n      template:", "spec.jobTemplate.spec.backoffLimit: Invalid"),
        ("      template:", "      completionMode: Mixed\n      template:", "spec.jobTemplate.spec.completionMode"),
        ("labels: {app: backup}", "labels: {app: 'a b'}", "spec.jobTemplate.metadata.labels"),
        ("labels: {app: backup}", "uid: x", "spec.jobTemplate.metadata.uid: Forbidden"),
        ("  jobTemplate:", "  jobTemplate:\n    extra: 1", "spec.jobTemplate.extra: not supported"),
    ],
)
def test_what_is_wrong_below_or_beside_is_refused_where_it_stands(old: str, new: str, expected: str) -> None:
    """CJ-1."""
    (told,) = faults(cron_job().replace(old.encode(), new.encode()))

    assert told.startswith(expected)


@pytest.mark.parametrize(
    "template", ["", "jobTemplate: []", "jobTemplate: {metadata: []}", "jobTemplate: {metadata: {}}"]
)
def test_a_template_that_is_none_is_told(template: str) -> None:
    content = f"apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: x}}\nspec:\n  schedule: '@daily'\n  {template}\n"

    (told,) = faults(content.encode())
    assert told.startswith("spec.jobTemplate: must")


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "EST5EDT"])
def test_zones_of_the_database_are_taken(name: str) -> None:
    assert zone_fault(name) == ""


def test_what_never_comes_or_comes_too_often_is_warned_of() -> None:
    assert [path for path, _ in manifest_warnings(read(cron_job()))] == []
    assert "never comes" in next(manifest_warnings(read(cron_job("0 0 31 2 *"))))[1]
    assert "once a minute" in next(manifest_warnings(read(cron_job("@every 10s"))))[1]


def test_an_edit_with_a_fault_leaves_the_former_one_in_force_and_a_second_one_of_its_name_is_ignored() -> None:
    def look(content: bytes, before: ReadManifest) -> ReadManifest:
        return read_pods(ManifestSnapshot({"/m/a": content, "/m/b": cron_job("@hourly")}), before, NODE)

    first = look(cron_job(), ReadManifest())
    broken = look(cron_job("60 * * * *"), first)

    for reading in (first, broken):
        made = reading.workloads["CronJob", "default", "backup"]
        assert isinstance(made, CronJob)
        assert (made.file, made.cron.text) == ("/m/a", "*/10 * * * *")
    assert any("already in /m/a" in str(one) for one in first.findings)


def test_a_cron_job_and_a_job_of_one_name_live_side_by_side() -> None:
    found = parse_objects("/m/f", cron_job() + b"---" + job().replace(b"name: work", b"name: backup"), NODE)

    assert (found.findings, [one.kind for one in found.workloads]) == ([], ["CronJob", "Job"])
