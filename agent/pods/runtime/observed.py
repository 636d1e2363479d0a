# SPDX-License-Identifier: Apache-2.0
"""A pod as the runtime has it: sandboxes and containers, newest first, read from its lists.

Only sandboxes of ours, and times on the monotonic clock. Of which no manifest and no record is left, that is read back
from the runtime's annotations.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cached_property

import msgspec
from msgspec.structs import replace

from agent.model.devices.container_devices import CLAIMS_NOTE
from agent.model.pods.container_fields import Container, Hook, Lifecycle
from agent.model.pods.fields import PodFields
from agent.model.pods.pod import ContainerKind, ContainerSpec, PodSpec
from agent.model.text.json_text import decode_json
from agent.pods.runtime.names import (
    CONTAINER,
    CONTAINER_HASH,
    EPHEMERAL,
    FILE,
    GRACE,
    GROUP,
    HASH,
    INSTANCE,
    NAME_SERVERS,
    PRE_STOP,
    UID,
    signal_name,
)
from agent.wire.cri import runtime_v1_pb2 as pb

NANOS = 1e9
NOTES = ("io.kubernetes.", EPHEMERAL, CLAIMS_NOTE)
LOST_CODE = 137


class Stage(StrEnum):
    """created → running → ended. The runtime does not know the state of an unknown one."""

    CREATED = "created"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One container in the runtime; each restart makes another."""

    id: str
    name: str
    sandbox_id: str
    stage: Stage
    attempt: int = 0
    image: str = ""
    image_id: str = ""
    hash: str = ""
    created_s: float = 0.0
    started_s: float = 0.0
    finished_s: float = 0.0
    started_wall_s: float = 0.0
    finished_wall_s: float = 0.0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    last_line: str = ""
    """Of its log, once it has ended with a fault."""
    stop_signal: str = ""
    notes: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def is_running(self) -> bool:
        """It may do work; one in an unknown state may."""
        return self.stage in (Stage.RUNNING, Stage.UNKNOWN)

    @property
    def is_ephemeral(self) -> bool:
        """Somebody added it to the pod; no plan for the manifest's containers counts it."""
        return EPHEMERAL in self.notes

    @property
    def has_succeeded(self) -> bool:
        return self.stage is Stage.ENDED and self.exit_code == 0 and self.reason != "OOMKilled"


class SeenSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox of ours. `ip` is None until it was asked for."""

    id: str
    namespace: str
    name: str
    uid: str
    attempt: int = 0
    hash: str = ""
    file: str = ""
    # The control group that it was made in; a manifest that changes in place may mean another one by now.
    group: str = ""
    # Those of its file, which a running pod keeps.
    name_servers: str = ""
    is_ready: bool = True
    is_host_network: bool = False
    ip: str | None = None
    more_ips: tuple[str, ...] = ()
    created_wall_s: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class SeenPod(msgspec.Struct, frozen=True, dict=True):
    """What is asked of it many times at each turn is worked out once."""

    sandboxes: tuple[SeenSandbox, ...] = ()
    instances: tuple[Instance, ...] = ()

    @cached_property
    def active(self) -> SeenSandbox | None:
        newest = self.sandboxes[0] if self.sandboxes else None
        return newest if newest is not None and newest.is_ready else None

    @cached_property
    def _of(self) -> Mapping[str, list[Instance]]:
        found: dict[str, list[Instance]] = {}
        for one in self.instances:
            found.setdefault(one.name, []).append(one)
        return found

    def newest(self, name: str, sandbox_id: str = "") -> Instance | None:
        """The latest instance of a container, in one sandbox or in any."""
        for one in self._of.get(name, ()):
            if sandbox_id in ("", one.sandbox_id):
                return one
        return None

    def instance(self, instance_id: str) -> Instance | None:
        return next((one for one in self.instances if one.id == instance_id), None)

    @cached_property
    def running(self) -> tuple[Instance, ...]:
        return tuple(one for one in self.instances if one.is_running)

    @cached_property
    def ephemerals(self) -> tuple[Instance, ...]:
        """Oldest first."""
        return tuple(sorted((one for one in self.instances if one.is_ephemeral), key=lambda one: one.created_s))

    def next_attempt(self, name: str) -> int:
        """The attempt after the newest known."""
        return max((one.attempt for one in self._of.get(name, ())), default=-1) + 1


def newest_first(instances: Iterable[Instance]) -> tuple[Instance, ...]:
    return tuple(sorted(instances, key=lambda one: (-one.attempt, -one.created_s, one.id)))


def sandboxes_newest_first(sandboxes: Sequence[SeenSandbox]) -> tuple[SeenSandbox, ...]:
    return tuple(sorted(sandboxes, key=lambda one: (-one.attempt, -one.created_wall_s, one.id)))


STAGES = {
    pb.CONTAINER_CREATED: Stage.CREATED,
    pb.CONTAINER_RUNNING: Stage.RUNNING,
    pb.CONTAINER_EXITED: Stage.ENDED,
    pb.CONTAINER_UNKNOWN: Stage.UNKNOWN,
}


def seen_pods(
    sandboxes: Iterable[pb.PodSandbox], containers: Iterable[pb.Container], instance: str, wall_minus_now_s: float
) -> dict[str, SeenPod]:
    """Each by its id: a list may name one twice."""
    ours: dict[str, dict[str, SeenSandbox]] = {}
    uids: dict[str, str] = {}
    for sandbox in sandboxes:
        if sandbox.annotations.get(INSTANCE) == instance:
            seen = _sandbox_of(sandbox)
            ours.setdefault(seen.uid, {})[seen.id] = seen
            uids[seen.id] = seen.uid
    inside: dict[str, dict[str, Instance]] = {}
    for container in containers:
        uid = uids.get(container.pod_sandbox_id)
        if uid is not None:
            inside.setdefault(uid, {})[container.id] = instance_of(container, wall_minus_now_s)
    return {
        uid: SeenPod(sandboxes_newest_first([*found.values()]), newest_first(inside.get(uid, {}).values()))
        for uid, found in ours.items()
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


def orphan_spec(seen: SeenPod) -> PodSpec:
    """Enough to end it with its grace and its hooks. All but ephemeral containers count as mains, for lack of better
    knowledge."""
    sandbox = seen.sandboxes[0]
    by_name: dict[str, Instance] = {}
    for one in seen.instances:
        if not one.is_ephemeral:
            by_name.setdefault(one.name, one)
    graces = [int(text) for one in by_name.values() if (text := one.notes.get(GRACE, "")).isdecimal()]
    spec = PodFields(
        containers=tuple(orphan_container(one) for one in by_name.values()),
        restart_policy="Never",
        termination_grace_period_seconds=max(graces, default=PodFields().termination_grace_period_seconds),
        host_network=sandbox.is_host_network,
    )
    return PodSpec(
        namespace=sandbox.namespace, name=sandbox.name, uid=sandbox.uid, hash=sandbox.hash, spec=spec, file=sandbox.file
    )


def orphan_container(one: Instance) -> Container:
    lifecycle = None
    if one.notes.get(PRE_STOP):
        with suppress(msgspec.MsgspecError):
            lifecycle = Lifecycle(pre_stop=decode_json(one.notes[PRE_STOP], Hook))
    return Container(name=one.name, image=one.image, lifecycle=lifecycle)


def left_container(one: Instance) -> ContainerSpec:
    """What the manifest does not have, as it tells of itself: an ephemeral one, or one that counts as a main."""
    if not one.is_ephemeral:
        return ContainerSpec(ContainerKind.MAIN, orphan_container(one))
    fields = Container()
    with suppress(msgspec.MsgspecError):
        fields = decode_json(one.notes[EPHEMERAL], Container)
    return ContainerSpec(ContainerKind.EPHEMERAL, replace(fields, name=one.name, image=one.image))
