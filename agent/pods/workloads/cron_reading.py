# SPDX-License-Identifier: Apache-2.0
"""A document becomes a CronJob, or a list of everything that is wrong with it; its jobTemplate is read as a Job is."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC
from zoneinfo import ZoneInfo

import msgspec

from agent.config.shape import Shape, place_of
from agent.config.strict_yaml import Tree, parse_documents, plain
from agent.model.finding import Finding, shown
from agent.model.generation import generation_of
from agent.model.pods.container_fields import Fields
from agent.model.pods.fields import Metadata
from agent.pods.manifest.validation.complaint import Complaints
from agent.pods.manifest.validation.object_names import check_metadata
from agent.pods.workloads.cron_job import ALLOW, CRON_JOB, FORBID, JOB, REPLACE, CronJob, CronRules
from agent.pods.workloads.cron_schedule import MINUTE_S, Every, next_time, parse_schedule
from agent.pods.workloads.reading import NOTHING, read_workload, workload_warnings
from agent.pods.workloads.validation import LONGEST_S
from agent.pods.workloads.workload import Workload, workload_uid

VERSION = "batch/v1"
TEMPLATE = "spec.jobTemplate"
LONGEST_NAME = 52
"""Eleven signs less than a Job may have, for the minute."""
MOST_KEPT = 1000
# Whether a schedule ever comes is the same from any moment on.
SOME_TIME_S = 1_700_000_000
ZONE_PART = re.compile(r"(?!-|\.{1,2}\Z)[A-Za-z0-9._+-]{1,14}\Z")


class CronJobFields(Fields, frozen=True):
    schedule: str = ""
    time_zone: str | None = None
    concurrency_policy: str = ALLOW
    starting_deadline_seconds: int | None = None
    suspend: bool = False
    successful_jobs_history_limit: int = 3
    failed_jobs_history_limit: int = 1
    job_template: object = None


class _CronJob(Fields, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()
    spec: CronJobFields = CronJobFields()
    status: object = None


def read_cron_job(
    tree: Tree, path: str, node: str, findings: list[Finding], *, gives: Mapping[str, bool] = NOTHING
) -> CronJob | None:
    """None if there are findings, which are added to the list."""
    found: list[Finding] = []
    given = tree.entries.get("apiVersion")
    if given is None or given.scalar != VERSION:
        found.append(Finding((given or tree).where, "apiVersion", f"must be {VERSION}"))
    found += [Finding(tree.where, name, "must be a map") for name in ("metadata", "spec") if name not in tree.entries]
    value = Shape(found).read(tree, _CronJob, "")
    made = None
    if not found:
        read = msgspec.convert(value, _CronJob)
        out = Complaints()
        check_metadata(read.metadata, out)
        if len(read.metadata.name) > LONGEST_NAME:
            out.invalid("metadata.name", read.metadata.name, f"must be no more than {LONGEST_NAME} characters")
        check_cron_job(read.spec, out)
        found += [Finding(place_of(tree, one.path), one.path, one.text) for one in out.found]
        job = _template(tree.entries["spec"], read.metadata, path, node, found, gives)
        made = _built(read, job, tree, path, node) if job is not None and not found else None
    findings += found
    return made


def check_cron_job(spec: CronJobFields, out: Complaints) -> None:
    if not spec.schedule:
        out.required("spec.schedule", 'five fields of cron, such as "30 4 * * *", or a word such as @daily')
    else:
        try:
            parse_schedule(spec.schedule)
        except ValueError as error:
            out.invalid("spec.schedule", spec.schedule, str(error))
    if spec.time_zone is not None and (fault := zone_fault(spec.time_zone)):
        out.invalid("spec.timeZone", spec.time_zone, fault)
    out.one_of("spec.concurrencyPolicy", spec.concurrency_policy, (ALLOW, FORBID, REPLACE))
    limits = (
        ("startingDeadlineSeconds", spec.starting_deadline_seconds, LONGEST_S),
        ("successfulJobsHistoryLimit", spec.successful_jobs_history_limit, MOST_KEPT),
        ("failedJobsHistoryLimit", spec.failed_jobs_history_limit, MOST_KEPT),
    )
    for name, value, most in limits:
        if value is not None and not 0 <= value <= most:
            out.invalid(f"spec.{name}", value, f"must be between 0 and {most}")


def zone_fault(name: str) -> str:
    """Why a zone cannot be used; empty if it can."""
    if not name:
        return "must be the name of a zone such as Europe/Berlin, or left out for the zone of the node"
    if name.lower() == "local":
        return "must be the name of a zone such as Europe/Berlin; leave it out for the zone of the node"
    if all(ZONE_PART.match(part) for part in name.split("/")):
        try:
            ZoneInfo(name)
        except (LookupError, ValueError, OSError):
            pass
        else:
            return ""
    return "is not in the database of time zones of this node; expected a name such as Europe/Berlin or Etc/UTC"


def _template(
    spec: Tree, metadata: Metadata, path: str, node: str, findings: list[Finding], gives: Mapping[str, bool]
) -> Workload | None:
    """The Job that it stands for, with faults under the path of the template."""
    given = spec.entries.get("jobTemplate")
    if given is None or given.kind != "map":
        findings.append(Finding((given or spec).where, TEMPLATE, "must be a map with the spec of a Job"))
        return None
    findings += [
        Finding(one.where, f"{TEMPLATE}.{name}", "not supported by this version")
        for name, one in given.entries.items()
        if name not in ("metadata", "spec")
    ]
    head = given.entries.get("metadata") or Tree("map", given.where)
    if head.kind != "map" or "spec" not in given.entries:
        findings.append(Finding(given.where, TEMPLATE, "must have a map spec, and may have a map metadata"))
        return None
    if "uid" in head.entries:
        where = head.entries["uid"].where
        findings.append(Finding(where, f"{TEMPLATE}.metadata.uid", "Forbidden: all its Jobs would have the same one"))
    texts = {"name": f"{metadata.name}-00000000", "namespace": metadata.namespace}
    own = {name: Tree("scalar", head.where, scalar=text) for name, text in texts.items()}
    tree = Tree("map", given.where, entries={
        "apiVersion": Tree("scalar", given.where, scalar=VERSION),
        "kind": Tree("scalar", given.where, scalar=JOB),
        "metadata": Tree("map", head.where, entries={**head.entries, **own}),
        "spec": given.entries["spec"],
    })  # fmt: skip
    inner: list[Finding] = []
    job = read_workload(tree, JOB, path, node, inner, gives=gives)
    names = {f"metadata.{name}" for name in texts}
    # A name that is wrong is told already.
    inner = [one for one in inner if one.path not in names or not findings]
    findings += [one if one.path in names else Finding(one.where, f"{TEMPLATE}.{one.path}", one.text) for one in inner]
    return job


def _built(read: _CronJob, job: Workload, tree: Tree, path: str, node: str) -> CronJob:
    metadata, spec = read.metadata, read.spec
    return CronJob(
        kind=CRON_JOB,
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid or workload_uid(CRON_JOB, metadata.namespace, metadata.name, node),
        labels=tuple(metadata.labels.items()),
        annotations=tuple(metadata.annotations.items()),
        template=job.template,
        revision=job.revision,
        generation=generation_of(plain(tree)),
        rules=job.rules,
        file=path,
        source=tree.where,
        cron=CronRules(
            schedule=parse_schedule(spec.schedule),
            text=spec.schedule,
            zone=spec.time_zone or "",
            policy=spec.concurrency_policy,
            deadline_s=spec.starting_deadline_seconds,
            is_suspended=spec.suspend,
            keeps_succeeded=spec.successful_jobs_history_limit,
            keeps_failed=spec.failed_jobs_history_limit,
        ),
        job=_plain_map(tree.entries["spec"].entries["jobTemplate"]),
    )


def _plain_map(tree: Tree) -> dict[str, object]:
    found = plain(tree)
    return found if isinstance(found, dict) else {}


def made_job(document: Mapping[str, object], owner: str, node: str, gives: Mapping[str, bool]) -> Workload:
    """The Job that a document of kepd's own stands for; raises ValueError for one that this kepd does not take."""
    findings: list[Finding] = []
    trees, findings = parse_documents(msgspec.json.encode(document), owner)
    job = read_workload(trees[0], JOB, owner, node, findings, gives=gives) if trees and not findings else None
    if job is None:
        raise ValueError("; ".join(map(str, findings)))
    return job


def manifest_warnings(workload: Workload) -> Iterator[tuple[str, str]]:
    """What is right and yet unwise."""
    if not isinstance(workload, CronJob):
        yield from workload_warnings(workload)
        return
    for path, text in workload_warnings(workload):
        yield path.replace("spec.", f"{TEMPLATE}.spec.", 1), text
    rules = workload.cron
    if isinstance(rules.schedule, Every) and rules.schedule.period_s < MINUTE_S:
        yield (
            "spec.schedule",
            f"{shown(rules.text)} starts a Job once a minute at most: a Job is called after its minute",
        )
    elif next_time(rules.schedule, UTC, 0, SOME_TIME_S) is None:
        yield "spec.schedule", f"{shown(rules.text)} never comes: none of its months has such a day"
