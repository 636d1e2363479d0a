# SPDX-License-Identifier: Apache-2.0
"""A pod that lives in virtual time: production planners, and containers that behave as assumed.

forecast.py shows people what would happen; tests let whole lives go by. Never: knows a rule of its own.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from agent.model.pods.pod import PodSpec, container_hash
from agent.pods.plan.remembered import ContainerMemory, Memory
from agent.pods.plan.start import note_progress, plan_start
from agent.pods.plan.start_steps import Launch, MakeSandbox, StartPlan, StartRules, StartStep
from agent.pods.plan.stop_state import HookPhase
from agent.pods.plan.work import Launching, Work
from agent.pods.runtime.observed import Instance, SeenPod, SeenSandbox, Stage, newest_first, sandboxes_newest_first

# A pod has a handful of containers; more rounds than this would be a planner that runs in circles.
MOST_ROUNDS = 10_000
Step = TypeVar("Step")


@dataclass(slots=True, order=True)
class Due:
    """Something that will happen, unless it is called off before."""

    at_s: float
    rank: int
    place: int
    happen: Callable[[], None] = field(compare=False)
    is_off: bool = field(default=False, compare=False)


class Simulation(ABC, Generic[Step]):
    """Plans, does, and lets time pass until something is due. What is due at one moment happens before planning."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self._due: list[Due] = []
        self._places = count()

    @abstractmethod
    def decide(self) -> tuple[Sequence[Step], float | None]:
        """What is done now, and when to plan again if nothing happens before."""

    @abstractmethod
    def do(self, step: Step) -> None:
        """Carry one step out."""

    def is_over(self) -> bool:
        return False

    def later(self, at_s: float, happen: Callable[[], None], rank: int = 0) -> Due:
        """Let something happen; of things at one moment, lower ranks come first."""
        due = Due(at_s, rank, next(self._places), happen)
        heapq.heappush(self._due, due)
        return due

    def run_until(self, until_s: float = inf) -> None:
        for _ in range(MOST_ROUNDS):
            while self._due and (self._due[0].is_off or self._due[0].at_s <= self.now_s):
                due = heapq.heappop(self._due)
                if not due.is_off:
                    due.happen()
            steps, wake_s = self.decide()
            for step in steps:
                self.do(step)
            times = [at_s for at_s in (wake_s, self._due[0].at_s if self._due else None) if at_s is not None]
            if steps or (times and min(times) <= self.now_s):
                continue
            if not times or min(times) > until_s or self.is_over():
                return
            self.now_s = min(times)
        raise AssertionError(f"no end after {MOST_ROUNDS} rounds: {self}")


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """How an instance begins: the time of its pull, of its postStart hook, until it has started, until it is ready
    (None: never), and, of one that ends by itself, how long it runs and how it ends."""

    pull_s: float = 0.0
    hook_s: float | None = None
    started_s: float | None = 0.0
    ready_s: float | None = 0.0
    runs_s: float | None = None
    code: int = 0
    reason: str = ""


class PodSimulation(Simulation[StartStep]):
    """A start, and restarts of what ends by itself. `beginning` says how the next instance of a container behaves."""

    def __init__(
        self, pod: PodSpec, rules: StartRules, beginning: Callable[[Launch], Beginning], now_s: float = 0.0
    ) -> None:
        super().__init__(now_s)
        self.pod = pod
        self.rules = rules
        self.seen = SeenPod()
        self.memory = Memory()
        self._beginning = beginning
        self._works: set[Work] = set()
        self._ids = count(1)

    def note(self, kind: str, container: str = "", text: str = "") -> None:
        """Something has happened that people may see."""

    def plan(self) -> StartPlan:
        self.memory = note_progress(self.pod, self.seen, self.memory)
        works = frozenset(self._works)
        return plan_start(self.pod, self.seen, self.memory, self.now_s, self.rules, works=works)

    def decide(self) -> tuple[Sequence[StartStep], float | None]:
        plan = self.plan()
        return plan.steps, plan.wake_s

    def do(self, step: StartStep) -> None:
        match step:
            case MakeSandbox():
                self._make_sandbox(step)
            case Launch(name=name):
                beginning = self._beginning(step)
                self._works.add(Launching(name))
                if beginning.pull_s:
                    self.note("pull_started", name)
                    self.later(self.now_s + beginning.pull_s, lambda: self._pulled(step, beginning))
                else:
                    self._start(step, beginning)
            case _:
                raise AssertionError(f"a start does not {step}")

    def _make_sandbox(self, step: MakeSandbox) -> None:
        pod = self.pod
        made = SeenSandbox(
            id=f"sandbox {next(self._ids)}",
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            attempt=step.attempt,
            ip="192.0.2.2",
            is_host_network=pod.spec.host_network,
        )
        kept = [replace(one, is_ready=False) for one in self.seen.sandboxes if one.id in step.replaces]
        left = tuple(one for one in self.seen.instances if one.id not in step.removes)
        self.seen = SeenPod(sandboxes_newest_first((made, *kept)), left)
        self.note("sandbox_made")

    def _pulled(self, step: Launch, beginning: Beginning) -> None:
        self.note("pull_finished", step.name)
        self._start(step, beginning)

    def _start(self, step: Launch, beginning: Beginning) -> None:
        name = step.name
        instance = Instance(
            id=f"container {next(self._ids)}",
            name=name,
            sandbox_id=step.sandbox_id,
            stage=Stage.RUNNING,
            attempt=step.attempt,
            created_s=self.now_s,
            started_s=self.now_s,
            hash=container_hash(self.pod.by_name[name].fields),
        )
        left = [one for one in self.seen.instances if one.id not in step.discards]
        self.seen = SeenPod(self.seen.sandboxes, newest_first((instance, *left)))
        backoff = self.memory.of(name).backoff.started(self.now_s, step.ended_s)
        self.remember(name, lambda one: replace(one.of(instance.id), backoff=backoff, reason="", retry_s=0.0))
        self.note("started", name)
        if beginning.hook_s is None:
            self._settle(instance, beginning)
            return
        self.remember(name, lambda one: replace(one.of(instance.id), post_start=HookPhase.RUNNING))
        self.note("poststart_start", name)
        self.later(self.now_s + beginning.hook_s, lambda: self._hooked(instance, beginning))

    def _hooked(self, instance: Instance, beginning: Beginning) -> None:
        self.note("poststart_end", instance.name, "ok")
        self._settle(instance, beginning)

    def _settle(self, instance: Instance, beginning: Beginning) -> None:
        """Between hook and start there is no moment: a container found in one is taken for a left-over."""
        self._works.discard(Launching(instance.name))
        self.remember(instance.name, lambda one: replace(one.of(instance.id), post_start=HookPhase.OK))
        self._after(beginning.started_s, lambda: self._has_started(instance, beginning))
        if beginning.runs_s is not None:
            self.later(self.now_s + beginning.runs_s, lambda: self.exit(instance.id, beginning.code, beginning.reason))

    def _has_started(self, instance: Instance, beginning: Beginning) -> None:
        self.remember(instance.name, lambda one: replace(one.of(instance.id), is_started=True))
        if beginning.started_s:
            self.note("probe_started", instance.name)
        self._after(beginning.ready_s, lambda: self._is_ready(instance, beginning))

    def _is_ready(self, instance: Instance, beginning: Beginning) -> None:
        self.remember(instance.name, lambda one: replace(one.of(instance.id), is_ready=True))
        if beginning.ready_s:
            self.note("ready", instance.name)

    def _after(self, seconds: float | None, happen: Callable[[], None]) -> None:
        if seconds:
            self.later(self.now_s + seconds, happen)
        elif seconds is not None:
            happen()

    def exit(self, instance_id: str, code: int, reason: str = "") -> None:
        known = self.seen.instance(instance_id)
        if known is not None and known.is_running:
            ended = replace(known, stage=Stage.ENDED, finished_s=self.now_s, exit_code=code, reason=reason)
            instances = tuple(ended if one.id == instance_id else one for one in self.seen.instances)
            self.seen = SeenPod(self.seen.sandboxes, instances)
            self.note("exit", known.name, str(code))

    def remember(self, name: str, change: Callable[[ContainerMemory], ContainerMemory]) -> None:
        self.memory = self.memory.changed(name, change)
