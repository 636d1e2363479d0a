# SPDX-License-Identifier: Apache-2.0
"""Keeps the pods of this node as the manifests want them, and shows them.

    run
    ├── manifests, events: each tells whom it concerns
    ├── round: a look at everything the runtime has, at the start, after every gap in its news, and now and then
    ├── keeper per pod: keeper.py
    └── housekeeping: logs that grow, volumes that fill

All tasks live in the group that `run` opens. What happens to one pod holds no other up: a keeper that fails is logged
and begins anew. Never: decides what happens to a pod.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace

from agent.model.component import Report
from agent.model.event import Event
from agent.model.feed import Feed
from agent.model.pod import PodSpec
from agent.model.pod_state import PodState
from agent.model.refused import Refused
from agent.model.runtime_error import RuntimeCallFailed, Unavailable
from agent.model.runtime_event import EventKind, RuntimeEvent
from agent.pods.manifest.objects import NodeIdentity, Source
from agent.pods.manifest.reading import Reading, changed_sources, read_pods
from agent.pods.manifest.references import source_references
from agent.pods.plan.node_match import why_not_here
from agent.pods.plan.orphans import orphan_spec
from agent.pods.plan.record import FOLDER, Record, decode_record
from agent.pods.plan.remembered import Memory, PodOutcome, without_outdated
from agent.pods.plan.restart import RetryPause
from agent.pods.plan.work import RestartingAll
from agent.pods.ports import ManifestSource, RuntimeEvents, Snapshot
from agent.pods.run.housekeeping import Housekeeping
from agent.pods.run.keeper import PodKeeper
from agent.pods.run.owners import Owners
from agent.pods.run.pod_context import PodContext
from agent.pods.run.probes import ProbeRunner
from agent.pods.run.run_state import Listeners, PodRun
from agent.pods.runtime.observation import seen_pods
from agent.pods.runtime.seen import SeenPod
from agent.pods.view.history import History, Moment
from agent.pods.view.status import Look, pod_status
from agent.pods.view.waiting_text import why_starting, why_stopping

log = structlog.get_logger(plane="pods")

Result = TypeVar("Result")

MOST_TOLD = 5
MOST_PAST = 50
SHUTDOWN_TEXT = "Pod was rejected as the node is shutting down."


class PodRunner:
    def __init__(self, context: PodContext, manifests: ManifestSource, events: RuntimeEvents) -> None:
        self._manifests = manifests
        self._events = events
        self._context = replace(context, sources=self._sources, others=self._others)
        self._reading = Reading()
        # What it wants, by uid.
        self._wanted: dict[str, PodSpec] = {}
        self._has_read = False
        self._listed = asyncio.Event()
        self._owners = Owners()
        # By name of the pod; those without problems have no entry.
        self._problems: dict[str, list[str]] = {}
        # What is wrong with the manifests of pods that run, by uid.
        self._complaints: dict[str, str] = {}
        self._records: dict[str, Record] = {}
        # What happened to the last pods that are gone, and their containers.
        self.past: OrderedDict[str, tuple[tuple[Moment, ...], tuple[str, ...]]] = OrderedDict()
        self._lists = RetryPause()
        self._look = asyncio.Event()
        self._changed = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._probes = ProbeRunner(context.containers, context.probe_client, context.settings().exec_probes_at_once)
        self.pods: Feed[PodState] = Feed()
        # Who wants no new pods now: `drain`, `shutdown`.
        self._closed_by: set[str] = set()
        # Why, by name of the pod.
        self._rejected: dict[str, str] = {}
        context.metrics.phases = self._phases

    # --- for the API -------------------------------------------------------------------------------------------

    @property
    def keepers(self) -> Mapping[str, PodKeeper]:
        return self._owners.keepers

    def keeper(self, namespace: str, name: str) -> PodKeeper | None:
        return self._owners.named(f"{namespace}/{name}")

    @property
    def reading(self) -> Reading:
        return self._reading

    def look_again(self) -> None:
        self._look.set()

    def background(self, work: Coroutine[Any, Any, Result], name: str) -> asyncio.Task[Result]:
        """Something that goes on although who asked for it has left; it ends with the plane."""
        if self._group is None:
            work.close()
            raise Refused("unavailable", "the pods plane is not running now; it restarts by itself")
        return self._group.create_task(work, name=name)

    async def listed(self) -> None:
        await self._listed.wait()

    def close(self, why: str) -> None:
        """Refuse new pods from now on (NSD-01)."""
        self._closed_by.add(why)

    def admit(self, why: str) -> None:
        self._closed_by.discard(why)
        if self._listed.is_set():
            self._want()

    # --- the tasks ---------------------------------------------------------------------------------------------

    async def run(self, report: Report) -> None:
        """Until cancelled; what runs goes on running."""
        self._owners.clear()
        self._problems.clear()
        self._complaints.clear()
        self._listed.clear()
        await self._load_records()
        housekeeping = Housekeeping(self._context, lambda: list(self._owners.keepers.values()))
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self._follow_manifests(), name="pods-manifests")
                group.create_task(self._follow_events(), name="pods-events")
                group.create_task(housekeeping.run(), name="pods-housekeeping")
                group.create_task(self._report(report), name="pods-report")
                await self._rounds(group)
        finally:
            self._group = None

    async def _rounds(self, group: asyncio.TaskGroup) -> None:
        while True:
            pause_s = self._context.settings().relist_s
            self._look.clear()
            if self._has_read:
                pause_s = min(await self._round(), pause_s)
            timer = group.create_task(self._look_later(pause_s), name="pods-timer")
            await self._look.wait()
            timer.cancel()

    async def _look_later(self, after_s: float) -> None:
        await self._context.clock.sleep(after_s)
        self._look.set()

    async def _report(self, report: Report) -> None:
        while True:
            self._tell(report)
            await self._changed.wait()
            self._changed.clear()

    async def _load_records(self) -> None:
        context = self._context
        try:
            found = await context.records.read_folder(FOLDER)
        except OSError as error:
            log.warning("pod_records_unreadable", error=str(error))
            return
        boot_id = context.settings().facts.boot_id
        for name, content in found.items():
            uid = name.removesuffix(".json")
            try:
                self._records[uid] = decode_record(content, boot_id, context.clock.now_s(), context.clock.wall_s())
            except ValueError as error:
                log.warning("pod_record_unreadable", record=name, error=str(error))

    # --- manifests ---------------------------------------------------------------------------------------------

    async def _follow_manifests(self) -> None:
        async for snapshot in self._manifests.snapshots():
            await self._take(snapshot)

    async def _take(self, snapshot: Snapshot) -> None:
        before = self._reading
        settings = self._context.settings()
        identity = NodeIdentity(settings.node, settings.name_suffix)
        self._reading = await asyncio.to_thread(read_pods, snapshot, before, identity)
        self._wanted = {pod.uid: pod for pod in self._reading.pods.values()}
        is_first, self._has_read = not self._has_read, True
        self._tell_findings(before)
        if is_first or not self._listed.is_set():
            self._look.set()
        else:
            self._want()
        if changed := changed_sources(before, self._reading):
            for keeper in self._owners.keepers.values():
                if changed & source_references(keeper.run.pod):
                    keeper.sources_changed()
        self._changed.set()

    def _tell_findings(self, before: Reading) -> None:
        known = set(before.findings)
        for finding in self._reading.findings:
            if finding not in known:
                log.warning("manifest_refused", finding=str(finding))
                reason = "ManifestDuplicate" if finding in self._reading.duplicates else "FailedValidation"
                self._context.tell(Event(id="", is_warning=True, reason=reason, message=str(finding), plane="pods"))
        for finding in self._reading.warnings:
            if finding not in before.warnings:
                log.warning("manifest_doubtful", finding=str(finding))

    def _want(self) -> None:
        for uid, keeper in list(self._owners.keepers.items()):
            pod = keeper.run.pod
            wanted = self._wanted.get(uid)
            if wanted is not None and wanted.key != pod.key:
                # A sandbox cannot be given another name.
                keeper.remove()
            elif wanted is not None:
                if not keeper.run.is_removed:
                    keeper.want(wanted)
            elif pod.key in self._reading.pods or not self._reading.is_unread(pod.file):
                keeper.remove()
            self._describe(keeper)
        for key, pod in self._reading.pods.items():
            if self._owners.named(key) is None:
                self._admit(pod)
        for key in self._rejected.keys() - self._reading.pods.keys():
            del self._rejected[key]
            self.pods.remove(key)

    def _admit(self, pod: PodSpec) -> None:
        if pod.uid in self._owners.keepers:
            return
        settings = self._context.settings()
        if self._closed_by:
            self._reject(pod, "NodeShutdown", SHUTDOWN_TEXT)
        elif text := why_not_here(pod.spec, settings.labels, settings.node):
            self._reject(pod, "NodeAffinity", text)
        else:
            self._begin(self._keeper_for(pod))

    def _reject(self, pod: PodSpec, reason: str, text: str) -> None:
        """NSD-01: shown, reported once, and begun as soon as it is taken."""
        if self._rejected.get(pod.key) == text:
            return
        self._rejected[pod.key] = text
        outcome = PodOutcome(phase="Failed", reason=reason, message=text)
        self.pods.put(pod.key, pod_status(Look(pod=pod, seen=SeenPod(), memory=Memory(outcome=outcome))))
        self._context.tell(
            Event(
                id="",
                is_warning=True,
                reason=reason,
                message=text.removeprefix("Pod was rejected: "),
                plane="pods",
                namespace=pod.namespace,
                object_name=pod.name,
            )
        )
        self._changed.set()

    def _describe(self, keeper: PodKeeper) -> None:
        """What is wrong with the manifest stands on the pod as well (MAN-07)."""
        run, reading = keeper.run, self._reading
        text = "; ".join(str(finding) for finding in reading.complaints_about(run.pod.file))
        if text and reading.is_stale(run.pod):
            if run.pod.uid not in self._complaints:
                run.tell("ManifestStale", f"the last good manifest stays in force: {text}", is_warning=True)
            text = f"its last good manifest is in force: {text}"
        if text != self._complaints.get(run.pod.uid, ""):
            self._complaints[run.pod.uid] = text
            self._show(run)
        if not text:
            self._complaints.pop(run.pod.uid, None)

    def _sources(self) -> Mapping[tuple[str, str, str], Source]:
        return self._reading.sources

    def _others(self, uid: str) -> Sequence[PodSpec]:
        runs = [keeper.run for other, keeper in self._owners.keepers.items() if other != uid]
        return [run.pod for run in runs if run.memory.outcome is None]

    # --- keepers -----------------------------------------------------------------------------------------------

    def _keeper_for(self, pod: PodSpec) -> PodKeeper:
        context = self._context
        record = self._records.get(pod.uid)
        memory = without_outdated(record.memory, record.pod, pod) if record is not None else Memory()
        if not memory.first_seen_wall_s:
            memory = replace(memory, first_seen_s=context.clock.now_s(), first_seen_wall_s=context.clock.wall_s())
        listeners = Listeners(changed=self._show, seen=self._owners.learn, doubted=self._look.set)
        history = History(record.moments if record is not None else ())
        return PodKeeper(PodRun(pod, context, memory, history, listeners), self._probes)

    def _begin(self, keeper: PodKeeper) -> PodKeeper:
        run = keeper.run
        record = self._records.pop(run.pod.uid, None)
        self._rejected.pop(run.pod.key, None)
        self._owners.add(keeper)
        if self._group is not None:
            self._group.create_task(self._keep(keeper), name=f"pod {run.pod.key}")
        if record is None:
            run.note("first_seen")
        return keeper

    async def _keep(self, keeper: PodKeeper) -> None:
        """A bug that shows in one pod must not end the others."""
        run = keeper.run
        failures = RetryPause()
        while not run.is_gone:
            try:
                await keeper.keep()
            except Exception as error:  # see above
                failures.fail(self._context.clock.now_s(), repr(error))
                log.error("pod_keeper_failed", pod=run.pod.key, error=repr(error), exc_info=error)
                keeper.recover(f"kepd failed inside: {error!r}")
                self._show(run)
                await self._context.clock.sleep(failures.pause_s)
        self._owners.remove(keeper)
        self._complaints.pop(run.pod.uid, None)
        self.past[run.pod.key] = (run.history.moments, tuple(one.name for one in run.pod.containers))
        self.past.move_to_end(run.pod.key)
        while len(self.past) > MOST_PAST:
            self.past.popitem(last=False)
        if self._owners.named(run.pod.key) is None:
            self.pods.remove(run.pod.key)
            self._problems.pop(run.pod.key, None)
        self._succeed(run.pod)
        self._changed.set()

    def _succeed(self, gone: PodSpec) -> None:
        """A name and a uid are free: who is wanted under them begins (MAN-10)."""
        for pod in (self._reading.pods.get(gone.key), self._wanted.get(gone.uid)):
            if pod is not None and self._owners.named(pod.key) is None:
                self._admit(pod)

    # --- the runtime -------------------------------------------------------------------------------------------

    async def _follow_events(self) -> None:
        async for event in self._events.listen():
            await self._heard(event)

    async def _heard(self, event: RuntimeEvent) -> None:
        if event.kind is EventKind.LOST:
            self._look.set()
            return
        if event.kind in (EventKind.CREATED, EventKind.STARTED):
            return
        keeper = self._owners.of_instance(event.container_id)
        if keeper is not None:
            keeper.look_at(event.container_id)
        elif event.kind is EventKind.STOPPED and self._owners.of_sandbox(event.container_id) is not None:
            self._look.set()

    async def _round(self) -> float:
        """One look at everything; how long to rest at most."""
        context = self._context
        try:
            containers = await context.containers.list_containers()
            sandboxes = await context.sandboxes.list_sandboxes()
            seen = seen_pods(sandboxes, containers, context.settings().instance, context.wall_minus_now_s)
            for uid, pod in seen.items():
                if uid in self._owners.keepers:
                    await self._owners.keepers[uid].merge(pod)
                else:
                    await self._found(uid, pod)
            for uid, keeper in list(self._owners.keepers.items()):
                if uid not in seen and (keeper.run.seen.sandboxes or keeper.run.seen.instances):
                    await keeper.merge(SeenPod())
        except RuntimeCallFailed as error:
            return self._cannot_look(error)
        self._lists.reset()
        self._listed.set()
        self._forgotten()
        self._want()
        self._changed.set()
        return context.settings().relist_s

    async def _found(self, uid: str, seen: SeenPod) -> None:
        """A pod that runs and has no keeper: wanted, known from before, or an orphan (TRM-30)."""
        record = self._records.get(uid)
        pod = self._wanted.get(uid) or (record.pod if record is not None else orphan_spec(seen))
        keeper = self._keeper_for(pod)
        await keeper.merge(seen)
        if uid not in self._owners.keepers:
            self._begin(keeper)

    def _forgotten(self) -> None:
        """Records of pods that neither run nor are wanted: what is left of them goes (GC-03), unless finished."""
        for uid, record in list(self._records.items()):
            if (
                uid not in self._wanted
                and uid not in self._owners.keepers
                and not self._reading.is_unread(record.pod.file)
            ):
                self._begin(self._keeper_for(record.pod)).remove()

    def _cannot_look(self, error: RuntimeCallFailed) -> float:
        what = "does not answer" if isinstance(error, Unavailable) else f"fails in {error.method}"
        self._lists.fail(self._context.clock.now_s(), f"the container runtime {what}: {error.details}")
        self._show_waiting()
        self._changed.set()
        return self._lists.pause_s

    # --- what people see ---------------------------------------------------------------------------------------

    def _show_waiting(self) -> None:
        for pod in self._reading.pods.values():
            if self.keeper(pod.namespace, pod.name) is None:
                look = Look(pod=pod, seen=SeenPod(), memory=Memory(), waits_for="the container runtime")
                self.pods.put(pod.key, pod_status(look))

    def _show(self, run: PodRun) -> None:
        if run.is_gone:
            return
        now_s = self._context.clock.now_s()
        if run.memory.stop is not None:
            waits_for = why_stopping(run.memory.stop, now_s)
        else:
            waits_for = why_starting(run.plan.waiting, run.tasks, run.problem, now_s)
        look = Look(
            pod=run.pod,
            seen=run.seen,
            memory=run.memory,
            waiting=run.plan.waiting,
            waits_for=waits_for,
            message=self._complaints.get(run.pod.uid, ""),
            is_terminating=run.is_terminating,
            host_ips=self._context.settings().facts.addresses,
            is_restarting_all=RestartingAll() in run.tasks,
            more_conditions=run.resize_conditions,
        )
        self.pods.put(run.pod.key, pod_status(look))
        self._note_problems(run)
        self._changed.set()

    def _note_problems(self, run: PodRun) -> None:
        key, memory = run.pod.key, run.memory
        problems = [f"{key}: {memory.message}"] if memory.reason else []
        problems += [f"{key}: {name}: {one.message}" for name, one in memory.containers.items() if one.reason]
        if problems:
            self._problems[key] = problems
        else:
            self._problems.pop(key, None)

    def _phases(self) -> Counter[str]:
        return Counter(pod.phase for pod in self.pods.items.values())

    def _tell(self, report: Report) -> None:
        problems = [self._lists.problem] if self._lists.problem else []
        problems += [str(finding) for finding in self._reading.findings]
        problems += [text for texts in self._problems.values() for text in texts]
        if len(problems) > MOST_TOLD:
            problems[MOST_TOLD:] = [f"and {len(problems) - MOST_TOLD} more"]
        if problems:
            report.degraded("; ".join(problems))
        elif self._has_read and self._listed.is_set():
            report.ready(f"{len(self._reading.pods)} pods")
