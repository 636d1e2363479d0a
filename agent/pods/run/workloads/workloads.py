# SPDX-License-Identifier: Apache-2.0
"""Carries out Deployments, DaemonSets and Jobs: one at a time, each when its manifest or one of its pods changed.

A pod that is made is wanted from then on like one from a file, and the runner begins and ends it in the same way.
Nothing but the records of Jobs is remembered apart: after a restart the pods that have a record are there again, with
the template they were made of. Never: decides what is made or ended (workloads/rollout.py, workloads/job.py).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol
from uuid import uuid4

import structlog
from msgspec.structs import replace

from agent.model.clock import rung
from agent.model.event import Event
from agent.model.finding import printable
from agent.model.pods.pod import PodSpec
from agent.model.pods.state import PodState
from agent.model.refused import Refused
from agent.pods.plan.admit import why_not_here
from agent.pods.plan.remembered import Record
from agent.pods.run.one_pod.run_state import LivePod
from agent.pods.run.owners import contained
from agent.pods.run.pod_context import PodDependencies
from agent.pods.run.workloads.cron_jobs import CronJobs
from agent.pods.run.workloads.known import FirstSeen, JobRecords, OwnedEntry, OwnedPods
from agent.pods.workloads.job import COMPLETE, JobRecord, JobRules, plan_job
from agent.pods.workloads.rollout import OwnedPod, RolloutRules, Steps, plan_rollout
from agent.pods.workloads.status import Progress, workload_status
from agent.pods.workloads.workload import Key, Workload

log = structlog.get_logger(plane="pods")

TakeOut = Callable[[str, Key], None]

RETRY_S, EXPIRY_RETRY_S = 5.0, 60.0
"""Until what the disk refused is tried again."""


class PodHost(Protocol):
    """Who keeps pods. `begin` and `let_go` take effect at once; nobody waits for their end."""

    def run_of(self, uid: str) -> LivePod | None: ...

    def state_of(self, pod: PodSpec) -> PodState | None: ...

    def is_taken(self, key: str) -> bool: ...

    def begin(self, pod: PodSpec) -> None: ...

    def let_go(self, pod: PodSpec) -> None: ...

    def is_unread(self, file: str) -> bool: ...


class Workloads:
    def __init__(self, context: PodDependencies, host: PodHost, take_out: TakeOut) -> None:
        """`take_out` takes an object, by kind, namespace and name, out of its file."""
        self._context = context
        self._host = host
        self._take_out = take_out
        self._jobs = JobRecords(context.records)
        self.cron = CronJobs(context, host.is_unread, self._follow_made)
        self._given: tuple[Mapping[Key, Workload], frozenset[str]] = ({}, frozenset())
        self._pods = OwnedPods()
        self._first_seen = FirstSeen()
        self._known: Mapping[Key, Workload] = {}
        self._changed: set[Key] = set()
        self._due_s: dict[Key, float] = {}
        self._progress: dict[Key, Progress] = {}
        self._bell = asyncio.Event()

    async def load(self, records: Iterable[Record]) -> None:
        """Before the first look at manifests: what an earlier kepd, or an earlier run of the plane, made."""
        self._pods.clear()
        records = list(records)
        self._first_seen.load(records)
        for record in sorted(records, key=lambda one: (one.memory.first_seen_wall_s, one.pod.uid)):
            self._pods.add(record.pod)
            entry = self._pods.entry(record.pod)
            if entry is not None and record.memory.is_leaving:
                entry.is_wanted = False
        await self._jobs.load()
        await self.cron.load()

    def wanted(self) -> list[PodSpec]:
        return list(self._pods.wanted())

    def follow(self, workloads: Mapping[Key, Workload], names: Iterable[str]) -> None:
        """The manifests say this now, and `names` are the pods that they have themselves, which come first."""
        own = frozenset(names)
        self._given = workloads, own
        workloads = self.cron.take(workloads)
        before, self._known = self._known, workloads
        for pod in self.wanted():
            has_no_owner = pod.owner is not None and pod.owner.key not in workloads
            entry = self._pods.entry(pod)
            if entry is not None and (pod.key in own or (has_no_owner and not self._host.is_unread(pod.file))):
                entry.is_wanted = False
                self.touch(pod)
                if self._host.run_of(pod.uid) is None:
                    # It never began, or its record alone is left, which the runner clears away.
                    self._pods.remove(pod)
        kept = {pod.owner.key for pod in self.wanted() if pod.owner is not None}
        self._first_seen.follow(workloads, kept, self._context.clock.wall_s())
        keys = {*before, *workloads, *self._jobs.keys()}
        self._changed |= {key for key in keys if before.get(key) is not workloads.get(key) or key not in workloads}
        for key in self._progress.keys() - workloads.keys():
            del self._progress[key]
        self._bell.set()

    def _follow_made(self) -> None:
        """Jobs of CronJobs came or went, and with them their pods."""
        before = self.wanted()
        self.follow(*self._given)
        wanted = {one.uid for one in self.wanted()}
        for pod in before:
            if pod.uid not in wanted:
                self._host.let_go(pod)

    def touch(self, pod: PodSpec) -> None:
        """Something about a pod changed."""
        if pod.owner is not None:
            self._changed.add(pod.owner.key)
            self._bell.set()

    def gone(self, pod: PodSpec) -> None:
        self._pods.remove(pod)
        self.touch(pod)

    def drop(self, pod: PodSpec) -> bool:
        """Somebody deletes this one; whether it was made here, so that another takes its place."""
        entry = self._pods.entry(pod)
        if entry is not None:
            entry.is_wanted = False
            self.touch(pod)
        return entry is not None

    def status(self, key: Key) -> Mapping[str, Any] | None:
        """As Kubernetes has it in `status`; None for what is not known."""
        workload = self._known.get(key)
        if workload is None:
            return self.cron.status(key)
        context = self._context
        record = self._jobs.of(workload) if isinstance(workload.rules, JobRules) else None
        pods = [self._seen(one, workload) for one in self._pods.of(key).values()]
        progress = self._progress.get(key, Progress(since_s=context.clock.now_s()))
        return workload_status(
            workload, pods, record, progress, context.clock.now_s(), why_not_here=self._why_not_here(workload)
        )

    def created_s(self, key: Key) -> float:
        """Since when it has been known, in wall time; 0 for what is not. A Job's record may outlive its pods."""
        workload, since_s = self._known.get(key), self._first_seen.of(key) or self.cron.created_s(key)
        if workload is None or not isinstance(workload.rules, JobRules):
            return since_s
        return min(since_s, self._jobs.of(workload).started_s or since_s)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.cron.run(), name="pods-cron-jobs")
            await self._run()

    async def _run(self) -> None:
        # All of them once: what happened while nobody looked is not known.
        self._changed |= {*self._known, *self._jobs.keys()}
        while True:
            self._bell.clear()
            now_s = self._context.clock.now_s()
            due = {key for key, due_s in self._due_s.items() if due_s <= now_s}
            chosen, self._changed = sorted(self._changed | due), set()
            for key in chosen:
                self._due_s.pop(key, None)
                with contained("/".join(key), "carry it out"):
                    await self._advance(key)
            await rung(self._bell, self._context.clock, min(self._due_s.values(), default=None))

    async def _advance(self, key: Key) -> None:
        workload = self._known.get(key)
        if workload is None:
            await self._forget(key)
        elif isinstance(workload.rules, JobRules):
            await self._advance_job(workload, workload.rules)
        else:
            self._advance_rollout(workload, workload.rules)

    async def _forget(self, key: Key) -> None:
        if not self._jobs.has(key) or self._host.is_unread(self._jobs.file_of(key)):
            return
        try:
            await self._jobs.forget(key)
        except OSError as error:
            log.warning("job_record_not_removed", job="/".join(key), error=str(error))
            self._due_s[key] = self._context.clock.now_s() + RETRY_S

    def _advance_rollout(self, workload: Workload, rules: RolloutRules) -> None:
        now_s = self._context.clock.now_s()
        if self._why_not_here(workload):
            rules = replace(rules, replicas=0)
        pods = [self._seen(one, workload) for one in self._pods.of(workload.key).values()]
        waiting = [
            one.ready_s + rules.min_ready_s
            for one in self._pods.of(workload.key).values()
            if one.ready_s is not None and one.ready_s + rules.min_ready_s > now_s
        ]
        if waiting:
            self._due_s[workload.key] = min(waiting)
        before = self._progress.get(workload.key)
        self._progress[workload.key] = Progress(since_s=now_s).of(workload.revision, pods, before)
        self._take(workload, plan_rollout(rules, workload.revision, pods))

    async def _advance_job(self, workload: Workload, rules: JobRules) -> None:
        clock = self._context.clock
        if self._why_not_here(workload):
            rules = replace(rules, parallelism=0)
        pods = [self._seen(one, workload) for one in self._pods.of(workload.key).values()]
        before = self._jobs.of(workload)
        plan = plan_job(rules, before, pods, clock.wall_s(), self._context.settings().curve)
        try:
            await self._jobs.keep(plan.record)
        except OSError as error:
            log.warning("job_record_not_saved", job=workload.text, error=str(error), effect="the Job waits")
            self._due_s[workload.key] = clock.now_s() + RETRY_S
            return
        if plan.record.outcome:
            self.cron.ended(workload.key, plan.record)
        if plan.record.outcome and not before.outcome:
            self._tell_outcome(workload, plan.record)
        if plan.wake_s is not None:
            self._due_s[workload.key] = clock.now_s() + max(plan.wake_s - clock.wall_s(), 0.0)
        self._take(workload, Steps(make=plan.make, end=plan.end))
        if plan.is_expired:
            await self._expire(workload)

    def _tell(self, workload: Workload, reason: str, message: str, *, is_warning: bool = False) -> None:
        self._context.tell(
            Event(
                is_warning=is_warning,
                reason=reason,
                message=printable(message),
                plane="pods",
                namespace=workload.namespace,
                object_name=workload.name,
                object_kind=workload.kind,
            )
        )

    def _tell_outcome(self, workload: Workload, record: JobRecord) -> None:
        is_warning = record.outcome != COMPLETE
        reason = record.reason if is_warning else "Completed"
        self._tell(workload, reason, record.message or "Job completed", is_warning=is_warning)
        log.info(
            "job_finished", job=workload.text, outcome=record.outcome, reason=record.reason, message=record.message,
            succeeded=record.succeeded, failed=record.failed,
        )  # fmt: skip

    async def _expire(self, workload: Workload) -> None:
        """Its manifest goes, and with the manifest the pods and the record."""
        try:
            await asyncio.to_thread(self._take_out, workload.file, workload.key)
            log.info("job_expired", job=workload.text, file=workload.file)
        except (OSError, Refused) as error:
            log.warning("job_not_taken_out", job=workload.text, file=workload.file, error=str(error))
        # Its manifest is read again long before that, if it is gone.
        self._due_s[workload.key] = self._context.clock.now_s() + EXPIRY_RETRY_S

    def _take(self, workload: Workload, steps: Steps) -> None:
        pods = self._pods.of(workload.key)
        for uid in steps.end:
            entry = pods.get(uid)
            if entry is not None:
                entry.is_wanted = False
                self._host.let_go(entry.pod)
                self._tell(workload, "SuccessfulDelete", f"Deleted pod: {entry.pod.name}")
        if steps.make:
            names = workload.names(lambda name: self._host.is_taken(f"{workload.namespace}/{name}"))
            for _ in range(steps.make):
                # Each has to be there before the next name is chosen.
                pod = workload.pod(next(names), str(uuid4()), self._first_seen.of(workload.key))
                self._pods.add(pod)
                self._host.begin(pod)
                self._tell(workload, "SuccessfulCreate", f"Created pod: {pod.name}")
        if steps != Steps():
            log.info("workload_advanced", workload=workload.text, made=steps.make, ended=len(steps.end))

    def _why_not_here(self, workload: Workload) -> str:
        settings = self._context.settings()
        return why_not_here(workload.template.spec, settings.labels, settings.node)

    def _seen(self, entry: OwnedEntry, workload: Workload) -> OwnedPod:
        pod, now_s = entry.pod, self._context.clock.now_s()
        run, state = self._host.run_of(pod.uid), self._host.state_of(pod)
        is_ready = state is not None and any(one.type == "Ready" and one.is_true for one in state.conditions)
        if not is_ready:
            entry.ready_s = None
        elif entry.ready_s is None:
            entry.ready_s = now_s
        outcome = run.memory.outcome if run is not None else None
        if outcome is not None and outcome.may_begin_anew and pod.spec.restart_policy != "Never":
            outcome = None
        rules = workload.rules
        min_ready_s = rules.min_ready_s if isinstance(rules, RolloutRules) else 0
        return OwnedPod(
            uid=pod.uid,
            revision=pod.owner.revision if pod.owner is not None else "",
            age=entry.age,
            is_ready=is_ready,
            is_available=entry.ready_s is not None and now_s >= entry.ready_s + min_ready_s,
            is_ending=not entry.is_wanted or (run is not None and run.is_removed),
            phase=outcome.phase if outcome is not None else "",
            restarts=sum(one.restart_count for one in state.containers) if state is not None else 0,
        )
