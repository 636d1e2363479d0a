# SPDX-License-Identifier: Apache-2.0
"""The steps that bring a pod up and keep it there. Pure values; each says in one line what it does."""

from dataclasses import dataclass

from agent.pods.plan.stop_state import Trigger
from agent.pods.runtime.seen import Instance


@dataclass(frozen=True, slots=True)
class MakeSandbox:
    """Make a sandbox, after what is left of earlier ones has been taken away."""

    attempt: int
    replaces: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"make sandbox {self.attempt}" + (f" in place of {len(self.replaces)}" if self.replaces else "")


@dataclass(frozen=True, slots=True)
class Launch:
    """Fetch, create, start, run postStart; instances that never started are taken away first (STA-09)."""

    name: str
    attempt: int
    sandbox_id: str
    discards: tuple[str, ...] = ()
    ended_s: float | None = None

    def __str__(self) -> str:
        return f"start {self.name}" + (f", attempt {self.attempt}" if self.attempt else "")


@dataclass(frozen=True, slots=True)
class Settle:
    """Go on with an instance that was found running before anybody noted that its postStart was done (HOK-12)."""

    instance: Instance

    @property
    def name(self) -> str:
        return self.instance.name

    def __str__(self) -> str:
        return f"go on with {self.name}"


@dataclass(frozen=True, slots=True)
class EndContainer:
    """End one container for a fault of its own (PRB-11, HOK-04, MAN-11, STA-10)."""

    instance: Instance
    message: str
    grace_s: int

    @property
    def name(self) -> str:
        return self.instance.name

    def __str__(self) -> str:
        return f"end {self.name} within {self.grace_s} s: {self.message}"


@dataclass(frozen=True, slots=True)
class RestartAll:
    """End everything without hooks and order, and begin anew in the same sandbox (RST-05)."""

    name: str
    ended_s: float = 0.0

    def __str__(self) -> str:
        return f"restart all containers because of {self.name}"


@dataclass(frozen=True, slots=True)
class BeginStop:
    """The pod, or what is left of it, has to end."""

    trigger: Trigger
    cause: str
    grace_s: float

    def __str__(self) -> str:
        return f"end the pod within {self.grace_s:g} s ({self.cause})"


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing will run any more; this is how it ended."""

    phase: str
    reason: str = ""
    message: str = ""

    def __str__(self) -> str:
        return f"finish as {self.phase}"


StartStep = MakeSandbox | Launch | Settle | EndContainer | RestartAll | BeginStop | Finish
