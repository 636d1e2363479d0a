# SPDX-License-Identifier: Apache-2.0
"""The steps an end is made of. Pure values; each says in one line what it does."""

from dataclasses import dataclass

from agent.pods.plan.stop_state import HookPhase


@dataclass(frozen=True, slots=True)
class RunHook:
    name: str

    def __str__(self) -> str:
        return f"run the preStop hook of {self.name}"


@dataclass(frozen=True, slots=True)
class DropHook:
    """Wait for the hook no longer."""

    name: str
    phase: HookPhase

    def __str__(self) -> str:
        return f"abandon the preStop hook of {self.name} ({self.phase})"


@dataclass(frozen=True, slots=True)
class Signal:
    """Send the stop signal; the runtime kills after `timeout_s` even if kepd is gone by then."""

    name: str
    timeout_s: int

    def __str__(self) -> str:
        return f"signal {self.name}, SIGKILL within {self.timeout_s} s"


@dataclass(frozen=True, slots=True)
class Pass:
    """A container's turn came after it had died: nothing to signal, others may go on. Kubelet profile only."""

    name: str

    def __str__(self) -> str:
        return f"skip {self.name}, which has ended"


@dataclass(frozen=True, slots=True)
class Kill:
    name: str

    def __str__(self) -> str:
        return f"kill {self.name}"


@dataclass(frozen=True, slots=True)
class RestartSidecar:
    """A sidecar died too early and is still needed (TRM-15)."""

    name: str

    def __str__(self) -> str:
        return f"restart {self.name}, which others still need"


@dataclass(frozen=True, slots=True)
class StopPodSandbox:
    """The last container is gone (TRM-18)."""

    def __str__(self) -> str:
        return "stop the sandbox"


StopStep = RunHook | DropHook | Signal | Pass | Kill | RestartSidecar | StopPodSandbox
