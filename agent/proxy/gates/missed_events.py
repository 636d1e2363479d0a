# SPDX-License-Identifier: Apache-2.0
"""The events that stand for all that a client missed while the runtime was away.

An event of CRI carries the state of its whole pod, so one for each pod is enough: about what changed last in it.
"""

from collections.abc import Iterable, Mapping, Sequence

from agent.wire.cri import runtime_v1_pb2 as pb

Happening = tuple[int, str, "pb.ContainerEventType"]
EVENTS: Mapping["pb.ContainerState", "pb.ContainerEventType"] = {
    pb.CONTAINER_CREATED: pb.CONTAINER_CREATED_EVENT,
    pb.CONTAINER_RUNNING: pb.CONTAINER_STARTED_EVENT,
    pb.CONTAINER_EXITED: pb.CONTAINER_STOPPED_EVENT,
}


def newest_sandboxes(sandboxes: Iterable[pb.PodSandbox]) -> list[pb.PodSandbox]:
    """One of each pod: a kubelet takes the last event of a pod for all that there is of it."""
    newest: dict[str, pb.PodSandbox] = {}
    for one in sorted(sandboxes, key=lambda sandbox: sandbox.created_at):
        newest[one.metadata.uid] = one
    return list(newest.values())


def missed_event(sandbox: pb.PodSandboxStatus, containers: Sequence[pb.ContainerStatus], at_ns: int) -> bytes:
    """The state of a pod as it was at `at_ns`."""
    is_ready = sandbox.state == pb.SANDBOX_READY
    kind = pb.CONTAINER_STARTED_EVENT if is_ready else pb.CONTAINER_STOPPED_EVENT
    happenings = [(sandbox.created_at, sandbox.id, kind), *map(_last_of, containers)]
    _, container_id, kind = max(happenings, key=lambda one: one[0])
    event = pb.ContainerEventResponse(
        container_id=container_id,
        container_event_type=kind,
        created_at=at_ns,
        pod_sandbox_status=sandbox,
        containers_statuses=containers,
    )
    return event.SerializeToString()


def _last_of(container: pb.ContainerStatus) -> Happening:
    at_ns = max(container.created_at, container.started_at, container.finished_at)
    return at_ns, container.id, EVENTS.get(container.state, pb.CONTAINER_STOPPED_EVENT)
