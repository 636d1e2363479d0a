# SPDX-License-Identifier: Apache-2.0
"""Keeps the pods of this node as the manifests want them, and shows them.

    run
    ├── manifests, events: each tells whom it concerns
    ├── round: a look at everything the runtime has, at the start, after every gap in its news, and now and then
    ├── workloads: pods that Deployments, DaemonSets and Jobs make, which are wanted like those from files
    ├── keeper per pod: keeper.py
    ├── housekeeping: logs that grow, disks that fill
    └── evictor: what the node has left

All tasks live in the group that `run` opens. What is done for one pod is done within `contained`: its fault is logged
and ends nothing else, and a keeper that fails begins anew. Never: decides what happens to a pod.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace

from agent.model.clock import rung
from agent.model.component import Report
from agent.model.event import Event
from agent.model.feed import Feed
from agent.model.nodes.drain import NodeDrain
from agent.model.pods.pod import PodSpec
from agent.model.pods.state import PodState
from agent.model.refused import Refused
from agent.model.runtime.error import DeadlineExceeded, RuntimeCallFailed, Unavailable
from agent.model.runtime.event import EventKind, RuntimeEvent
from agent.pods.manifest.objects import NodeIdentity
from agent.pods.manifest.reading import ReadManifest, changed_sources, read_pods, source_references
from agent.pods.plan.edits import replaced_by
from agent.pods.plan.remembered import History, Memory, PastPods, Record, without_outdated
from agent.pods.plan.restart import RetryPause
from agent.pods.ports import ManifestSource, NodeFigures, RuntimeEvents, Snapshot
from agent.pods.run.admitting import Admitter, Displacer, rank_of
from agent.pods.run.disk.lost_networks import LostAddresses
from agent.pods.run.evicting import Evictor
from agent.pods.run.handlers.probes import ProbeRunner
from agent.pods.run.housekeeping import Housekeeping
from agent.pods.run.keeper import PodWorker
from agent.pods.run.owners import Faults, Owners, contained, load_records
from agent.pods.run.pod_context import PodDependencies
from agent.pods.run.run_state import Listeners, LivePod
from agent.pods.run.workloads.workloads import TakeOut, Workloads
from agent.pods.runtime.observed import SeenPod, orphan_spec, seen_pods
from agent.pods.view.problems import PodProblems, first_of
from agent.pods.view.status import Look, pod_status, with_since

log = structlog.get_logger(plane="pods")

Result = TypeVar("Result")


class PodRunner:
    def __init__(
        self,
        context: PodDependencies,
        manifests: ManifestSource,
        events: RuntimeEvents,
        take_out: TakeOut,
        node: NodeFigures,
    ) -> None:
        """`take_out` takes an object, by kind, namespace and name, out of its file."""
        self._manifests = manifests
        self._events = events
        self._reading = ReadManifest()
        self._context = replace(context, sources=lambda: self._reading.sources)
        # What it wants, by uid and by name: the pods of files, and those that are made.
        self._wanted: dict[str, PodSpec] = {}
        self._called: dict[str, PodSpec] = {}
        self._has_read = False
        self._listed = asyncio.Event()
        # After the first look at the runtime, also one in vain.
        self.looked = asyncio.Event()
        self._lost = LostAddresses(context.network_results, context.clock)
        self._owners = Owners()
        self._problems = PodProblems()
        # What is wrong with the manifests of pods that run, by uid.
        self._complaints: dict[str, str] = {}
        self._records: dict[str, Record] = {}
        self._unsettled: list[PodWorker] = []
        self.past = PastPods()
        self._lists = RetryPause()
        self._faults = Faults()
        self._looks = RetryPause()
        self._look = asyncio.Event()
        self._changed = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._probes = ProbeRunner(
            context.containers, context.probe_client, context.settings().pods.exec_probe_concurrency
        )
        self.pods: Feed[PodState] = Feed()
        self._admitter = Admitter(self._context, self.pods, self._changed.set)
        self._displacer = Displacer(self._context, self._admitter, self._owners.keepers)
        self.evictor = Evictor(
            self._context, node, lambda: list(self._owners.keepers.values()), self._settle_pressure,
            self._displacer.readmit,
        )  # fmt: skip
        self._admitter.why_pressed = self.evictor.why_refused
        self.node = node
        self.workloads = Workloads(self._context, self, take_out)
        context.metrics.conditions = lambda: self.evictor.conditions
        context.metrics.checkpoints = lambda: context.files.checkpoints.counted
        context.metrics.phases = lambda: Counter(pod.phase for pod in self.pods.items.values())

    @property
    def keepers(self) -> Mapping[str, PodWorker]:
        return self._owners.keepers

    def keeper(self, namespace: str, name: str) -> PodWorker | None:
        return self._owners.named(f"{namespace}/{name}")

    @property
    def reading(self) -> ReadManifest:
        return self._reading

    def wanted(self, key: str) -> PodSpec | None:
        return self._called.get(key)

    @property
    def wanted_uids(self) -> frozenset[str]:
        return frozenset(self._wanted)

    def run_of(self, uid: str) -> LivePod | None:
        keeper = self._owners.keepers.get(uid)
        return keeper.run if keeper is not None else None

    def state_of(self, pod: PodSpec) -> PodState | None:
        state = self.pods.items.get(pod.key)
        return state if state is not None and state.uid == pod.uid else None

    def is_taken(self, key: str) -> bool:
        return key in self._called or self._owners.named(key) is not None

    def is_unread(self, file: str) -> bool:
        return self._reading.is_unread(file)

    def begin(self, pod: PodSpec) -> None:
        """A pod that was made is wanted from now on."""
        self._wanted[pod.uid] = self._called[pod.key] = pod
        self._admit(pod)

    def let_go(self, pod: PodSpec, grace_s: float | None = None) -> None:
        """It is wanted no more."""
        self._wanted.pop(pod.uid, None)
        if self._called.get(pod.key) is pod:
            del self._called[pod.key]
        keeper = self._owners.keepers.get(pod.uid)
        if keeper is not None:
            keeper.remove(grace_s)
        else:
            self._admitter.forget_all_but(self._called.keys())
            self.workloads.gone(pod)

    def delete(self, pod: PodSpec, grace_s: float | None) -> bool:
        """End a pod that was made, so that another takes its place; False for one of a file."""
        if not self.workloads.drop(pod):
            return False
        self.let_go(pod, grace_s)
        return True

    def devices_changed(self) -> None:
        """Devices may be there for pods that wait for some."""
        for keeper in self._owners.keepers.values():
            with contained(keeper.run.pod.key, "try for its devices"):
                keeper.devices_changed()

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

    def may_be_wanted(self, uid: str) -> bool:
        """Also while it is not known yet which pods are."""
        return not self._listed.is_set() or uid in self._wanted or uid in self._owners.keepers

    def set_shutting_down(self, *, is_so: bool) -> None:
        """Refuse new pods, or do so no longer."""
        self._admitter.is_shutting_down = is_so
        if not is_so and self._listed.is_set():
            self._want()

    async def cordon(self, by: str, most_s: float = 0.0) -> None:
        """Refuse new pods until `uncordon`."""
        await self._admitter.cordon.change(by, most_s)

    async def uncordon(self) -> list[str]:
        """Let pods begin, also those that the drain ended; their names."""
        await self._admitter.cordon.change("")
        revived = [keeper.run.pod.key for keeper in self._owners.keepers.values() if keeper.revive()]
        if self._listed.is_set():
            self._want()
        return sorted(revived)

    @property
    def drained(self) -> NodeDrain | None:
        """While the node is drained: since when, and what has not ended yet."""
        drained = self._admitter.cordon.drained
        if drained is None:
            return None
        runs = [keeper.run for keeper in self._owners.keepers.values()]
        return replace(drained, waits_for=tuple(sorted(run.pod.key for run in runs if run.memory.outcome is None)))

    async def run(self, report: Report) -> None:
        """Until cancelled; what runs goes on running."""
        self._owners.clear()
        self._context.places.clear()
        self._problems.clear()
        self._complaints.clear()
        self._unsettled.clear()
        self._listed.clear()
        self._faults = Faults()
        await self._admitter.cordon.load()
        self._records |= await load_records(self._context)
        await self.workloads.load(self._records.values())
        self._list_wanted()
        housekeeping = Housekeeping(self._context, lambda: list(self._owners.keepers.values()), self.node)
        self.evictor.free_logs = housekeeping.free_logs
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self._follow_manifests(), name="pods-manifests")
                group.create_task(self._follow_events(), name="pods-events")
                group.create_task(housekeeping.run(), name="pods-housekeeping")
                group.create_task(self._when_listed(self.evictor.run), name="pods-eviction")
                group.create_task(self._report(report), name="pods-report")
                group.create_task(self._when_listed(self.workloads.run), name="pods-workloads")
                await self._rounds()
        finally:
            self._group = None

    async def _rounds(self) -> None:
        while True:
            pause_s = self._context.settings().pods.relist
            self._look.clear()
            if self._has_read:
                pause_s = min(await self._round(), pause_s)
            await rung(self._look, self._context.clock, self._context.clock.now_s() + pause_s)

    async def _when_listed(self, run: Callable[[], Awaitable[None]]) -> None:
        """Not before it is known what is there."""
        await self._listed.wait()
        await run()

    async def _report(self, report: Report) -> None:
        while True:
            self._tell(report)
            await self._changed.wait()
            self._changed.clear()

    def _look_after_faults(self) -> None:
        if self._faults.names:
            self._look.set()

    async def _follow_manifests(self) -> None:
        async for snapshot in self._manifests.snapshots():
            await self._take(snapshot)

    async def _take(self, snapshot: Snapshot) -> None:
        before = self._reading
        settings = self._context.settings()
        identity = NodeIdentity(
            settings.node, settings.pods.name_suffix, settings.gives_devices, settings.gives_plugins
        )
        self._reading = await asyncio.to_thread(read_pods, snapshot, before, identity)
        self.workloads.follow(self._reading.workloads, self._reading.pods.keys())
        self._list_wanted()
        is_first, self._has_read = not self._has_read, True
        self._tell_findings(before)
        if is_first or not self._listed.is_set():
            self._look.set()
        else:
            self._want()
            self._look_after_faults()
        if changed := changed_sources(before, self._reading):
            for keeper in self._owners.keepers.values():
                with contained(keeper.run.pod.key, "follow its sources"):
                    if changed & source_references(keeper.run.pod):
                        keeper.sources_changed()
        self._changed.set()

    def _list_wanted(self) -> None:
        """A pod of a file comes before one that is made and has the same name."""
        self._wanted = {pod.uid: pod for pod in (*self.workloads.wanted(), *self._reading.pods.values())}
        self._called = {pod.key: pod for pod in self._wanted.values()}

    def _tell_findings(self, before: ReadManifest) -> None:
        known, doubted = set(before.findings), set(before.warnings)
        for finding in self._reading.findings:
            if finding not in known:
                log.warning("manifest_refused", finding=str(finding))
                reason = "ManifestDuplicate" if finding in self._reading.duplicates else "FailedValidation"
                self._context.tell(Event(id="", is_warning=True, reason=reason, message=str(finding), plane="pods"))
        for finding in self._reading.warnings:
            if finding not in doubted:
                log.warning("manifest_doubtful", finding=str(finding))

    def _want(self) -> None:
        for keeper in list(self._owners.keepers.values()):
            with self._faults.contained(keeper.run.pod.uid, keeper.run.pod.key, "follow its manifest"):
                self._want_of(keeper)
        # Who had a place before kepd or the node began anew comes first.
        ranked = sorted(self._called.values(), key=lambda one: (one.uid not in self._records, rank_of(one)))
        for pod in ranked:
            if self._owners.named(pod.key) is None:
                self._admit(pod)
        self._admitter.forget_all_but(self._called.keys())

    def _want_of(self, keeper: PodWorker) -> None:
        pod = keeper.run.pod
        wanted = self._wanted.get(pod.uid)
        successor = wanted or self._called.get(pod.key)
        if successor is None:
            if not self._reading.is_unread(pod.file):
                keeper.remove()
        elif self._admitter.may_follow(keeper.run, successor):
            self._edit(keeper, wanted) if wanted is not None else keeper.remove()
        self._describe(keeper)

    def _edit(self, keeper: PodWorker, wanted: PodSpec) -> None:
        """In place, or by another that begins when this one is gone; what is over already needs no other."""
        run = keeper.run
        if wanted is run.pod:
            return
        field = replaced_by(run.pod, wanted)
        if not field or (run.pod.key == wanted.key and keeper.is_over):
            if not run.is_removed:
                keeper.want(wanted)
            return
        if not run.is_removed:
            run.tell("SandboxChanged", f"{field} has changed; the pod ends and begins anew")
        keeper.remove()

    def _admit(self, pod: PodSpec) -> None:
        if pod.uid in self._owners.keepers or self._faults.concern(pod.uid, pod.key):
            return
        with self._faults.contained(pod.uid, pod.key, "begin it"):
            if self._admitter.may_begin(pod):
                self._begin(self._keeper_for(pod))
            else:
                self._displacer.make_room(pod)

    def _fill_room(self) -> None:
        """A pod is over or gone: what waited for its place may begin, or become what its manifest says."""
        for other in self._admitter.held:
            if (keeper := self._owners.keepers.get(other)) is not None:
                with self._faults.contained(other, keeper.run.pod.key, "follow its manifest"):
                    self._want_of(keeper)
        for pod in self._admitter.waiting:
            if self._called.get(pod.key) == pod and self._owners.named(pod.key) is None:
                self._admit(pod)
        self._displacer.bring_back()
        self._look_after_faults()

    def _settle_pressure(self) -> None:
        """The node has run short of something, or has enough again: those that wait are looked at anew."""
        if self._listed.is_set():
            self._fill_room()
        self._changed.set()

    def _describe(self, keeper: PodWorker) -> None:
        """What is wrong with the manifest stands on the pod as well."""
        run, reading = keeper.run, self._reading
        text = "; ".join(str(finding) for finding in reading.complaints_about(run.pod.file))
        if text and reading.is_stale(run.pod):
            if run.pod.uid not in self._complaints:
                run.tell("ManifestStale", f"the last good manifest stays in force: {text}", is_warning=True)
            text = f"its last good manifest is in force: {text}"
        if held := self._admitter.why_held(run.pod.uid):
            text = f"its last good manifest is in force: {held}"
        if text != self._complaints.get(run.pod.uid, ""):
            self._complaints[run.pod.uid] = text
            self._show(run)
        if not text:
            self._complaints.pop(run.pod.uid, None)

    def _keeper_for(self, pod: PodSpec) -> PodWorker:
        context = self._context
        record = self._records.get(pod.uid)
        memory = without_outdated(record.memory, record.pod, pod) if record is not None else Memory()
        if not memory.first_seen_wall_s:
            memory = replace(memory, first_seen_s=context.clock.now_s(), first_seen_wall_s=context.clock.wall_s())
        listeners = Listeners(changed=self._show, seen=self._owners.learn, doubted=self._look.set)
        history = History(record.moments if record is not None else ())
        return PodWorker(LivePod(pod, context, memory, history, listeners), self._probes)

    def _begin(self, keeper: PodWorker, *, is_settled: bool = True) -> PodWorker:
        """What is to become of one that is not settled is known when all are; until then nothing is made for it."""
        run = keeper.run
        record = self._records.pop(run.pod.uid, None)
        self._admitter.begun(run)
        self._displacer.found(run)
        self._owners.add(keeper)
        if is_settled:
            self._start(keeper)
        else:
            self._unsettled.append(keeper)
        if record is None:
            run.note("first_seen")
        return keeper

    def _start(self, keeper: PodWorker) -> None:
        if self._group is not None:
            self._group.create_task(self._keep(keeper), name=f"pod {keeper.run.pod.key}")

    async def _keep(self, keeper: PodWorker) -> None:
        """A bug that shows in one pod must not end the others."""
        run, key = keeper.run, keeper.run.pod.key
        failures = RetryPause()
        while not run.is_gone:
            try:
                await keeper.keep()
            except Exception as error:  # see above
                failures.fail(self._context.clock.now_s(), repr(error))
                log.error("pod_keeper_failed", pod=key, error=repr(error), exc_info=error)
                with contained(key, "recover it"):
                    keeper.recover(f"kepd failed inside: {error!r}")
                with contained(key, "show it"):
                    self._show(run)
                await self._context.clock.sleep(failures.pause_s)
        self._owners.remove(keeper)
        self._complaints.pop(run.pod.uid, None)
        self.past.add(key, run.history.moments, [one.name for one in run.pod.containers])
        if self._owners.named(key) is None:
            self.pods.remove(key)
            self._problems.forget(key)
        has_freed = self._admitter.settle(run)
        if run.pod.uid not in self._wanted:
            self.workloads.gone(run.pod)
        self._succeed(run.pod)
        if has_freed:
            self._fill_room()
        self._changed.set()

    def _succeed(self, gone: PodSpec) -> None:
        """A name and a uid are free: who is wanted under them begins."""
        for pod in (self._called.get(gone.key), self._wanted.get(gone.uid)):
            if pod is not None and self._owners.named(pod.key) is None:
                self._admit(pod)
                self._look_after_faults()

    async def _follow_events(self) -> None:
        async for event in self._events.listen():
            await self._heard(event)

    async def _heard(self, event: RuntimeEvent) -> None:
        if event.kind is EventKind.LOST:
            self._look.set()
            return
        if event.kind in (EventKind.CREATED, EventKind.STARTED, EventKind.OOM):
            return
        keeper = self._owners.of_instance(event.container_id)
        if keeper is not None:
            with contained(keeper.run.pod.key, "look at its container"):
                keeper.observer.look_at(event.container_id)
        elif event.kind is EventKind.STOPPED:
            owner = self._owners.of_sandbox(event.container_id)
            # An end stops its sandboxes itself, and looks whether something is left.
            if owner is not None and owner.run.memory.stop is None:
                self._look.set()

    async def _round(self) -> float:
        """One look at everything; how long to rest at most."""
        context = self._context
        try:
            containers = await context.containers.list_containers()
            sandboxes = await context.sandboxes.list_sandboxes()
            seen = seen_pods(sandboxes, containers, context.settings().instance, context.wall_minus_now_s)
            self._faults = await self._merged(seen)
        except RuntimeCallFailed as error:
            return self._cannot_look(error)
        self._lists.reset()
        is_first = not self._listed.is_set()
        with contained("all", "release addresses that a power cut left taken"):
            await self._lost.look(sandboxes, is_first=is_first)
        self._listed.set()
        self._forgotten()
        self._want()
        while self._unsettled:
            self._start(self._unsettled.pop())
        if is_first:
            self._hide_gone()
        self.looked.set()
        self._changed.set()
        if self._faults.names:
            self._looks.fail(context.clock.now_s())
            return self._looks.pause_s
        self._looks.reset()
        return context.settings().pods.relist

    async def _merged(self, seen: Mapping[str, SeenPod]) -> Faults:
        """Take over what was listed; answers with the pods for which that failed. Raises what concerns them all."""
        faults = Faults()
        gone = {
            uid: SeenPod()
            for uid, keeper in self._owners.keepers.items()
            if uid not in seen and (keeper.run.seen.sandboxes or keeper.run.seen.instances)
        }
        for uid, pod in {**seen, **gone}.items():
            keeper = self._owners.keepers.get(uid)
            if keeper is None and not pod.sandboxes:  # It ended while others were looked at.
                continue
            key = keeper.run.pod.key if keeper is not None else f"{pod.sandboxes[0].namespace}/{pod.sandboxes[0].name}"
            with faults.contained(uid, key, "look at it", but=(Unavailable, DeadlineExceeded)):
                await (self._found(uid, pod) if keeper is None else keeper.observer.merge(pod))
        return faults

    async def _found(self, uid: str, seen: SeenPod) -> None:
        """A pod that runs and has no keeper: wanted, known from before, or an orphan."""
        record = self._records.get(uid)
        pod = self._wanted.get(uid) or (record.pod if record is not None else orphan_spec(seen))
        if record is not None and replaced_by(record.pod, pod):
            # It was edited while kepd was away.
            pod = record.pod
        keeper = self._keeper_for(pod)
        await keeper.observer.merge(seen)
        if uid not in self._owners.keepers and keeper.run.seen.sandboxes:
            self._begin(keeper, is_settled=pod is self._wanted.get(uid))

    def _forgotten(self) -> None:
        """Records of pods that neither run nor are wanted: what is left of them goes, unless finished."""
        for uid, record in list(self._records.items()):
            if (
                uid not in self._wanted
                and uid not in self._owners.keepers
                and not self._faults.concern(uid, record.pod.key)
                and not self._reading.is_unread(record.pod.file)
            ):
                with self._faults.contained(uid, record.pod.key, "clear it away"):
                    self._begin(self._keeper_for(record.pod)).remove()

    def _hide_gone(self) -> None:
        """Pods that the plane showed before it began anew, and whose end it did not see."""
        for key in [one for one in self.pods.items.keys() - self._called.keys() if self._owners.named(one) is None]:
            self.pods.remove(key)

    def _cannot_look(self, error: RuntimeCallFailed) -> float:
        what = "does not answer" if isinstance(error, Unavailable) else f"fails in {error.method}"
        self._lists.fail(self._context.clock.now_s(), f"the container runtime {what}: {error.details}")
        self._show_unseen()
        self._changed.set()
        self.looked.set()
        return self._lists.pause_s

    def _show_unseen(self) -> None:
        """Which pods there are is known; how those are that had begun is not."""
        unseen = {record.pod.key: record for record in self._records.values()}
        for key, record in ({key: Record(pod=pod) for key, pod in self._called.items()} | unseen).items():
            if self._owners.named(key) is None:
                look = Look(pod=record.pod, seen=SeenPod(), memory=record.memory, waits_for="the container runtime")
                self.pods.put(key, pod_status(look, is_seen=key not in unseen))

    def _show(self, run: LivePod) -> None:
        if run.is_gone:
            return
        if self._admitter.settle(run):
            self._fill_room()
        key, before = run.pod.key, self.state_of(run.pod)
        # What an earlier kepd showed has not changed after the last that it noted.
        noted = run.history.moments if before is None else ()
        at_s = noted[-1].at_s if noted else self._context.clock.wall_s()
        self.pods.put(key, with_since(pod_status(run.look(self._complaints.get(run.pod.uid, ""))), before, at_s))
        self._problems.look_at(key, run.memory, run.unsaved)
        self.workloads.touch(run.pod)
        self._changed.set()

    def _tell(self, report: Report) -> None:
        problems = [self._lists.problem] if self._lists.problem else []
        problems += [f"{key}: kepd failed inside, see its log" for key in self._faults.names.values()]
        problems += [str(finding) for finding in self._reading.findings]
        problems += self._problems.listed
        notes = self._problems.notes
        if problems:
            report.degraded("; ".join(first_of([*problems, *notes])))
        elif self._has_read and self._listed.is_set():
            # What one container lacks, such as its image, is no fault of this plane.
            report.ready("; ".join([f"{len(self._called)} pods", *first_of(notes)]))
