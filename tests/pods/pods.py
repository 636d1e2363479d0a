# SPDX-License-Identifier: Apache-2.0
"""Pods for tests, and a world in virtual time in which planners run them."""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import msgspec

from agent.model.pod import ContainerKind, PodSpec, container_hash
from agent.model.pod_fields import Container, PodFields
from agent.pods.plan.memory import ContainerMemory, Memory, Outcome
from agent.pods.plan.start import StartPlan, StartRules, final_phase, note_progress, plan_start
from agent.pods.plan.start_steps import BeginStop, EndContainer, Finish, Launch, MakeSandbox, RestartAll, Settle
from agent.pods.plan.stop_state import HookPhase
from agent.pods.runtime.seen import Instance, SeenPod, SeenSandbox, Stage, newest_first, sandboxes_newest_first


def container(name: str, **fields: Any) -> Container:
    return msgspec.convert({"name": name, "image": "i", **fields}, Container)


def make_pod(mains: Any = ("app",), inits: Any = (), **spec: Any) -> PodSpec:
    """Mains by name or as containers; `inits` by name, with a `+` before the name of a sidecar."""

    def built(one: Any) -> Container:
        if isinstance(one, Container):
            return one
        return container(one[1:], restartPolicy="Always") if one.startswith("+") else container(one)

    fields = msgspec.convert(spec, PodFields)
    fields = msgspec.structs.replace(
        fields, containers=tuple(map(built, mains)), init_containers=tuple(map(built, inits))
    )
    return PodSpec(namespace="default", name="web", uid="u1", hash="h", spec=fields)


@dataclass(frozen=True)
class Runs:
    """How one instance behaves: how long it runs (None: until it is ended) and its code."""

    seconds: float | None = None
    code: int = 0
    reason: str = ""


ALWAYS = Runs()


@dataclass
class World:
    """One pod on a runtime that takes no time. `behaves` has what each attempt of a container does."""

    pod: PodSpec
    behaves: Mapping[str, list[Runs]] = field(default_factory=dict)
    rules: StartRules = field(default_factory=StartRules)
    started: Callable[[str], bool] = lambda _name: True
    seen: SeenPod = field(default_factory=SeenPod)
    memory: Memory = field(default_factory=Memory)
    now_s: float = 1.0
    log: list[str] = field(default_factory=list)
    fails: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ids = count(1)
        self._events: list[tuple[float, str]] = []

    def plan(self) -> StartPlan:
        self.memory = note_progress(self.pod, self.seen, self.memory)
        return plan_start(self.pod, self.seen, self.memory, self.now_s, self.rules)

    def settle(self) -> StartPlan:
        """Carry plans out until nothing is left to do now."""
        for _ in range(200):
            plan = self.plan()
            if not plan.steps:
                return plan
            for step in plan.steps:
                self.do(step)
        raise AssertionError(f"circles: {self.log[-10:]}")

    def run(self, seconds: float) -> "World":
        """Let time pass."""
        until_s = self.now_s + seconds
        while True:
            plan = self.settle()
            times = [at_s for at_s in (plan.wake_s, self._events[0][0] if self._events else None) if at_s is not None]
            if not times or min(times) > until_s:
                self.now_s = until_s
                return self
            self.now_s = max(min(times), self.now_s)
            while self._events and self._events[0][0] <= self.now_s:
                self._end(heapq.heappop(self._events)[1])

    def tell(self, text: str) -> None:
        self.log.append(f"{self.now_s - 1:g} {text}")

    def do(self, step: Any) -> None:
        match step:
            case MakeSandbox(attempt, replaces, removes):
                self.tell(f"sandbox {attempt}")
                made = SeenSandbox(
                    id=f"s{next(self._ids)}", namespace="default", name="web", uid="u1", attempt=attempt, ip="10.0.0.2"
                )
                kept = [replace(one, is_ready=False) for one in self.seen.sandboxes if one.id in replaces]
                left = tuple(one for one in self.seen.instances if one.id not in removes)
                self.seen = SeenPod(sandboxes_newest_first((made, *kept)), left)
            case Launch():
                self._launch(step)
            case Settle(instance):
                self._settled(instance)
            case EndContainer(instance):
                self.tell(f"end {instance.name}")
                self.exit(instance.id, 143)
                self._remember(instance.name, killed=instance.id, failing=None)
            case RestartAll(name):
                self.tell(f"restart all for {name}")
                self.seen = SeenPod(self.seen.sandboxes, ())
                self.memory = replace(self.memory, passed=frozenset(), is_initialised=False)
            case BeginStop(cause=cause):
                self.tell(f"stop: {cause}")
                for one in self.seen.running:
                    self.exit(one.id, 143)
                self.seen = replace(
                    self.seen, sandboxes=tuple(replace(one, is_ready=False) for one in self.seen.sandboxes)
                )
                if cause != "sandbox":
                    phase = "Failed" if cause == "deadline" else final_phase(self.pod, self.seen, self.rules.keystone)
                    self.memory = replace(self.memory, outcome=Outcome(phase=phase))
                    self.tell(phase)
            case Finish(phase):
                self.memory = replace(self.memory, outcome=Outcome(phase=phase))
                self.tell(phase)

    def _launch(self, step: Launch) -> None:
        if step.name in self.fails:
            self._remember(step.name, reason=self.fails[step.name], retry_s=self.now_s + 10, message="no image")
            self.tell(f"no {step.name}")
            return
        self.tell(f"start {step.name}" + (f" {step.attempt}" if step.attempt else ""))
        fields = self.pod.by_name[step.name].fields
        instance = Instance(
            id=f"c{next(self._ids)}", name=step.name, sandbox_id=step.sandbox_id, stage=Stage.RUNNING,
            attempt=step.attempt, created_s=self.now_s, started_s=self.now_s, hash=container_hash(fields),
        )  # fmt: skip
        left = [one for one in self.seen.instances if one.id not in step.discards]
        self.seen = replace(self.seen, instances=newest_first((instance, *left)))
        known = self.memory.of(step.name)
        self._remember(step.name, backoff=known.backoff.started(self.now_s, step.ended_s), reason="", retry_s=0.0)
        behaviours = self.behaves.get(step.name, [ALWAYS])
        how = behaviours[min(step.attempt, len(behaviours) - 1)]
        if how.seconds is not None:
            heapq.heappush(self._events, (self.now_s + how.seconds, instance.id))
        self._settled(instance)

    def _settled(self, instance: Instance) -> None:
        self.memory = self.memory.changed(
            instance.name,
            lambda one: replace(one.of(instance.id), post_start=HookPhase.OK, is_started=self.started(instance.name)),
        )

    def _remember(self, name: str, **changes: Any) -> None:
        def change(one: ContainerMemory) -> ContainerMemory:
            return replace(one, **changes)

        self.memory = self.memory.changed(name, change)

    def _end(self, instance_id: str) -> None:
        found = next((one for one in self.seen.instances if one.id == instance_id), None)
        if found is not None and found.is_running:
            behaviours = self.behaves.get(found.name, [ALWAYS])
            how = behaviours[min(found.attempt, len(behaviours) - 1)]
            self.exit(instance_id, how.code, how.reason)

    def exit(self, instance_id: str, code: int, reason: str = "") -> None:
        ended = []
        for one in self.seen.instances:
            is_meant = one.id == instance_id and one.is_running
            if is_meant:
                self.tell(f"{one.name} exits {code}")
            changes = {"stage": Stage.ENDED, "finished_s": self.now_s, "exit_code": code, "reason": reason}
            ended.append(replace(one, **changes) if is_meant else one)
        self.seen = replace(self.seen, instances=tuple(ended))

    def lose_sandbox(self) -> None:
        self.seen = replace(self.seen, sandboxes=tuple(replace(one, is_ready=False) for one in self.seen.sandboxes))

    def of(self, name: str) -> Instance:
        found = self.seen.newest(name)
        assert found is not None
        return found

    def starts(self) -> list[str]:
        return [line for line in self.log if " start " in line]


__all__ = ["ContainerKind", "Runs", "World", "container", "make_pod"]
