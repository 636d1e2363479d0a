# SPDX-License-Identifier: Apache-2.0
"""What is being done to a pod now: one value per piece of work, which is also the key of its task.

Owns: the kinds of work, which container each concerns, and which of them an end has to wait for. A value is compared
and matched, and its text is for people: no code takes it apart. Never: does any of it. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.pods.plan.probe import ProbeKind

__all__ = [
    "Collecting",
    "EndingAlone",
    "FetchingAhead",
    "KillingContainer",
    "Launching",
    "MakingSandbox",
    "Probing",
    "Refreshing",
    "Releasing",
    "Resizing",
    "RestartingAll",
    "RestartingSidecar",
    "RunningHook",
    "Saving",
    "StoppingContainer",
    "StoppingPod",
    "UpdatingVolumes",
    "Work",
    "containers_at_work",
    "holds_end_up",
    "is_pod_at_work",
]


@dataclass(frozen=True, slots=True)
class MakingSandbox:
    """A sandbox is made, and what the one before left is cleared away."""

    def __str__(self) -> str:
        return "make the sandbox"


@dataclass(frozen=True, slots=True)
class RestartingAll:
    """All containers are taken away, so that they begin again (RST-05)."""

    def __str__(self) -> str:
        return "restart all containers"


@dataclass(frozen=True, slots=True)
class StoppingPod:
    def __str__(self) -> str:
        return "end the pod"


@dataclass(frozen=True, slots=True)
class Launching:
    """From its image to the end of its postStart hook."""

    container: str

    def __str__(self) -> str:
        return f"start {self.container}"


@dataclass(frozen=True, slots=True)
class EndingAlone:
    """One container ends for a fault of its own; the pod goes on."""

    container: str

    def __str__(self) -> str:
        return f"end {self.container}"


@dataclass(frozen=True, slots=True)
class RunningHook:
    container: str

    def __str__(self) -> str:
        return f"run the preStop hook of {self.container}"


@dataclass(frozen=True, slots=True)
class StoppingContainer:
    """The runtime was asked to signal it."""

    container: str

    def __str__(self) -> str:
        return f"stop {self.container}"


@dataclass(frozen=True, slots=True)
class KillingContainer:
    """The runtime was asked to kill it; may go on beside StoppingContainer of the same container."""

    container: str

    def __str__(self) -> str:
        return f"kill {self.container}"


@dataclass(frozen=True, slots=True)
class RestartingSidecar:
    """A sidecar that died while its pod ends, and that others still need."""

    container: str

    def __str__(self) -> str:
        return f"restart {self.container}"


@dataclass(frozen=True, slots=True)
class FetchingAhead:
    """The image of a container that starts later."""

    image: str

    def __str__(self) -> str:
        return f"fetch {self.image} ahead"


@dataclass(frozen=True, slots=True)
class Probing:
    kind: ProbeKind
    instance: str

    def __str__(self) -> str:
        return f"{self.kind} probe of {self.instance}"


@dataclass(frozen=True, slots=True)
class Refreshing:
    instance: str

    def __str__(self) -> str:
        return f"look at {self.instance}"


@dataclass(frozen=True, slots=True)
class UpdatingVolumes:
    def __str__(self) -> str:
        return "update volumes"


@dataclass(frozen=True, slots=True)
class Resizing:
    """Containers get other resources, or the next try is waited for."""

    def __str__(self) -> str:
        return "resize containers"


@dataclass(frozen=True, slots=True)
class Collecting:
    def __str__(self) -> str:
        return "remove dead containers"


@dataclass(frozen=True, slots=True)
class Releasing:
    """A pod that is over gives its volumes and its group back."""

    def __str__(self) -> str:
        return "release volumes"


@dataclass(frozen=True, slots=True)
class Saving:
    def __str__(self) -> str:
        return "write the record"


Work = (
    MakingSandbox
    | RestartingAll
    | StoppingPod
    | Launching
    | EndingAlone
    | RunningHook
    | StoppingContainer
    | KillingContainer
    | RestartingSidecar
    | FetchingAhead
    | Probing
    | Refreshing
    | UpdatingVolumes
    | Resizing
    | Collecting
    | Releasing
    | Saving
)


def containers_at_work(works: Iterable[Work]) -> frozenset[str]:
    """Containers that are being started or ended, which nothing else may be done to."""
    return frozenset(one.container for one in works if isinstance(one, Launching | EndingAlone))


def is_pod_at_work(works: Iterable[Work]) -> bool:
    """Whether something is done to all containers at once, so that none is started meanwhile."""
    return any(isinstance(one, MakingSandbox | RestartingAll) for one in works)


def holds_end_up(work: Work) -> bool:
    """What makes or removes containers or sandboxes has to be over before an end looks at what there is to end."""
    return isinstance(work, Launching | MakingSandbox | RestartingAll)
