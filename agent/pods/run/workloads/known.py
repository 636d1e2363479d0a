# SPDX-License-Identifier: Apache-2.0
"""What is known of workloads beyond their manifests: their pods, since when, Jobs' records and former templates.

A record is on disk what it is here, for a change is taken over only once it is written.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from hashlib import sha256
from itertools import count
from typing import Generic, Protocol, TypeVar

import msgspec
import structlog

from agent.model.pods.pod import PodSpec
from agent.model.pods.state import RUNNING, TERMINATED, PodState
from agent.model.text.records import RecordFiles
from agent.pods.plan.remembered import Record
from agent.pods.run.one_pod.run_state import LivePod
from agent.pods.workloads.history import FOLDER as HISTORIES
from agent.pods.workloads.history import History, decode_history
from agent.pods.workloads.job import FOLDER as JOBS
from agent.pods.workloads.job import JobRecord, JobRules, decode_job_record
from agent.pods.workloads.job_rules import index_of
from agent.pods.workloads.rollout import ROLLING, OwnedPod, RolloutRules
from agent.pods.workloads.stateful import StatefulRules
from agent.pods.workloads.workload import Key, Workload, ordinal_of

log = structlog.get_logger(plane="pods")


class FirstSeen:
    def __init__(self) -> None:
        self._since_s: dict[Key, float] = {}

    def load(self, records: Iterable[Record]) -> None:
        """The earliest that a pod knows of; one that an earlier kepd made knows only its own time."""
        for record in records:
            owner = record.pod.owner
            since_s = owner.created_s or record.memory.first_seen_wall_s if owner is not None else 0.0
            if owner is not None and since_s:
                self._since_s[owner.key] = min(since_s, self._since_s.get(owner.key, since_s))

    def follow(self, known: Iterable[Key], kept: Collection[Key], wall_s: float) -> None:
        """`known` are in manifests now; `kept` have pods that are wanted although their file cannot be read."""
        now = {key: self._since_s.get(key, wall_s) for key in known}
        self._since_s = {key: since_s for key, since_s in self._since_s.items() if key in kept} | now

    def of(self, key: Key) -> float:
        """In wall time; 0 for what is not known."""
        return self._since_s.get(key, 0.0)


class OwnedEntry:
    """One pod. `ready_s` is since when it has been seen ready; `is_replaced`: another takes its place."""

    def __init__(self, pod: PodSpec, age: int) -> None:
        self.pod = pod
        self.age = age
        self.is_wanted = True
        self.is_replaced = False
        self.ready_s: float | None = None


def seen_pod(
    entry: OwnedEntry, workload: Workload, run: LivePod | None, state: PodState | None, now_s: float
) -> OwnedPod:
    pod, rules = entry.pod, workload.rules
    is_ready = state is not None and any(one.type == "Ready" and one.is_true for one in state.conditions)
    if not is_ready:
        entry.ready_s = None
    elif entry.ready_s is None:
        entry.ready_s = now_s
    outcome = run.memory.outcome if run is not None else None
    if outcome is not None and outcome.may_begin_anew and pod.spec.restart_policy != "Never":
        outcome = None
    last = state if outcome is not None else None
    min_ready_s = 0 if isinstance(rules, JobRules) else rules.min_ready_s
    return OwnedPod(
        uid=pod.uid,
        revision=pod.owner.revision if pod.owner is not None and not entry.is_replaced else "",
        age=entry.age,
        ordinal=ordinal_of(pod.name) if isinstance(rules, StatefulRules) else index_of(pod),
        is_up=state is not None and all(one.state == RUNNING for one in state.containers if one.kind == "main"),
        is_ready=is_ready,
        is_available=entry.ready_s is not None and now_s >= entry.ready_s + min_ready_s,
        is_ending=not entry.is_wanted or (run is not None and run.is_removed),
        phase=outcome.phase if outcome is not None else "",
        restarts=sum(one.restart_count for one in state.containers) if state is not None else 0,
        ends=tuple((one.name, one.exit_code) for one in last.containers if one.state == TERMINATED) if last else (),
        conditions=tuple(one.type for one in last.conditions if one.is_true) if last else (),
    )


def can_surge(workload: Workload) -> bool:
    rules = workload.rules
    return workload.kind == "Deployment" and isinstance(rules, RolloutRules) and (
        rules.strategy == ROLLING and not rules.is_paused
    )  # fmt: skip


class OwnedPods:
    def __init__(self) -> None:
        self._of: dict[Key, dict[str, OwnedEntry]] = {}
        self._ages = count()

    def add(self, pod: PodSpec) -> None:
        if pod.owner is not None:
            self._of.setdefault(pod.owner.key, {})[pod.uid] = OwnedEntry(pod, next(self._ages))

    def of(self, key: Key) -> dict[str, OwnedEntry]:
        return self._of.get(key, {})

    def entry(self, pod: PodSpec) -> OwnedEntry | None:
        return self.of(pod.owner.key).get(pod.uid) if pod.owner is not None else None

    def remove(self, pod: PodSpec) -> None:
        if pod.owner is None:
            return
        pods = self.of(pod.owner.key)
        pods.pop(pod.uid, None)
        if not pods:
            self._of.pop(pod.owner.key, None)

    def wanted(self) -> Iterator[PodSpec]:
        return (one.pod for pods in self._of.values() for one in pods.values() if one.is_wanted)

    def clear(self) -> None:
        self._of.clear()


class Kept(Protocol):
    @property
    def key(self) -> Key: ...

    @property
    def file(self) -> str:
        """Where its manifest was."""


R = TypeVar("R", bound=Kept)


class KeptRecords(Generic[R]):
    """Records of one sort, in a folder of their own. Those of several kinds have the kind in their names."""

    def __init__(
        self, files: RecordFiles, folder: str, decode: Callable[[bytes], R], *, of_kinds: bool = False
    ) -> None:
        self._files, self._folder, self._decode, self._of_kinds = files, folder, decode, of_kinds
        self._known: dict[Key, R] = {}

    def _name(self, key: Key) -> str:
        """Names of objects are longer than those of files."""
        words = "/".join(key if self._of_kinds else key[1:])
        return f"{self._folder}/{sha256(words.encode()).hexdigest()[:32]}.json"

    async def load(self) -> None:
        """One that cannot be read is left out: what it is about begins anew from the pods that are still there."""
        self._known.clear()
        try:
            found = await self._files.read_folder(self._folder)
        except OSError as error:
            log.warning("workload_records_unreadable", folder=self._folder, error=str(error))
            return
        for name, content in found.items():
            try:
                record = self._decode(content)
            except ValueError as error:
                log.warning("workload_record_unreadable", folder=self._folder, record=name, error=str(error))
                continue
            self._known[record.key] = record

    def of(self, key: Key) -> R | None:
        return self._known.get(key)

    def keys(self) -> Iterable[Key]:
        return tuple(self._known)

    def all(self) -> Iterable[R]:
        return tuple(self._known.values())

    async def keep(self, record: R) -> None:
        """Raises OSError."""
        if self._known.get(record.key) == record:
            return
        await self._files.write(self._name(record.key), msgspec.json.encode(record))
        self._known[record.key] = record

    async def forget(self, key: Key) -> None:
        """Raises OSError."""
        if key in self._known:
            await self._files.remove(self._name(key))
            del self._known[key]


def job_records(files: RecordFiles) -> KeptRecords[JobRecord]:
    return KeptRecords(files, JOBS, decode_job_record)


def histories(files: RecordFiles) -> KeptRecords[History]:
    return KeptRecords(files, HISTORIES, decode_history, of_kinds=True)


def record_of(jobs: KeptRecords[JobRecord], job: Workload) -> JobRecord:
    """With another template it is another run."""
    known = jobs.of(job.key)
    if known is not None and known.revision == job.revision:
        return known
    return JobRecord(namespace=job.namespace, name=job.name, revision=job.revision, file=job.file)


def history_of(kept: KeptRecords[History], one: Workload) -> History:
    return kept.of(one.key) or History(kind=one.kind, namespace=one.namespace, name=one.name, file=one.file)
