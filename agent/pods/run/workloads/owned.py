# SPDX-License-Identifier: Apache-2.0
"""The pods that were made for Deployments, DaemonSets and Jobs: those that are wanted, and those that still end."""

from collections.abc import Iterator
from itertools import count

from agent.model.pods.pod import PodSpec
from agent.pods.workloads.workload import Key


class OwnedEntry:
    """One pod. `ready_s` is since when it has been seen ready."""

    def __init__(self, pod: PodSpec, age: int) -> None:
        self.pod = pod
        self.age = age
        self.is_wanted = True
        self.ready_s: float | None = None


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
