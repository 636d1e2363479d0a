# SPDX-License-Identifier: Apache-2.0
"""Carries out Deployments, DaemonSets, StatefulSets and Jobs: one at a time, each when its manifest or one of its pods
changed.

A pod that is made is wanted from then on like one from a file, and the runner begins and ends it in the same way.
Beside them the records of Jobs and the former templates are remembered: after a restart the pods that have a record are
there again, with the template they were made of. Never: decides what is made or ended (workloads/rollout.py,
stateful.py, job.py).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog
from msgspec.structs import replace

from agent.model.clock import rung
from agent.model.pods.pod import PodSpec
from agent.model.pods.wall_clock import Boot
from agent.model.refused import Refused
from agent.pods.admission.rules import quota_of, quota_status
from agent.pods.manifest.reading import ReadManifest
from agent.pods.plan.admit import why_not_here
from agent.pods.plan.remembered import Record
from agent.pods.run.claims import Claims
from agent.pods.run.owners import contained
from agent.pods.run.pod_context import PodDependencies
from agent.pods.run.workloads.budgets import Budgets
from agent.pods.run.workloads.cron_jobs import CronJobs
from agent.pods.run.workloads.hands import Hands, PodHost
from agent.pods.run.workloads.known import (
    FirstSeen,
    OwnedPods,
    can_surge,
    histories,
    history_of,
    job_records,
    record_of,
)
from agent.pods.storage.objects import VERSIONS as STORAGE_KINDS
from agent.pods.view.revisions import revision_objects
from agent.pods.workloads.budget import KIND as BUDGET
from agent.pods.workloads.claims import claims_for, remembered, to_remove
from agent.pods.workloads.history import History, noted
from agent.pods.workloads.job import COMPLETE, JobRecord, JobRules, plan_job
from agent.pods.workloads.rollout import OwnedPod, RolloutRules, Steps, plan_rollout
from agent.pods.workloads.stateful import StatefulRules, is_rolled_out, plan_stateful
from agent.pods.workloads.status import Progress, workload_status
from agent.pods.workloads.workload import Key, Workload

log = structlog.get_logger(plane="pods")

TakeOut = Callable[[str, Key], None]

RETRY_S, EXPIRY_RETRY_S = 5.0, 60.0
"""Until what the disk refused is tried again."""


class Workloads:
    def __init__(self, context: PodDependencies, host: PodHost, take_out: TakeOut, claims: Claims) -> None:
        """`take_out` takes an object, by kind, namespace and name, out of its file."""
        self._context = context
        self._host = host
        self._take_out = take_out
        self.claims = claims
        self._jobs = job_records(context.records)
        self._histories = histories(context.records)
        self.cron = CronJobs(context, host.is_unread, self._follow_made)
        self._given = ReadManifest()
        self._pods = OwnedPods()
        self._first_seen = FirstSeen()
        self._known: Mapping[Key, Workload] = {}
        self._changed: set[Key] = set()
        self._due_s: dict[Key, float] = {}
        self._progress: dict[Key, Progress] = {}
        self._bell = asyncio.Event()
        self._hands = Hands(context, host, self._pods, self._first_seen)
        self.budgets = Budgets(host, lambda: self._known)

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
        await self.claims.load()
        await self._jobs.load()
        await self._histories.load()
        await self.cron.load()

    def wanted(self) -> list[PodSpec]:
        return list(self._pods.wanted())

    def follow(self, reading: ReadManifest) -> None:
        """The manifests say this now; the pods that they have themselves come first."""
        self._given = reading
        self.claims.follow(reading.storage)
        workloads = self.cron.take(reading.workloads)
        before, self._known = self._known, workloads
        own = frozenset(reading.pods)
        self.budgets.follow(reading.budgets)
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
        keys = {*before, *workloads, *self._jobs.keys(), *self._histories.keys()}
        self._changed |= {key for key in keys if before.get(key) is not workloads.get(key) or key not in workloads}
        for key in self._progress.keys() - workloads.keys():
            del self._progress[key]
        self._bell.set()

    def _follow_made(self) -> None:
        """Jobs of CronJobs came or went, and with them their pods."""
        before = self.wanted()
        self.follow(self._given)
        wanted = {one.uid for one in self.wanted()}
        for pod in before:
            if pod.uid not in wanted:
                self._host.let_go(pod)

    def touch(self, pod: PodSpec) -> None:
        """Something about a pod changed."""
        self.claims.touch()
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
        if key[0] == BUDGET:
            return self.budgets.status(key)
        if key[0] in STORAGE_KINDS:
            return self.claims.status(key)
        if (quota := quota_of(self._given.rules, key)) is not None:
            return quota_status(quota, self._context.places.charges)
        workload = self._known.get(key)
        if workload is None:
            return self.cron.status(key)
        context = self._context
        record = record_of(self._jobs, workload) if isinstance(workload.rules, JobRules) else None
        pods = [self._hands.seen(one, workload) for one in self._pods.of(key).values()]
        progress = self._progress.get(key, Progress(since_s=context.clock.now_s()))
        return workload_status(
            workload, pods, record or history_of(self._histories, workload), progress, context.clock.now_s(),
            why_not_here=self._why_not_here(workload),
        )  # fmt: skip

    def history(self, key: Key) -> History | None:
        """Of one that is in a manifest."""
        return self._histories.of(key) if key in self._known else None

    def revision(self, key: Key) -> int:
        """The number of a Deployment's template; 0 before it is known, and for other kinds."""
        history = self._histories.of(key) if key[0] == "Deployment" and key in self._known else None
        return history.newest.number if history is not None and history.newest is not None else 0

    def revisions(self) -> list[dict[str, Any]]:
        """All templates that are remembered, as objects."""
        found = ((one, self._known.get(one.key)) for one in self._histories.all())
        return [
            made
            for history, workload in found
            if workload is not None
            for made in revision_objects(
                history, workload, [self._hands.seen(each, workload) for each in self._pods.of(history.key).values()]
            )
        ]

    def created_s(self, key: Key) -> float:
        """Since when it has been known, in wall time; 0 for what is not. A Job's record may outlive its pods."""
        if key[0] in STORAGE_KINDS:
            return self.claims.created_s(key)
        workload, since_s = self._known.get(key), self._first_seen.of(key) or self.cron.created_s(key)
        if workload is None or not isinstance(workload.rules, JobRules):
            return since_s
        return min(since_s, record_of(self._jobs, workload).started_s or since_s)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.cron.run(), name="pods-cron-jobs")
            group.create_task(self.claims.run(), name="pods-claims")
            group.create_task(self.claims.measure(), name="pods-claims-measured")
            await self._run()

    async def _run(self) -> None:
        # All of them once: what happened while nobody looked is not known.
        self._changed |= {*self._known, *self._jobs.keys(), *self._histories.keys()}
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
            return
        rules = workload.rules
        if isinstance(rules, JobRules):
            await self._advance_job(workload, rules)
            return
        if self._why_not_here(workload):
            rules = replace(rules, replicas=0)
        pods = [self._hands.seen(one, workload) for one in self._pods.of(key).values()]
        self._wake_for_available(workload, rules.min_ready_s)
        before, now_s = self._progress.get(key), self._context.clock.now_s()
        self._progress[key] = Progress(since_s=now_s).of(workload.revision, pods, before)
        try:
            if isinstance(rules, StatefulRules):
                await self._advance_set(workload, rules, pods)
            else:
                await self._advance_rollout(workload, rules, pods)
        except OSError as error:
            log.warning("workload_not_advanced", workload=workload.text, error=str(error), effect="it waits")
            self._hands.tell(workload, "FailedCreate", f"cannot go on: {error.strerror or error}", is_warning=True)
            self._due_s[key] = now_s + RETRY_S

    async def _forget(self, key: Key) -> None:
        """Its manifest is gone, and of what it wrote down goes what the manifest wanted to go."""
        record = self._jobs.of(key) or self._histories.of(key)
        if record is None or self._host.is_unread(record.file):
            return
        try:
            if isinstance(record, History) and record.ends_claims:
                if self._pods.of(key):
                    return
                await self._remove_claims(record, record.claims)
            await self._jobs.forget(key)
            await self._histories.forget(key)
        except OSError as error:
            log.warning("workload_record_not_removed", workload="/".join(key), error=str(error))
            self._due_s[key] = self._context.clock.now_s() + RETRY_S

    def _is_still(self, workload: Workload) -> bool:
        """Whether its manifest says what it said before something was waited for. If not, a pod that is made now might
        belong to nobody."""
        if self._known.get(workload.key) is workload:
            return True
        self._changed.add(workload.key)
        self._bell.set()
        return False

    def _wake_for_available(self, workload: Workload, min_ready_s: int) -> None:
        ready = (one.ready_s for one in self._pods.of(workload.key).values() if one.ready_s is not None)
        now_s = self._context.clock.now_s()
        waiting = [ready_s + min_ready_s for ready_s in ready if ready_s + min_ready_s > now_s]
        if waiting:
            self._due_s[workload.key] = min(waiting)

    def replace(self, uid: str) -> Key | None:
        """Another pod takes the place of this one, which ends once that is available; whose they are. None where its
        kind of change cannot have one more for a while."""
        found = next((pod for pod in self._pods.wanted() if pod.uid == uid), None)
        workload = self._known.get(found.owner.key) if found is not None and found.owner is not None else None
        entry = self._pods.entry(found) if found is not None else None
        if entry is None or workload is None or not can_surge(workload):
            return None
        entry.is_replaced = True
        self.touch(entry.pod)
        return workload.key

    def keep_after_all(self, key: Key) -> None:
        """Nobody takes the place of its pods."""
        for entry in self._pods.of(key).values():
            entry.is_replaced = False
            self.touch(entry.pod)

    async def _advance_rollout(self, workload: Workload, rules: RolloutRules, pods: list[OwnedPod]) -> None:
        """Raises OSError."""
        if any(one.is_replaced for one in self._pods.of(workload.key).values()):
            rules = replace(rules, most_surge=max(rules.most_surge, 1), most_unavailable=0)
        history = history_of(self._histories, workload)
        if not rules.is_paused:
            history = self._noted(history, workload, rules.history_limit, pods)
            await self._histories.keep(history)
        if not self._is_still(workload):
            return
        if (newest := history.newest) is not None:
            # Of one that is paused not what its manifest says.
            self._hands.take(workload.at(newest.hash, newest.template), plan_rollout(rules, newest.hash, pods))

    def _noted(self, history: History, workload: Workload, limit: int, pods: list[OwnedPod]) -> History:
        return noted(history, workload, self._context.clock.wall_s(), limit, {one.revision for one in pods})

    async def _advance_set(self, workload: Workload, rules: StatefulRules, pods: list[OwnedPod]) -> None:
        """Raises OSError."""
        history, update = history_of(self._histories, workload), workload.revision
        if history.of(history.current) is None or is_rolled_out(rules, update, pods):
            history = replace(history, current=update)
        steps = plan_stateful(rules, history.current, update, pods)
        wanted = claims_for(workload, [one.ordinal for one in steps.make])
        history = self._noted(history, workload, rules.history_limit, pods)
        root = self._context.settings().pods.claim_directory
        claims = tuple(sorted({*history.claims, *remembered(wanted, root)}))
        history = replace(history, claims=claims, ends_claims=rules.ends_claims_of_deleted)
        await self._histories.keep(history)
        await self.claims.make(wanted)
        if not self._is_still(workload):
            return
        if not self._hands.take_places(workload, history, steps):
            self._due_s[workload.key] = self._context.clock.now_s() + RETRY_S
        # One that may not run here is not scaled down: its data waits for it.
        is_here = not self._why_not_here(workload)
        if is_here and (spare := to_remove(rules, claims, [one.ordinal for one in pods])):
            await self._remove_claims(history, spare)

    async def _remove_claims(self, history: History, spare: Iterable[str]) -> None:
        """Raises OSError."""
        others = {claim for one in self._histories.all() if one.key != history.key for claim in one.claims}
        gone = tuple(spare)
        await self.claims.remove(one for one in gone if one not in others)
        log.info("claims_removed", workload="/".join(history.key), directories=list(gone))
        await self._histories.keep(replace(history, claims=tuple(one for one in history.claims if one not in gone)))

    async def _advance_job(self, workload: Workload, rules: JobRules) -> None:
        clock = self._context.clock
        if self._why_not_here(workload):
            rules = replace(rules, parallelism=0)
        pods = [self._hands.seen(one, workload) for one in self._pods.of(workload.key).values()]
        before = record_of(self._jobs, workload)
        settings, wall_s = self._context.settings(), clock.wall_s()
        boot = Boot(settings.facts.boot_id, wall_s - clock.now_s())
        plan = plan_job(rules, before, pods, wall_s, settings.curve, boot)
        try:
            await self._jobs.keep(plan.record)
        except OSError as error:
            log.warning("job_record_not_saved", job=workload.text, error=str(error), effect="the Job waits")
            self._due_s[workload.key] = clock.now_s() + RETRY_S
            return
        if not self._is_still(workload):
            return
        if plan.record.outcome:
            self.cron.ended(workload.key, plan.record)
        if plan.record.outcome and not before.outcome:
            self._tell_outcome(workload, plan.record)
        if plan.wake_s is not None:
            self._due_s[workload.key] = clock.now_s() + max(plan.wake_s - clock.wall_s(), 0.0)
        if rules.is_indexed:
            self._hands.take_indexes(workload, plan.indexes, plan.end)
        else:
            self._hands.take(workload, Steps(make=plan.make, end=plan.end))
        if plan.is_expired:
            await self._expire(workload)

    def _tell_outcome(self, workload: Workload, record: JobRecord) -> None:
        is_warning = record.outcome != COMPLETE
        reason = record.reason if is_warning else "Completed"
        self._hands.tell(workload, reason, record.message or "Job completed", is_warning=is_warning)
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

    def _why_not_here(self, workload: Workload) -> str:
        settings = self._context.settings()
        return why_not_here(workload.template.spec, settings.labels, settings.node)
