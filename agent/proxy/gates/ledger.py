# SPDX-License-Identifier: Apache-2.0
"""What is known of pods that asked for something: sandboxes, their containers, what happened to them.

Changed by the judge as calls and events go by, and rebuilt from the runtime's lists after a start. Pods without
annotations are not in it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum

import msgspec

from agent.proxy.gates.annotations import ProxyAnnotations, read_annotations
from agent.wire.cri import runtime_v1_pb2 as pb

GRACE = "io.kubernetes.pod.terminationGracePeriod"
PRE_STOP = "io.kubernetes.container.preStopHandler"
# A kubelet sends whole ids; people abbreviate them, and the runtime understands that.
WHOLE_ID = 64


class LedgerState(StrEnum):
    """As far as the proxy cares."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


class LedgerContainer(msgspec.Struct):
    id: str
    name: str
    attempt: int
    state: LedgerState
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    exit_code: int | None = None
    is_ready: bool = False
    """What `ready.NAME` asks for was seen."""
    asked_s: float | None = None
    """When the call came that made it, if this process saw it."""

    @property
    def is_running(self) -> bool:
        return self.state is LedgerState.RUNNING


class Sandbox(msgspec.Struct):
    id: str
    uid: str
    namespace: str
    name: str
    annotated: ProxyAnnotations
    made_s: float
    containers: dict[str, LedgerContainer] = msgspec.field(default_factory=dict)
    has_started_main: bool = False
    is_ending: bool = False
    stops_s: dict[str, float] = msgspec.field(default_factory=dict)
    """When StopContainer came for which container."""
    hooks_s: dict[str, float] = msgspec.field(default_factory=dict)
    """When a preStop hook was seen to begin in which container."""
    evidence_s: float | None = None
    """Since when a kill of the pod is known."""
    has_ended_sidecars: bool = False
    turns_s: dict[str, float] = msgspec.field(default_factory=dict)
    """When the turn of a sidecar that is to stop came."""
    told: set[str] = msgspec.field(default_factory=set)

    def current(self, name: str) -> LedgerContainer | None:
        """The container of that name that counts: the highest attempt."""
        found = [one for one in self.containers.values() if one.name == name]
        return max(found, key=lambda one: one.attempt) if found else None

    def running(self) -> list[LedgerContainer]:
        return [one for one in self.containers.values() if one.is_running]

    def running_mains(self) -> list[LedgerContainer]:
        """By annotation; without one, whatever is no sidecar."""
        annotated = self.annotated
        if annotated.mains:
            return [one for one in self.running() if one.name in annotated.mains]
        return [one for one in self.running() if one.name not in annotated.sidecars]


class PodLedger:
    """All sandboxes of pods with annotations of ours, by id, and whose container is whose."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, Sandbox] = {}
        self._homes: dict[str, str] = {}
        self._of_pods: dict[str, set[str]] = {}
        self._looks: list[set[str]] = []

    @contextmanager
    def look(self) -> Iterator[Collection[str]]:
        """While the runtime's lists are read. Gives the ids that change meanwhile: the lists are older than those."""
        newer: set[str] = set()
        self._looks.append(newer)
        try:
            yield newer
        finally:
            self._looks.remove(newer)

    def _changed(self, one_id: str) -> None:
        for newer in self._looks:
            newer.add(one_id)

    def note(self, container: LedgerContainer, state: LedgerState) -> None:
        """What a call or an event says about a container."""
        container.state = state
        self._changed(container.id)

    def __len__(self) -> int:
        return len(self.sandboxes)

    def put(self, sandbox: Sandbox) -> None:
        self.sandboxes[sandbox.id] = sandbox
        self._changed(sandbox.id)
        self._of_pods.setdefault(sandbox.uid, set()).add(sandbox.id)
        for container_id in sandbox.containers:
            self._homes[container_id] = sandbox.id

    def add(self, sandbox: Sandbox, container: LedgerContainer) -> None:
        sandbox.containers[container.id] = container
        self._homes[container.id] = sandbox.id
        self._changed(container.id)

    def find(self, container_id: str) -> tuple[Sandbox, LedgerContainer] | None:
        """A container by its id, or by a beginning of it that only one has."""
        home = self._homes.get(container_id)
        if home is None:
            if not 0 < len(container_id) < WHOLE_ID:
                return None
            matches = [one for one in self._homes if one.startswith(container_id)]
            if len(matches) != 1:
                return None
            container_id, home = matches[0], self._homes[matches[0]]
        sandbox = self.sandboxes[home]
        return sandbox, sandbox.containers[container_id]

    def remove_container(self, container_id: str) -> None:
        found = self.find(container_id)
        self._changed(container_id if found is None else found[1].id)
        if found is not None:
            sandbox, container = found
            del sandbox.containers[container.id]
            del self._homes[container.id]
            sandbox.stops_s.pop(container.id, None)
            sandbox.hooks_s.pop(container.id, None)

    def remove_sandbox(self, sandbox_id: str) -> Sandbox | None:
        self._changed(sandbox_id)
        sandbox = self.sandboxes.pop(sandbox_id, None)
        if sandbox is not None:
            others = self._of_pods[sandbox.uid]
            others.discard(sandbox_id)
            if not others:
                del self._of_pods[sandbox.uid]
            for container_id in sandbox.containers:
                self._homes.pop(container_id, None)
        return sandbox

    def of_pod(self, uid: str) -> list[Sandbox]:
        return [self.sandboxes[one] for one in self._of_pods.get(uid, ())]

    def containers(self) -> Iterator[tuple[Sandbox, LedgerContainer]]:
        for sandbox in self.sandboxes.values():
            for container in sandbox.containers.values():
                yield sandbox, container


NANO = 1e-9
STATES = {
    pb.CONTAINER_CREATED: LedgerState.CREATED,
    pb.CONTAINER_RUNNING: LedgerState.RUNNING,
    pb.CONTAINER_EXITED: LedgerState.EXITED,
    pb.CONTAINER_UNKNOWN: LedgerState.EXITED,
}


def rebuild(
    ledger: PodLedger,
    sandboxes: Sequence[pb.PodSandbox],
    containers: Sequence[pb.Container],
    epoch_s: float,
    newer: Collection[str] = (),
) -> None:
    """Fill a ledger at a start. `epoch_s` is the wall time of monotonic zero, `newer` is of `Ledger.look`."""
    for one in sandboxes:
        annotated = read_annotations(one.annotations)
        if annotated.is_empty or one.id in newer or one.id in ledger.sandboxes:
            continue
        meta = one.metadata
        made_s = one.created_at * NANO - epoch_s
        sandbox = Sandbox(one.id, meta.uid, meta.namespace, meta.name, annotated, made_s)
        sandbox.is_ending = one.state != pb.SANDBOX_READY
        ledger.put(sandbox)
    merge(ledger, containers, newer)


def drop_absent(ledger: PodLedger, sandboxes: Sequence[pb.PodSandbox], newer: Collection[str] = ()) -> None:
    present = {one.id for one in sandboxes}
    for sandbox_id in [one for one in ledger.sandboxes if one not in present and one not in newer]:
        ledger.remove_sandbox(sandbox_id)


def merge(ledger: PodLedger, containers: Sequence[pb.Container], newer: Collection[str] = ()) -> list[str]:
    """Bring a ledger up to date with a list, but for what is `newer` than it; answers with the changed sandboxes."""
    changed = set()
    present = {one.id for one in containers}
    for sandbox, known in list(ledger.containers()):
        if known.id not in present and known.id not in newer:
            ledger.remove_container(known.id)
            changed.add(sandbox.id)
    for one in containers:
        home = ledger.sandboxes.get(one.pod_sandbox_id)
        if home is None or one.id in newer:
            continue
        state = STATES.get(one.state, LedgerState.EXITED)
        container = home.containers.get(one.id)
        if container is None:
            container = LedgerContainer(one.id, one.metadata.name, one.metadata.attempt, state, dict(one.annotations))
            ledger.add(home, container)
            changed.add(home.id)
        elif container.state is not state:
            ledger.note(container, state)
            changed.add(home.id)
        if state is not LedgerState.CREATED and container.name in home.annotated.mains:
            home.has_started_main = True
    return sorted(changed)
