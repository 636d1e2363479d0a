# SPDX-License-Identifier: Apache-2.0
"""How often containers were killed for want of memory, whoever saw it.

The kernel's counter goes with the group, the runtime tells of some kills only, and kepd may be down at any of them. So
an instance has the largest of what three sources say, and a container has its instances' together. Invariant: a count
never falls, and reading a source again changes nothing.
"""

from collections.abc import Container, Iterable, Mapping

import msgspec

from agent.model.text.json_text import decode_json
from agent.observe.kernel.group_text import GroupFigures

CONTAINER, POD, NODE, UNKNOWN = "container", "pod", "node", "unknown"
LEAST_AVAILABLE = 0.05
MOST_PAST = 8


class OomKill(msgspec.Struct, frozen=True, kw_only=True):
    """New kills of one instance, for an event."""

    instance: str
    scope: str
    count: int


class InstanceOoms(msgspec.Struct, kw_only=True):
    """Of one instance. `read` is the highest counter. `is_told`: the runtime had an event of it, or its end has that
    reason; both say that there was a kill, and some runtimes tell of one twice, so they count once."""

    read: int = 0
    is_told: bool = False
    scopes: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def count(self) -> int:
        return max(self.read, int(self.is_told))

    def settle(self, instance: str, scope: str) -> OomKill | None:
        """What is new since the last time, and counts for this scope."""
        new = self.count - sum(self.scopes.values())
        if new <= 0:
            return None
        self.scopes[scope] = self.scopes.get(scope, 0) + new
        return OomKill(instance=instance, scope=scope, count=new)


class ContainerOoms(msgspec.Struct, kw_only=True):
    """Of one container over its life; what counted of instances that are forgotten is in `past`. The last of these are
    known by their ids, for their ends are still heard of while the container waits for its next start."""

    past: dict[str, int] = msgspec.field(default_factory=dict)
    past_ids: list[str] = msgspec.field(default_factory=list)
    instances: dict[str, InstanceOoms] = msgspec.field(default_factory=dict)

    @property
    def totals(self) -> dict[str, int]:
        found = dict(self.past)
        for one in self.instances.values():
            for scope, count in one.scopes.items():
                found[scope] = found.get(scope, 0) + count
        return found or {CONTAINER: 0}

    def forget(self, keep: Container[str]) -> None:
        """Instances that are gone. Their counts stay."""
        for instance in [one for one in self.instances if one not in keep]:
            for scope, count in self.instances.pop(instance).scopes.items():
                self.past[scope] = self.past.get(scope, 0) + count
            self.past_ids = [*self.past_ids, instance][-MOST_PAST:]


class PodOoms(msgspec.Struct, kw_only=True):
    """The record of a pod."""

    namespace: str
    name: str
    uid: str
    containers: dict[str, ContainerOoms] = msgspec.field(default_factory=dict)

    def instance(self, container: str, instance: str) -> InstanceOoms:
        known = self.containers.setdefault(container, ContainerOoms())
        return known.instances.setdefault(instance, InstanceOoms())

    def is_past(self, container: str, instance: str) -> bool:
        """Whether it was counted and forgotten."""
        return container in self.containers and instance in self.containers[container].past_ids

    @property
    def has_any(self) -> bool:
        return any(sum(one.totals.values()) for one in self.containers.values())


class NodeKills(msgspec.Struct):
    """Kills outside of pods; `before` are those of the time before kepd looked."""

    before: int
    count: int = 0

    def look(self, killed: int, explained: int) -> int:
        """How many are new. A container's counter may be read a moment before the node's, so the count never falls."""
        new = max(killed - self.before - explained - self.count, 0)
        self.count += new
        return new


def kills_of(figures: GroupFigures) -> int | None:
    """A group that the kernel killed as a whole is one event, whatever lived in it."""
    if figures.group_kills:
        return figures.group_kills
    return figures.oom_kills


def scope_of(
    before: GroupFigures, after: GroupFigures, pod: tuple[GroupFigures, GroupFigures], available_share: float | None
) -> str:
    """Whose limit was met. `pod` are figures of the pod's group, before and after."""
    pod_before, pod_after = pod
    if after.limits.memory and after.limits.memory == pod_after.limits.memory:
        # The pod's limit is that of its only container. Its sandbox uses some of it, so the pod's is met first.
        return CONTAINER
    if after.own_ooms is not None or pod_after.own_ooms is not None:
        if _rose(pod_before.own_ooms, pod_after.own_ooms):
            return POD
        return CONTAINER if _rose(before.own_ooms, after.own_ooms) else _node(available_share)
    if after.limits.memory and _rose(before.failures, after.failures):
        return CONTAINER
    if pod_after.limits.memory and _rose(pod_before.failures, pod_after.failures):
        return POD
    return _node(available_share)


def scope_of_one(before: GroupFigures, after: GroupFigures, of_pod: int | None) -> str:
    """Where a container alone was looked at, and of its pod only the limit is known."""
    is_own = (
        _rose(before.own_ooms, after.own_ooms) if after.own_ooms is not None else _rose(before.failures, after.failures)
    )
    return scope_by_limits(after) if is_own or not of_pod or after.limits.memory == of_pod else POD


def scope_by_limits(figures: GroupFigures) -> str:
    """Where only the runtime spoke, and the group is gone with its counters."""
    return CONTAINER if figures.limits.memory else UNKNOWN


def _node(available_share: float | None) -> str:
    return NODE if available_share is not None and available_share < LEAST_AVAILABLE else UNKNOWN


def _rose(before: int | None, after: int | None) -> bool:
    return after is not None and after > (before or 0)


def encode_ooms(pod: PodOoms) -> bytes:
    return msgspec.json.encode(pod)


def decode_ooms(content: bytes) -> PodOoms:
    """Raises ValueError where it is none of ours."""
    return decode_json(content, PodOoms)


def family_rows(pods: Mapping[str, PodOoms]) -> Iterable[tuple[tuple[str, str, str, str], int]]:
    """Namespace, pod, container and scope, with the count."""
    for pod in pods.values():
        for container, ooms in pod.containers.items():
            for scope, count in ooms.totals.items():
                yield (pod.namespace, pod.name, container, scope), count
