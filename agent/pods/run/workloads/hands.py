# SPDX-License-Identifier: Apache-2.0
"""Takes the steps of a plan: makes pods of a workload and ends them, and tells of both."""

from collections.abc import Iterable, Mapping
from typing import Protocol
from uuid import uuid4

import structlog

from agent.model.event import Event
from agent.model.finding import printable
from agent.model.pods.pod import PodSpec
from agent.model.pods.state import PodState
from agent.pods.admission.rules import admitted
from agent.pods.run.one_pod.keeper import PodWorker
from agent.pods.run.one_pod.run_state import LivePod
from agent.pods.run.pod_context import PodDependencies
from agent.pods.run.workloads.known import FirstSeen, OwnedEntry, OwnedPods, seen_pod
from agent.pods.workloads.history import History
from agent.pods.workloads.rollout import OwnedPod, Steps
from agent.pods.workloads.stateful import StatefulSteps
from agent.pods.workloads.workload import Workload

log = structlog.get_logger(plane="pods")


class PodHost(Protocol):
    """Who keeps pods. `begin` and `let_go` take effect at once; nobody waits for their end."""

    keepers: Mapping[str, PodWorker]

    def run_of(self, uid: str) -> LivePod | None: ...

    def state_of(self, pod: PodSpec) -> PodState | None: ...

    def is_taken(self, key: str) -> bool: ...

    def begin(self, pod: PodSpec) -> None: ...

    def let_go(self, pod: PodSpec) -> None: ...

    def is_unread(self, file: str) -> bool: ...


class Hands:
    def __init__(self, context: PodDependencies, host: PodHost, pods: OwnedPods, first_seen: FirstSeen) -> None:
        self._context, self._host, self._pods, self._first_seen = context, host, pods, first_seen

    def tell(self, workload: Workload, reason: str, message: str, *, is_warning: bool = False) -> None:
        self._context.tell(
            Event(
                is_warning=is_warning,
                reason=reason,
                message=printable(message),
                plane="pods",
                namespace=workload.namespace,
                object_name=workload.name,
                object_kind=workload.kind,
            )
        )

    def take(self, workload: Workload, steps: Steps) -> None:
        self._end(workload, steps.end)
        if steps.make:
            names = workload.names(lambda name: self._host.is_taken(f"{workload.namespace}/{name}"))
            for _ in range(steps.make):
                # Each has to be there before the next name is chosen.
                self._make(workload, next(names))
        if steps != Steps():
            log.info("workload_advanced", workload=workload.text, made=steps.make, ended=len(steps.end))

    def take_indexes(self, workload: Workload, indexes: Iterable[int], end: Iterable[str]) -> None:
        """Pods of a Job, each with its index."""
        self._end(workload, end)
        for index in indexes:
            name = workload.indexed_name(index, lambda name: self._host.is_taken(f"{workload.namespace}/{name}"))
            self._make(workload, name, index)

    def take_places(self, workload: Workload, history: History, steps: StatefulSteps) -> bool:
        """False: another pod has one of the names."""
        are_free = True
        self._end(workload, steps.end)
        for one in steps.make:
            name = f"{workload.name}-{one.ordinal}"
            if self._host.is_taken(f"{workload.namespace}/{name}"):
                text = f"pod {name} is not made: another pod has that name"
                self.tell(workload, "FailedCreate", text, is_warning=True)
                are_free = False
                continue
            known = history.of(one.revision)
            self._make(workload.at(known.hash, known.template) if known is not None else workload, name)
        if steps != StatefulSteps():
            log.info("workload_advanced", workload=workload.text, made=len(steps.make), ended=len(steps.end))
        return are_free

    def _end(self, workload: Workload, uids: Iterable[str]) -> None:
        pods = self._pods.of(workload.key)
        for uid in uids:
            entry = pods.get(uid)
            if entry is not None:
                entry.is_wanted = False
                self._host.let_go(entry.pod)
                self.tell(workload, "SuccessfulDelete", f"Deleted pod: {entry.pod.name}")

    def _make(self, workload: Workload, name: str, index: int | None = None) -> None:
        made = workload.pod(name, str(uuid4()), self._first_seen.of(workload.key), index)
        pod = admitted(made, self._context.rules())
        self._pods.add(pod)
        self._host.begin(pod)
        self.tell(workload, "SuccessfulCreate", f"Created pod: {pod.name}")

    def seen(self, entry: OwnedEntry, workload: Workload) -> OwnedPod:
        pod, now_s = entry.pod, self._context.clock.now_s()
        return seen_pod(entry, workload, self._host.run_of(pod.uid), self._host.state_of(pod), now_s)
