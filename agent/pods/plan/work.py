# SPDX-License-Identifier: Apache-2.0
"""What is being done to a pod now: one value per piece of work, which is also the key of its task.

Values are compared and matched, and their texts are for people: no code takes them apart. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from agent.pods.plan.probe import ProbeKind


@dataclass(frozen=True, slots=True)
class Work:
    """Equal to another of its kind with the same fields."""

    text: ClassVar[str]

    def __str__(self) -> str:
        return self.text


class MakingSandbox(Work):
    """Also clears away what the one before left."""

    text = "make the sandbox"


class RestartingAll(Work):
    """All containers are taken away, so that they begin again."""

    text = "restart all containers"


class StoppingPod(Work):
    text = "end the pod"


class UpdatingVolumes(Work):
    text = "update volumes"


class HoldingLimits(Work):
    text = "hold the limits of a pod that was found running"


class Resizing(Work):
    """Containers get other resources, or wait for the next try."""

    text = "resize containers"


class RemovingDead(Work):
    text = "remove dead containers"


class Releasing(Work):
    text = "release volumes"


class Saving(Work):
    text = "write the record"


@dataclass(frozen=True, slots=True)
class ContainerWork(Work):
    container: str

    def __str__(self) -> str:
        return f"{self.text} {self.container}"


class Launching(ContainerWork):
    text = "start"


class CreatingAhead(ContainerWork):
    """While the container before it starts; it starts in its turn."""

    text = "create"


class LaunchingEphemeral(ContainerWork):
    """Beside all that is planned for the manifest's containers."""

    text = "start ephemeral"


class EndingAlone(ContainerWork):
    """It ends for a fault of its own; the pod goes on."""

    text = "end"


class RunningHook(ContainerWork):
    text = "run the preStop hook of"


class StoppingContainer(ContainerWork):
    text = "stop"


class KillingContainer(ContainerWork):
    """May go on beside StoppingContainer of the same container."""

    text = "kill"


class RestartingSidecar(ContainerWork):
    text = "restart"


@dataclass(frozen=True, slots=True)
class FetchingAhead(Work):
    image: str

    def __str__(self) -> str:
        return f"fetch {self.image} ahead"


@dataclass(frozen=True, slots=True)
class Probing(Work):
    kind: ProbeKind
    instance: str

    def __str__(self) -> str:
        return f"{self.kind} probe of {self.instance}"


@dataclass(frozen=True, slots=True)
class Refreshing(Work):
    instance: str

    def __str__(self) -> str:
        return f"look at {self.instance}"


def containers_at_work(works: Iterable[Work]) -> frozenset[str]:
    """Containers that are being started or ended, which nothing else may be done to."""
    return frozenset(one.container for one in works if isinstance(one, Launching | CreatingAhead | EndingAlone))


def is_shown(work: Work) -> bool:
    """Whether people see that it goes on: what a pod waits for names it, or one of its conditions."""
    return isinstance(work, Launching | EndingAlone | MakingSandbox | RestartingAll)


def is_pod_at_work(works: Iterable[Work]) -> bool:
    """Whether something is done to all containers at once, so that none is started meanwhile."""
    return any(isinstance(one, MakingSandbox | RestartingAll) for one in works)


def holds_end_up(work: Work) -> bool:
    """What makes or removes containers or sandboxes has to be over before an end looks at what there is to end."""
    return isinstance(work, Launching | CreatingAhead | LaunchingEphemeral | MakingSandbox | RestartingAll)
