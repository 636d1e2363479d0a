# SPDX-License-Identifier: Apache-2.0
"""The steps an end is made of. Pure values; each says in one line what it does."""

import msgspec

from agent.pods.plan.stop_state import HookPhase


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
