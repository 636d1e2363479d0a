# SPDX-License-Identifier: Apache-2.0
"""Since when a Deployment, DaemonSet or Job has been known: what Kubernetes calls its creation.

Its pods carry the time from one to the next, as they carry whose they are, so that it outlives kepd and each single
pod. What has no pods when kepd starts counts from there.
"""

from collections.abc import Collection, Iterable

from agent.pods.plan.record import Record
from agent.pods.workloads.workload import Key


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
