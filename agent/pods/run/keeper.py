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
from collections.abc import Sequence

import structlog
from msgspec.structs import replace

from agent.model.devices.problem import DevicesNotReleased
from agent.model.pods.container_fields import Container
from agent.model.pods.pod import ContainerKind, PodSpec
from agent.model.refused import Refused
from agent.pods.plan.ephemeral import plan_ephemeral
from agent.pods.plan.remembered import (
    SHUTDOWN_REASON,
    Failing,
    PodOutcome,
    begun_anew,
    record_name,
    resumed_memory,
    without_outdated,
)
from agent.pods.plan.scarcity.victims import EVICTED
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
from agent.pods.plan.stop_state import Trigger, shortened
from agent.pods.plan.work import (
    EndingAlone,
    FetchingAhead,
    HoldingLimits,
    Launching,
    LaunchingEphemeral,
    MakingSandbox,
    Releasing,
    RestartingAll,
    StoppingPod,
    UpdatingVolumes,
    holds_end_up,
)
from agent.pods.run.container_setup import ContainerSetup
from agent.pods.run.handlers.interrupts import Interrupts
from agent.pods.run.handlers.probes import ProbeRunner
from agent.pods.run.observer import Observer
from agent.pods.run.pod_images import PodImages
from agent.pods.run.probing import Prober
from agent.pods.run.removing_dead import DeadRemover
from agent.pods.run.resizing import Resizer
from agent.pods.run.run_state import FAILURES, LivePod, reason_of_error, without_problem
from agent.pods.run.sandbox_maker import SandboxMaker
from agent.pods.run.starting import Starter
from agent.pods.run.stopping import Stopper, outcome_of
from agent.pods.runtime.observed import Instance, SeenPod
from agent.pods.view.timeline import own_start_s

log = structlog.get_logger(plane="pods")

RETRY_S = 1.0
EVICTIONS_KEPT = 10
STOP, SANDBOX = StoppingPod(), MakingSandbox()
REMOVED = "removed"
SOURCE_PROBLEMS = ("CreateContainerConfigError", "FailedMount", "ErrImagePull", "ImagePullBackOff")
DEVICE_PROBLEMS = (
    "ClaimUnallocatable", "ClaimError", "FailedPrepareDynamicResources", "CDINotSupported", "UnexpectedAdmissionError",
)  # fmt: skip
NOT_RELEASED, LONGEST_RELEASE_PAUSE_S = "unprepare", 60.0
DEADLINE_TEXT = "Pod was active on the node longer than the specified deadline"
DEADLINE = PodOutcome(phase="Failed", reason="DeadlineExceeded", message=DEADLINE_TEXT)
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
        self._observer = Observer(run)
        self._dead = DeadRemover(run)
        self._is_resumed = run.memory.stop is not None or bool(run.memory.ends)
        self._was_up = run.memory.is_initialised
        if run.trace is not None:
            run.trace.resume(run.memory, is_up=self._was_up)
        self._told_of: set[str] = set()
        self._cause = REMOVED
        self._has_new_content = False
        # What was asked for while the pod was not kept.
        self._late_end: tuple[str, float, PodOutcome] | None = None

    def want(self, pod: PodSpec) -> None:
        """The manifest is this now: the same uid, maybe other content."""
        run = self.run
        if pod != run.pod:
            before, run.pod = run.pod, pod
            run.memory = without_outdated(run.memory, before, pod)
            run.read_annotations()
            shown = (before.labels, before.annotations, before.spec.volumes)
            if shown != (pod.labels, pod.annotations, pod.spec.volumes):
                # Volumes show them.
                self.sources_changed()
            for name in run.memory.containers:
                run.remember(name, without_problem)
            run.ring()

    def sources_changed(self) -> None:
        """A ConfigMap or Secret is another now: volumes follow, and who waited for it tries again."""
        run = self.run
        if run.pod.spec.image_pull_secrets:
            run.context.images.retry(run.pod.namespace, run.pod.name)
        for name, one in run.memory.containers.items():
            if one.reason in SOURCE_PROBLEMS:
                run.remember(name, lambda one: replace(one, retry_s=0.0, pause_s=0.0))
        if run.memory.reason in SOURCE_PROBLEMS:
            run.memory = replace(run.memory, retry_s=0.0, pause_s=0.0)
        self._has_new_content = True
        is_due = run.seen.active is not None and run.memory.stop is None and UpdatingVolumes() not in run.tasks
        # One that is not kept now looks at its sources when it is again.
        if is_due and run.is_kept:
            run.spawn(UpdatingVolumes(), self._follow_sources())
        run.ring()

    def devices_changed(self) -> None:
        """Retry containers that wait for a device."""
        run = self.run
        for name, one in run.memory.containers.items():
            if one.reason in DEVICE_PROBLEMS:
                run.remember(name, lambda one: replace(one, retry_s=0.0))
        if run.memory.reason in DEVICE_PROBLEMS:
            run.memory = replace(run.memory, retry_s=0.0)
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
        elif run.memory.stop is None and not run.is_removed and STOP not in run.tasks:
            run.memory = replace(run.memory, ending_as=outcome)
            run.spawn(STOP, self._end(Trigger.COMPLETE, cause, grace_s, now_s))
        elif run.memory.stop is not None:
            # Grace 0 is no force here; and what would have begun anew in another sandbox does not.
            run.memory = replace(run.memory, stop=shortened(run.memory.stop, max(grace_s, 1.0), now_s))
            if run.memory.stop_cause == "sandbox":
                run.memory = replace(run.memory, stop_cause=cause, ending_as=outcome)
            run.ring()

    def evict(self, grace_s: float, message: str) -> None:
        """It ends for want of something; how often is remembered."""
        run = self.run
        evictions = (*run.memory.evictions, run.context.clock.wall_s())[-EVICTIONS_KEPT:]
        run.memory = replace(run.memory, evictions=evictions)
        self.end("evicted", grace_s, PodOutcome(phase="Failed", reason=EVICTED, message=message))

    def revive(self, reason: str = SHUTDOWN_REASON) -> bool:
        """What the node ended for this reason begins anew, as after a reboot; one that still ends does when it
        has ended."""
        run = self.run
        ended = run.memory.outcome or run.memory.ending_as
        if ended is None or ended.reason != reason or run.pod.spec.restart_policy == "Never" or run.is_removed:
            return False
        if run.memory.outcome is None:
            run.memory = replace(run.memory, stop_cause="sandbox", ending_as=None)
            return True
        self._was_up = False
        run.memory = begun_anew(run.memory, {one.name: one.id for one in reversed(run.seen.instances)})
        if run.trace is not None:
            run.trace.begin_start()
        run.save_soon()
        run.ring()
        return True

    def remove(self, grace_s: float | None = None, cause: str = REMOVED) -> None:
        """End it for good. Later calls may only shorten."""
        run = self.run
        now_s = run.context.clock.now_s()
        if run.is_removed and grace_s is None:
            return
        if not run.is_removed:
            run.removal_s = now_s
        wanted_s = float(run.pod.grace_s) if grace_s is None else grace_s
        is_shorter = run.removal_grace_s is None or wanted_s < run.removal_grace_s
        run.is_removed = True
        run.removal_grace_s = wanted_s if is_shorter else run.removal_grace_s
        self._cause = cause
        if run.memory.stop is not None:
            self._shorten(wanted_s, now_s)
        self._interrupt()
        run.ring()

    def _interrupt(self) -> None:
        self._interrupts.give_up()
        for work, task in self.run.tasks.items():
            if isinstance(work, FetchingAhead):
                task.cancel()

    def _shorten(self, grace_s: float, now_s: float) -> None:
        run = self.run
        if run.memory.stop is not None:
            stop = shortened(run.memory.stop, grace_s, now_s)
            run.memory = replace(run.memory, stop=stop, stop_cause=self._cause, ending_as=None)
            run.note("stop_shortened", seconds=grace_s)
            run.save_soon()

    def restart(self, instances: Sequence[Instance]) -> None:
        """Containers end with hooks and grace, and start again; the policy decides nothing here."""
        for one in instances:
            failing = Failing(instance=one.id, cause="asked", message=f"Container {one.name} is restarted on request")
            self.run.remember(
                one.name,
                lambda known, failing=failing: replace(known.of(failing.instance), failing=failing),  # type: ignore[misc]
            )

    async def debug(self, fields: Container, profile: str, target: str) -> None:
        """An ephemeral container; it goes on when its caller leaves. Raises Refused where it does not run."""
        run, work = self.run, LaunchingEphemeral(fields.name)
        is_ending = run.is_removed or run.memory.stop is not None or STOP in run.tasks
        if not run.is_kept or is_ending or run.memory.outcome is not None:
            raise Refused("precondition", f"pod {run.pod.key} ends, or is over; nothing can be added to it")
        if work in run.tasks:
            raise Refused("precondition", f'pod {run.pod.key} has a container "{fields.name}" already, which starts')
        container, step = plan_ephemeral(run.pod, run.seen, fields, profile, target)
        task = run.spawn(work, self._starter.launch_ephemeral(step, container))
        await asyncio.wait([task])
        if task.cancelled():
            raise Refused("unavailable", f"kepd ended while {fields.name} was being started")
        if (refused := task.result()) is not None:
            raise refused

    def remove_dead(self) -> None:
        """Dead containers go at the next turn, which comes at once."""
        self.run.ring()

    def clear_backoff(self) -> None:
        run = self.run
        for container in run.pod.by_name:
            run.remember(container, lambda one: replace(without_problem(one), backoff=replace(one.backoff, restarts=0)))
        run.memory = replace(run.memory, reason="", message="", pause_s=0.0, retry_s=0.0)
        run.ring()

    def look_at(self, container_id: str) -> None:
        self._observer.look_at(container_id)

    async def merge(self, listed: SeenPod) -> None:
        """The runtime has this of it. Raises RuntimeCallFailed."""
        await self._observer.merge(listed)

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
        elif run.is_removed:
            run.spawn(STOP, self._end(Trigger.DELETE, self._cause, run.removal_grace_s or 0.0, run.removal_s))
        else:
            self._run_on()
        self._is_resumed = False

    def _spawn_stop(self) -> None:
        run = self.run
        if run.memory.stop_cause not in LASTING and run.memory.ending_as is None:
            run.is_removed = True
        run.spawn(STOP, self._drive(is_resumed=self._is_resumed))

    def _run_on(self) -> None:
        run = self.run
        self._interrupts.is_on = False
        for name in run.memory.ends:
            if EndingAlone(name) not in run.tasks:
                run.spawn(EndingAlone(name), self._drive_alone(name, is_resumed=self._is_resumed))
        if run.memory.reason and run.seen.active is not None:
            run.memory = replace(run.memory, reason="", message="")
        works = frozenset(run.tasks)
        run.plan = plan_start(run.pod, run.seen, run.memory, run.context.clock.now_s(), run.rules, works=works)
        for step in run.plan.steps:
            self._begin(step)
        self._note_up()
        self._tell_pauses()
        self._resizer.advance()
        self._dead.advance()

    def _tell_pauses(self) -> None:
        """Once per exit."""
        run = self.run
        for waiting in run.plan.waiting:
            ended = run.seen.newest(waiting.name) if waiting.why == "back-off" else None
            if ended is not None and ended.id not in self._told_of:
                self._told_of.add(ended.id)
                text = f"Back-off restarting failed container {waiting.name} in pod {run.pod.full_name}"
                run.tell("BackOff", text, waiting.name, is_warning=True)

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
                        run.memory = replace(run.memory, ending_as=DEADLINE)
                        run.tell("DeadlineExceeded", DEADLINE_TEXT)
                    run.spawn(STOP, self._end(trigger, cause, grace_s, run.context.clock.now_s()))
            case Finish(phase, reason, message):
                run.memory = replace(run.memory, outcome=PodOutcome(phase=phase, reason=reason, message=message))
                if run.trace is not None:
                    run.trace.end_start(reason or phase)
                run.save_soon()
                # Nothing runs and no sandbox is up; volumes and the group are there all the same.
                run.spawn(Releasing(), self._release())

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
            ended = run.seen.newest(name)
            run.memory = run.memory.with_stop(name, None)
            if ended is not None:
                run.remember(name, lambda one: replace(one, killed=ended.id, failing=None))

    async def _end(self, trigger: Trigger, cause: str, grace_s: float, began_s: float) -> None:
        run = self.run
        self._interrupt()
        while under_way := [task for work, task in run.tasks.items() if holds_end_up(work)]:
            await asyncio.wait(under_way)
        if grace_s:
            await self._starter.clear_unstarted()
        self._interrupts.is_on = False
        if run.is_removed and cause != self._cause:
            trigger, cause, grace_s = Trigger.DELETE, self._cause, run.removal_grace_s or 0.0
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
            run.memory = replace(run.memory, stop=None, stop_cause="")
        elif cause == "completed" or run.memory.ending_as is not None:
            phase = final_phase(run.pod, run.seen, run.annotated.keystone)
            outcome = run.memory.ending_as or PodOutcome(phase=phase)
            await self._release()
            run.memory = replace(run.memory, stop=None, stop_cause="", outcome=outcome, ending_as=None)
            await run.save()
        else:
            await self._tear_down()

    async def _release(self) -> None:
        """A pod that stays as a record holds no volumes and no cgroup; what is left goes with the record."""
        run, context = self.run, self.run.context
        await self._give_back()
        try:
            await asyncio.to_thread(context.files.release, run.pod.uid)
            await self._setup.release_groups()
        except OSError as error:
            log.warning("pod_volumes_not_released", pod=run.pod.key, error=str(error))

    async def _give_back(self) -> None:
        """Devices, once nothing of the pod runs; a driver that refuses is asked again, and delays no other pod."""
        run, pause_s = self.run, RETRY_S
        while True:
            try:
                await run.context.devices.release(run.pod.uid)
            except DevicesNotReleased as error:
                if run.memory.message != str(error):
                    run.tell("ClaimError", str(error), is_warning=True)
                run.memory = replace(run.memory, reason=NOT_RELEASED, message=str(error))
                run.show()
                await run.context.clock.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_RELEASE_PAUSE_S)
            else:
                break
        if run.memory.reason == NOT_RELEASED:
            run.memory = replace(run.memory, reason="", message="")

    def _remove_files(self) -> None:
        """In one go: each step in a thread of its own would cost as much as the step."""
        run, context = self.run, self.run.context
        for instance in run.seen.instances:
            context.files.logs.remove_links(instance.id)
        context.files.logs.remove(run.pod.namespace, run.pod.name, run.pod.uid)
        context.files.remove(run.pod.uid)

    async def _tear_down(self) -> None:
        """Everything of a pod that is over; repeated until it works."""
        run, context = self.run, self.run.context
        pod = run.pod
        await self._give_back()
        while True:
            try:
                for sandbox in run.seen.sandboxes:
                    await context.sandboxes.remove_sandbox(sandbox.id)
                await asyncio.to_thread(self._remove_files)
                await self._setup.release_groups()
                context.requests.forget(pod.uid)
                await self._setup.level()
                run.is_forgotten = True
                await context.records.remove(record_name(pod.uid))
                break
            except FAILURES as error:
                run.memory = replace(run.memory, reason="FailedKillPod", message=reason_of_error(error))
                log.warning("pod_remains_not_removed", pod=pod.key, error=str(error))
                run.show()
                await context.clock.sleep(RETRY_S)
        run.seen = SeenPod()
        run.is_gone = True
        run.context.metrics.probes.forget(pod.uid)
        log.info("pod_gone", pod=pod.key, uid=pod.uid)
