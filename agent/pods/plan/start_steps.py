# SPDX-License-Identifier: Apache-2.0
"""The steps that bring a pod up and keep it there. Pure values; each says in one line what it does."""

import msgspec

from agent.pods.plan.stop_state import Trigger
from agent.pods.runtime.observed import Instance


class MakeSandbox(msgspec.Struct, frozen=True):
    """Make a sandbox, after what is left of earlier ones has been taken away."""

    attempt: int
    replaces: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"make sandbox {self.attempt}" + (f" in place of {len(self.replaces)}" if self.replaces else "")


class Launch(msgspec.Struct, frozen=True):
    """Fetch, create, start, run postStart; instances that never started are taken away first."""

    name: str
    attempt: int
    sandbox_id: str
    discards: tuple[str, ...] = ()
    ended_s: float | None = None
    # The container whose processes an ephemeral one sees.
    target_id: str = ""

    def __str__(self) -> str:
        return f"start {self.name}" + (f", attempt {self.attempt}" if self.attempt else "")


class Settle(msgspec.Struct, frozen=True):
    """Go on with an instance that was found running before anybody noted that its postStart was done."""

    instance: Instance

    @property
    def name(self) -> str:
        return self.instance.name

    def __str__(self) -> str:
        return f"go on with {self.name}"


class EndContainer(msgspec.Struct, frozen=True):
    """End one container for a fault of its own; one that is renewed starts again."""

    instance: Instance
    message: str
    grace_s: int
    is_renewed: bool = False

    @property
    def name(self) -> str:
        return self.instance.name

    def __str__(self) -> str:
        return f"end {self.name} within {self.grace_s} s: {self.message}"


class RestartAll(msgspec.Struct, frozen=True):
    """End everything without hooks and order, and begin anew in the same sandbox."""

    name: str
    ended_s: float = 0.0

    def __str__(self) -> str:
        return f"restart all containers because of {self.name}"


class BeginStop(msgspec.Struct, frozen=True):
    """The pod, or what is left of it, has to end."""

    trigger: Trigger
    cause: str
    grace_s: float

    def __str__(self) -> str:
        return f"end the pod within {self.grace_s:g} s ({self.cause})"


class Finish(msgspec.Struct, frozen=True):
    """Nothing will run any more; this is how it ended."""

    phase: str
    reason: str = ""
    message: str = ""

    def __str__(self) -> str:
        return f"finish as {self.phase}"


StartStep = MakeSandbox | Launch | Settle | EndContainer | RestartAll | BeginStop | Finish
