# SPDX-License-Identifier: Apache-2.0
"""Carries out CronJobs: waits for their times, keeps their records, and hands on the Jobs that they made.

A Job that is made stands in the record of its CronJob and in no file; from there it is a Job like any other. The zone
of the node is read when the plane begins. Never: decides what is made (workloads/cron_job.py), or begins a pod.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import structlog

from agent.model.clock import rung
from agent.model.event import Event
from agent.model.finding import printable
from agent.model.pods.wall_clock import Boot
from agent.model.refused import Refused
from agent.pods.manifest.bound import MOST_MADE
from agent.pods.run.owners import contained
from agent.pods.run.pod_context import PodDependencies
from agent.pods.run.workloads.known import KeptRecords
from agent.pods.workloads.cron_job import (
    CRON_JOB,
    FOLDER,
    JOB,
    CronJob,
    CronRecord,
    News,
    cron_status,
    decode_cron_record,
    finished,
    owner_text,
    plan_cron,
    without_job,
)
from agent.pods.workloads.cron_reading import made_job
from agent.pods.workloads.job import FAILED, JobRecord, JobRules
from agent.pods.workloads.workload import Key, Workload

log = structlog.get_logger(plane="pods")

LOOK_S, RETRY_S = 60.0, 5.0
"""A clock that is set is noticed so late at most."""
LOCAL_ZONE = Path("/etc/localtime")


def node_zone() -> tzinfo:
    """As programs of this node have it; UTC where nothing says otherwise."""
    name = os.environ.get("TZ")
    try:
        if name is not None:
            return ZoneInfo(name.removeprefix(":")) if name else UTC
        with LOCAL_ZONE.open("rb") as file:
            return ZoneInfo.from_file(file, key=LOCAL_ZONE.resolve().as_posix().partition("/zoneinfo/")[2] or "Local")
    except (LookupError, ValueError, OSError) as error:
        log.warning("node_zone_unreadable", error=str(error), effect="CronJobs without timeZone keep to UTC")
        return UTC


class CronJobs:
    def __init__(self, context: PodDependencies, is_unread: Callable[[str], bool], changed: Callable[[], None]) -> None:
        """`changed`: Jobs came or went."""
        self._context = context
        self._is_unread = is_unread
        self._tell_changed = changed
        self._records = KeptRecords(context.records, FOLDER, decode_cron_record)
        self._known: Mapping[Key, CronJob] = {}
        self._given: Mapping[Key, Workload] = {}
        self._made: dict[Key, Workload] = {}
        self.files: Mapping[str, bytes] = {}
        """The manifests of the Jobs, by where they are. Read in threads, so it is replaced whole."""
        self._ended: dict[Key, tuple[str, float]] = {}
        self._changed: set[Key] = set()
        self._wakes_s: dict[Key, float] = {}
        self._zone: tzinfo = UTC
        self._bell = asyncio.Event()
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Before the first look at manifests. Without its record a CronJob counts as new."""
        self._zone = await asyncio.to_thread(node_zone)
        self._made.clear()
        self.files = {}
        await self._records.load()
        for record in self._records.all():
            self._take_in(record)

    def take(self, workloads: Mapping[Key, Workload]) -> Mapping[Key, Workload]:
        """The manifests say this now; answers with all that makes pods. A file's Job comes before one made here."""
        self._known = {key: one for key, one in workloads.items() if isinstance(one, CronJob)}
        self._given = {key: one for key, one in workloads.items() if not isinstance(one, CronJob)}
        self._changed |= {*self._known, *self._records.keys()}
        self._bell.set()
        return {**self._made, **self._given}

    def ended(self, key: Key, record: JobRecord) -> None:
        """A Job is over; also told again."""
        if key in self._made and key not in self._given:
            self._ended[key] = record.outcome, record.finished_s
            self._changed.add(self._owner(key))
            self._bell.set()

    def status(self, key: Key) -> Mapping[str, object] | None:
        job, record = self._known.get(key), self._records.of(key)
        if job is None or record is None:
            return None
        settings = self._context.settings()
        return cron_status(job, record, settings.node, self._zone_of(job), self._context.clock.wall_s())

    def created_s(self, key: Key) -> float:
        record = self._records.of(key)
        return record.created_s if record is not None else 0.0

    async def drop(self, key: Key) -> bool:
        """Somebody deletes a Job; whether it was made here. Raises Refused."""
        async with self._lock:
            record = self._records.of(self._owner(key))
            if record is None or key not in self._made or key in self._given:
                return False
            try:
                await self._keep(without_job(record, key[2]))
            except OSError as error:
                text = f"the record of its CronJob cannot be written: {error.strerror}; the Job stays"
                raise Refused("precondition", text) from error
            return True

    async def run(self) -> None:
        """Until cancelled."""
        clock = self._context.clock
        boot = Boot()
        while True:
            self._bell.clear()
            wall_s = clock.wall_s()
            before, boot = boot, Boot(began_s=wall_s - clock.now_s())
            if boot.follows(before):
                self._changed |= {*self._known, *self._records.keys()}
            chosen = self._changed | {key for key, wake_s in self._wakes_s.items() if wake_s <= wall_s}
            self._changed = set()
            for key in sorted(chosen):
                # What fails inside is tried again then.
                self._wakes_s[key] = wall_s + LOOK_S
                with contained("/".join(key), "carry it out"):
                    await self._advance(key)
            pauses_s = [LOOK_S, *(max(wake_s - clock.wall_s(), 0.0) for wake_s in self._wakes_s.values())]
            await rung(self._bell, clock, clock.now_s() + min(pauses_s) if self._wakes_s else None)

    async def _advance(self, key: Key) -> None:
        job, wall_s = self._known.get(key), self._context.clock.wall_s()
        try:
            async with self._lock:
                if job is None:
                    await self._forget(key)
                    del self._wakes_s[key]
                    return
                record = self._records.of(key) or CronRecord(namespace=job.namespace, name=job.name)
                record, news = self._with_ends(record)
                plan = plan_cron(job, record, self._zone_of(job), wall_s, lambda name: self._why_not(job, name))
                await self._keep(plan.record)
        except OSError as error:
            log.warning("cron_record_not_saved", cron_job="/".join(key), error=str(error), effect="it is tried again")
            self._wakes_s[key] = wall_s + RETRY_S
            return
        for one in (*news, *plan.news):
            self._tell(job, one)
        if self._known.get(key) is not job:
            # Its manifest changed or went while the record was written.
            self._changed.add(key)
            self._bell.set()
        self._wakes_s.pop(key, None)
        if plan.wake_s is not None:
            self._wakes_s[key] = plan.wake_s

    def _with_ends(self, record: CronRecord) -> tuple[CronRecord, list[News]]:
        news: list[News] = []
        for one in record.active:
            outcome, finished_s = self._ended.pop((JOB, record.namespace, one.name), ("", 0.0))
            if outcome:
                record, more = finished(record, one.name, outcome, finished_s)
                news += more
        return record, news

    def _why_not(self, job: CronJob, name: str) -> str:
        if (JOB, job.namespace, name) in self._given:
            return "a manifest has a Job of that name"
        active = {(JOB, one.namespace, each.name) for one in self._records.all() for each in one.active}
        workloads = (*self._given.values(), *(one for key, one in self._made.items() if key in active))
        if sum(one.most_pods for one in workloads) + job.most_pods > MOST_MADE:
            return f"all workloads together would ask for more than {MOST_MADE} pods"
        return ""

    async def _keep(self, record: CronRecord) -> None:
        """Raises OSError."""
        before = self._records.of(record.key)
        if before == record:
            return
        await self._records.keep(record)
        self._take_in(record)
        if before is None or before.jobs != record.jobs:
            self._tell_changed()

    def _take_in(self, record: CronRecord) -> None:
        """What is on the disk is so here as well."""
        keys = {(JOB, record.namespace, one.name) for one in record.jobs}
        for key in [one for one in self._made if self._owner(one) == record.key and one not in keys]:
            del self._made[key]
        settings = self._context.settings()
        gives = {"gives_devices": settings.gives_devices, "gives_plugins": settings.gives_plugins}
        owner = owner_text(record.namespace, record.name)
        self.files = {**self.files, owner: b"\n---\n".join(msgspec.json.encode(one.document) for one in record.jobs)}
        for one in record.jobs:
            key = JOB, record.namespace, one.name
            if key in self._made:
                continue
            try:
                job = made_job(one.document, owner, settings.node, gives)
            except ValueError as error:
                log.warning("made_job_unreadable", job="/".join(key), error=str(error), effect="it counts as failed")
                self._ended[key] = FAILED, self._context.clock.wall_s()
            else:
                # The record knows when it expires; there is no file that it could be taken out of.
                if isinstance(job.rules, JobRules):
                    job = replace(job, rules=msgspec.structs.replace(job.rules, keeps_finished_s=None))
                self._made[key] = job

    async def _forget(self, key: Key) -> None:
        """With it its Jobs and their pods go. Raises OSError."""
        record = self._records.of(key)
        if record is None or self._is_unread(record.file):
            return
        await self._records.forget(key)
        gone = owner_text(key[1], key[2])
        self.files = {owner: content for owner, content in self.files.items() if owner != gone}
        for job_key in [one for one in self._made if self._owner(one) == key]:
            del self._made[job_key]
        if record.jobs:
            self._tell_changed()

    def _owner(self, key: Key) -> Key:
        """A Job is called after its CronJob."""
        return CRON_JOB, key[1], key[2].rpartition("-")[0]

    def _zone_of(self, job: CronJob) -> tzinfo:
        return ZoneInfo(job.cron.zone) if job.cron.zone else self._zone

    def _tell(self, job: CronJob, news: News) -> None:
        event = Event(
            is_warning=news.is_warning, reason=news.reason, message=printable(news.message), plane="pods",
            namespace=job.namespace, object_name=job.name, object_kind=CRON_JOB,
        )  # fmt: skip
        self._context.tell(event)
        log.info("cron_job_advanced", cron_job=job.text, reason=news.reason, message=news.message)
