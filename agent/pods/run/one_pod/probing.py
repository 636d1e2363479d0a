# SPDX-License-Identifier: Apache-2.0
"""Keeps the probes of one pod running: a worker per container and kind, each on its own schedule.

Owns when workers begin and end, and what follows from a verdict: started, ready, to be ended.
"""

import random
from collections.abc import Callable

from msgspec.structs import replace

from agent.model.pods.container_fields import Probe
from agent.model.pods.pod import ContainerKind, ContainerSpec
from agent.model.pods.state import ProbeWords
from agent.model.reason import quoted
from agent.pods.plan.probe import (
    AnswerKind,
    ProbeAnswer,
    ProbeKind,
    ProbeState,
    after_answer,
    first_state,
    is_delayed,
    next_run_s,
)
from agent.pods.plan.remembered import Failing
from agent.pods.plan.restart import policy_of
from agent.pods.plan.stop_state import HookPhase
from agent.pods.plan.work import Probing
from agent.pods.run.handlers.hooks import ContainerTarget
from agent.pods.run.handlers.probes import ProbeRunner
from agent.pods.run.metrics import Probed
from agent.pods.run.one_pod.run_state import LivePod
from agent.pods.runtime.observed import Instance, Stage


class Prober:
    """Probes of one pod. `scatter` gives a share of a period, for workers that begin because kepd did."""

    def __init__(self, run: LivePod, probes: ProbeRunner, scatter: Callable[[], float] = random.random) -> None:
        self._run = run
        self._probes = probes
        self._share = probes.share()
        self._scatter = scatter

    def sync(self) -> None:
        """Begin workers that are missing, end those whose instance is gone or whose time is over."""
        wanted = {}
        for container in self._run.pod.containers:
            instance = self._run.seen.newest(container.name)
            if instance is not None and instance.stage is Stage.RUNNING:
                for kind, probe in self._due(container, instance):
                    wanted[Probing(kind, instance.id)] = (container, instance, kind, probe)
        for work in [work for work in self._run.tasks if isinstance(work, Probing) and work not in wanted]:
            self._run.tasks[work].cancel()
        for work, (container, instance, kind, probe) in wanted.items():
            if work not in self._run.tasks:
                self._run.spawn(work, self._work(container, instance, kind, probe))

    def _due(self, container: ContainerSpec, instance: Instance) -> list[tuple[ProbeKind, Probe]]:
        memory = self._run.memory.of(container.name).of(instance.id)
        fields = container.fields
        if container.kind is ContainerKind.INIT or memory.post_start is not HookPhase.OK or memory.failing is not None:
            return []
        is_ending = self._run.memory.stop is not None
        found: list[tuple[ProbeKind, Probe]] = []
        if not memory.is_started:
            if fields.startup_probe is not None and not is_ending:
                found.append((ProbeKind.STARTUP, fields.startup_probe))
            return found
        if fields.liveness_probe is not None and not is_ending and container.name not in self._run.memory.ends:
            found.append((ProbeKind.LIVENESS, fields.liveness_probe))
        if fields.readiness_probe is not None:
            found.append((ProbeKind.READINESS, fields.readiness_probe))
        return found

    async def _work(self, container: ContainerSpec, instance: Instance, kind: ProbeKind, probe: Probe) -> None:
        run, clock = self._run, self._run.context.clock
        state = self._first(container, instance, kind)
        due_s = clock.now_s()
        is_adopted = instance.started_s < run.context.started_s
        if is_adopted and due_s - run.context.started_s < probe.period_s:
            # All workers begin at once when kepd does; their runs must not stay together for ever.
            due_s += self._scatter() * probe.period_s
        began_s = due_s
        while True:
            await clock.sleep(max(due_s - clock.now_s(), 0.0))
            run.context.metrics.probe_ran(kind.value, max(clock.now_s() - due_s, 0.0))
            if not is_delayed(probe, instance.started_s, clock.now_s()):
                after = await self._ask(container, instance, kind, state, probe)
                if after is None:
                    return
                state = after
            due_s = next_run_s(began_s, probe.period_s, clock.now_s())

    def _first(self, container: ContainerSpec, instance: Instance, kind: ProbeKind) -> ProbeState:
        """One that was ready stays so until its own first word."""
        if kind is ProbeKind.READINESS:
            return ProbeState(self._run.memory.of(container.name).of(instance.id).is_ready)
        return first_state(kind)

    async def _ask(
        self, container: ContainerSpec, instance: Instance, kind: ProbeKind, state: ProbeState, probe: Probe
    ) -> ProbeState | None:
        """One run; None where this worker has nothing left to do."""
        active = self._run.seen.active
        facts = self._run.facts
        ip = (active.ip or "") if active is not None else ""
        if self._run.pod.spec.host_network:
            ip = facts.host_ips[0] if facts.host_ips else "127.0.0.1"
        began_s = self._run.context.clock.now_s()
        pauses = self._run.context.pauses
        stood = pauses.begun(instance.id)
        answer = await self._probes.run(probe, ContainerTarget(container, instance.id, ip), self._share)
        took_s = self._run.context.clock.now_s() - began_s
        self._run.context.metrics.probes.ran(self._probed(container, kind), answer.kind, took_s)
        if not self._run.is_running(instance.id):
            return None
        if stood != pauses.begun(instance.id) or pauses.is_paused(instance.id):
            return state
        self._tell(container, kind, answer)
        self._note_complaint(container.name, instance.id, kind, answer)
        after = after_answer(state, probe, answer)
        if kind is ProbeKind.READINESS:
            self._set_ready(container.name, instance.id, is_ready=bool(after.verdict))
            return after
        if after.verdict is False:
            self._fail(container, instance, kind, probe)
            return None
        if kind is ProbeKind.STARTUP and after.verdict:
            self._set_started(container, instance.id)
            return None
        return after

    def _probed(self, container: ContainerSpec, kind: ProbeKind) -> Probed:
        pod = self._run.pod
        return Probed(kind=kind.value, container=container.name, pod=pod.name, namespace=pod.namespace, uid=pod.uid)

    def _tell(self, container: ContainerSpec, kind: ProbeKind, answer: ProbeAnswer) -> None:
        name = container.name
        if answer.kind is AnswerKind.FAILURE:
            self._run.tell("Unhealthy", f"{kind.title} probe failed: {answer.text}", name, is_warning=True)
            self._run.note("probe_failed", name, kind.value)
        elif answer.kind is AnswerKind.WARNING:
            self._run.tell("ProbeWarning", f"{kind.title} probe warning: {answer.text}", name, is_warning=True)
        elif answer.kind is AnswerKind.ERROR:
            text = f"{kind.title} probe errored and resulted in unknown state: {answer.text}"
            self._run.tell("Unhealthy", text, name, is_warning=True)

    def _note_complaint(self, name: str, instance_id: str, kind: ProbeKind, answer: ProbeAnswer) -> None:
        """Keeps a probe's last complaint for people who ask. A good answer of the same kind clears it."""
        before = self._run.memory.of(name).complaint
        is_own = before is not None and before.instance == instance_id and before.kind == kind.value
        if not answer.is_good:
            complaint: ProbeWords | None = ProbeWords(instance_id, kind.value, quoted(answer.text))
        elif is_own:
            complaint = None
        else:
            return
        if complaint != before:
            self._run.remember(name, lambda one: replace(one, complaint=complaint))

    def _set_ready(self, name: str, instance_id: str, *, is_ready: bool) -> None:
        if self._run.memory.of(name).of(instance_id).is_ready is not is_ready:
            self._run.note("ready" if is_ready else "unready", name)
            if is_ready and self._run.trace is not None:
                self._run.trace.note_ready(name)
            self._run.remember(name, lambda one: replace(one.of(instance_id), is_ready=is_ready))
            self._run.save_soon()

    def _set_started(self, container: ContainerSpec, instance_id: str) -> None:
        is_ready = container.fields.readiness_probe is None
        self._run.note("probe_started", container.name)
        self._run.remember(container.name, lambda one: replace(one.of(instance_id), is_started=True, is_ready=is_ready))
        self._run.save_soon()

    def _intent(self, container: ContainerSpec) -> str:
        """What follows is said only where something does."""
        is_kept = container.kind is ContainerKind.SIDECAR or policy_of(self._run.pod, container) != "Never"
        return ", will be restarted" if is_kept else ""

    def _fail(self, container: ContainerSpec, instance: Instance, kind: ProbeKind, probe: Probe) -> None:
        """The planner ends it."""
        failing = Failing(
            instance=instance.id,
            cause=kind.value,
            message=f"Container {container.name} failed {kind.value} probe{self._intent(container)}",
            grace_s=probe.termination_grace_period_seconds,
        )
        self._run.remember(container.name, lambda one: replace(one.of(instance.id), failing=failing, is_ready=False))
