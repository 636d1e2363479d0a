# SPDX-License-Identifier: Apache-2.0
"""What has to be done so that the pods that shall run, run, and the others do not.

Owns: the order of steps for one look at the runtime. Planning again after any step, also after a crash, goes on where
the state shows; planning what is done gives nothing.
Never: touches sandboxes without our mark, restarts a container that ended (this version starts each once).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.model.pod import ContainerSpec, PodSpec

__all__ = [
    "Action",
    "CreateContainer",
    "MakeSandbox",
    "RemoveSandbox",
    "SeenContainer",
    "SeenSandbox",
    "StartContainer",
    "plan_pods",
]


@dataclass(frozen=True, slots=True)
class SeenContainer:
    """A container as the runtime lists it."""

    id: str
    name: str
    is_created_only: bool


@dataclass(frozen=True, slots=True)
class SeenSandbox:
    """A sandbox of ours with what is in it."""

    id: str
    uid: str
    is_ready: bool
    containers: tuple[SeenContainer, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoveSandbox:
    """Stop a sandbox with all in it and forget it."""

    sandbox_id: str

    def __str__(self) -> str:
        return f"remove sandbox {self.sandbox_id[:12]}"


@dataclass(frozen=True, slots=True)
class MakeSandbox:
    """Make the sandbox of a pod."""

    pod: PodSpec

    def __str__(self) -> str:
        return f"make sandbox of {self.pod.full_name}"


@dataclass(frozen=True, slots=True)
class CreateContainer:
    """Fetch the image if it is not there, then create the container."""

    pod: PodSpec
    container: ContainerSpec
    sandbox_id: str

    def __str__(self) -> str:
        return f"create {self.container.name} of {self.pod.full_name}"


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Start a created container."""

    container_id: str
    pod: PodSpec

    def __str__(self) -> str:
        return f"start {self.container_id[:12]} of {self.pod.full_name}"


Action = RemoveSandbox | MakeSandbox | CreateContainer | StartContainer


def plan_pods(desired: Sequence[PodSpec], observed: Sequence[SeenSandbox]) -> tuple[Action, ...]:
    """The next step of every pod; the step after it is planned when this one shows."""
    wanted = {pod.uid: pod for pod in desired}
    kept: dict[str, SeenSandbox] = {}
    removals: list[Action] = []
    for sandbox in observed:
        if sandbox.uid in wanted and sandbox.is_ready and sandbox.uid not in kept:
            kept[sandbox.uid] = sandbox
        else:
            removals.append(RemoveSandbox(sandbox.id))
    steps: list[Action] = []
    for pod in desired:
        sandbox_of_pod = kept.get(pod.uid)
        steps += _steps_inside(pod, sandbox_of_pod) if sandbox_of_pod else [MakeSandbox(pod)]
    return (*removals, *steps)


def _steps_inside(pod: PodSpec, sandbox: SeenSandbox) -> list[Action]:
    seen = {container.name: container for container in sandbox.containers}
    for container in pod.containers:
        there = seen.get(container.name)
        if there is None:
            return [CreateContainer(pod, container, sandbox.id)]
        if there.is_created_only:
            return [StartContainer(there.id, pod)]
    return []
