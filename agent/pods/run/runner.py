# SPDX-License-Identifier: Apache-2.0
"""Keeps the pods of this node as the manifests want them, and shows them.

    run
    ├── manifests, events: each tells whom it concerns
    ├── round: a look at everything the runtime has, at the start, after every gap in its news, and now and then
    ├── workloads: pods that Deployments, Jobs and the like make, which are wanted like those from files
    ├── keeper per pod: keeper.py
    ├── housekeeping: logs that grow, disks that fill
    └── evictor: what the node has left

All tasks live in the group that `run` opens. What is done for one pod is done within `contained`: its fault is logged
and ends nothing else, and a keeper that fails begins anew. Never: decides what happens to a pod.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace

from agent.model.component import Report
from agent.model.nodes.drain import NodeDrain
from agent.model.pods.pod import PodSpec
from agent.model.pods.state import PodState
from agent.model.refused import Refused
from agent.model.runtime.event import RuntimeEvents
from agent.objects.wanted import WantedSource
from agent.pods.manifest.reading import ReadManifest, changed_sources, source_references
from agent.pods.plan.edits import replaced_by
from agent.pods.plan.remembered import History, Record, resumed_by
from agent.pods.plan.restart import RetryPause
from agent.pods.ports import NodeFigures
from agent.pods.run.admitting import Admitter, Displacer, rank_of
from agent.pods.run.claims import Claims
from agent.pods.run.evicting import Evictor
from agent.pods.run.handlers.probes import ProbeRunner
from agent.pods.run.housekeeping import Housekeeping
from agent.pods.run.one_pod.keeper import PodWorker
from agent.pods.run.one_pod.run_state import Listeners, LivePod
from agent.pods.run.owners import Owners, contained, load_records
from agent.pods.run.pod_context import PodDependencies
from agent.pods.run.rounds import Rounds
from agent.pods.run.shown import ShownPods
from agent.pods.run.wanted import WantedPods
from agent.pods.run.workloads.workloads import TakeOut, Workloads
from agent.pods.runtime.observed import SeenPod, orphan_spec

log = structlog.get_logger(plane="pods")

Result = TypeVar("Result")


class PodRunner:
    def __init__(
        self,
        context: PodDependencies,
        manifests: WantedSource,
        events: RuntimeEvents,
        take_out: TakeOut,
        node: NodeFigures,
    ) -> None:
        """`take_out` takes an object, by kind, namespace and name, out of its file."""
        self._manifests = manifests
        self._events = events
        self.owners = Owners()
        self._records: dict[str, Record] = {}
        self.wants = WantedPods(self.owners, self._records)
        claims = Claims(context, self.owners, self.is_unread)
        self._context = self.wants.told_to(replace(context, claims=claims))
        self.rounds = Rounds(self._context, self.owners, self._found, self._taken_over, self._show_unseen)
        self.shown = ShownPods(context)
        self.pods, self.keepers = self.shown.feed, self.owners.keepers
        self._unsettled: list[PodWorker] = []
        self._group: asyncio.TaskGroup | None = None
        self._probes = ProbeRunner(
            context.containers, context.probe_client, context.settings().pods.exec_probe_concurrency
        )
        self._housekeeping = Housekeeping(self._context, self._kept, node)
        self.admitter = Admitter(self._context, self.pods, self.shown.changed.set)
        self._displacer = Displacer(self._context, self.admitter, self.keepers)
        self.workloads = Workloads(self._context, self, take_out, claims)
        self.evictor = Evictor(
            self._context, node, self._kept, self._settle_pressure, self._displacer.readmit,
            self._housekeeping.free_logs, guards=self.workloads.budgets.kept_back,
        )  # fmt: skip
        self.node = node
        context.metrics.watch(
            phases=lambda: self.shown.phases,
            conditions=lambda: self.evictor.conditions,
            checkpoints=lambda: context.files.checkpoints.counted,
            drained=lambda: self.drained,
        )

    def _kept(self) -> list[PodWorker]:
        return list(self.keepers.values())

    def keeper(self, namespace: str, name: str) -> PodWorker | None:
        return self.owners.named(f"{namespace}/{name}")

    def run_of(self, uid: str) -> LivePod | None:
        keeper = self.keepers.get(uid)
        return keeper.run if keeper is not None else None

    def state_of(self, pod: PodSpec) -> PodState | None:
        return self.shown.of(pod)

    def is_taken(self, key: str) -> bool:
        return key in self.wants.by_key or self.owners.named(key) is not None

    def is_unread(self, file: str) -> bool:
        return self.wants.reading.is_unread(file)

    def begin(self, pod: PodSpec) -> None:
        """A pod that was made is wanted from now on."""
        self.wants.add(pod)
        self._admit(pod)

    def let_go(self, pod: PodSpec, grace_s: float | None = None) -> None:
        """It is wanted no more."""
        self.wants.remove(pod)
        keeper = self.keepers.get(pod.uid)
        if keeper is not None:
            keeper.remove(grace_s)
        else:
            self.admitter.forget_all_but(self.wants.by_key.keys())
            self.workloads.gone(pod)

    def devices_changed(self) -> None:
        """Devices may be there for pods that wait for some."""
        for keeper in self.keepers.values():
            with contained(keeper.run.pod.key, "try for its devices"):
                keeper.devices_changed()

    def background(self, work: Coroutine[Any, Any, Result], name: str) -> asyncio.Task[Result]:
        """Something that goes on although who asked for it has left; it ends with the plane."""
        if self._group is None:
            work.close()
            raise Refused("unavailable", "the pods plane is not running now; it restarts by itself")
        return self._group.create_task(work, name=name)

    def may_be_wanted(self, uid: str) -> bool:
        """Also while it is not known yet which pods are."""
        return not self.rounds.listed.is_set() or uid in self.wants.by_uid or uid in self.keepers

    def set_shutting_down(self, *, is_so: bool) -> None:
        """Refuse new pods, or do so no longer."""
        self.admitter.is_shutting_down = is_so
        if not is_so and self.rounds.listed.is_set():
            self._want()

    async def uncordon(self) -> list[str]:
        """Let pods begin, also those that the drain ended; their names."""
        await self.admitter.cordon.change(None)
        revived = [keeper.run.pod.key for keeper in self.keepers.values() if keeper.revive()]
        if self.rounds.listed.is_set():
            self._want()
        return sorted(revived)

    @property
    def drained(self) -> NodeDrain | None:
        """While the node is drained: since when, and what has not ended yet."""
        return self.admitter.cordon.shown(keeper.run for keeper in self.keepers.values())

    async def run(self, report: Report) -> None:
        """Until cancelled; what runs goes on running."""
        self.owners.clear()
        self._context.places.clear()
        self.shown.clear()
        self._unsettled.clear()
        self.rounds.clear()
        await self.admitter.cordon.load()
        self._records |= await load_records(self._context)
        await self.workloads.load(self._records.values())
        self.wants.settle(self.workloads.wanted())
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self._follow_manifests(), name="pods-manifests")
                group.create_task(self.rounds.follow(self._events), name="pods-events")
                group.create_task(self._housekeeping.run(), name="pods-housekeeping")
                group.create_task(self._when_listed(self.evictor.run), name="pods-eviction")
                group.create_task(self._report(report), name="pods-report")
                group.create_task(self._when_listed(self.workloads.run), name="pods-workloads")
                await self.rounds.run(lambda: self.wants.has_read)
        finally:
            self._group = None

    async def _when_listed(self, run: Callable[[], Awaitable[None]]) -> None:
        """Not before it is known what is there."""
        await self.rounds.listed.wait()
        await run()

    async def _report(self, report: Report) -> None:
        while True:
            is_known = self.wants.has_read and self.rounds.listed.is_set()
            troubles = [*self.rounds.troubles, *map(str, self.wants.reading.findings)]
            self.shown.tell(report, troubles, len(self.wants.by_key) if is_known else None)
            await self.shown.changed.wait()
            self.shown.changed.clear()

    async def _follow_manifests(self) -> None:
        async for wanted in self._manifests.news():
            before = await self.wants.read(wanted)
            if not wanted.look.is_remembered:
                self._take(before)

    def _take(self, before: ReadManifest) -> None:
        self.workloads.follow(self.wants.reading)
        self.wants.settle(self.workloads.wanted())
        is_first, self.wants.has_read = not self.wants.has_read, True
        self.wants.tell_findings(before, self._context)
        if is_first or not self.rounds.listed.is_set():
            self.rounds.due.set()
        else:
            self._want()
            self.rounds.look_after_faults()
        if changed := changed_sources(before, self.wants.reading):
            for keeper in self.keepers.values():
                with contained(keeper.run.pod.key, "follow its sources"):
                    if changed & source_references(keeper.run.pod):
                        keeper.sources_changed()
        self.shown.changed.set()

    def _want(self) -> None:
        for keeper in list(self.keepers.values()):
            with self.rounds.faults.contained(keeper.run.pod.uid, keeper.run.pod.key, "follow its manifest"):
                self._want_of(keeper)
        # Who had a place before kepd or the node began anew comes first.
        ranked = sorted(self.wants.by_key.values(), key=lambda one: (one.uid not in self._records, rank_of(one)))
        for pod in ranked:
            if self.owners.named(pod.key) is None:
                self._admit(pod)
        self.admitter.forget_all_but(self.wants.by_key.keys())

    def _want_of(self, keeper: PodWorker) -> None:
        pod = keeper.run.pod
        wanted = self.wants.by_uid.get(pod.uid)
        successor = wanted or self.wants.by_key.get(pod.key)
        if successor is None:
            if not self.wants.reading.is_unread(pod.file):
                keeper.remove()
        elif self.admitter.may_follow(keeper.run, successor):
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
        if pod.uid in self.keepers or self.rounds.faults.concern(pod.uid, pod.key):
            return
        with self.rounds.faults.contained(pod.uid, pod.key, "begin it"):
            if self.admitter.may_begin(pod):
                self._begin(self._keeper_for(pod))
            else:
                self._displacer.make_room(pod)

    def _fill_room(self) -> None:
        """A pod is over or gone: what waited for its place may begin, or become what its manifest says."""
        for other in self.admitter.held:
            if (keeper := self.keepers.get(other)) is not None:
                with self.rounds.faults.contained(other, keeper.run.pod.key, "follow its manifest"):
                    self._want_of(keeper)
        for pod in self.admitter.waiting:
            if self.wants.by_key.get(pod.key) == pod and self.owners.named(pod.key) is None:
                self._admit(pod)
        self._displacer.bring_back()
        self.rounds.look_after_faults()

    def _settle_pressure(self) -> None:
        """The node has run short of something, or has enough again: those that wait are looked at anew."""
        if self.rounds.listed.is_set():
            self._fill_room()
        self.shown.changed.set()

    def _describe(self, keeper: PodWorker) -> None:
        if self.shown.complain(keeper.run, self.wants.reading, self.admitter.why_held(keeper.run.pod.uid)):
            self._show(keeper.run)

    def _keeper_for(self, pod: PodSpec) -> PodWorker:
        context = self._context
        record = self._records.get(pod.uid) or Record(pod=pod)
        memory = resumed_by(record, pod, context.clock.now_s(), context.clock.wall_s())
        listeners = Listeners(changed=self._show, seen=self.owners.learn, doubted=self.rounds.due.set)
        return PodWorker(LivePod(pod, context, memory, History(record.moments), listeners), self._probes)

    def _begin(self, keeper: PodWorker, *, is_settled: bool = True) -> PodWorker:
        """What is to become of one that is not settled is known when all are; until then nothing is made for it."""
        run = keeper.run
        record = self._records.pop(run.pod.uid, None)
        self.admitter.begun(run)
        self._displacer.found(run)
        self.owners.add(keeper)
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
        self.owners.remove(keeper)
        self.shown.is_over(run, is_free=self.owners.named(key) is None)
        has_freed = self.admitter.settle(run)
        if run.pod.uid not in self.wants.by_uid:
            self.workloads.gone(run.pod)
        self._succeed(run.pod)
        if has_freed:
            self._fill_room()
        self.shown.changed.set()

    def _succeed(self, gone: PodSpec) -> None:
        """A name and a uid are free: who is wanted under them begins."""
        for pod in (self.wants.by_key.get(gone.key), self.wants.by_uid.get(gone.uid)):
            if pod is not None and self.owners.named(pod.key) is None:
                self._admit(pod)
                self.rounds.look_after_faults()

    def _taken_over(self, is_first: bool) -> None:
        """The runtime has been looked at."""
        self._forgotten()
        self._want()
        while self._unsettled:
            self._start(self._unsettled.pop())
        if is_first:
            self.shown.hide_all_but(self.wants.by_key.keys() | {keeper.run.pod.key for keeper in self.keepers.values()})
        self.shown.changed.set()

    async def _found(self, uid: str, seen: SeenPod) -> None:
        """A pod that runs and has no keeper: wanted, known from before, or an orphan."""
        record = self._records.get(uid)
        pod = self.wants.by_uid.get(uid) or (record.pod if record is not None else orphan_spec(seen))
        if record is not None and replaced_by(record.pod, pod):
            # It was edited while kepd was away.
            pod = record.pod
        keeper = self._keeper_for(pod)
        await keeper.observer.merge(seen)
        if uid not in self.keepers and keeper.run.seen.sandboxes:
            self._begin(keeper, is_settled=pod is self.wants.by_uid.get(uid))

    def _forgotten(self) -> None:
        """Records of pods that neither run nor are wanted: what is left of them goes, unless finished."""
        for uid, record in list(self._records.items()):
            if (
                uid not in self.wants.by_uid
                and uid not in self.keepers
                and not self.rounds.faults.concern(uid, record.pod.key)
                and not self.wants.reading.is_unread(record.pod.file)
            ):
                with self.rounds.faults.contained(uid, record.pod.key, "clear it away"):
                    self._begin(self._keeper_for(record.pod)).remove()

    def _show_unseen(self) -> None:
        """The runtime does not answer."""
        called = {key: Record(pod=pod) for key, pod in self.wants.by_key.items()}
        had_begun = {record.pod.key: record for record in self._records.values()}
        unseen = {key: one for key, one in (called | had_begun).items() if self.owners.named(key) is None}
        self.shown.show_unseen(unseen, had_begun.keys())
        self.shown.changed.set()

    def _show(self, run: LivePod) -> None:
        if run.is_gone:
            return
        if self.admitter.settle(run):
            self._fill_room()
        self.shown.show(run)
        self.workloads.touch(run.pod)
