# SPDX-License-Identifier: Apache-2.0
"""Carries ends out: of a whole pod, or of one container for a fault of its own.

State is written down before each step, and failed calls are repeated. A step never waits for another:
waiting is the planner's.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from math import ceil

import structlog
from msgspec.structs import replace

from agent.model.runtime.error import Unavailable
from agent.pods.plan.order import waits_for_end
from agent.pods.plan.start_steps import EndContainer
from agent.pods.plan.stop import after_step, kill_time_s, note_exit, plan_stop, steps_to_repeat, still_served
from agent.pods.plan.stop_state import (
    ContainerEnding,
    DropHook,
    HookPhase,
    Kill,
    RestartSidecar,
    RunHook,
    Signal,
    Stop,
    StopPodSandbox,
    StopStep,
    Trigger,
    begin_stop,
    hook_ended,
    restarted,
)
from agent.pods.plan.work import KillingContainer, RestartingSidecar, RunningHook, StoppingContainer
from agent.pods.run.handlers.hooks import ContainerTarget, HookResult, HookRunner
from agent.pods.run.one_pod.run_state import FAILURES, LivePod, reason_of_error
from agent.pods.runtime.observed import Instance, SeenPod
from agent.wire.cri import runtime_v1_pb2 as pb

log = structlog.get_logger(plane="pods")

RETRY_S = 1.0
# How a call fails that never reached the runtime; one that broke on its way back did.
NEVER_SENT = ("failed to connect", "connection refused", "no such file")


class Stopper:
    """Ends for one pod. `relaunch` starts a sidecar anew and says whether that worked."""

    def __init__(self, run: LivePod, relaunch: Callable[[str], Awaitable[bool]]) -> None:
        self._run = run
        self._context = run.context
        self._relaunch = relaunch
        self._hooks = HookRunner(run.context.containers, run.context.probe_client, run.context.clock)

    def begin(self, trigger: Trigger, cause: str, grace_s: float, began_s: float) -> None:
        """The decision; what was being ended alone goes on as part of it."""
        run = self._run
        waits = waits_for_end(run.members)
        endings = tuple(self._ending(one.name, waits) for one in run.members)
        stop = begin_stop(trigger, endings, grace_s, began_s, copies_kubelet=self._context.settings().copies_kubelet)
        for one in run.seen.running:
            run.tell("Killing", f"Stopping container {one.name}", one.name)
        run.note("stop_began", text=cause, seconds=max(stop.deadline_s - began_s, 0.0))
        if run.trace is not None:
            run.trace.begin_stop(cause)
        run.memory = replace(run.memory, stop=stop, stop_cause=cause, ends={})
        log.info("pod_stop_planned", pod=run.pod.key, uid=run.pod.uid, cause=cause, grace_s=grace_s)

    def _ending(self, name: str, waits: Mapping[str, frozenset[str]]) -> ContainerEnding:
        run = self._run
        newest, waits_for = run.seen.newest(name), waits[name]
        is_running = newest is not None and newest.is_running
        ending = run.annotated.ending(run.container_of(name), waits_for, is_running=is_running)
        alone = run.memory.ends.get(name)
        before = alone.of(name) if alone is not None else None
        if before is None or not ending.is_running:
            return ending
        return replace(before, waits_for=waits_for, is_running=True)

    def begin_alone(self, step: EndContainer) -> None:
        """One container ends; no order, no sandbox."""
        run = self._run
        now_s = self._context.clock.now_s()
        ending = replace(self._ending(step.name, {step.name: frozenset()}), reserve_s=0.0)
        stop = begin_stop(Trigger.FAULT, (ending,), float(step.grace_s), now_s)
        run.tell("Killing", step.message, step.name)
        run.note("stop_began", step.name, step.message, float(step.grace_s))
        run.memory = run.memory.with_stop(step.name, stop)
        if step.is_renewed:
            run.remember(step.name, lambda one: replace(one, renewed=step.instance.id))

    async def drive(self, key: str, *, is_resumed: bool = False) -> None:
        run = self._run
        if is_resumed:
            stop = run.memory.stop_of(key)
            for step in steps_to_repeat(stop, self._context.clock.now_s()) if stop is not None else ():
                await self._carry_out(key, step)
            self._resume_sleeps(key)
        while (stop := run.memory.stop_of(key)) is not None and not stop.has_ended:
            now_s = self._context.clock.now_s()
            stop = self._with_exits(stop, now_s)
            plan = plan_stop(stop, now_s)
            if not plan.steps:
                run.memory = run.memory.with_stop(key, stop)
                await run.rest(plan.wake_s)
                continue
            for step in plan.steps:
                stop = after_step(stop, step, now_s)
            run.memory = run.memory.with_stop(key, stop)
            if any(not isinstance(step, StopPodSandbox) for step in plan.steps):
                # To stop a sandbox again is fine; to signal, or to run a hook, is not.
                await run.save()
            for step in plan.steps:
                await self._carry_out(key, step)
            run.show()

    def _with_exits(self, stop: Stop, now_s: float) -> Stop:
        for one in stop.containers:
            newest = self._run.seen.newest(one.name)
            if one.is_running and (newest is None or not newest.is_running):
                stop = note_exit(stop, one.name, now_s)
        return stop

    def _resume_sleeps(self, key: str) -> None:
        """What is left of a sleep."""
        stop = self._run.memory.stop_of(key)
        for one in stop.containers if stop is not None else ():
            if one.hook_phase is HookPhase.RUNNING:
                self._spawn_hook(key, one.name, one.hook_began_s or 0.0)

    async def _carry_out(self, key: str, step: StopStep) -> None:
        """Only the sandbox is waited for; everything else goes on by itself."""
        run = self._run
        match step:
            case RunHook(name):
                self._spawn_hook(key, name, None)
            case DropHook(name, phase):
                self._drop_hook(key, name, phase)
            case Signal(name, timeout_s):
                stop = run.memory.stop_of(key)
                left = ", ".join(still_served(stop, name)) if stop is not None else ""
                text = f"the grace is over, and {left} still run" if left else ""
                run.note("stop_signal", name, text)
                if left:
                    run.tell("GracePeriodOver", f"Container {name} is signalled: {text}", name, is_warning=True)
                self._spawn_stop(key, name, timeout_s)
            case Kill(name):
                run.note("sigkill", name)
                self._spawn_stop(key, name, 0)
            case RestartSidecar(name):
                text = f"Sidecar {name} ended while others still need it; kepd restarts it"
                run.tell("SidecarRestartedWhileTerminating", text, name, is_warning=True)
                run.spawn(RestartingSidecar(name), self._restart(key, name))
            case StopPodSandbox():
                await self._stop_sandboxes()
            case _:
                pass

    def _spawn_hook(self, key: str, name: str, resumed_from_s: float | None) -> None:
        self._run.note("prestop_start", name)
        self._run.spawn(RunningHook(name), self._hook(key, name, resumed_from_s))

    async def _hook(self, key: str, name: str, resumed_from_s: float | None) -> None:
        run, clock = self._run, self._context.clock
        container = run.container_of(name)
        hook, newest, active = container.fields.pre_stop, run.seen.newest(name), run.seen.active
        if hook is None or newest is None:
            self._set_hook(key, name, HookPhase.FAILED)
            return
        began_s = clock.now_s()
        if resumed_from_s is not None and hook.sleep is not None:
            await clock.sleep(max(resumed_from_s + hook.sleep.seconds - began_s, 0.0))
            result = HookResult(is_good=True)
        else:
            limit_s = run.annotated.pre_stop_limits_s.get(name)
            target = ContainerTarget(container, newest.id, (active.ip or "") if active is not None else "")
            result = await self._hooks.run(hook, target, limit_s)
            run.hook_outputs[f"{name}/preStop"] = result.record
            if result.fell_back:
                run.tell("LifecycleHTTPFallback", "hook answered in plain HTTP", name, is_warning=True)
        phase = HookPhase.OK if result.is_good else HookPhase.FAILED
        took_s = clock.now_s() - began_s
        run.note("prestop_end", name, f"{phase} {result.text}".strip(), took_s)
        self._context.metrics.hook_ended("preStop", phase.value, took_s)
        if not result.is_good:
            # Who cannot be asked now is taken for what it was; the next look tells.
            with suppress(*FAILURES):
                await run.refresh(newest.id)
            # That a container died is no news of its hook.
            if run.is_running(newest.id):
                run.tell("FailedPreStopHook", "PreStopHook failed", name, is_warning=True)
        self._set_hook(key, name, phase)

    def _set_hook(self, key: str, name: str, phase: HookPhase) -> None:
        run = self._run
        now_s = self._context.clock.now_s()
        for one in {key, ""}:
            stop = run.memory.stop_of(one)
            if stop is not None:
                run.memory = run.memory.with_stop(one, hook_ended(stop, name, phase, now_s))
        run.ring()

    def _drop_hook(self, key: str, name: str, phase: HookPhase) -> None:
        run = self._run
        task = run.tasks.get(RunningHook(name))
        if task is not None:
            task.cancel()
        run.note("prestop_end", name, phase.value)
        if phase is HookPhase.TIMEOUT:
            stop = run.memory.stop_of(key)
            budget_s = stop.deadline_s - stop.began_s if stop is not None else 0.0
            run.tell("FailedPreStopHook", f"PreStopHook did not complete in {budget_s:g}s", name, is_warning=True)

    def _spawn_stop(self, key: str, name: str, timeout_s: int) -> None:
        newest = self._run.seen.newest(name)
        if newest is not None:
            work = StoppingContainer(name) if timeout_s else KillingContainer(name)
            self._run.spawn(work, self._stop_container(key, newest, timeout_s))

    async def _stop_container(self, key: str, instance: Instance, timeout_s: int) -> None:
        """Until it is gone. A call that failed is repeated with what is left."""
        run, clock = self._run, self._context.clock
        while run.is_running(instance.id):
            try:
                await self._context.containers.stop_container(instance.id, timeout_s)
                await run.refresh(instance.id)
            except Unavailable as error:
                log.warning("runtime_lost_while_stopping", pod=run.pod.key, container=instance.name, error=str(error))
                if timeout_s and not any(word in error.details.lower() for word in NEVER_SENT):
                    # It has its signal, and a runtime that starts anew has forgotten that: it would send another.
                    # At its deadline the container is killed.
                    await self._watch(instance)
                    return
            except FAILURES as error:
                run.tell(
                    "FailedKillPod", f"error killing pod: {reason_of_error(error)}", instance.name, is_warning=True
                )
                log.warning("container_not_stopped", pod=run.pod.key, container=instance.name, error=str(error))
            if run.is_running(instance.id):
                await clock.sleep(RETRY_S)
                timeout_s = self._left_s(key, instance.name) if timeout_s else 0

    async def _watch(self, instance: Instance) -> None:
        """An exit while the runtime was away may never be reported; it is looked for until it is seen."""
        while self._run.is_running(instance.id):
            await self._context.clock.sleep(RETRY_S)
            with suppress(*FAILURES):
                await self._run.refresh(instance.id)

    def _left_s(self, key: str, name: str) -> int:
        stop = self._run.memory.stop_of(key) or self._run.memory.stop
        one = stop.of(name) if stop is not None else None
        if stop is None or one is None:
            return 1
        return max(ceil(kill_time_s(stop, one) - self._context.clock.now_s()), 1)

    async def _stop_sandboxes(self) -> None:
        """And a last look whether anything still runs, kepd's own or unknown to it."""
        run, clock = self._run, self._context.clock
        while True:
            try:
                async with self._context.leaving.place(self._context.settings().facts.cpus, clock):
                    for sandbox in run.seen.sandboxes:
                        await self._context.stop_sandbox(sandbox.id)
                left = [one for sandbox in run.seen.sandboxes for one in await self._still_running(sandbox.id)]
                for container_id in left:
                    await self._context.containers.stop_container(container_id, 0)
                for one in run.seen.running:
                    await run.refresh(one.id)
                if not left:
                    break
                problem = f"{len(left)} of its containers still ran after the sandbox was stopped; kepd kills them"
            except FAILURES as error:
                problem = reason_of_error(error)
            run.tell("FailedKillPod", f"error killing pod: {problem}", is_warning=True)
            await clock.sleep(RETRY_S)
        run.saw(SeenPod(tuple(replace(one, is_ready=False) for one in run.seen.sandboxes), run.seen.instances))
        run.note("sandbox_stop")

    async def _still_running(self, sandbox_id: str) -> list[str]:
        listed = await self._context.containers.list_containers(sandbox_id)
        return [one.id for one in listed if one.state == pb.CONTAINER_RUNNING]

    async def _restart(self, key: str, name: str) -> None:
        run = self._run
        is_up = await self._relaunch(name)
        stop = run.memory.stop_of(key)
        if stop is None:
            return
        if is_up:
            run.note("restart", name)
            run.memory = run.memory.with_stop(key, restarted(stop, name))
        else:
            gone = stop.changed(name, lambda one: replace(one, is_starting=False, ended_s=self._context.clock.now_s()))
            run.memory = run.memory.with_stop(key, gone)
        run.ring()


def outcome_of(stop: Stop, now_s: float) -> str:
    return "in_time" if now_s <= stop.deadline_s else "over_budget"
