# SPDX-License-Identifier: Apache-2.0
"""How far the end of a pod, or of one of its containers, has come, and the steps that an end is made of.

The state is written down before each step. Times are seconds of one clock that goes on over restarts of kepd. Never:
decides what is done next; stop.py does.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from agent.model.pods.pod import ContainerKind

Names = frozenset[str]
NO_NAMES: Names = frozenset()
SLEEP = "sleep"


class HookPhase(StrEnum):
    """none → running → ok, failed, timeout or cancelled; or none → cancelled, and it never runs. The last four stay."""

    NONE = "none"
    RUNNING = "running"
    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


class Trigger(StrEnum):
    """Why something ends. For a FAULT of its own, such as a failed probe, one container ends: no order, no sandbox."""

    DELETE = "delete"
    COMPLETE = "complete"
    FAULT = "probe"  # the word that records on the disk have


class ContainerEnding(msgspec.Struct, frozen=True, kw_only=True):
    """One container. `waits_for` must be gone before it is signalled. `own_grace_s` bounds the time after its signal;
    `reserve_s` is taken from its budget for the sake of others."""

    name: str
    kind: ContainerKind = ContainerKind.MAIN
    hook: str = ""
    is_hook_at_turn: bool = False
    waits_for: Names = NO_NAMES
    own_grace_s: float | None = None
    reserve_s: float = 0.0
    is_running: bool = True
    is_starting: bool = False
    hook_phase: HookPhase = HookPhase.NONE
    hook_began_s: float | None = None
    hook_ended_s: float | None = None
    signalled_s: float | None = None
    killed_s: float | None = None
    ended_s: float | None = None
    restarts: int = 0

    @property
    def is_gone(self) -> bool:
        return not self.is_running and not self.is_starting


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a pod. `deadline_s` only ever moves towards now."""

    trigger: Trigger
    began_s: float
    grace_s: float
    deadline_s: float
    containers: tuple[ContainerEnding, ...] = ()
    is_forced: bool = False
    copies_kubelet: bool = False
    is_sandbox_stopped: bool = False

    def of(self, name: str) -> ContainerEnding | None:
        return next((one for one in self.containers if one.name == name), None)

    def changed(self, name: str, change: Callable[[ContainerEnding], ContainerEnding]) -> "Stop":
        return replace(self, containers=tuple(change(one) if one.name == name else one for one in self.containers))

    @property
    def has_ended(self) -> bool:
        if self.trigger is Trigger.FAULT:
            return all(one.is_gone and one.hook_phase is not HookPhase.RUNNING for one in self.containers)
        return self.is_sandbox_stopped


def begin_stop(
    trigger: Trigger,
    containers: Sequence[ContainerEnding],
    grace_s: float,
    now_s: float,
    *,
    copies_kubelet: bool = False,
) -> Stop:
    """The decision to end. A delete with grace 0 kills at once; a negative grace counts as 1 s. For a
    kubelet a delete has at least 1 s (Q-ZERO)."""
    is_delete = trigger is Trigger.DELETE
    if grace_s < 0 or (is_delete and copies_kubelet and grace_s < 1):
        grace_s = 1.0
    return Stop(
        trigger=trigger,
        began_s=now_s,
        grace_s=grace_s,
        deadline_s=now_s + grace_s,
        containers=tuple(containers),
        is_forced=is_delete and grace_s == 0,
        copies_kubelet=copies_kubelet,
    )


def shortened(stop: Stop, grace_s: float, now_s: float) -> Stop:
    """A later request: it may only shorten, and 0 is force. A kubelet ignores it (Q-SHORTEN)."""
    if stop.copies_kubelet:
        return stop
    if grace_s == 0:
        return replace(stop, is_forced=True, deadline_s=min(stop.deadline_s, now_s))
    return replace(stop, deadline_s=min(stop.deadline_s, now_s + max(grace_s, 1.0)))


def exited(stop: Stop, name: str, now_s: float) -> Stop:
    return stop.changed(name, lambda one: replace(one, is_running=False, is_starting=False, ended_s=now_s))


def hook_ended(stop: Stop, name: str, phase: HookPhase, now_s: float) -> Stop:
    """A hook returned. One that was given up before has ended already."""

    def end(one: ContainerEnding) -> ContainerEnding:
        if one.hook_phase is not HookPhase.RUNNING:
            return one
        return replace(one, hook_phase=phase, hook_ended_s=now_s)

    return stop.changed(name, end)


def restarted(stop: Stop, name: str) -> Stop:
    """The new instance of a sidecar runs; its hook is not run again."""

    def run(one: ContainerEnding) -> ContainerEnding:
        phase = HookPhase.CANCELLED if one.hook_phase is HookPhase.NONE else one.hook_phase
        return replace(one, is_running=True, is_starting=False, ended_s=None, hook_phase=phase)

    return stop.changed(name, run)


def resumed(stop: Stop) -> Stop:
    """The state after kepd died: hooks that it ran are not run again; a sleep, which only takes time, goes on."""

    def resume(one: ContainerEnding) -> ContainerEnding:
        if one.is_starting:
            one = replace(one, is_starting=False, restarts=one.restarts - 1)
        if one.hook_phase is HookPhase.RUNNING and one.hook != SLEEP:
            return replace(one, hook_phase=HookPhase.FAILED, hook_ended_s=one.hook_began_s)
        return one

    return replace(stop, containers=tuple(resume(one) for one in stop.containers))


class RunHook(msgspec.Struct, frozen=True):
    name: str

    def __str__(self) -> str:
        return f"run the preStop hook of {self.name}"


class DropHook(msgspec.Struct, frozen=True):
    """Wait for the hook no longer."""

    name: str
    phase: HookPhase

    def __str__(self) -> str:
        return f"abandon the preStop hook of {self.name} ({self.phase})"


class Signal(msgspec.Struct, frozen=True):
    """Send the stop signal; the runtime kills after `timeout_s` even if kepd is gone by then."""

    name: str
    timeout_s: int

    def __str__(self) -> str:
        return f"signal {self.name}, SIGKILL within {self.timeout_s} s"


class Pass(msgspec.Struct, frozen=True):
    """A container's turn came after it had died: nothing to signal, others may go on. Kubelet profile only."""

    name: str

    def __str__(self) -> str:
        return f"skip {self.name}, which has ended"


class Kill(msgspec.Struct, frozen=True):
    name: str

    def __str__(self) -> str:
        return f"kill {self.name}"


class RestartSidecar(msgspec.Struct, frozen=True):
    """A sidecar died too early and is still needed."""

    name: str

    def __str__(self) -> str:
        return f"restart {self.name}, which others still need"


class StopPodSandbox(msgspec.Struct, frozen=True):
    """The last container is gone."""

    def __str__(self) -> str:
        return "stop the sandbox"


StopStep = RunHook | DropHook | Signal | Pass | Kill | RestartSidecar | StopPodSandbox
