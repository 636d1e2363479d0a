# SPDX-License-Identifier: Apache-2.0
"""What an end would look like: the production planner against containers that behave as assumed, in virtual time.

Owns: the simulated containers and the list of what happens to them. `kepctl plan stop` shows it, the vectors check it.
Never: knows a rule of its own; whatever it shows, the planner decided. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent.pods.plan.stop import after_step, plan_stop
from agent.pods.plan.stop_state import HookPhase, Stop, exited, hook_ended, restarted, shortened
from agent.pods.plan.stop_steps import DropHook, Kill, RestartSidecar, RunHook, Signal, StopPodSandbox, StopStep

__all__ = ["Assumption", "Happening", "HookAssumption", "Request", "forecast_stop"]

SIGKILL_CODE = 137
# Every container goes through few states; more rounds than this would be a planner that runs in circles.
MOST_ROUNDS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HookAssumption:
    """How a hook behaves: None seconds never return; a native one is a sleep, which does not die with its container."""

    seconds: float | None
    is_native: bool = False
    succeeds: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """How a container behaves: `exit_after_s` None ignores the signal; `exits_at_s` is a death of its own accord."""

    hook: HookAssumption | None = None
    exit_after_s: float | None = None
    exit_code: int = 0
    exits_at_s: float | None = None
    exits_with: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A later delete."""

    at_s: float
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One thing that happens to a container, or to the pod where `container` is empty."""

    at_s: float
    event: str
    container: str = ""
    result: str = ""
    code: int | None = None


@dataclass(slots=True)
class _Process:
    """A simulated container. Changed by the simulation alone."""

    assumed: Assumption
    dies_s: float | None = None
    dies_with: int = 0
    hook_ends_s: float | None = None

    def die(self, at_s: float, code: int) -> None:
        if self.dies_s is None or at_s < self.dies_s:
            self.dies_s, self.dies_with = at_s, code


@dataclass(slots=True)
class _Simulation:
    """Lives for one forecast."""

    stop: Stop
    requests: list[Request]
    processes: dict[str, _Process]
    now_s: float
    happenings: list[Happening] = field(default_factory=list)

    def run(self) -> None:
        for _ in range(MOST_ROUNDS):
            self._facts()
            plan = plan_stop(self.stop, self.now_s)
            for step in plan.steps:
                self.stop = after_step(self.stop, step, self.now_s)
                self._carry_out(step)
            if plan.steps or any(self._is_due(at_s) for at_s in self._times()):
                continue
            times = [at_s for at_s in (plan.wake_s, *self._times()) if at_s is not None]
            if not times or self.stop.has_ended:
                return
            self.now_s = min(times)
        raise AssertionError(f"no end after {MOST_ROUNDS} rounds: {self.stop}")

    def _is_due(self, at_s: float | None) -> bool:
        return at_s is not None and at_s <= self.now_s

    def _times(self) -> list[float | None]:
        times: list[float | None] = [request.at_s for request in self.requests]
        for process in self.processes.values():
            times += [process.dies_s, process.hook_ends_s]
        return times

    def _tell(self, event: str, container: str = "", result: str = "", code: int | None = None) -> None:
        self.happenings.append(Happening(at_s=self.now_s, event=event, container=container, result=result, code=code))

    def _facts(self) -> None:
        """What happens by itself at this moment: exits first, then hooks, then people."""
        for name, process in self.processes.items():
            if self._is_due(process.dies_s):
                self._exit(name, process)
        for name, process in self.processes.items():
            if self._is_due(process.hook_ends_s):
                assumed = process.assumed.hook
                is_good = assumed is None or assumed.succeeds
                self._end_hook(name, process, HookPhase.OK if is_good else HookPhase.FAILED)
        for request in [one for one in self.requests if self._is_due(one.at_s)]:
            self.requests.remove(request)
            self.stop = shortened(self.stop, request.grace_s, self.now_s)

    def _exit(self, name: str, process: _Process) -> None:
        process.dies_s = None
        self.stop = exited(self.stop, name, self.now_s)
        self._tell("exit", name, code=process.dies_with)
        hook = process.assumed.hook
        one = self.stop.of(name)
        if one is not None and one.hook_phase is HookPhase.RUNNING and hook is not None and not hook.is_native:
            self._end_hook(name, process, HookPhase.FAILED)

    def _end_hook(self, name: str, process: _Process, phase: HookPhase) -> None:
        process.hook_ends_s = None
        self.stop = hook_ended(self.stop, name, phase, self.now_s)
        self._tell("prestop_end", name, result=phase)

    def _carry_out(self, step: StopStep) -> None:
        match step:
            case RunHook(name):
                self._tell("prestop_start", name)
                hook = self.processes[name].assumed.hook
                if hook is not None and hook.seconds is not None:
                    self.processes[name].hook_ends_s = self.now_s + hook.seconds
            case DropHook(name, phase):
                self.processes[name].hook_ends_s = None
                self._tell("prestop_end", name, result=phase)
            case Signal(name):
                self._tell("stop_signal", name)
                process = self.processes[name]
                if process.assumed.exit_after_s is not None:
                    process.die(self.now_s + process.assumed.exit_after_s, process.assumed.exit_code)
            case Kill(name):
                self._tell("sigkill", name)
                self.processes[name].die(self.now_s, SIGKILL_CODE)
                self._exit(name, self.processes[name])
            case RestartSidecar(name):
                self.stop = restarted(self.stop, name)
                self._tell("restart", name)
            case StopPodSandbox():
                self._tell("sandbox_stop")
            case _:
                pass


def forecast_stop(
    stop: Stop, assumptions: Mapping[str, Assumption], requests: Sequence[Request] = ()
) -> tuple[Happening, ...]:
    """Everything that would happen, in order."""
    processes = {}
    for one in stop.containers:
        process = processes[one.name] = _Process(assumptions.get(one.name, Assumption()))
        if one.is_running and process.assumed.exits_at_s is not None:
            process.die(process.assumed.exits_at_s, process.assumed.exits_with)
    simulation = _Simulation(stop, list(requests), processes, stop.began_s)
    simulation.run()
    return tuple(simulation.happenings)
