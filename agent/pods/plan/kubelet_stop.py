# SPDX-License-Identifier: Apache-2.0
"""The end of containers as kubelet 1.36 does it, quirks included (profile `kubelet`).

Whole seconds rounded down between stages (Q-FLOOR), a sleep that outlives its container (Q-SLEEP), containers that end
without regard to inits (Q-INIT), no restarts (Q-RESTART). A container counts as done for others once its own procedure
is over, not once its process is gone. Source of behaviour: kubernetes: pkg/kubelet/kuberuntime.
"""

from math import floor

import msgspec

from agent.model.pods.pod import ContainerKind
from agent.pods.plan.stop_state import (
    ContainerEnding,
    DropHook,
    HookPhase,
    Kill,
    Pass,
    RunHook,
    Signal,
    Stop,
    StopStep,
    Trigger,
)

LEAST_AFTER_SIGNAL_S = 2
TINY_S = 1e-9


class _Budget(msgspec.Struct, frozen=True):
    """Whole seconds that are left, counted from the start of a stage."""

    from_s: float
    left_s: int

    @property
    def end_s(self) -> float:
        return self.from_s + self.left_s


def kubelet_step(stop: Stop, one: ContainerEnding, now_s: float) -> StopStep | None:
    if one.signalled_s is not None:
        is_due = one.is_running and one.killed_s is None and now_s + TINY_S >= _kill_s(stop, one)
        return Kill(one.name) if is_due else None
    if not _takes_part(one):
        return None
    if one.hook and one.hook_phase is HookPhase.NONE and stop.grace_s > 0:
        return RunHook(one.name)
    if one.hook_phase is HookPhase.RUNNING:
        is_late = now_s + TINY_S >= stop.began_s + stop.grace_s
        return DropHook(one.name, HookPhase.TIMEOUT) if is_late else None
    if _waits(stop, one, now_s):
        return None
    if not one.is_running:
        return Pass(one.name)
    return Signal(one.name, _seconds_after_signal(stop, one, now_s))


def kubelet_wake_s(stop: Stop, one: ContainerEnding) -> float | None:
    if not _takes_part(one):
        return None
    if one.signalled_s is not None:
        return _kill_s(stop, one) if one.is_running and one.killed_s is None else None
    return stop.began_s + stop.grace_s if one.hook_phase is HookPhase.RUNNING else _after_hook(stop, one).end_s


def may_kubelet_stop_sandbox(stop: Stop) -> bool:
    return all(_is_done(one) for one in stop.containers)


def _takes_part(one: ContainerEnding) -> bool:
    """It ran when the end began."""
    return one.is_running or one.ended_s is not None


def _is_done(one: ContainerEnding) -> bool:
    return not _takes_part(one) or (one.signalled_s is not None and not one.is_running)


def _after_hook(stop: Stop, one: ContainerEnding) -> _Budget:
    began_s = one.hook_began_s
    if began_s is None or one.hook_ended_s is None:
        return _Budget(stop.began_s, int(stop.grace_s))
    return _Budget(one.hook_ended_s, int(stop.grace_s) - floor(one.hook_ended_s - began_s + TINY_S))


def _waits(stop: Stop, one: ContainerEnding, now_s: float) -> bool:
    budget = _after_hook(stop, one)
    is_ordered = stop.trigger is not Trigger.FAULT and one.kind is ContainerKind.SIDECAR
    if not is_ordered or budget.left_s <= 0 or now_s + TINY_S >= budget.end_s:
        return False
    return not all(_is_done(other) for other in _before(stop, one))


def _before(stop: Stop, one: ContainerEnding) -> list[ContainerEnding]:
    """All mains, and only the next sidecar of the list, whether it ran or not."""
    mains = [other for other in stop.containers if other.kind is ContainerKind.MAIN]
    place = stop.containers.index(one)
    later = [other for other in stop.containers[place + 1 :] if other.kind is ContainerKind.SIDECAR]
    return mains + later[:1]


def _seconds_after_signal(stop: Stop, one: ContainerEnding, signalled_s: float) -> int:
    budget = _after_hook(stop, one)
    left_s = budget.left_s
    if one.kind is ContainerKind.SIDECAR and stop.trigger is not Trigger.FAULT and left_s > 0:
        left_s -= floor(signalled_s - budget.from_s + TINY_S)
    return max(left_s, LEAST_AFTER_SIGNAL_S)


def _kill_s(stop: Stop, one: ContainerEnding) -> float:
    signalled_s = one.signalled_s or 0.0
    return signalled_s + _seconds_after_signal(stop, one, signalled_s)
