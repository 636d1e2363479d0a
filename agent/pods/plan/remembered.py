# SPDX-License-Identifier: Apache-2.0
"""What kepd remembers of a pod beyond what the runtime reports; written down, so that a restart forgets nothing.

Hooks that ran, probes' last words, back-off, problems, a stop under way, and how it all ended. Times are on the
monotonic clock; after a reboot they mean nothing any more, outcomes and counts do. Never: holds values of Secrets.
"""

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.model.finding import printable
from agent.model.pods.container_fields import Resources
from agent.model.pods.fields import HostPath
from agent.model.pods.pod import ContainerSpec, PodSpec
from agent.model.pods.state import ProbeWords
from agent.model.text.json_text import decode_record as decode_formatted
from agent.pods.plan.restart import BackOff, may_restart
from agent.pods.plan.stop_state import HookPhase, Stop, resumed
from agent.pods.runtime.environment import ClaimPlace
from agent.pods.runtime.observed import (
    Instance,
    Stage,
)
from agent.pods.runtime.pod_group import PodLimits

MOST_KEPT, MOST_PAST = 400, 50
# How a pod ended for which there was no place any more, for a while.
PASSING = ("Terminated", "Preempting")
# Why a container is ended for another to take its place: by request, or for other resources.
RENEWING = ("asked", "resize")
# What containerd says of a container whose process it never let run.
START_ERROR = "StartError"
FOLDER = "records"
FORMAT = 1
SHUTDOWN_REASON = "Terminated"
MOMENTS_KEPT = 200


class Failing(msgspec.Struct, frozen=True, kw_only=True):
    instance: str
    cause: str
    message: str
    grace_s: int | None = None


class ContainerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Of one container. `instance` is whose postStart, start and readiness are meant; `killed` was ended by us, and
    `renewed` so that another takes its place, whatever the policy says. The runtime answered that it
    could not start `refused`."""

    backoff: BackOff = msgspec.field(default_factory=BackOff)
    instance: str = ""
    post_start: HookPhase = HookPhase.NONE
    is_started: bool = False
    is_ready: bool = False
    killed: str = ""
    renewed: str = ""
    refused: str = ""
    failing: Failing | None = None
    # Kept over the end of its instance, which it may have caused.
    complaint: ProbeWords | None = None
    reason: str = ""
    message: str = ""
    pause_s: float = 0.0
    retry_s: float = 0.0
    # What the running instance may use; None where an older version made it.
    resources: Resources | None = None
    burst_us: int = 0
    # The checkpoint that it once began from: afterwards it begins as its manifest says.
    restored: str = ""

    def of(self, instance: str) -> "ContainerMemory":
        """For a certain instance; of another one nothing is known."""
        if self.instance == instance:
            return self
        return replace(
            self, instance=instance, post_start=HookPhase.NONE, is_started=False, is_ready=False, failing=None
        )

    def has_done_its_work(self, ended: Instance) -> bool:
        """Whatever the code is with which one obeys its signal."""
        return ended.has_succeeded and self.renewed != ended.id

    def has_lost_its_start(self, ended: Instance) -> bool:
        """Its call was broken off by the end of a kepd or of the runtime, which ended what had begun."""
        return ended.stage is Stage.ENDED and ended.reason == START_ERROR and ended.id != self.refused

    def may_restart(self, pod: PodSpec, container: ContainerSpec, ended: Instance) -> bool:
        return self.renewed == ended.id or may_restart(pod, container, ended, is_killed=self.killed == ended.id)


class PodOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a pod ended for good; it is not run again."""

    phase: str
    reason: str = ""
    message: str = ""

    @property
    def may_begin_anew(self) -> bool:
        """The node ended it, and takes it again later where its policy allows."""
        return self.reason in PASSING


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Of one pod. `passed` are the init containers that are done, and the others that were started, in `sandbox`.

    `stop` is of the whole pod; `ending_as` is known where the reason for it says how the pod will
    have ended; `ends` are of single containers, by their names.
    """

    first_seen_s: float = 0.0
    first_seen_wall_s: float = 0.0
    containers: Mapping[str, ContainerMemory] = msgspec.field(default_factory=dict)
    sandbox: str = ""
    passed: frozenset[str] = frozenset()
    is_initialised: bool = False
    stop: Stop | None = None
    stop_cause: str = ""
    ending_as: PodOutcome | None = None
    ends: Mapping[str, Stop] = msgspec.field(default_factory=dict)
    outcome: PodOutcome | None = None
    # What the pod as a whole may use, and its group has; None where an older version made it.
    resources: Resources | None = None
    group: PodLimits | None = None
    reason: str = ""
    message: str = ""
    pause_s: float = 0.0
    retry_s: float = 0.0
    # When it ended for want of something, by the clock that only runs; the last few.
    evictions: tuple[float, ...] = ()

    def of(self, name: str) -> ContainerMemory:
        return self.containers.get(name) or ContainerMemory()

    def changed(self, name: str, change: Callable[[ContainerMemory], ContainerMemory]) -> "Memory":
        return replace(self, containers={**self.containers, name: change(self.of(name))})

    @property
    def is_leaving(self) -> bool:
        """Whether its end has begun after which nothing is left of it."""
        return self.stop is not None and self.stop_cause not in ("completed", "sandbox") and self.ending_as is None

    def stop_of(self, key: str) -> Stop | None:
        """Of the pod (empty key), or of one container."""
        return self.ends.get(key) if key else self.stop

    def with_stop(self, key: str, stop: Stop | None) -> "Memory":
        if not key:
            return replace(self, stop=stop)
        ends = {name: one for name, one in self.ends.items() if name != key}
        return replace(self, ends={**ends, key: stop} if stop is not None else ends)

    def in_sandbox(self, sandbox: str) -> "Memory":
        """In a new sandbox everything begins again."""
        if self.sandbox == sandbox:
            return self
        return replace(self, sandbox=sandbox, passed=frozenset(), is_initialised=False)


def begun_anew(memory: Memory, renewed: Mapping[str, str]) -> Memory:
    """Nothing runs any more; what was counted stays counted. `renewed` are the last instances, which start again."""
    containers = {
        name: ContainerMemory(
            backoff=replace(memory.of(name).backoff, tried_s=0.0, moments_s=()), renewed=renewed.get(name, "")
        )
        for name in memory.containers.keys() | renewed.keys()
    }
    return Memory(
        first_seen_s=memory.first_seen_s,
        first_seen_wall_s=memory.first_seen_wall_s,
        containers=containers,
        evictions=memory.evictions,
    )


def without_outdated(memory: Memory, before: PodSpec, after: PodSpec) -> Memory:
    """A container with another image or other resources is another one, which has not failed yet."""
    for one in after.containers:
        known = before.by_name.get(one.name)
        is_other = known is not None and (known.image, known.fields.resources) != (one.image, one.fields.resources)
        if is_other and one.name in memory.containers:
            memory = memory.changed(one.name, lambda old: replace(old, backoff=BackOff()))
    return memory


def resumed_memory(memory: Memory) -> Memory:
    """Hooks that ran when kepd, or the pod's keeper, died are not run again. The container of a
    postStart that was cut off is neither started nor ready yet."""
    containers = {
        name: replace(one, post_start=HookPhase.CANCELLED) if one.post_start is HookPhase.RUNNING else one
        for name, one in memory.containers.items()
    }
    stop = resumed(memory.stop) if memory.stop is not None else None
    ends = {name: resumed(one) for name, one in memory.ends.items()}
    return replace(memory, containers=containers, stop=stop, ends=ends)


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One thing. `at_s` is wall time; `container` is empty for what concerns the pod."""

    at_s: float
    kind: str
    container: str = ""
    text: str = ""
    seconds: float = 0.0


class History:
    def __init__(self, moments: Iterable[Moment] = ()) -> None:
        self._moments: deque[Moment] = deque(moments, MOST_KEPT)

    def add(self, moment: Moment) -> None:
        self._moments.append(moment)

    @property
    def moments(self) -> tuple[Moment, ...]:
        return tuple(self._moments)


class PastPods(OrderedDict[str, tuple[tuple[Moment, ...], tuple[str, ...]]]):
    """What happened to the last pods that are gone, and their containers, by key."""

    def add(self, key: str, moments: tuple[Moment, ...], containers: Iterable[str]) -> None:
        self[key] = (moments, tuple(containers))
        self.move_to_end(key)
        while len(self) > MOST_PAST:
            self.popitem(last=False)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    pod: PodSpec
    memory: Memory = msgspec.field(default_factory=Memory)
    moments: tuple[Moment, ...] = ()
    boot_id: str = ""
    format: int = FORMAT


def record_name(uid: str) -> str:
    return f"{FOLDER}/{uid}.json"


def encode_record(
    pod: PodSpec, memory: Memory, moments: Sequence[Moment], boot_id: str, claims: Mapping[str, ClaimPlace] = {}
) -> bytes:
    """`claims` say where those of the pod are."""
    pod = _with_paths(pod, {name: place.path for name, place in claims.items()})
    # Names that are no UTF-8 have no place in JSON; whoever compares files makes them printable first.
    pod = dataclasses.replace(pod, file=printable(pod.file), source=printable(pod.source))
    record = Record(pod=pod, memory=memory, moments=tuple(moments[-MOMENTS_KEPT:]), boot_id=boot_id)
    return msgspec.json.encode(record)


def decode_record(content: bytes, boot_id: str, now_s: float, wall_s: float) -> Record:
    """From the disk, as it stands now. Raises ValueError for what cannot be read."""
    record = decode_formatted(content, Record, FORMAT)
    record = msgspec.structs.replace(record, pod=_with_paths(record.pod, {}))
    is_same_boot = bool(boot_id) and record.boot_id == boot_id
    memory = resumed_memory(record.memory) if is_same_boot else _after_reboot(record, now_s, wall_s)
    # Those of another boot are over; kepd 0.9 wrote them by the wall, which is far ahead of this clock.
    evictions = tuple(evicted_s for evicted_s in memory.evictions if is_same_boot and evicted_s <= now_s)
    memory = msgspec.structs.replace(memory, evictions=evictions)
    return msgspec.structs.replace(record, memory=memory)


def _with_paths(pod: PodSpec, paths: Mapping[str, str]) -> PodSpec:
    """A kepd that knows no claims takes their volumes for what they are besides, which is none without a path, and so
    for empty ones."""
    claims = {one.name: one.persistent_volume_claim for one in pod.spec.volumes if one.persistent_volume_claim}
    if not claims:
        return pod
    known = {name: HostPath(path=paths[one.claim_name]) for name, one in claims.items() if paths.get(one.claim_name)}
    volumes = (replace(one, host_path=known.get(one.name)) if one.name in claims else one for one in pod.spec.volumes)
    return dataclasses.replace(pod, spec=replace(pod.spec, volumes=tuple(volumes)))


def _after_reboot(record: Record, now_s: float, wall_s: float) -> Memory:
    """Nothing runs; what was counted stays counted. A pod that ended because the node went down is wanted
    again, unless its policy is to run once."""
    memory = record.memory
    is_over = memory.outcome is not None and (
        memory.outcome.reason != SHUTDOWN_REASON or record.pod.spec.restart_policy == "Never"
    )
    return msgspec.structs.replace(
        begun_anew(memory, {}),
        first_seen_s=now_s - max(wall_s - memory.first_seen_wall_s, 0.0),
        outcome=memory.outcome if is_over else None,
    )


def without_problem(known: ContainerMemory) -> ContainerMemory:
    return replace(known, reason="", message="", pause_s=0.0, retry_s=0.0)


def resumed_by(record: Record, pod: PodSpec, now_s: float, wall_s: float) -> Memory:
    """Of a pod that is kept from now on, as its record has it; its manifest may be another by now."""
    memory = without_outdated(record.memory, record.pod, pod)
    if memory.first_seen_wall_s:
        return memory
    return replace(memory, first_seen_s=now_s, first_seen_wall_s=wall_s)
