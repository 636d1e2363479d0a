# SPDX-License-Identifier: Apache-2.0
"""What the runtime says about a pod, as a value for those who look. Pure."""

from collections.abc import Sequence

from agent.model.pod import PodSpec
from agent.model.pod_state import RUNNING, TERMINATED, WAITING, ContainerState, PodState, phase_of
from agent.wire.cri import runtime_v1_pb2 as pb

__all__ = ["pod_state"]

STATES = {pb.CONTAINER_RUNNING: RUNNING, pb.CONTAINER_EXITED: TERMINATED}


def pod_state(
    pod: PodSpec, sandbox: pb.PodSandboxStatus | None, statuses: Sequence[pb.ContainerStatus], problem: str
) -> PodState:
    """One pod. Containers that do not exist yet are waiting."""
    by_name = {status.metadata.name: status for status in statuses}
    containers = []
    for spec in pod.containers:
        status = by_name.get(spec.name)
        if status is None:
            containers.append(ContainerState(name=spec.name, image=spec.image, reason="ContainerCreating"))
            continue
        containers.append(
            ContainerState(
                name=spec.name,
                image=spec.image,
                id=status.id,
                state=STATES.get(status.state, WAITING),
                reason=status.reason,
                exit_code=status.exit_code,
                started_at_s=status.started_at / 1e9,
                restart_count=status.metadata.attempt,
            )
        )
    return PodState(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        phase=phase_of(containers),
        message=problem,
        ip=sandbox.network.ip if sandbox else "",
        sandbox_id=sandbox.id if sandbox else "",
        created_at_s=sandbox.created_at / 1e9 if sandbox else 0.0,
        containers=tuple(containers),
    )
