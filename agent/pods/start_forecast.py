# SPDX-License-Identifier: Apache-2.0
"""What a start would look like: the production planner against containers that behave as assumed, in virtual time.

Owns: the simulated runtime and the moments it leaves. `kepctl timeline --from-files` shows them.
Never: knows a rule of its own; whatever it shows, the planner decided. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from agent.model.pod import ContainerKind, PodSpec
from agent.pods.plan.memory import ContainerMemory, Memory
from agent.pods.plan.start import StartRules, note_progress, plan_start
from agent.pods.plan.start_steps import Launch, MakeSandbox, StartStep
from agent.pods.plan.stop_state import HookPhase
from agent.pods.runtime.seen import Instance, SeenPod, SeenSandbox, Stage, newest_first
from agent.pods.view.history import Moment

__all__ = ["Beginning", "forecast_start"]

# A pod has a handful of containers; more rounds than this would be a planner that runs in circles.
MOST_ROUNDS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """How a container begins: the time of its pull, of its postStart hook, until it has started, until it is ready,
    and, of one that ends by itself, how long it runs."""

    pull_s: float = 0.0
    hook_s: float | None = None
    started_s: float = 0.0
    ready_s: float = 0.0
    runs_s: float | None = None


@dataclass(slots=True)
class _Simulation:
    """Lives for one forecast."""

    pod: PodSpec
    rules: StartRules
    beginnings: Mapping[str, Beginning]
    now_s: float = 0.0
    seen: SeenPod = field(default_factory=SeenPod)
    memory: Memory = field(default_factory=Memory)
    busy: set[str] = field(default_factory=set)
    moments: list[Moment] = field(default_factory=list)
    due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)

    def run(self) -> None:
        for place in range(MOST_ROUNDS):
            self.memory = note_progress(self.pod, self.seen, self.memory)
            plan = plan_start(self.pod, self.seen, self.memory, self.now_s, self.rules, busy=frozenset(self.busy))
            for step in plan.steps:
                self._carry_out(step, place)
            if plan.steps:
                continue
            if not self.due:
                if all(self.seen.newest(one.name) for one in self.pod.containers):
                    self._tell("pod_started")
                return
            self.due.sort(key=lambda one: one[:2])
            self.now_s, _, happen = self.due.pop(0)
            happen()
        raise AssertionError(f"no end after {MOST_ROUNDS} rounds: {self.pod.key}")

    def _tell(self, kind: str, container: str = "", text: str = "", seconds: float = 0.0) -> None:
        self.moments.append(Moment(at_s=self.now_s, kind=kind, container=container, text=text, seconds=seconds))

    def _later(self, after_s: float, place: int, happen: Callable[[], None]) -> None:
        self.due.append((self.now_s + after_s, place, happen))

    def _carry_out(self, step: StartStep, place: int) -> None:
        match step:
            case MakeSandbox():
                made = SeenSandbox(id="sandbox", namespace=self.pod.namespace, name=self.pod.name, uid="", ip="planned")
                made = replace(made, is_host_network=self.pod.spec.host_network)
                self.seen = SeenPod((made,), ())
                self._tell("sandbox_made")
            case Launch(name=name):
                self.busy.add(name)
                beginning = self.beginnings.get(name, Beginning())
                if beginning.pull_s:
                    self._tell("pull_started", name)
                self._later(beginning.pull_s, place, lambda: self._start(step, beginning, place))
            case _:
                raise AssertionError(f"a start does not {step}")

    def _start(self, step: Launch, beginning: Beginning, place: int) -> None:
        if beginning.pull_s:
            self._tell("pull_finished", step.name)
        self._put(Instance(id=step.name, name=step.name, sandbox_id=step.sandbox_id, stage=Stage.RUNNING))
        self._tell("started", step.name)
        if beginning.hook_s is None:
            self._settle(step.name, beginning, place)
            return
        self._remember(step.name, lambda one: replace(one, post_start=HookPhase.RUNNING))
        self._tell("poststart_start", step.name)
        self._later(beginning.hook_s, place, lambda: self._hooked(step.name, beginning, place))

    def _hooked(self, name: str, beginning: Beginning, place: int) -> None:
        self._tell("poststart_end", name, "ok")
        self._settle(name, beginning, place)

    def _settle(self, name: str, beginning: Beginning, place: int) -> None:
        self.busy.discard(name)
        self._remember(name, lambda one: replace(one, post_start=HookPhase.OK))
        self._later(beginning.started_s, place, lambda: self._has_started(name, beginning, place))
        if beginning.runs_s is not None:
            self._later(beginning.runs_s, place, lambda: self._exit(name))

    def _has_started(self, name: str, beginning: Beginning, place: int) -> None:
        self._remember(name, lambda one: replace(one, is_started=True))
        if beginning.started_s:
            self._tell("probe_started", name)
        self._later(beginning.ready_s, place, lambda: self._is_ready(name, beginning))

    def _is_ready(self, name: str, beginning: Beginning) -> None:
        self._remember(name, lambda one: replace(one, is_ready=True))
        if beginning.ready_s and self.pod.by_name[name].kind is not ContainerKind.INIT:
            self._tell("ready", name)

    def _exit(self, name: str) -> None:
        known = self.seen.newest(name)
        if known is not None:
            self._put(replace(known, stage=Stage.ENDED, finished_s=self.now_s))
            self._tell("exit", name, "0")

    def _put(self, instance: Instance) -> None:
        others = [one for one in self.seen.instances if one.id != instance.id]
        self.seen = SeenPod(self.seen.sandboxes, newest_first((instance, *others)))

    def _remember(self, name: str, change: Callable[[ContainerMemory], ContainerMemory]) -> None:
        self.memory = self.memory.changed(name, lambda one: change(one.of(name)))


def forecast_start(pod: PodSpec, rules: StartRules, beginnings: Mapping[str, Beginning]) -> tuple[Moment, ...]:
    """Everything that would happen until all that can run does, from second 0 on. A deadline does not count here."""
    spec = msgspec.structs.replace(pod.spec, active_deadline_seconds=None)
    simulation = _Simulation(replace(pod, spec=spec), rules, beginnings)
    simulation.run()
    return tuple(simulation.moments)
