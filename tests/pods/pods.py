# SPDX-License-Identifier: Apache-2.0
"""Pods for tests, and a world in virtual time in which planners run them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from agent.model.pods.container_fields import Container
from agent.model.pods.fields import PodFields
from agent.model.pods.pod import ContainerKind, PodSpec
from agent.pods.plan.remembered import PodOutcome
from agent.pods.plan.start import final_phase
from agent.pods.plan.start_steps import (
    BeginStop,
    EndContainer,
    Finish,
    Launch,
    RestartAll,
    Settle,
    StartPlan,
    StartRules,
    StartStep,
)
from agent.pods.plan.stop_state import HookPhase
from agent.pods.runtime.observed import Instance, SeenPod
from agent.pods.view.simulation import Beginning, PodSimulation


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


class World(PodSimulation):
    """One pod on a runtime that takes no time. `behaves` has what each attempt of a container does; what the keeper
    does besides starting takes no time either. Second 1 of its clock is second 0 of its log."""

    def __init__(
        self,
        pod: PodSpec,
        behaves: Mapping[str, list[Runs]] | None = None,
        rules: StartRules | None = None,
        started: Callable[[str], bool] = lambda _name: True,
        fails: dict[str, str] | None = None,
    ) -> None:
        super().__init__(pod, rules or StartRules(), self._behaviour, now_s=1.0)
        self.behaves = behaves or {}
        self.started = started
        self.fails = fails or {}
        self.log: list[str] = []
        # The code with which containers obey their signal.
        self.obeys_with = 143

    def settle(self) -> StartPlan:
        """Carry plans out until nothing is left to do now."""
        self.run_until(self.now_s)
        return self.plan()

    def run(self, seconds: float) -> "World":
        """Let time pass."""
        until_s = self.now_s + seconds
        self.run_until(until_s)
        self.now_s = until_s
        return self

    def tell(self, text: str) -> None:
        self.log.append(f"{self.now_s - 1:g} {text}")

    def note(self, kind: str, container: str = "", text: str = "") -> None:
        if kind == "sandbox_made":
            self.tell(f"sandbox {self.seen.sandboxes[0].attempt}")
        elif kind == "started":
            attempt = self.of(container).attempt
            self.tell(f"start {container}" + (f" {attempt}" if attempt else ""))
        elif kind == "exit":
            self.tell(f"{container} exits {text}")

    def _behaviour(self, step: Launch) -> Beginning:
        behaviours = self.behaves.get(step.name, [ALWAYS])
        how = behaviours[min(step.attempt, len(behaviours) - 1)]
        started_s = 0.0 if self.started(step.name) else None
        return Beginning(started_s=started_s, ready_s=None, runs_s=how.seconds, code=how.code, reason=how.reason)

    def do(self, step: StartStep) -> None:
        match step:
            case Launch(name) if name in self.fails:
                self._remember(name, reason=self.fails[name], retry_s=self.now_s + 10, message="no image")
                self.tell(f"no {name}")
            case Settle(instance):
                is_started = self.started(instance.name)
                changes = {"post_start": HookPhase.OK, "is_started": is_started}
                self.remember(instance.name, lambda one: replace(one.of(instance.id), **changes))
            case EndContainer(instance, is_renewed=is_renewed):
                self.tell(f"end {instance.name}")
                renewed = instance.id if is_renewed else ""
                self._remember(instance.name, killed=instance.id, failing=None, renewed=renewed)
                self.exit(instance.id, self.obeys_with)
            case RestartAll(name):
                self.tell(f"restart all for {name}")
                self.seen = SeenPod(self.seen.sandboxes, ())
                self.memory = replace(self.memory, passed=frozenset(), is_initialised=False)
            case BeginStop(cause=cause):
                self.tell(f"stop: {cause}")
                for one in self.seen.running:
                    self.exit(one.id, 143)
                self.lose_sandbox()
                if cause != "sandbox":
                    self._finish("Failed" if cause == "deadline" else self._phase())
            case Finish(phase):
                self._finish(phase)
            case _:
                super().do(step)

    def _phase(self) -> str:
        return final_phase(self.pod, self.seen, self.rules.keystone)

    def _finish(self, phase: str) -> None:
        self.memory = replace(self.memory, outcome=PodOutcome(phase=phase))
        self.tell(phase)

    def _remember(self, name: str, **changes: Any) -> None:
        self.remember(name, lambda one: replace(one, **changes))

    def lose_sandbox(self) -> None:
        self.seen = replace(self.seen, sandboxes=tuple(replace(one, is_ready=False) for one in self.seen.sandboxes))

    def of(self, name: str) -> Instance:
        found = self.seen.newest(name)
        assert found is not None
        return found

    def starts(self) -> list[str]:
        return [line for line in self.log if " start " in line]


__all__ = ["ContainerKind", "Runs", "World", "container", "make_pod"]
