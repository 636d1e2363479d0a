# SPDX-License-Identifier: Apache-2.0
"""What has to be done next so that a pod that shall run, runs, and one that shall not, ends.

Owns: the order of steps, and what each does to the state. Planning again after any step, also after a crash, goes on
where the state shows; planning what is done gives nothing.
Never: touches sandboxes without our mark, restarts a container that ended (this version starts each once), or takes
back an end that has begun (MAN-09).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from agent.model.pod import DEFAULT_GRACE_S, ContainerSpec, PodSpec

__all__ = [
    "Action",
    "CreateContainer",
    "MakeSandbox",
    "RemoveSandbox",
    "SeenContainer",
    "SeenSandbox",
    "Stage",
    "StartContainer",
    "StopContainer",
    "after",
    "kept_sandbox",
    "plan_pod",
]

SHORT_ID = 12


class Stage(StrEnum):
    """created → running → ended."""

    CREATED = "created"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class SeenContainer:
    """A container as the runtime lists it."""

    id: str
    name: str
    stage: Stage
    image: str = ""
    grace_s: int = DEFAULT_GRACE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSandbox:
    """A sandbox of ours with what is in it. One whose end has begun comes back no more."""

    id: str
    namespace: str
    name: str
    uid: str
    hash: str
    file: str = ""
    is_ready: bool = True
    is_ending: bool = False
    created_at_s: float = 0.0
    containers: tuple[SeenContainer, ...] = ()

    @property
    def key(self) -> str:
        """As PodSpec.key."""
        return f"{self.namespace}/{self.name}"

    def belongs_to(self, pod: PodSpec) -> bool:
        """Whether it was made for this version of this pod; one without a hash was made when there were none."""
        return (self.key, self.uid) == (pod.key, pod.uid) and self.hash in ("", pod.hash)


@dataclass(frozen=True, slots=True)
class StopContainer:
    """Ask a container to end, wait for its grace, kill it."""

    container: SeenContainer
    sandbox: SeenSandbox

    def __str__(self) -> str:
        return f"stop {self.container.name} of {self.sandbox.key} within {self.container.grace_s} s"


@dataclass(frozen=True, slots=True)
class RemoveSandbox:
    """Stop a sandbox and forget it; with its logs if nobody will go on writing them."""

    sandbox: SeenSandbox
    has_heir: bool

    def __str__(self) -> str:
        return f"remove sandbox {self.sandbox.id[:SHORT_ID]} of {self.sandbox.key}"


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
        return f"create {self.container.name} of {self.pod.full_name} from {self.container.image}"


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Start a created container."""

    pod: PodSpec
    container: ContainerSpec
    container_id: str

    def __str__(self) -> str:
        return f"start {self.container.name} of {self.pod.full_name}"


Action = StopContainer | RemoveSandbox | MakeSandbox | CreateContainer | StartContainer


def plan_pod(
    wanted: PodSpec | None, seen: Sequence[SeenSandbox], is_unread: Callable[[str], bool] = lambda _file: False
) -> tuple[Action, ...]:
    """The next steps of one pod, which may be done at the same time; empty if all is as it shall be.

    `seen` are the sandboxes of its name, newest first. `is_unread` tells of which files nothing is known: what came
    from them stays as it is while no pod of its name is wanted.
    """
    kept = kept_sandbox(wanted, seen)
    unwanted = [
        sandbox
        for sandbox in seen
        if sandbox is not kept and (wanted is not None or sandbox.is_ending or not is_unread(sandbox.file))
    ]
    if unwanted:
        return _ending(wanted, unwanted)
    if wanted is None:
        return ()
    return _inside(wanted, kept) if kept is not None else (MakeSandbox(wanted),)


def kept_sandbox(wanted: PodSpec | None, seen: Sequence[SeenSandbox]) -> SeenSandbox | None:
    """The one that a pod runs in."""
    for sandbox in seen:
        if wanted is not None and sandbox.belongs_to(wanted) and sandbox.is_ready and not sandbox.is_ending:
            return sandbox
    return None


def _ending(wanted: PodSpec | None, unwanted: Sequence[SeenSandbox]) -> tuple[Action, ...]:
    stops = [
        StopContainer(container, sandbox)
        for sandbox in unwanted
        for container in sandbox.containers
        if container.stage is Stage.RUNNING
    ]
    if stops:
        return tuple(stops)
    heir = wanted.uid if wanted is not None else None
    return tuple(RemoveSandbox(sandbox, has_heir=sandbox.uid == heir) for sandbox in unwanted)


def _inside(pod: PodSpec, sandbox: SeenSandbox) -> tuple[Action, ...]:
    seen = {container.name: container for container in sandbox.containers}
    for container in pod.containers:
        there = seen.get(container.name)
        if there is None:
            return (CreateContainer(pod, container, sandbox.id),)
        if there.stage is Stage.CREATED:
            return (StartContainer(pod, container, there.id),)
    return ()


def after(seen: Sequence[SeenSandbox], action: Action, new_id: str = "") -> tuple[SeenSandbox, ...]:
    """What is seen once a step has worked. `new_id` is of the sandbox or container it made."""
    match action:
        case MakeSandbox(pod):
            made = SeenSandbox(
                id=new_id, namespace=pod.namespace, name=pod.name, uid=pod.uid, hash=pod.hash, file=pod.file
            )
            return (made, *seen)
        case RemoveSandbox(sandbox):
            return tuple(one for one in seen if one.id != sandbox.id)
        case CreateContainer(pod, container, sandbox_id):
            made_container = SeenContainer(new_id, container.name, Stage.CREATED, container.image, pod.grace_s)
            return tuple(
                replace(one, containers=(*one.containers, made_container)) if one.id == sandbox_id else one
                for one in seen
            )
        case StartContainer(container_id=container_id):
            return tuple(_staged(one, container_id, Stage.RUNNING) for one in seen)
        case StopContainer(stopped, sandbox):
            return tuple(
                replace(_staged(one, stopped.id, Stage.ENDED), is_ending=True) if one.id == sandbox.id else one
                for one in seen
            )


def _staged(sandbox: SeenSandbox, container_id: str, stage: Stage) -> SeenSandbox:
    staged = tuple(replace(one, stage=stage) if one.id == container_id else one for one in sandbox.containers)
    return replace(sandbox, containers=staged)
