# SPDX-License-Identifier: Apache-2.0
"""Carries resizes of one pod out, reports them, remembers how far they have come, and tries again what was refused."""

import asyncio

from msgspec.structs import replace

from agent.model.pods.container_fields import Resources
from agent.model.pods.state import Condition
from agent.pods.plan.remembered import Failing
from agent.pods.plan.resize import DEFERRED, Resize, ResizePlan, as_given, differences, plan_resize
from agent.pods.plan.work import Resizing
from agent.pods.run.one_pod.container_setup import ContainerSetup
from agent.pods.run.one_pod.run_state import FAILURES, LivePod, reason_of_error
from agent.pods.runtime.environment import ConfigProblem
from agent.pods.runtime.pod_group import PodLimits, burst_files

TASK = Resizing()
# What the node has no room for, and what the runtime refused, is tried again after this long.
RETRY_S = 10.0


class Resizer:
    def __init__(self, run: LivePod, setup: ContainerSetup) -> None:
        self._run = run
        self._setup = setup
        self._told = ""
        self._error = ""

    def advance(self) -> None:
        run = self._run
        if TASK in run.tasks:
            return
        steps = differences(run.pod, run.seen, run.memory, run.annotated.bursts_us)
        has_group = run.seen.active is not None
        if has_group and run.memory.group is None:
            group = self._setup.limits_of(as_given(run.pod, run.memory))
            run.memory = replace(run.memory, group=group, resources=run.pod.spec.resources)
        limits = self._setup.limits_of(run.pod) if has_group else run.memory.group or PodLimits()
        plan = plan_resize(run.pod, run.memory, steps, limits, run.context.places, run.context.settings().capacity)
        run.resize_conditions = self._conditions(plan)
        if plan.pending:
            self._tell_pending(plan)
        elif plan.steps:
            run.context.places.take(run.pod)
            run.spawn(TASK, self._carry_out(plan, run.pod.spec.resources))
        else:
            self._told = self._error = ""
        if plan.pending == DEFERRED:
            run.spawn(TASK, run.context.clock.sleep(RETRY_S))

    def _conditions(self, plan: ResizePlan) -> tuple[Condition, ...]:
        if plan.pending:
            return (Condition(type="PodResizePending", is_true=True, reason=plan.pending, message=plan.message),)
        if plan.steps:
            reason = "Error" if self._error else ""
            return (Condition(type="PodResizeInProgress", is_true=True, reason=reason, message=self._error),)
        return ()

    def _tell_pending(self, plan: ResizePlan) -> None:
        if plan.message != self._told:
            self._told = plan.message
            self._run.tell(f"Resize{plan.pending}", plan.message, is_warning=True)

    async def _carry_out(self, plan: ResizePlan, whole: Resources) -> None:
        """One step after the other, until the pod has `whole`. A refusal ends the round; the next plan begins with what
        is left."""
        run = self._run
        for step in plan.steps:
            if step.needs_restart:
                text = f"Container {step.name} resize requires restart"
                failing = Failing(instance=step.instance_id, cause="resize", message=text)
                run.remember(step.name, lambda one, failing=failing: replace(one, failing=failing))  # type: ignore[misc]
                self._note(step)
                continue
            subject = "Container" if step.name else "Pod"
            if not self._error and not step.is_quiet:
                run.tell("ResizeStarted", f"{subject} resources are changed in place", step.name)
            try:
                await self._check_usage(step)
                await self._apply(step)
            except (*FAILURES, ConfigProblem) as error:
                self._refused(step, reason_of_error(error))
                await run.context.clock.sleep(RETRY_S)
                return
            self._error = ""
            self._note(step)
            if not step.is_quiet:
                run.tell("ResizeCompleted", f"{subject} resources have been changed", step.name)
        run.memory = replace(run.memory, resources=whole)
        run.save_soon()

    def _note(self, step: Resize) -> None:
        container = self._run.pod.by_name.get(step.name)
        if container is not None:
            resources = container.fields.resources
            self._run.remember(step.name, lambda one: replace(one, resources=resources, burst_us=step.burst_us))

    async def _check_usage(self, step: Resize) -> None:
        """The kernel would kill a process to get below its new limit."""
        if step.memory_limit is None:
            return
        run = self._run
        instances = [step.instance_id] if step.name else [one.id for one in run.seen.running]
        used = sum([await run.context.maintenance.memory_used(one) or 0 for one in instances])
        if used > step.memory_limit:
            subject = f"container {step.name}" if step.name else "the pod"
            text = f"attempting to set memory limit ({step.memory_limit}) of {subject} below current usage"
            raise ValueError(f"{text} ({used})")

    async def _apply(self, step: Resize) -> None:
        """What may use other amounts now does so without a restart."""
        if step.limits is not None:
            await self._setup.limit(step.limits)
            self._run.memory = replace(self._run.memory, group=step.limits)
            return
        await asyncio.to_thread(self._write_burst, step, may_rise=False)
        # The manifest may have it no longer.
        if (container := self._run.pod.by_name.get(step.name)) is not None and not step.is_quiet:
            resources = self._setup.resources_of(container)
            await self._run.context.maintenance.update_resources(step.instance_id, resources)
        await asyncio.to_thread(self._write_burst, step, may_rise=True)

    def _write_burst(self, step: Resize, *, may_rise: bool) -> None:
        """Before the quota falls, and after it has risen."""
        context = self._run.context
        files = burst_files(self._setup.cgroup, step.instance_id, context.settings().facts.groups)
        found = {path: int(text) for path, text in context.groups.read(files).items() if text}
        if not found and step.burst_us and self._run.is_running(step.instance_id):
            raise FileNotFoundError(f"cpu burst of {step.burst_us} us: there is none of {', '.join(files)}")
        for path, before_us in found.items():
            if before_us > step.burst_us or (may_rise and before_us < step.burst_us):
                context.groups.write(path, str(step.burst_us))

    def _refused(self, step: Resize, text: str) -> None:
        run = self._run
        if step.memory_limit is not None:
            text = f"cannot decrease memory limits: {text}"
        if text != self._error:
            self._error = text
            run.tell("ResizeError", text, step.name, is_warning=True)
        run.resize_conditions = (Condition(type="PodResizeInProgress", is_true=True, reason="Error", message=text),)
        run.show()
