# SPDX-License-Identifier: Apache-2.0
"""The next steps of an end: hooks at once, mains first, sidecars in reverse one by one, one budget for all.

Owns: the procedure per container, whose turn it is, and restarts of sidecars
that are still needed. Never: moves the deadline. Pure. In the kubelet's profile kubelet_stop.py decides; the
invariants below do not hold there.

What it keeps true, whatever containers, hooks and people do (tests/pods/plan/test_stop_properties.py):

- *The pod is over within its budget and two seconds.* The deadline only moves towards now. At a container's deadline
  (the pod's, less its reserve) its hook is dropped and it is signalled, whoever it waits for; it is killed then, or two
  seconds after its signal if that is later. So all that runs has a moment at which it is killed, and no wait for a
  container or a hook outlasts that. What the runtime takes, also for a restart that has begun, comes on top.
- *Before its deadline no container is signalled while one that it serves runs or is about to.* `waits_for` names those,
  and a signal needs all of them gone. Circles in annotations are refused, so one of them always has the turn.
- *No hook runs twice and no instance is signalled twice.* Hook phase, signal and kill of a container only move
  forward, each step needs the phase that it leaves, and `after_step` is written down before the step is taken. After a
  crash a step that may be missing is repeated only where that is harmless: a signal or a kill of what still runs.
- *Planning ends, and planning again gives nothing.* Each step uses up a phase, so there are at most four per container
  and restart; a restart needs a new exit and its pause. All conditions on time read "now is at or after", so between
  events nothing changes before `wake_s`, the earliest of those moments.
"""

from math import ceil

import msgspec
from msgspec.structs import replace

from agent.model.pods.pod import ContainerKind
from agent.pods.plan.kubelet_stop import kubelet_step, kubelet_wake_s, may_kubelet_stop_sandbox
from agent.pods.plan.restart import RestartCurve
from agent.pods.plan.stop_state import (
    ContainerEnding,
    DropHook,
    HookPhase,
    Kill,
    Pass,
    RestartSidecar,
    RunHook,
    Signal,
    Stop,
    StopPodSandbox,
    StopStep,
    Trigger,
    exited,
    hook_ended,
)

# Between signal and SIGKILL.
LEAST_AFTER_SIGNAL_S = 2.0
# Of sidecars that others still need.
RESTARTS = RestartCurve()
# Where two sums of the same seconds differ in their last bit.
TINY_S = 1e-9


class StopPlan(msgspec.Struct, frozen=True):
    steps: tuple[StopStep, ...] = ()
    wake_s: float | None = None

    def __str__(self) -> str:
        return "; ".join(str(step) for step in self.steps) or "nothing to do"


def plan_stop(stop: Stop, now_s: float) -> StopPlan:
    """Steps until only time, an exit or the end of a hook brings more."""
    steps: list[StopStep] = []
    step = _first(stop, now_s)
    while step is not None:
        steps.append(step)
        stop = after_step(stop, step, now_s)
        step = _first(stop, now_s)
    return StopPlan(tuple(steps), _wake_s(stop, now_s))


def after_step(stop: Stop, step: StopStep, now_s: float) -> Stop:
    """The state once a step is under way; written down before it is taken."""
    match step:
        case RunHook(name):
            return stop.changed(name, lambda one: replace(one, hook_phase=HookPhase.RUNNING, hook_began_s=now_s))
        case DropHook(name, phase):
            return hook_ended(stop, name, phase, now_s)
        case Signal(name) | Pass(name):
            return stop.changed(name, lambda one: replace(one, signalled_s=now_s))
        case Kill(name):
            return stop.changed(name, lambda one: replace(one, killed_s=now_s))
        case RestartSidecar(name):
            return stop.changed(name, lambda one: replace(one, is_starting=True, restarts=one.restarts + 1))
        case StopPodSandbox():
            return replace(stop, is_sandbox_stopped=True)


def kill_time_s(stop: Stop, one: ContainerEnding) -> float:
    """When a signalled container is killed (what kepd adds only brings it forward)."""
    signalled_s = one.signalled_s or 0.0
    own_s = stop.deadline_s if one.own_grace_s is None else signalled_s + one.own_grace_s
    return max(min(own_s, _deadline_s(stop, one)), signalled_s + LEAST_AFTER_SIGNAL_S)


def steps_to_repeat(stop: Stop, now_s: float) -> tuple[StopStep, ...]:
    """After a crash: what was written down and may not have been done. Each is harmless if it was."""
    steps: list[StopStep] = []
    for one in stop.containers:
        if one.is_running and one.killed_s is not None:
            steps.append(Kill(one.name))
        elif one.is_running and one.signalled_s is not None:
            steps.append(Signal(one.name, max(ceil(kill_time_s(stop, one) - now_s - TINY_S), 1)))
    return (*steps, StopPodSandbox()) if stop.is_sandbox_stopped else tuple(steps)


def _deadline_s(stop: Stop, one: ContainerEnding) -> float:
    return max(stop.deadline_s - one.reserve_s, stop.began_s)


def _first(stop: Stop, now_s: float) -> StopStep | None:
    step = _step_of_containers(stop, now_s)
    if step is not None or stop.is_sandbox_stopped or stop.trigger is Trigger.FAULT:
        return step
    if stop.copies_kubelet:
        return StopPodSandbox() if may_kubelet_stop_sandbox(stop) else None
    return StopPodSandbox() if all(one.is_gone for one in stop.containers) else None


def _step_of_containers(stop: Stop, now_s: float) -> StopStep | None:
    decide = kubelet_step if stop.copies_kubelet else _step
    return next((step for one in stop.containers if (step := decide(stop, one, now_s)) is not None), None)


def _step(stop: Stop, one: ContainerEnding, now_s: float) -> StopStep | None:
    is_hooked = one.hook_phase is HookPhase.RUNNING
    if not one.is_running:
        if is_hooked:
            return DropHook(one.name, HookPhase.CANCELLED)
        is_due = (due_s := _restart_s(stop, one)) is not None and now_s + TINY_S >= due_s
        return RestartSidecar(one.name) if is_due and _is_needed(stop, one, now_s) else None
    if one.killed_s is not None:
        return None
    if stop.is_forced:
        return DropHook(one.name, HookPhase.TIMEOUT) if is_hooked else Kill(one.name)
    if one.signalled_s is not None:
        return Kill(one.name) if now_s + TINY_S >= kill_time_s(stop, one) else None
    return _step_before_signal(stop, one, now_s)


def _step_before_signal(stop: Stop, one: ContainerEnding, now_s: float) -> StopStep | None:
    is_over = now_s + TINY_S >= _deadline_s(stop, one)
    has_turn = is_over or not _blockers(stop, one)
    if one.hook and one.hook_phase is HookPhase.NONE and stop.grace_s > 0 and not is_over:
        return RunHook(one.name) if has_turn or not one.is_hook_at_turn else None
    if one.hook_phase is HookPhase.RUNNING:
        return DropHook(one.name, HookPhase.TIMEOUT) if is_over else None
    if not has_turn:
        return None
    left_s = kill_time_s(stop, replace(one, signalled_s=now_s)) - now_s
    return Signal(one.name, ceil(left_s - TINY_S))


def _blockers(stop: Stop, one: ContainerEnding) -> tuple[str, ...]:
    if stop.trigger is Trigger.FAULT or stop.grace_s <= 0:
        return ()
    return tuple(other.name for other in stop.containers if other.name in one.waits_for and not other.is_gone)


def _restart_s(stop: Stop, one: ContainerEnding) -> float | None:
    """When a sidecar that died before its signal may run again."""
    if one.kind is not ContainerKind.SIDECAR or one.ended_s is None or one.signalled_s is not None:
        return None
    if stop.trigger is Trigger.FAULT or stop.is_forced or one.is_starting or one.killed_s is not None:
        return None
    return one.ended_s + RESTARTS.pause_s(one.restarts)


def _is_needed(stop: Stop, one: ContainerEnding, now_s: float) -> bool:
    is_worth_it = stop.grace_s > 1 and stop.deadline_s - now_s > LEAST_AFTER_SIGNAL_S
    return is_worth_it and any(other.is_running for other in stop.containers if other.name in one.waits_for)


def _wake_s(stop: Stop, now_s: float) -> float | None:
    if stop.copies_kubelet:
        times = [at_s for one in stop.containers if (at_s := kubelet_wake_s(stop, one)) is not None]
    else:
        times = [at_s for one in stop.containers if (at_s := _next_s(stop, one)) is not None]
    return min((at_s for at_s in times if at_s > now_s + TINY_S), default=None)


def _next_s(stop: Stop, one: ContainerEnding) -> float | None:
    if not one.is_running:
        return _restart_s(stop, one)
    if one.killed_s is not None:
        return None
    return kill_time_s(stop, one) if one.signalled_s is not None else _deadline_s(stop, one)


def blockers_of(stop: Stop, name: str) -> tuple[str, ...]:
    one = stop.of(name)
    if one is None or not one.is_running or one.signalled_s is not None:
        return ()
    return tuple(_blockers(stop, one))


def still_served(stop: Stop, name: str) -> tuple[str, ...]:
    """Those that it is signalled before, because its grace is over."""
    one = stop.of(name)
    return _blockers(stop, one) if one is not None and not stop.copies_kubelet else ()


def note_exit(stop: Stop, name: str, now_s: float) -> Stop:
    """An exit seen by the runtime; one that was known already changes nothing."""
    one = stop.of(name)
    return exited(stop, name, now_s) if one is not None and not one.is_gone else stop
