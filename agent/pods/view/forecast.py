# SPDX-License-Identifier: Apache-2.0
"""What the start and the end of a pod would look like, in virtual time.

`kepctl plan stop` and `kepctl timeline --from-files` show it, the vectors check it.
Never: knows a rule of its own; whatever it shows, a production planner decided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from agent.model.pods.pod import ContainerKind, PodSpec
from agent.pods.plan.remembered import Moment
from agent.pods.plan.start_steps import StartRules
from agent.pods.plan.stop import after_step, plan_stop
from agent.pods.plan.stop_state import (
    DropHook,
    HookPhase,
    Kill,
    RestartSidecar,
    RunHook,
    Signal,
    Stop,
    StopPodSandbox,
    StopStep,
    exited,
    hook_ended,
    restarted,
    shortened,
)
from agent.pods.view.simulation import Beginning, Due, PodSimulation, Simulation

SIGKILL_CODE = 137
# What happens by itself at one moment: exits first, then hooks, then people.
EXIT, HOOK, REQUEST = range(3)


class HookAssumption(msgspec.Struct, frozen=True, kw_only=True):
    """How a hook behaves: None seconds never return; a native one is a sleep, which does not die with its container."""

    seconds: float | None
    is_native: bool = False
    succeeds: bool = True


class Assumption(msgspec.Struct, frozen=True, kw_only=True):
    """How a container behaves: `exit_after_s` None ignores the signal; `exits_at_s` is a death of its own accord."""

    hook: HookAssumption | None = None
    exit_after_s: float | None = None
    exit_code: int = 0
    exits_at_s: float | None = None
    exits_with: int = 0


class ForecastRequest(msgspec.Struct, frozen=True):
    """A later delete."""

    at_s: float
    grace_s: float


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happens to a container, or to the pod where `container` is empty."""

    at_s: float
    event: str
    container: str = ""
    result: str = ""
    code: int | None = None


class EndSimulation(Simulation[StopStep]):
    def __init__(self, stop: Stop, assumptions: Mapping[str, Assumption], requests: Sequence[ForecastRequest]) -> None:
        super().__init__(stop.began_s)
        self.stop = stop
        self.happenings: list[Happening] = []
        self._assumed = {one.name: assumptions.get(one.name, Assumption()) for one in stop.containers}
        self._deaths: dict[str, Due] = {}
        self._hooks: dict[str, Due] = {}
        for one in stop.containers:
            assumed = self._assumed[one.name]
            if one.is_running and assumed.exits_at_s is not None:
                self._die(one.name, assumed.exits_at_s, assumed.exits_with)
        for request in requests:
            self.later(request.at_s, lambda request=request: self._shorten(request.grace_s), REQUEST)  # type: ignore[misc]

    def decide(self) -> tuple[Sequence[StopStep], float | None]:
        plan = plan_stop(self.stop, self.now_s)
        for step in plan.steps:
            self.stop = after_step(self.stop, step, self.now_s)
        return plan.steps, plan.wake_s

    def is_over(self) -> bool:
        return self.stop.has_ended

    def _tell(self, event: str, container: str = "", result: str = "", code: int | None = None) -> None:
        self.happenings.append(Happening(at_s=self.now_s, event=event, container=container, result=result, code=code))

    def _shorten(self, grace_s: float) -> None:
        self.stop = shortened(self.stop, grace_s, self.now_s)

    def _die(self, name: str, at_s: float, code: int) -> None:
        known = self._deaths.get(name)
        if known is None or at_s < known.at_s:
            self._call_off(self._deaths, name)
            self._deaths[name] = self.later(at_s, lambda: self._exit(name, code), EXIT)

    @staticmethod
    def _call_off(due: dict[str, Due], name: str) -> None:
        if (known := due.pop(name, None)) is not None:
            known.is_off = True

    def _exit(self, name: str, code: int) -> None:
        self._call_off(self._deaths, name)
        self.stop = exited(self.stop, name, self.now_s)
        self._tell("exit", name, code=code)
        hook = self._assumed[name].hook
        one = self.stop.of(name)
        if one is not None and one.hook_phase is HookPhase.RUNNING and hook is not None and not hook.is_native:
            self._end_hook(name, HookPhase.FAILED)

    def _end_hook(self, name: str, phase: HookPhase) -> None:
        self._call_off(self._hooks, name)
        self.stop = hook_ended(self.stop, name, phase, self.now_s)
        self._tell("prestop_end", name, result=phase)

    def do(self, step: StopStep) -> None:
        match step:
            case RunHook(name):
                self._tell("prestop_start", name)
                hook = self._assumed[name].hook
                if hook is not None and hook.seconds is not None:
                    phase = HookPhase.OK if hook.succeeds else HookPhase.FAILED
                    self._hooks[name] = self.later(self.now_s + hook.seconds, lambda: self._end_hook(name, phase), HOOK)
            case DropHook(name, phase):
                self._call_off(self._hooks, name)
                self._tell("prestop_end", name, result=phase)
            case Signal(name):
                self._tell("stop_signal", name)
                assumed = self._assumed[name]
                if assumed.exit_after_s is not None:
                    self._die(name, self.now_s + assumed.exit_after_s, assumed.exit_code)
            case Kill(name):
                self._tell("sigkill", name)
                self._exit(name, SIGKILL_CODE)
            case RestartSidecar(name):
                self.stop = restarted(self.stop, name)
                self._tell("restart", name)
            case StopPodSandbox():
                self._tell("sandbox_stop")
            case _:
                pass


def forecast_stop(
    stop: Stop, assumptions: Mapping[str, Assumption], requests: Sequence[ForecastRequest] = ()
) -> tuple[Happening, ...]:
    end = EndSimulation(stop, assumptions, requests)
    end.run_until()
    return tuple(end.happenings)


class _Start(PodSimulation):
    def __init__(self, pod: PodSpec, rules: StartRules, beginnings: Mapping[str, Beginning]) -> None:
        self.moments: list[Moment] = []
        super().__init__(pod, rules, lambda step: beginnings.get(step.name, Beginning()))

    def note(self, kind: str, container: str = "", text: str = "") -> None:
        if kind != "ready" or self.pod.by_name[container].kind is not ContainerKind.INIT:
            self.moments.append(Moment(at_s=self.now_s, kind=kind, container=container, text=text))


def forecast_start(pod: PodSpec, rules: StartRules, beginnings: Mapping[str, Beginning]) -> tuple[Moment, ...]:
    """Everything that would happen until all that can run does, from second 0 on. A deadline does not count here."""
    spec = msgspec.structs.replace(pod.spec, active_deadline_seconds=None)
    start = _Start(replace(pod, spec=spec), rules, beginnings)
    start.run_until()
    if all(start.seen.newest(one.name) for one in pod.containers):
        start.note("pod_started")
    return tuple(start.moments)
