# SPDX-License-Identifier: Apache-2.0
"""What is known of a pod, as a value for those who look. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from agent.model.finding import printable
from agent.model.pod import ContainerSpec, PodSpec
from agent.model.pod_state import RUNNING, TERMINATED, WAITING, ContainerState, PodState, phase_of
from agent.pods.plan import SeenContainer, SeenSandbox, Stage
from agent.wire.cri import runtime_v1_pb2 as pb

__all__ = ["Details", "pod_state", "spec_of"]

STATES = {Stage.CREATED: WAITING, Stage.RUNNING: RUNNING, Stage.ENDED: TERMINATED}


@dataclass(slots=True)
class Details:
    """What lists do not tell: addresses by sandbox, statuses by container and the stages they were asked for in.

    Where they `are_refused`, what the lists say has to do.
    """

    ips: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, pb.ContainerStatus] = field(default_factory=dict)
    stages: dict[str, Stage] = field(default_factory=dict)
    are_refused: bool = False

    def missing_of(self, sandbox: SeenSandbox) -> list[SeenSandbox | SeenContainer]:
        """Of what the details have to be asked for."""
        changed = [one for one in sandbox.containers if self.stages.get(one.id) is not one.stage]
        return [*([sandbox] if sandbox.is_ready and sandbox.id not in self.ips else []), *changed]

    def forget_others(self, seen: Iterable[SeenSandbox]) -> None:
        """Drop what belongs to nothing of this."""
        sandboxes = {sandbox.id: sandbox for sandbox in seen}
        containers = {one.id for sandbox in sandboxes.values() for one in sandbox.containers}
        self.ips = {key: ip for key, ip in self.ips.items() if key in sandboxes}
        self.statuses = {key: status for key, status in self.statuses.items() if key in containers}
        self.stages = {key: stage for key, stage in self.stages.items() if key in containers}


def pod_state(
    pod: PodSpec,
    sandbox: SeenSandbox | None,
    details: Details,
    message: str,
) -> PodState:
    """One pod. Containers that do not exist yet, or of which nothing is known yet, are waiting."""
    by_name = {container.name: container for container in (sandbox.containers if sandbox is not None else ())}
    containers = tuple(_container(spec, by_name.get(spec.name), details) for spec in pod.containers)
    return PodState(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        phase=phase_of(containers),
        message=printable(message),
        ip=details.ips.get(sandbox.id, "") if sandbox is not None else "",
        sandbox_id=sandbox.id if sandbox is not None else "",
        created_at_s=sandbox.created_at_s if sandbox is not None else 0.0,
        containers=containers,
    )


def spec_of(sandbox: SeenSandbox) -> PodSpec:
    """As much of a pod as its sandbox tells, for one whose manifest is gone or cannot be read."""
    return PodSpec(
        namespace=sandbox.namespace,
        name=sandbox.name,
        uid=sandbox.uid,
        hash=sandbox.hash,
        containers=tuple(ContainerSpec(name=one.name, image=one.image) for one in sandbox.containers),
        file=sandbox.file,
    )


def _container(spec: ContainerSpec, seen: SeenContainer | None, details: Details) -> ContainerState:
    if seen is None:
        return ContainerState(name=spec.name, image=spec.image, reason="ContainerCreating")
    status = details.statuses.get(seen.id, pb.ContainerStatus())
    stage = seen.stage if details.are_refused else details.stages.get(seen.id, Stage.CREATED)
    return ContainerState(
        name=spec.name,
        image=spec.image,
        id=seen.id,
        state=STATES[stage],
        reason=status.reason,
        exit_code=status.exit_code,
        started_at_s=status.started_at / 1e9,
        restart_count=status.metadata.attempt,
    )
