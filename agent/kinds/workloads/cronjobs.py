# SPDX-License-Identifier: Apache-2.0
"""CronJobs in kubectl's columns, and in full with the Jobs that they made."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from agent.kinds.ages import age
from agent.kinds.described import Described, entries_of, events_of_object, grid, joined, moment
from agent.kinds.kind import BY_PODS, POD_PATH, Kind, status_of
from agent.kinds.parts import created, items, part
from agent.kinds.shown import Describing, Objects
from agent.kinds.table import Column, Columns, Object, names_of
from agent.kinds.workloads.jobs import job_state
from agent.kinds.written import (
    AGE,
    NAMES,
    SERVICE,
    SOURCE,
    Made,
    found_object,
    shown_objects,
)
from agent.model.finding import printable

KIND = Kind(
    "cronjobs",
    "cronjob",
    ("cj",),
    "CronJob",
    group="batch",
    read_by=BY_PODS,
    is_carried_out=True,
    pod_path=("spec", "jobTemplate", *POD_PATH),
    turn=7,
    is_in_all=True,
    subresources=(status_of("CronJob"),),
)

NONE = "<none>"
FIELDS = (
    ("Schedule", "schedule", ""),
    ("Time Zone", "timeZone", "that of the node"),
    ("Concurrency Policy", "concurrencyPolicy", "Allow"),
    ("Suspend", "suspend", "False"),
    ("Successful Job History Limit", "successfulJobsHistoryLimit", "3"),
    ("Failed Job History Limit", "failedJobsHistoryLimit", "1"),
    ("Starting Deadline Seconds", "startingDeadlineSeconds", "<unset>"),
)


def _spec(one: Object, name: str, default: object = NONE) -> str:
    value = part(one, "spec").get(name)
    return printable(str(default if value is None else value))


def time_of(made: Made, name: str) -> str:
    """A time of its status; empty where it has none."""
    return str(part(made, "status").get(name) or "")


def _images(one: Object) -> str:
    path = ("spec", "jobTemplate", "spec", "template", "spec", "containers")
    return ",".join(printable(str(each.get("image", ""))) for each in items(one, *path))


COLUMNS: Columns[Object] = (
    *NAMES,
    Column("SCHEDULE", lambda one: _spec(one, "schedule")),
    Column("TIMEZONE", lambda one: _spec(one, "timeZone")),
    Column("SUSPEND", lambda one: _spec(one, "suspend", default=False)),
    Column("ACTIVE", lambda one: str(len(items(one, "status", "active")))),
    Column("LAST SCHEDULE", lambda one: age(time_of(one, "lastScheduleTime")) or NONE),
    AGE,
    Column("IMAGES", _images, wide=True),
    SOURCE,
)


SHOWN = shown_objects(COLUMNS)


def describe(kind: Kind, namespace: str, name: str) -> Describing:
    found = yield from found_object(kind, namespace, name)
    jobs = yield Objects(SERVICE, "jobs", may_fail=True)
    namespace, name = names_of(found)
    own = [job for job in jobs or () if names_of(job)[0] == namespace and is_owned(job, name)]
    return Described(tuple(_lines(found, own)), [events_of_object(found, kind.api)])


def is_owned(job: Made, name: str) -> bool:
    owners = items(job, "metadata", "ownerReferences")
    return any((one.get("kind"), one.get("name")) == ("CronJob", name) for one in owners)


def _lines(made: Made, jobs: Sequence[Made]) -> Iterator[str]:
    yield from entries_of("", _head(made))
    conditions = items(made, "status", "conditions")
    yield "Conditions:" if conditions else "Conditions:  <none>"
    titles = ("Type", "Status", "Reason", "Message")
    yield from grid(titles, [tuple(printable(str(one.get(each.lower(), ""))) for each in titles) for one in conditions])
    yield "Next Times:" if next_times(made) else "Next Times:  <none>"
    yield from grid(("Here", "UTC"), next_times(made))
    yield "Jobs:" if jobs else "Jobs:  <none>"
    rows = [(str(part(one, "metadata").get("name", "")), job_state(one), age(created(one))) for one in jobs]
    yield from grid(("Name", "Status", "Age"), sorted(rows))


def _head(made: Made) -> Iterator[tuple[str, str]]:
    metadata, spec = part(made, "metadata"), part(made, "spec")
    yield "Name", printable(str(metadata.get("name", "")))
    yield "Namespace", printable(str(metadata.get("namespace", "default")))
    yield "Created", moment(created(made))
    yield "Labels", printable(joined(part(metadata, "labels")))
    for title, name, default in FIELDS:
        value = spec.get(name)
        yield title, printable(str(default if value is None else value))
    path = ("jobTemplate", "spec", "template", "spec", "containers")
    yield "Images", printable(", ".join(str(one.get("image", "")) for one in items(spec, *path)))
    yield "Last Schedule Time", moment(time_of(made, "lastScheduleTime")) or NONE
    yield "Last Successful Time", moment(time_of(made, "lastSuccessfulTime")) or NONE
    active = items(made, "status", "active")
    yield "Active Jobs", ", ".join(printable(str(one.get("name", ""))) for one in active) or NONE


def next_times(made: Made) -> list[tuple[str, str]]:
    """In its zone, and in UTC."""
    listed = part(made, "status").get("nextScheduleTimes")
    times = [datetime.fromisoformat(str(one)) for one in listed] if isinstance(listed, list) else []
    return [(one.isoformat(" "), f"{one.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}") for one in times]
