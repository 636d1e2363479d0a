# SPDX-License-Identifier: Apache-2.0
"""A pod as the runtime has it: sandboxes and containers, newest first. Times are on the monotonic clock."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from agent.pods.runtime.names import EPHEMERAL


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


class SeenPod(msgspec.Struct, frozen=True):
    sandboxes: tuple[SeenSandbox, ...] = ()
    instances: tuple[Instance, ...] = ()

    @property
    def active(self) -> SeenSandbox | None:
        newest = self.sandboxes[0] if self.sandboxes else None
        return newest if newest is not None and newest.is_ready else None

    def newest(self, name: str, sandbox_id: str = "") -> Instance | None:
        """The latest instance of a container, in one sandbox or in any."""
        return next((one for one in self.instances if one.name == name and sandbox_id in ("", one.sandbox_id)), None)

    def instance(self, instance_id: str) -> Instance | None:
        return next((one for one in self.instances if one.id == instance_id), None)

    @property
    def running(self) -> tuple[Instance, ...]:
        return tuple(one for one in self.instances if one.is_running)

    @property
    def ephemerals(self) -> tuple[Instance, ...]:
        """Oldest first."""
        return tuple(sorted((one for one in self.instances if one.is_ephemeral), key=lambda one: one.created_s))

    def next_attempt(self, name: str) -> int:
        """The attempt after the newest known."""
        return max((one.attempt for one in self.instances if one.name == name), default=-1) + 1


def newest_first(instances: Iterable[Instance]) -> tuple[Instance, ...]:
    return tuple(sorted(instances, key=lambda one: (-one.attempt, -one.created_s, one.id)))


def sandboxes_newest_first(sandboxes: Sequence[SeenSandbox]) -> tuple[SeenSandbox, ...]:
    return tuple(sorted(sandboxes, key=lambda one: (-one.attempt, -one.created_wall_s, one.id)))
