# SPDX-License-Identifier: Apache-2.0
"""What the runtime lists, as the planners see it: only sandboxes of ours, on the monotonic clock."""

from collections.abc import Iterable

from msgspec.structs import replace

from agent.model.devices.container_devices import CLAIMS_NOTE
from agent.pods.runtime.names import (
    CONTAINER,
    CONTAINER_HASH,
    EPHEMERAL,
    FILE,
    GROUP,
    HASH,
    INSTANCE,
    NAME_SERVERS,
    UID,
    signal_name,
)
from agent.pods.runtime.observed import Instance, SeenPod, SeenSandbox, Stage, newest_first, sandboxes_newest_first
from agent.wire.cri import runtime_v1_pb2 as pb

STAGES = {
    pb.CONTAINER_CREATED: Stage.CREATED,
    pb.CONTAINER_RUNNING: Stage.RUNNING,
    pb.CONTAINER_EXITED: Stage.ENDED,
    pb.CONTAINER_UNKNOWN: Stage.UNKNOWN,
}
NANOS = 1e9
NOTES = ("io.kubernetes.", EPHEMERAL, CLAIMS_NOTE)
LOST_CODE = 137


def seen_pods(
    sandboxes: Iterable[pb.PodSandbox], containers: Iterable[pb.Container], instance: str, wall_minus_now_s: float
) -> dict[str, SeenPod]:
    ours: dict[str, list[SeenSandbox]] = {}
    uids: dict[str, str] = {}
    for sandbox in sandboxes:
        if sandbox.annotations.get(INSTANCE) == instance:
            seen = _sandbox_of(sandbox)
            ours.setdefault(seen.uid, []).append(seen)
            uids[seen.id] = seen.uid
    inside: dict[str, list[Instance]] = {}
    for container in containers:
        uid = uids.get(container.pod_sandbox_id)
        if uid is not None:
            inside.setdefault(uid, []).append(instance_of(container, wall_minus_now_s))
    return {
        uid: SeenPod(sandboxes_newest_first(found), newest_first(inside.get(uid, ()))) for uid, found in ours.items()
    }


def _sandbox_of(sandbox: pb.PodSandbox) -> SeenSandbox:
    """One sandbox; its address has to be asked for."""
    return SeenSandbox(
        id=sandbox.id,
        namespace=sandbox.metadata.namespace,
        name=sandbox.metadata.name,
        uid=sandbox.labels.get(UID, sandbox.metadata.uid),
        attempt=sandbox.metadata.attempt,
        hash=sandbox.annotations.get(HASH, ""),
        file=sandbox.annotations.get(FILE, ""),
        group=sandbox.annotations.get(GROUP, ""),
        name_servers=sandbox.annotations.get(NAME_SERVERS, ""),
        is_ready=sandbox.state == pb.SANDBOX_READY,
        created_wall_s=sandbox.created_at / NANOS,
    )


def instance_of(container: pb.Container, wall_minus_now_s: float) -> Instance:
    """One container as lists have it: without exit code and times."""
    return Instance(
        id=container.id,
        name=container.labels.get(CONTAINER, container.metadata.name),
        sandbox_id=container.pod_sandbox_id,
        stage=STAGES.get(container.state, Stage.UNKNOWN),
        attempt=container.metadata.attempt,
        image=container.image.user_specified_image or container.image.image,
        image_id=container.image_ref,
        hash=container.annotations.get(CONTAINER_HASH, ""),
        created_s=container.created_at / NANOS - wall_minus_now_s,
        notes={name: text for name, text in container.annotations.items() if name.startswith(NOTES)},
    )


def with_status(known: Instance, status: pb.ContainerStatus, now_s: float, wall_s: float) -> Instance:
    """With what only the container's own status says. A clock that was set back puts moments into the future: nothing
    happened later than now, and a known moment stays."""
    started_wall_s, finished_wall_s = status.started_at / NANOS, status.finished_at / NANOS
    is_start_known = known.started_s > 0 and known.started_wall_s == started_wall_s
    is_end_known = known.finished_s > 0 and known.finished_wall_s == finished_wall_s
    return replace(
        known,
        stage=STAGES.get(status.state, Stage.UNKNOWN),
        image_id=status.image_ref,
        started_s=known.started_s if is_start_known else _moment(started_wall_s, now_s, wall_s),
        finished_s=known.finished_s if is_end_known else _moment(finished_wall_s, now_s, wall_s),
        started_wall_s=started_wall_s,
        finished_wall_s=finished_wall_s,
        exit_code=status.exit_code,
        reason=status.reason,
        message=known.message or status.message,
        stop_signal=signal_name(pb.Signal.Name(status.stop_signal)) if status.stop_signal else "",
    )


def lost_instance(known: Instance, now_s: float, wall_s: float) -> Instance:
    """It was seen running and the runtime does not know it any more."""
    return replace(
        known,
        stage=Stage.ENDED,
        exit_code=LOST_CODE,
        reason="ContainerStatusUnknown",
        message="The container could not be located when the pod was terminated",
        finished_s=now_s,
        finished_wall_s=wall_s,
    )


def _moment(then_wall_s: float, now_s: float, wall_s: float) -> float:
    """On the clock of decisions; 0 for what has not been."""
    return now_s - max(wall_s - then_wall_s, 0.0) if then_wall_s > 0 else 0.0
