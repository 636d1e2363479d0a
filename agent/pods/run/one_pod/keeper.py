# SPDX-License-Identifier: Apache-2.0
"""Keeps one pod as it is wanted, from its first sandbox to the last file.

    keep
    ├── plan_start → launches, sandboxes, ends of single containers: a task each
    ├── an end of the whole pod: one task that drives stop.py
    └── probes: a task per container and kind

All tasks of the pod live in its own group and end with it. What runs in the runtime goes on when kepd ends.
Never: looks at another pod.
"""

import asyncio
from collections.abc import Collection, Sequence

import structlog
from msgspec.structs import replace

from agent.model.pods.container_fields import Container
from agent.model.pods.pod import ContainerKind, PodSpec
from agent.model.refused import Refused
from agent.pods.plan import transitions
from agent.pods.plan.remembered import (
    SHUTDOWN_REASON,
    PodOutcome,
    resumed_memory,
)
from agent.pods.plan.start import final_phase, note_progress, plan_start
from agent.pods.plan.start_steps import (
    BeginStop,
    EndContainer,
    Finish,
    Launch,
    MakeSandbox,
    RestartAll,
    Settle,
    StartStep,
)
from agent.pods.plan.stop_state import Trigger
from agent.pods.plan.work import (
    EndingAlone,
    FetchingAhead,
    HoldingLimits,
    Launching,
    MakingSandbox,
    Releasing,
    RestartingAll,
    StoppingPod,
    UpdatingVolumes,
    holds_end_up,
)
from agent.pods.run.handlers.interrupts import Interrupts
from agent.pods.run.handlers.probes import ProbeRunner
from agent.pods.run.one_pod.container_setup import ContainerSetup
from agent.pods.run.one_pod.observer import PodObserver
from agent.pods.run.one_pod.pod_images import PodImages
from agent.pods.run.one_pod.probing import Prober
from agent.pods.run.one_pod.removing_dead import DeadRemover, Remains
from agent.pods.run.one_pod.resizing import Resizer
from agent.pods.run.one_pod.run_state import LivePod
from agent.pods.run.one_pod.sandbox_maker import SandboxMaker
from agent.pods.run.one_pod.starting import Starter
from agent.pods.run.one_pod.stopping import Stopper, outcome_of
from agent.pods.runtime.observed import Instance
from agent.pods.view.timeline import own_start_s

log = structlog.get_logger(plane="pods")

STOP, SANDBOX = StoppingPod(), MakingSandbox()
LASTING = ("completed", "sandbox")


class PodWorker:
    def __init__(self, run: LivePod, probes: ProbeRunner) -> None:
        self.run = run
        self._setup = ContainerSetup(run)
        images = PodImages(run, self._setup)
        self._interrupts = Interrupts()
        self._sandboxes = SandboxMaker(run, self._setup, images, self._interrupts)
        self._starter = Starter(run, self._setup, images, self._interrupts)
        self._stopper = Stopper(run, self._starter.relaunch)
        self._prober = Prober(run, probes)
        self._resizer = Resizer(run, self._setup)
        self.observer = PodObserver(run)
        self._dead = DeadRemover(run)
        self._remains = Remains(run, self._setup)
        self._is_resumed = run.memory.stop is not None or bool(run.memory.ends)
        self._was_up = run.memory.is_initialised
        if run.trace is not None:
            run.trace.resume(run.memory, is_up=self._was_up)
        self._has_new_content = False
        # What was asked for while the pod was not kept.
        self._late_end: tuple[str, float, PodOutcome] | None = None

    def want(self, pod: PodSpec) -> None:
        """The manifest is this now: the same uid, maybe other content."""
        run = self.run
        if pod != run.pod:
            before, run.pod = run.pod, pod
            run.memory = transitions.edited(run.memory, before, pod)
            run.read_annotations()
            self._drop_images({one.image for one in before.containers} - {one.image for one in pod.containers})
            shown = (before.labels, before.annotations, before.spec.volumes)
            if shown != (pod.labels, pod.annotations, pod.spec.volumes):
                # Volumes show them.
                self.sources_changed()
            run.ring()

    def _drop_images(self, images: Collection[str]) -> None:
        self._interrupts.drop(images)
        for image in images:
            if (fetching := self.run.tasks.get(FetchingAhead(image))) is not None:
                fetching.cancel()

    def sources_changed(self) -> None:
        """A ConfigMap or Secret is another now: volumes follow, and who waited for it tries again."""
        run = self.run
        if run.pod.spec.image_pull_secrets:
            run.context.images.retry(run.pod.namespace, run.pod.name)
        run.memory = transitions.tried_again(run.memory, transitions.SOURCE_PROBLEMS, is_anew=True)
        self._has_new_content = True
        is_due = run.seen.active is not None and run.memory.stop is None and UpdatingVolumes() not in run.tasks
        # One that is not kept now looks at its sources when it is again.
        if is_due and run.is_kept:
            run.spawn(UpdatingVolumes(), self._follow_sources())
        run.ring()

    def devices_changed(self) -> None:
        """Retry containers that wait for a device."""
        run = self.run
        before, run.memory = run.memory, transitions.tried_again(run.memory, transitions.DEVICE_PROBLEMS, is_anew=False)
        if run.memory != before:
            run.ring()

    @property
    def is_over(self) -> bool:
        """It ends for good, has, or will at its next turn, so what is shown as its last phase stays so."""
        run = self.run
        if run.is_ending:
            return True
        memory, now_s = note_progress(run.pod, run.seen, run.memory), run.context.clock.now_s()
        return plan_start(run.pod, run.seen, memory, now_s, run.rules, works=frozenset(run.tasks)).is_conclusion

    async def _follow_sources(self) -> None:
        """Bring volumes up to date, and once more for what changed meanwhile."""
        while self._has_new_content and self.run.memory.stop is None:
            self._has_new_content = False
            for problem in await self._setup.update():
                self.run.tell("FailedMount", problem, is_warning=True)

    def end(self, cause: str, grace_s: float, outcome: PodOutcome) -> None:
        """End the pod, keep its record: it is evicted, or the node goes down. One that ends already has to hurry."""
        run = self.run
        now_s = run.context.clock.now_s()
        if run.memory.outcome is not None:
            return
        if not run.is_kept:
            self._late_end = self._late_end or (cause, grace_s, outcome)
        elif run.memory.stop is not None:
            run.memory = transitions.hurried(run.memory, cause, grace_s, outcome, now_s)
            run.ring()
        elif not run.is_removed and STOP not in run.tasks:
            run.memory = replace(run.memory, ending_as=outcome)
            run.spawn(STOP, self._end(Trigger.COMPLETE, cause, grace_s, now_s))

    def evict(self, grace_s: float, message: str) -> None:
        """It ends for want of something; how often is remembered."""
        self.run.memory = transitions.evicted(self.run.memory, self.run.context.clock.now_s())
        self.end("evicted", grace_s, transitions.evicted_as(message))

    def revive(self, reason: str = SHUTDOWN_REASON) -> bool:
        """Begin anew what the node ended for this reason; whether it does."""
        run = self.run
        is_over = run.memory.outcome is not None
        memory = None if run.is_removed else transitions.revived(run.memory, run.pod, run.seen, reason)
        if memory is None:
            return False
        run.memory = memory
        if is_over:
            self._was_up = False
            if run.trace is not None:
                run.trace.begin_start()
            run.save_soon()
            run.ring()
        return True

    def remove(self, grace_s: float | None = None, cause: str = "removed") -> None:
        """End it for good. Later calls may only shorten."""
        run = self.run
        if run.removal is not None and grace_s is None:
            return
        now_s = run.context.clock.now_s()
        run.removal = transitions.removed(run.removal, run.pod, grace_s, cause, now_s)
        if run.memory.stop is not None:
            wanted_s = float(run.pod.grace_s) if grace_s is None else grace_s
            run.memory = transitions.shortened_for_good(run.memory, cause, wanted_s, now_s)
            run.note("stop_shortened", seconds=wanted_s)
            run.save_soon()
        self._interrupt()
        run.ring()

    def _interrupt(self) -> None:
        self._interrupts.give_up()
        for work, task in self.run.tasks.items():
            if isinstance(work, FetchingAhead):
                task.cancel()

    def restart(self, instances: Sequence[Instance]) -> None:
        """Containers end and start again, whatever the policy says."""
        self.run.memory = transitions.asked_to_restart(self.run.memory, instances)
        self.run.ring()

    async def debug(self, fields: Container, profile: str, target: str) -> None:
        """An ephemeral container; it goes on when its caller leaves. Raises Refused where it does not run."""
        run = self.run
        is_ending = run.is_removed or run.memory.stop is not None or STOP in run.tasks
        if not run.is_kept or is_ending or run.memory.outcome is not None:
            raise Refused("precondition", f"pod {run.pod.key} ends, or is over; nothing can be added to it")
        await self._starter.add_ephemeral(fields, profile, target)

    def remove_dead(self) -> None:
        """Dead containers go at the next turn, which comes at once."""
        self.run.ring()

    def clear_backoff(self) -> None:
        self.run.memory = transitions.without_backoff(self.run.memory, self.run.pod.by_name)
        self.run.ring()

    def recover(self, problem: str) -> None:
        """Before `keep` is called again: its tasks died with it, and what they did is as unknown as after a crash."""
        run = self.run
        run.problem = problem
        run.memory = resumed_memory(run.memory)
        self._is_resumed = run.memory.stop is not None or bool(run.memory.ends)
        self._interrupts.is_on = False

    async def keep(self) -> None:
        run = self.run
        run.problem = ""
        try:
            async with asyncio.TaskGroup() as group:
                run.enter(group)
                try:
                    await self._keep()
                finally:
                    # The group is not there any more for those who come from outside.
                    run.leave()
                for task in list(run.tasks.values()):
                    task.cancel()
        finally:
            run.tasks.clear()

    async def _keep(self) -> None:
        """Nothing is awaited before a pod that runs is shown: without a cluster, Services have their endpoints by
        it."""
        run = self.run
        if run.pod.owner is not None and run.seen.active is None and run.saved_memory is None:
            # No file says that it is wanted: it exists from when its record does.
            await run.save()
        if run.seen.active is not None and run.pod.spec.volumes:
            # Sources may have changed meanwhile.
            self.sources_changed()
        if run.seen.active is not None and run.memory.stop is None:
            run.spawn(HoldingLimits(), self._setup.regain())
        if self._late_end is not None:
            self.end(*self._late_end)
            self._late_end = None
        while not run.is_gone:
            self._advance()
            self._prober.sync()
            run.show()
            await run.rest(run.plan.wake_s)

    def _advance(self) -> None:
        run = self.run
        if STOP in run.tasks:
            return
        run.memory = note_progress(run.pod, run.seen, run.memory)
        if run.memory.stop is not None:
            self._spawn_stop()
        elif (gone := run.removal) is not None:
            run.spawn(STOP, self._end(Trigger.DELETE, gone.cause, gone.grace_s or 0.0, gone.began_s))
        else:
            self._run_on()
        self._is_resumed = False

    def _spawn_stop(self) -> None:
        run = self.run
        if run.memory.stop_cause not in LASTING and run.memory.ending_as is None:
            run.removal = run.removal or transitions.Removal()
        run.spawn(STOP, self._drive(is_resumed=self._is_resumed))

    def _run_on(self) -> None:
        run = self.run
        self._interrupts.is_on = False
        for name in run.memory.ends:
            if EndingAlone(name) not in run.tasks:
                run.spawn(EndingAlone(name), self._drive_alone(name, is_resumed=self._is_resumed))
        if run.memory.reason and run.seen.active is not None:
            run.memory = transitions.without_pod_problem(run.memory)
        works = frozenset(run.tasks)
        run.plan = plan_start(run.pod, run.seen, run.memory, run.context.clock.now_s(), run.rules, works=works)
        for step in run.plan.steps:
            self._begin(step)
        self._note_up()
        self._starter.tell_pauses()
        self._resizer.advance()
        self._dead.advance()

    def _begin(self, step: StartStep) -> None:
        run = self.run
        match step:
            case MakeSandbox():
                if SANDBOX not in run.tasks:
                    run.spawn(SANDBOX, self._sandboxes.make(step))
            case Launch(name=name):
                run.spawn(Launching(name), self._starter.launch(step))
            case Settle(instance):
                run.spawn(Launching(instance.name), self._starter.settle(step))
            case EndContainer():
                self._stopper.begin_alone(step)
                run.spawn(EndingAlone(step.name), self._drive_alone(step.name))
            case RestartAll():
                run.spawn(RestartingAll(), self._starter.restart_all(step))
            case BeginStop(trigger, cause, grace_s):
                if STOP not in run.tasks:
                    if cause == "deadline":
                        run.memory = replace(run.memory, ending_as=transitions.DEADLINE)
                        run.tell("DeadlineExceeded", transitions.DEADLINE_TEXT)
                    run.spawn(STOP, self._end(trigger, cause, grace_s, run.context.clock.now_s()))
            case Finish(phase, reason, message):
                run.memory = replace(run.memory, outcome=PodOutcome(phase=phase, reason=reason, message=message))
                if run.trace is not None:
                    run.trace.end_start(reason or phase)
                run.save_soon()
                # Nothing runs and no sandbox is up; volumes and the group are there all the same.
                run.spawn(Releasing(), self._remains.release())

    def _note_up(self) -> None:
        run = self.run
        mains = [one for one in run.pod.containers if one.kind is ContainerKind.MAIN]
        if self._was_up or not all(one.name in run.memory.passed for one in mains):
            return
        self._was_up = True
        took_s, now_s = run.context.clock.now_s() - run.memory.first_seen_s, run.context.clock.wall_s()
        inits = [one.name for one in run.pod.containers if one.kind is ContainerKind.INIT]
        own_s = own_start_s(run.history.moments, inits, now_s - took_s, now_s)
        run.note("pod_started", seconds=took_s)
        span = run.trace.end_start() if run.trace is not None else None
        run.context.metrics.pod_started(took_s, own_s, span)
        run.save_soon()

    async def _drive_alone(self, name: str, *, is_resumed: bool = False) -> None:
        run = self.run
        await self._stopper.drive(name, is_resumed=is_resumed)
        if name in run.memory.ends:
            run.memory = transitions.ended_alone(run.memory, name, run.seen.newest(name))
            run.ring()

    async def _end(self, trigger: Trigger, cause: str, grace_s: float, began_s: float) -> None:
        run = self.run
        self._interrupt()
        while under_way := [task for work, task in run.tasks.items() if holds_end_up(work)]:
            await asyncio.wait(under_way)
        if grace_s:
            await self._starter.clear_unstarted()
        self._interrupts.is_on = False
        if (gone := run.removal) is not None and cause != gone.cause:
            trigger, cause, grace_s = Trigger.DELETE, gone.cause, gone.grace_s or 0.0
            run.memory = replace(run.memory, ending_as=None)
        self._stopper.begin(trigger, cause, grace_s, began_s)
        run.show()
        # Probes that have no say in an end are over now.
        run.ring()
        await self._drive()

    async def _drive(self, *, is_resumed: bool = False) -> None:
        run = self.run
        await self._stopper.drive("", is_resumed=is_resumed)
        stop, cause = run.memory.stop, run.memory.stop_cause
        if stop is None:
            return
        now_s = run.context.clock.now_s()
        run.context.metrics.pod_stopped(outcome_of(stop, now_s), now_s - stop.began_s)
        run.note("stop_ended", seconds=now_s - stop.began_s)
        if run.trace is not None:
            run.trace.end_stop(is_new_start=cause == "sandbox" and not self._was_up)
        if cause == "sandbox":
            run.memory = transitions.over(run.memory, None)
        elif cause == "completed" or run.memory.ending_as is not None:
            phase = final_phase(run.pod, run.seen, run.annotated.keystone)
            outcome = run.memory.ending_as or PodOutcome(phase=phase)
            await self._remains.release()
            run.memory = transitions.over(run.memory, outcome)
            await run.save()
        else:
            await self._remains.tear_down()
