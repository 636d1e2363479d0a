# SPDX-License-Identifier: Apache-2.0
"""A pod as it is, for those who look: phase, conditions, address, containers, and the column STATUS."""

import msgspec

from agent.model.pods.container_fields import Resources
from agent.model.pods.fields import PodFields
from agent.model.pods.pod import NOTHING_GIVEN, GivenMetadata, PodOwner

WAITING = "Waiting"
RUNNING = "Running"
TERMINATED = "Terminated"


class Termination(msgspec.Struct, frozen=True, kw_only=True):
    """How an instance ended. Times are wall time."""

    exit_code: int
    reason: str
    message: str = ""
    started_at_s: float = 0.0
    finished_at_s: float = 0.0
    id: str = ""
    last_line: str = ""


class ProbeWords(msgspec.Struct, frozen=True):
    """What a probe or a hook last said against an instance."""

    instance: str
    kind: str
    text: str


class AllocatedDevice(msgspec.Struct, frozen=True):
    """One that a container has. `resource` is `claim:NAME`, `claim:NAME/REQUEST` or that of a plugin; `health` is
    Healthy, Unhealthy or Unknown."""

    resource: str
    id: str
    health: str


class ClaimOfPodState(msgspec.Struct, frozen=True):
    """A claim made for the pod from a template, and what the pod calls it."""

    name: str
    claim: str


class ContainerState(msgspec.Struct, frozen=True, kw_only=True):
    """One container. `kind` is main, sidecar, init or ephemeral; `last` is how the instance before this state ended."""

    name: str
    image: str
    kind: str = "main"
    id: str = ""
    state: str = WAITING
    reason: str = ""
    message: str = ""
    exit_code: int = 0
    started_at_s: float = 0.0
    finished_at_s: float = 0.0
    restart_count: int = 0
    is_ready: bool = False
    is_started: bool = False
    image_id: str = ""
    stop_signal: str = ""
    last: Termination | None = None
    last_line: str = ""
    """Of its log, if it has ended with a fault."""
    complaint: ProbeWords | None = None
    resources: Resources = Resources()
    devices: tuple[AllocatedDevice, ...] = ()

    @property
    def end(self) -> Termination:
        """Of one that has ended."""
        return Termination(
            exit_code=self.exit_code, reason=self.reason, message=self.message, started_at_s=self.started_at_s,
            finished_at_s=self.finished_at_s, id=self.id, last_line=self.last_line,
        )  # fmt: skip


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    is_true: bool
    reason: str = ""
    message: str = ""
    since_s: float = 0.0


class VolumeState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a volume comes from, and where containers see it, as people are told."""

    name: str
    source: str
    mounts: tuple[str, ...] = ()


class NamedPort(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    port: int


class PodState(msgspec.Struct, frozen=True, kw_only=True):
    """One pod. `waits_for` says in a line what it waits for."""

    namespace: str
    name: str
    uid: str
    phase: str
    reason: str = ""
    message: str = ""
    cause: str = ""
    """Why it is not as it should be, with its own words, in one line; empty for one that is well."""
    missing_secrets: tuple[str, ...] = ()
    """Pull secrets that it names and no manifest has."""
    problem: str = ""
    """The word for what is wrong with the pod as a whole, such as FailedMount."""
    waits_for: str = ""
    ip: str = ""
    host_ips: tuple[str, ...] = ()
    name_servers: str = ""
    """Of the resolver file that its sandbox was made with; a running pod keeps it."""
    sandbox_id: str = ""
    created_at_s: float = 0.0
    is_terminating: bool = False
    deletion_at_s: float = 0.0
    """As wall time, when the grace of its removal is over; 0 for a pod that is not removed."""
    deletion_grace_s: int = 0
    qos: str = ""
    file: str = ""
    conditions: tuple[Condition, ...] = ()
    containers: tuple[ContainerState, ...] = ()
    resources: Resources = Resources()
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    spec: PodFields = PodFields()
    manifest_name: str = ""
    owner: PodOwner | None = None
    given: GivenMetadata = NOTHING_GIVEN
    volumes: tuple[VolumeState, ...] = ()
    ports: tuple[NamedPort, ...] = ()
    resource_claims: tuple[ClaimOfPodState, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def status(self) -> str:
        if self.is_terminating:
            return "Terminating"
        if self.reason:
            return self.reason
        return self._init_status() or self._main_status() or self.phase

    def _init_status(self) -> str:
        if self.phase not in ("Pending", "Failed") or any(
            one.type == "Initialized" and one.is_true for one in self.conditions
        ):
            return ""
        entries = [one for one in self.containers if one.kind in ("init", "sidecar")]
        for place, one in enumerate(entries):
            is_done = one.is_started if one.kind == "sidecar" else one.state == TERMINATED and one.exit_code == 0
            if is_done:
                continue
            if one.state == TERMINATED:
                return f"Init:{one.reason}" if one.reason else f"Init:ExitCode:{one.exit_code}"
            if one.state == WAITING and one.reason not in ("", "PodInitializing", "ContainerCreating"):
                return f"Init:{one.reason}"
            return f"Init:{place}/{len(entries)}"
        return ""

    def _main_status(self) -> str:
        """The first main that says more than that it runs, as kubectl has it."""
        mains = [one for one in self.containers if one.kind == "main"]
        words = [one.reason for one in mains if one.state in (WAITING, TERMINATED) and one.reason]
        if words and words[0] == "Completed" and any(one.state == RUNNING and one.is_ready for one in mains):
            is_ready = any(one.type == "Ready" and one.is_true for one in self.conditions)
            return "Running" if is_ready else "NotReady"
        return words[0] if words else ""


def with_since(state: PodState, before: PodState | None, now_s: float) -> PodState:
    """A condition that was as it is keeps its time, and so does an end with the same grace."""
    if before is None:
        before = msgspec.structs.replace(state, conditions=())
    known = {(one.type, one.is_true): one.since_s for one in before.conditions}
    conditions = [
        msgspec.structs.replace(one, since_s=known.get((one.type, one.is_true)) or now_s) for one in state.conditions
    ]
    is_same_end = before.deletion_at_s and before.deletion_grace_s == state.deletion_grace_s
    until_s = before.deletion_at_s if is_same_end else state.deletion_at_s
    return msgspec.structs.replace(state, conditions=tuple(conditions), deletion_at_s=until_s)
