# SPDX-License-Identifier: Apache-2.0
"""Looks at what the node has left, and does what plan/evict.py plans: makes room, ends a pod, brings it back.

A look costs a few reads; what pods use is asked only when one of them has to end. What ended for want of something
begins anew when the node has room again, later each time, and after three ends within an hour not by itself.
Never: ends a pod that is not kept here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog
from msgspec.structs import replace

from agent.model.event import Event
from agent.model.nodes.file_system import Room, no_room_on
from agent.model.nodes.use import NodeLook, PodUse
from agent.model.pods.eviction_report import EvictionReport
from agent.model.pods.pod import PodSpec
from agent.model.pods.space import PodSpace
from agent.model.runtime.error import RuntimeCallFailed
from agent.pods.plan.admit import is_critical, priority_of
from agent.pods.plan.evict import EvictionPlan, EvictionRules, Seen, condition_of, is_short, plan_eviction
from agent.pods.plan.scarcity.checkpoints import bytes_wanted
from agent.pods.plan.scarcity.storage_use import candidate_of
from agent.pods.plan.scarcity.victims import (
    EVICTED,
    LOW,
    PossibleVictim,
    ReturnState,
    Victim,
    resource_of,
    return_of,
)
from agent.pods.ports import NodeFigures
from agent.pods.run.one_pod.keeper import PodWorker
from agent.pods.run.one_pod.run_state import LivePod
from agent.pods.run.owners import contained
from agent.pods.run.pod_context import PodDependencies
from agent.pods.view.eviction import eviction_report

log = structlog.get_logger(plane="pods")

MOST_STEPS = 4
MEMORY, SOONEST_S = "memory.available", 1.0
DISK = "DiskPressure"
NO_USE = PodUse()


class Evictor:
    """`settled` is called when pods that waited may begin; `revive` begins one anew where there is room."""

    def __init__(
        self,
        context: PodDependencies,
        node: NodeFigures,
        keepers: Callable[[], Sequence[PodWorker]],
        settled: Callable[[], None],
        revive: Callable[[PodWorker], bool],
        free_logs: Callable[[], Awaitable[None]],
        *,
        guards: Callable[[Sequence[str]], Mapping[str, str]],
    ) -> None:
        self._context = context
        self._node = node
        self._keepers = keepers
        self._settled = settled
        self._revive = revive
        self._free_logs = free_logs
        self._guards = guards
        self._thrashing: dict[str, PodSpec] = {}
        self._reporting: asyncio.Task[EvictionReport] | None = None
        self.seen = Seen()
        self.look: NodeLook | None = None

    @property
    def conditions(self) -> frozenset[str]:
        return self._context.pressure.conditions

    def short_paths(self) -> frozenset[str]:
        """Where the file systems lie of which a threshold is met."""
        places = self.look.places if self.look is not None else {}
        names = {key.partition(".")[0] for key in self.seen.met_s}
        return frozenset(places[name].path for name in names if name in places)

    @property
    def rules(self) -> EvictionRules | None:
        """None where a kubelet evicts, or eviction is switched off."""
        return self._context.settings().eviction

    async def run(self) -> None:
        try:
            while True:
                rules = self.rules
                if rules is None:
                    self._forget()
                else:
                    with contained("all", "look at what the node has left"):
                        await self.round(rules)
                await self._pause((rules or EvictionRules()).period_s)
        finally:
            self._node.disarm()

    async def _pause(self, period_s: float) -> None:
        """Until the next look is due; sooner where the kernel says that memory runs short, but a second at least."""
        clock = self._context.clock
        await clock.sleep(min(SOONEST_S, period_s))
        if period_s <= SOONEST_S or self.rules is None:
            await clock.sleep(max(period_s - SOONEST_S, 0.0))
            return
        waits = [asyncio.ensure_future(one) for one in (clock.sleep(period_s - SOONEST_S), self._node.rung())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    def _arm(self, rules: EvictionRules) -> None:
        look = self.look.amounts.get(MEMORY) if self.look is not None else None
        lines = (
            [one.line(look.capacity) for one in rules.thresholds if one.signal == MEMORY] if look is not None else []
        )
        below = [look.available - line for line in lines if look is not None and line < look.available]
        self._node.arm(min(below) if below else None)

    def _forget(self) -> None:
        self._node.disarm()
        self.seen, self.look = Seen(), None
        self._note(frozenset())

    async def round(self, rules: EvictionRules) -> None:
        for _ in range(MOST_STEPS):
            self.look = await self._looked()
            plan = self._planned(rules, None)
            if plan.collect:
                await self._collect(plan.collect)
                continue
            if plan.needs_pods and self.look is not None:
                is_for_disk = any(not key.startswith(("memory.", "pid.")) for key in self.seen.met_s)
                pods = await self.candidates(self.look, is_for_disk=is_for_disk)
                plan = self._planned(rules, pods)
                if plan.collect:
                    await self._collect(plan.collect)
                    continue
                if plan.victim is not None:
                    self._end(plan.victim)
            break
        if rules.readmits:
            self._bring_back()
        self._arm(rules)

    async def _looked(self) -> NodeLook | None:
        try:
            return await self._node.look()
        except (OSError, RuntimeCallFailed) as error:
            log.warning("node_figures_unknown", error=str(error), v=3)
            return None

    def _planned(self, rules: EvictionRules, pods: Sequence[PossibleVictim] | None) -> EvictionPlan:
        plan = plan_eviction(self.look, pods, rules, self.seen, self._context.clock.now_s())
        self.seen = plan.seen
        for one in plan.begun:
            resource = resource_of(one.signal)
            log.warning("eviction_threshold_met", signal=one.signal, kind=one.kind)
            self._tell_node("EvictionThresholdMet", f"Attempting to reclaim {resource}")
        self._note(plan.conditions)
        return plan

    def _note(self, conditions: frozenset[str]) -> None:
        pressure = self._context.pressure
        self._note_rooms(conditions)
        if conditions == pressure.conditions:
            return
        for name in sorted(conditions - pressure.conditions):
            self._tell_node("NodeUnderPressure", f"The node has {name}; pods that would add to it wait")
        pressure.conditions = conditions
        self._settled()

    def _note_rooms(self, conditions: frozenset[str]) -> None:
        """What makes room where a disk is short goes on doing so for as long as the condition is held."""
        pressure, look = self._context.pressure, self.look
        before = pressure.rooms
        if DISK not in conditions:
            pressure.rooms = frozenset()
        elif look is not None:
            short = [key.partition("/")[0] for key in self.seen.met_s]
            pressure.rooms = before.union(*(look.rooms(one) for one in short if condition_of(one) == DISK))
        if Room.CONTAINERS in pressure.rooms - before:
            for keeper in self._keepers():
                keeper.remove_dead()

    def _tell_node(self, reason: str, message: str) -> None:
        self._context.tell(Event(is_warning=True, reason=reason, message=message, plane="pods"))

    async def _collect(self, signal: str) -> None:
        """What cannot help a file system is not tried."""
        rooms = self.look.rooms(signal) if self.look is not None else ()
        try:
            if Room.IMAGES in rooms:
                await self._node.make_room(signal)
            # What was logged may still be read, and no image is lost that cannot be pulled again.
            if Room.LOGS in rooms and self.rules is not None and is_short(signal, await self._node.look(), self.rules):
                await self._free_logs()
            if not await self._free_checkpoints(signal) and not rooms and self.look is not None:
                log.warning("no_room_to_make", text=no_room_on(self.look.places[signal.partition(".")[0]].path))
        except (OSError, RuntimeCallFailed) as error:
            log.warning("room_not_made", signal=signal, error=str(error))

    async def _free_checkpoints(self, signal: str) -> list[str]:
        """Where there is still too little, the oldest go before any pod does."""
        rules, look = self.rules, await self._node.look()
        gone: list[str] = []
        if rules is not None and (needed := bytes_wanted(signal, look, rules)) > 0:
            gone = await asyncio.to_thread(self._context.files.checkpoints.make_room, needed)
            if gone:
                log.warning("checkpoints_removed", signal=signal, names=gone)
        return gone

    async def report(self) -> EvictionReport:
        """As it would be decided now; nothing is done. It walks over what pods wrote, so callers at the same time share
        one walk, and who leaves ends it for no other."""
        if self._reporting is None or self._reporting.done():
            self._reporting = asyncio.get_running_loop().create_task(self._report(), name="pods-eviction-report")
        return await asyncio.shield(self._reporting)

    async def _report(self) -> EvictionReport:
        rules, context = self.rules, self._context
        look = await self._looked() if rules is not None else None
        pods = await self.candidates(look, is_for_disk=True) if look is not None else []
        conditions = sorted(context.pressure.conditions)
        return eviction_report(rules, look, pods, self.seen, conditions, context.wall_minus_now_s)

    async def spaces(self) -> list[PodSpace]:
        """What pods have on disks."""
        runs = [one.run for one in self._keepers()]
        return await self._context.disks.spaces([(run.pod, run.log_directory) for run in runs])

    async def candidates(self, look: NodeLook, *, is_for_disk: bool) -> list[PossibleVictim]:
        """All pods that are kept and not over, with what they use."""
        try:
            uses = await self._node.use()
        except (OSError, RuntimeCallFailed) as error:
            log.warning("use_of_pods_unknown", error=str(error))
            uses = {}
        runs = [one.run for one in self._keepers() if one.run.memory.outcome is None and not one.run.is_gone]
        return [
            await self._candidate(run, look, uses.get(run.pod.uid, NO_USE), is_for_disk=is_for_disk) for run in runs
        ]

    async def _candidate(self, run: LivePod, look: NodeLook, use: PodUse, *, is_for_disk: bool) -> PossibleVictim:
        disk = await self._context.disks.of(run.pod, run.log_directory) if is_for_disk else None
        ends_as, evictions = run.memory.ending_as, run.memory.evictions
        leaves = ends_as is not None and ends_as.reason == EVICTED and evictions
        found = candidate_of(
            run.pod,
            use,
            disk,
            look.layout,
            priority=priority_of(run.pod.spec),
            is_critical=is_critical(run.pod),
            is_ending=run.is_ending,
            leaving_s=evictions[-1] if leaves else None,
            started_s=run.memory.first_seen_s,
        )
        return replace(found, guard=self._guards([run.pod.uid]).get(run.pod.uid, ""))

    def _end(self, victim: Victim) -> None:
        keeper = next((one for one in self._keepers() if one.run.pod.uid == victim.uid), None)
        if keeper is None:
            return
        run, context = keeper.run, self._context
        with contained(victim.key, "evict it"):
            log.warning("pod_evicted", pod=victim.key, signal=victim.signal, kind=victim.kind, grace_s=victim.grace_s)
            context.metrics.evicted(victim.signal, victim.kind)
            run.tell(EVICTED, victim.message, is_warning=True)
            if victim.guard:
                run.tell("DisruptionForced", f"it ends although {victim.guard}", is_warning=True)
            keeper.evict(victim.grace_s, victim.message)

    def _bring_back(self) -> None:
        for keeper in self._keepers():
            with contained(keeper.run.pod.key, "bring it back"):
                self._bring_one_back(keeper)

    def _bring_one_back(self, keeper: PodWorker) -> None:
        run, context = keeper.run, self._context
        outcome, uid = run.memory.outcome, run.pod.uid
        if outcome is None or outcome.reason != EVICTED or not outcome.message.startswith(LOW) or run.is_removed:
            self._thrashing.pop(uid, None)
            return
        if context.pressure.why_refused(run.pod) is not None:
            return
        state = return_of(run.memory.evictions, context.clock.now_s(), context.settings().curve.longest_s)
        if state is ReturnState.THRASHING and self._thrashing.get(uid, run.pod) is run.pod:
            if uid not in self._thrashing:
                self._thrashing[uid] = run.pod
                run.tell("EvictionThrashing", THRASHING_TEXT, is_warning=True)
            return
        if state is not ReturnState.WAITS:
            self.readmit(keeper)

    def readmit(self, keeper: PodWorker) -> bool:
        """It begins anew, whatever it waits for."""
        run = keeper.run
        outcome = run.memory.outcome
        if outcome is None or not outcome.message.startswith(LOW) or not self._revive(keeper):
            return False
        self._thrashing.pop(run.pod.uid, None)
        log.info("pod_readmitted", pod=run.pod.key, evictions=len(run.memory.evictions))
        return True


THRASHING_TEXT = (
    "it was evicted three times within an hour; it begins anew when its manifest changes, or by `kepctl retry POD`"
)
