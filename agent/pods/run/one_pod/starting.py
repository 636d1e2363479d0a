# SPDX-License-Identifier: Apache-2.0
"""Brings containers up: image, configuration, create, start, postStart.

What takes long (a pull, a hook) can be interrupted when the pod is to end; what is short is let finish, so
that nothing has to guess how far it came.
"""

import asyncio
from collections.abc import Sequence

import structlog
from msgspec.structs import replace

from agent.model.pods.container_fields import Container
from agent.model.pods.pod import ContainerSpec
from agent.model.pods.state import ProbeWords
from agent.model.pods.unprotected import PodUnprotected
from agent.model.reason import quoted
from agent.model.refused import Refused
from agent.model.runtime.error import RuntimeCallFailed, Unavailable
from agent.pods.plan.ephemeral import plan_ephemeral
from agent.pods.plan.remembered import ContainerMemory, Failing
from agent.pods.plan.start_steps import Launch, RestartAll, Settle
from agent.pods.plan.stop_state import HookPhase
from agent.pods.plan.work import LaunchingEphemeral
from agent.pods.run.handlers.hooks import ContainerTarget, HookRunner
from agent.pods.run.handlers.interrupts import Interrupts, LaunchInterrupted, unbroken
from agent.pods.run.one_pod.container_setup import ContainerSetup
from agent.pods.run.one_pod.created_ahead import CreatedAhead
from agent.pods.run.one_pod.pod_images import IMAGE_REASONS, OWN_EVENTS, PodImages, archive_for
from agent.pods.run.one_pod.run_state import FAILURES, LivePod, reason_of_error
from agent.pods.runtime.cri_security import Made
from agent.pods.runtime.environment import ConfigProblem
from agent.pods.runtime.names import CONTAINER_HASH
from agent.pods.runtime.observed import Instance, Stage
from agent.wire.cri import runtime_v1_pb2 as pb

log = structlog.get_logger(plane="pods")

FIRST_IMAGE_PAUSE_S, LONGEST_IMAGE_PAUSE_S = 10.0, 300.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
AFTER_SIGNAL_S = 2
LONGEST_START_S = 10.0
INTERRUPTED_HOOK = "PostStartHook was interrupted by a restart of kepd; it counts as done and is not run again"

# As a kubelet calls what a runtime refused.
NOT_CREATED, NOT_STARTED = "CreateContainerError", "RunContainerError"


class AlreadyStarted(Exception):
    """What was to be launched runs already, or has run; the planner has to look again."""


class Starter:
    def __init__(self, run: LivePod, setup: ContainerSetup, images: PodImages, interrupts: Interrupts) -> None:
        self._run = run
        self._interrupts = interrupts
        self._context = run.context
        self._setup = setup
        self._images = images
        self._hooks = HookRunner(run.context.containers, run.context.probe_client, run.context.clock)
        self._ahead = CreatedAhead(run, self._new, images)
        self._has_told_of_signal = False
        self._told_of: set[str] = set()

    async def launch(self, step: Launch) -> None:
        run = self._run
        container = run.pod.by_name[step.name]
        began_s = self._context.clock.now_s()
        try:
            image = await self._interrupts.wait_for(self._images.of(container), container.image)
            waited_s = self._context.clock.now_s() - began_s
            if step.name not in run.pod.by_name:
                return
            instance = await self._create(step, container, image)
            if await self._start(instance, container, step):
                took_s = self._context.clock.now_s() - began_s
                span = run.trace.of_container(step.name) if run.trace is not None else None
                kind, namespace = container.kind.value, run.pod.namespace
                self._context.metrics.container_started(kind, took_s, waited_s, span, namespace=namespace)
                await self._run_post_start(container, instance.id)
        except (LaunchInterrupted, AlreadyStarted):
            return
        except ConfigProblem as error:
            self._failed(container, error.reason, str(error))
        except FAILURES as error:
            self._failed(container, NOT_CREATED, reason_of_error(error))

    async def add_ephemeral(self, fields: Container, profile: str, target: str) -> None:
        """Beside all that is planned. Raises Refused where it does not run."""
        run, work = self._run, LaunchingEphemeral(fields.name)
        if work in run.tasks:
            raise Refused("precondition", f'pod {run.pod.key} has a container "{fields.name}" already, which starts')
        container, step = plan_ephemeral(run.pod, run.seen, fields, profile, target)
        task = run.spawn(work, self._launch_ephemeral(step, container))
        await asyncio.wait([task])
        if task.cancelled():
            raise Refused("unavailable", f"kepd ended while {fields.name} was being started")
        if (refused := task.result()) is not None:
            raise refused

    async def _launch_ephemeral(self, step: Launch, container: ContainerSpec) -> Refused | None:
        """Once. Why it does not run, or None; what was created and not started DeadRemover takes away."""
        run, name = self._run, container.name
        began_s, metrics = self._context.clock.now_s(), self._context.metrics
        try:
            image = await self._interrupts.wait_for(self._images.of(container))
            waited_s = self._context.clock.now_s() - began_s
            instance = await self._create(step, container, image)
            if await self._start(instance, container, step):
                took_s = self._context.clock.now_s() - began_s
                metrics.container_started(container.kind.value, took_s, waited_s, namespace=run.pod.namespace)
                return None
            left = run.seen.instance(instance.id)
            why = (left.message if left is not None else "") or "`kepctl get events` has the runtime's answer"
            return Refused("unavailable", f"{name} does not run: {why}")
        except LaunchInterrupted:
            return Refused("precondition", f"{name} was not started: pod {run.pod.key} ends")
        except ConfigProblem as error:
            metrics.start_failed(container.kind.value, error.reason)
            refused = Refused("precondition", f"{name} was not started: {error.reason}: {error}")
        except FAILURES as error:
            metrics.start_failed(container.kind.value, NOT_CREATED)
            refused = Refused("unavailable", f"{name} was not started: {reason_of_error(error)}")
        run.tell("Failed", f"Error: {refused}", name, is_warning=True)
        return refused

    async def relaunch(self, name: str) -> bool:
        """A sidecar that is needed while its pod ends; neither postStart nor probes are waited for."""
        run = self._run
        container, active, ended = run.pod.by_name.get(name), run.seen.active, run.seen.newest(name)
        if container is None or active is None or ended is None:
            return False
        step = Launch(name, run.seen.next_attempt(name), active.id, (), ended.finished_s)
        try:
            instance = await self._create(step, container, await self._images.of(container))
            if not await self._start(instance, container, step):
                return False
        except (ConfigProblem, AlreadyStarted, *FAILURES) as error:
            run.tell("Failed", f"Error: {error}", name, is_warning=True)
            return False
        run.remember(name, lambda one: replace(one.of(instance.id), post_start=HookPhase.OK, is_started=True))
        return True

    async def settle(self, step: Settle) -> None:
        container = self._run.pod.by_name.get(step.name)
        if container is not None:
            try:
                await self._run_post_start(container, step.instance.id)
            except LaunchInterrupted:
                return

    async def clear_unstarted(self) -> None:
        """Before an end: what was made and not started goes. What the runtime is still starting, for a kepd that died,
        is waited for, so that it ends in its turn and not after those that serve it."""
        run, clock = self._run, self._context.clock
        until_s = clock.now_s() + LONGEST_START_S
        while left := [one.id for one in run.seen.instances if one.stage is Stage.CREATED]:
            try:
                await self._discard(left)
            except AlreadyStarted:
                continue
            except FAILURES as error:
                if clock.now_s() >= until_s:
                    log.warning("unstarted_containers_left", pod=run.pod.key, containers=left, error=str(error))
                    return
                await clock.sleep(FIRST_PAUSE_S)

    async def _discard(self, unstarted: Sequence[str]) -> None:
        """The runtime may still be carrying out a start that was asked for before kepd died: removing would
        then end what just began, so each one is looked at right before, and what runs after all is kept."""
        run = self._run
        for instance_id in unstarted:
            await run.refresh(instance_id)
            left = run.seen.instance(instance_id)
            if left is not None and left.stage is not Stage.CREATED:
                raise AlreadyStarted
            await self._context.containers.remove_container(instance_id)
            run.drop(instance_id)

    async def _create(self, step: Launch, container: ContainerSpec, image: pb.Image) -> Instance:
        run = self._run
        ahead = self._ahead.take(step, container, image)
        if ahead is None:
            await self._discard(step.discards)
            ahead = await self._new(step, container, image)
        instance, took_s = ahead
        run.note("created", container.name, seconds=took_s)
        run.tell("Created", "Container created", container.name)
        return instance

    async def _new(self, step: Launch, container: ContainerSpec, image: pb.Image) -> tuple[Instance, float]:
        """An instance, and how long the runtime took to make it."""
        run, context = self._run, self._context
        made: Made = await self._setup.made(container, image, step.attempt)
        config = self._setup.container_config(container, replace(made, target_id=step.target_id))
        archive = await archive_for(run, container, image)
        config.image.image = archive or config.image.image
        if self._interrupts.is_on:
            raise LaunchInterrupted
        began_s = context.clock.now_s()
        sandbox = self._setup.sandbox_config(0)
        # An ephemeral container may be privileged in a pod that is not.
        sandbox.linux.security_context.privileged |= config.linux.security_context.privileged
        instance_id = await context.containers.create_container(step.sandbox_id, config, sandbox)
        resources = container.fields.resources
        restored = run.annotated.restores.get(container.name, "")
        run.remember(container.name, lambda one: replace(one, resources=resources, burst_us=0, restored=restored))
        if archive:
            await run.save()
            run.tell("Restored", f"Container begins from checkpoint {restored}", container.name)
        instance = Instance(
            id=instance_id,
            name=container.name,
            sandbox_id=step.sandbox_id,
            stage=Stage.CREATED,
            attempt=made.attempt,
            image=container.image,
            image_id=image.id,
            hash=config.annotations[CONTAINER_HASH],
            created_s=context.clock.now_s(),
            notes=dict(config.annotations),
        )
        run.put(instance)
        return instance, context.clock.now_s() - began_s

    async def _start(self, instance: Instance, container: ContainerSpec, step: Launch) -> bool:
        run, context = self._run, self._context
        await self._interrupts.wait_for(self._protected())
        now_s = context.clock.now_s()
        run.remember(container.name, lambda one: replace(one, backoff=one.backoff.started(now_s, step.ended_s)))
        if step.ended_s is not None:
            context.metrics.restarted(container.kind.value)
        self._ahead.create_next(container, step.sandbox_id)
        try:
            await unbroken(context.containers.start_container(instance.id))
        except FAILURES as error:
            if not isinstance(error, Unavailable):
                run.remember(container.name, lambda one: replace(one, refused=instance.id))
                run.save_soon()
            run.tell("Failed", f"Error: {reason_of_error(error)}", container.name, is_warning=True)
            context.metrics.start_failed(container.kind.value, NOT_STARTED)
            await run.refresh(instance.id)
            return False
        # It may have ended already; only the runtime knows.
        await run.refresh(instance.id)
        if run.seen.instance(instance.id) is None:
            raise RuntimeCallFailed("ContainerStatus", "the container is gone right after its start")
        run.remember(
            container.name, lambda one: replace(one.of(instance.id), reason="", message="", pause_s=0.0, retry_s=0.0)
        )
        run.note("started", container.name, seconds=context.clock.now_s() - now_s)
        run.tell("Started", "Container started", container.name)
        self._check_signal(container, instance.id)
        self._setup.link_log(instance)
        return True

    async def _protected(self) -> None:
        try:
            await self._context.policies.hold(self._run.pod.uid)
        except PodUnprotected as error:
            raise ConfigProblem(str(error), "NetworkPolicyNotReady") from error

    def _check_signal(self, container: ContainerSpec, instance_id: str) -> None:
        """A runtime that does not know the field does not tell a signal either; said once per pod."""
        wanted = container.fields.lifecycle.stop_signal if container.fields.lifecycle is not None else ""
        known = self._run.seen.instance(instance_id)
        if wanted and not (known is not None and known.stop_signal) and not self._has_told_of_signal:
            self._has_told_of_signal = True
            runtime = self._run.features.label
            text = f"lifecycle.stopSignal {wanted} has no effect: {runtime} does not know it, and ends containers with "
            text += "the signal of their image, or SIGTERM"
            self._run.tell("StopSignalIgnored", text, container.name, is_warning=True)

    async def _run_post_start(self, container: ContainerSpec, instance_id: str) -> None:
        """postStart, and what follows from its end."""
        run = self._run
        hook = container.fields.post_start
        phase = run.memory.of(container.name).of(instance_id).post_start
        if phase is HookPhase.CANCELLED:
            run.note("poststart_end", container.name, "interrupted")
            run.tell("PostStartHookInterrupted", INTERRUPTED_HOOK, container.name, is_warning=True)
        elif hook is not None and phase is HookPhase.NONE:
            run.remember(container.name, lambda one: replace(one.of(instance_id), post_start=HookPhase.RUNNING))
            await run.save()
            active = run.seen.active
            target = ContainerTarget(container, instance_id, (active.ip or "") if active is not None else "")
            began_s = self._context.clock.now_s()
            run.note("poststart_start", container.name)
            limit_s = (
                run.annotated.post_start_limits_s.get(container.name)
                or self._context.settings().pods.post_start_timeout
            )
            result = await self._interrupts.wait_for(self._hooks.run(hook, target, limit_s or None))
            took_s = self._context.clock.now_s() - began_s
            run.note("poststart_end", container.name, "ok" if result.is_good else "failed", took_s)
            run.hook_outputs[f"{container.name}/postStart"] = result.record
            self._context.metrics.hook_ended("postStart", "ok" if result.is_good else "failed", took_s)
            if not result.is_good:
                self._hook_failed(container, instance_id, result.text)
                return
        has_startup = container.fields.startup_probe is not None
        is_ready = not has_startup and container.fields.readiness_probe is None

        def settle(one: ContainerMemory) -> ContainerMemory:
            return replace(
                one.of(instance_id),
                post_start=HookPhase.OK,
                is_started=not has_startup,
                is_ready=is_ready,
                reason="",
                message="",
                pause_s=0.0,
                retry_s=0.0,
            )

        run.remember(container.name, settle)
        run.save_soon()

    def _hook_failed(self, container: ContainerSpec, instance_id: str, text: str) -> None:
        """Writes down that the container has to end, with its preStop and full grace; no event has output."""
        run = self._run
        run.tell("FailedPostStartHook", "PostStartHook failed", container.name, is_warning=True)
        failing = Failing(instance=instance_id, cause="hook", message="FailedPostStartHook")
        run.remember(
            container.name,
            lambda one: replace(
                one.of(instance_id),
                post_start=HookPhase.FAILED,
                failing=failing,
                message=text,
                complaint=ProbeWords(instance_id, "postStart", quoted(text)),
            ),
        )

    def _failed(self, container: ContainerSpec, reason: str, text: str) -> None:
        run = self._run
        if container.name not in run.pod.by_name:
            return
        self._context.metrics.start_failed(container.kind.value, reason)
        known = run.memory.of(container.name)
        is_image = reason in IMAGE_REASONS
        first_s, longest_s = (
            (FIRST_IMAGE_PAUSE_S, LONGEST_IMAGE_PAUSE_S) if is_image else (FIRST_PAUSE_S, LONGEST_PAUSE_S)
        )
        pause_s = min(known.pause_s * 2, longest_s) if known.pause_s else first_s
        retry_s = self._context.clock.now_s() + pause_s
        shown, message = reason, text
        if reason == "ErrImagePull" and known.pause_s:
            shown = "ImagePullBackOff"
            message = f'Back-off pulling image "{container.image}": ErrImagePull: {text}'
        run.remember(
            container.name, lambda one: replace(one, reason=shown, message=message, pause_s=pause_s, retry_s=retry_s)
        )
        if is_image or reason == "ImageInspectError":
            self._images.tell_failure(container, reason, shown, text)
        else:
            event = OWN_EVENTS.get(reason, "Failed")
            words = text if event != "Failed" else f"Error: {text}"
            run.tell(event, words, container.name, is_warning=True)
        run.save_soon()
        run.doubt()
        log.warning("container_not_started", pod=run.pod.key, container=container.name, reason=reason, error=text)

    def tell_pauses(self) -> None:
        """That containers wait after they failed; once per exit."""
        run = self._run
        for waiting in run.plan.waiting:
            ended = run.seen.newest(waiting.name) if waiting.why == "back-off" else None
            if ended is not None and ended.id not in self._told_of:
                self._told_of.add(ended.id)
                text = f"Back-off restarting failed container {waiting.name} in pod {run.pod.full_name}"
                run.tell("BackOff", text, waiting.name, is_warning=True)

    async def restart_all(self, step: RestartAll) -> None:
        """Signal, two seconds, and away; logs stay."""
        run, context = self._run, self._context
        failed = False
        run.tell("RestartAllContainers", f"All containers restart because of the exit of {step.name}")
        run.show()
        try:
            async with asyncio.TaskGroup() as group:
                for one in (one for one in run.seen.running if not one.is_ephemeral):
                    group.create_task(context.containers.stop_container(one.id, AFTER_SIGNAL_S))
            order = sorted(run.seen.instances, key=lambda one: one.name == step.name)
            for one in (one for one in order if not one.is_ephemeral):
                await context.containers.remove_container(one.id)
                run.drop(one.id)
        except* FAILURES as errors:
            run.tell("FailedKillPod", str(errors.exceptions[0]), is_warning=True)
            failed = True
        if failed:
            # The container that brought this about goes last, so all of it is planned again.
            await context.clock.sleep(FIRST_PAUSE_S)
            return
        now_s = context.clock.now_s()
        run.remember(step.name, lambda one: replace(one, backoff=one.backoff.started(now_s, step.ended_s)))
        run.memory = replace(run.memory, passed=frozenset(), is_initialised=False)
