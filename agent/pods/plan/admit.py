# SPDX-License-Identifier: Apache-2.0
"""Whether the node has room for a pod: ports of the node, CPU, memory, and the number of pods.

The reasons are a kubelet's. There a pod that is refused has failed; a pod from a file waits until there is room. What
a pod has already it keeps: only what it asks for beyond that can be refused, so that a node that became smaller ends
nothing. Whom a critical pod displaces, `preempt` says. Pure.
"""

import msgspec

from agent.model.pods.pod import ContainerKind, PodSpec
from agent.pods.runtime.qos import pod_needs
from agent.pods.runtime.volume_plan import written_paths

EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - what a port without an address means
PREFIX = "Pod was rejected: "
PORTS = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"


class HostPort(msgspec.Struct, frozen=True, order=True):
    protocol: str
    port: int
    address: str = EVERY_ADDRESS

    @property
    def key(self) -> tuple[str, int]:
        return self.protocol, self.port

    def __str__(self) -> str:
        at = "" if self.address == EVERY_ADDRESS else f" on {self.address}"
        return f"{self.protocol} {self.port}{at}"


class AskedResources(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod takes of the node: CPU in thousandths, memory in bytes."""

    milli_cpus: int = 0
    memory_bytes: int = 0
    ports: frozenset[HostPort] = frozenset()
    written: frozenset[str] = frozenset()
    """Paths of the node that it may change."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What the node has for pods."""

    milli_cpus: int
    memory_bytes: int
    pods: int


class Refusal(msgspec.Struct, frozen=True):
    reason: str
    message: str


NOTHING = AskedResources()


def asked_by(pod: PodSpec) -> AskedResources:
    """Requests as Kubernetes sums them; in the node's own network every port is the node's."""
    needs = pod_needs(pod)
    listed = [port for one in pod.containers if one.kind is not ContainerKind.INIT for port in one.fields.ports]
    ports = {
        HostPort(port.protocol, number, port.host_ip or EVERY_ADDRESS)
        for port in listed
        if (number := port.container_port if pod.spec.host_network else port.host_port)
    }
    return AskedResources(
        milli_cpus=needs.cpu_request,
        memory_bytes=needs.memory_request,
        ports=frozenset(ports),
        written=written_paths(pod),
    )


class Places:
    """What the pods of the node have, with its sums, so that no change walks over all pods. Changed by the runner, and
    by a resize that is granted."""

    def __init__(self) -> None:
        self._asked: dict[str, AskedResources] = {}
        self._holders: dict[tuple[str, int], dict[str, str]] = {}
        self.milli_cpus = self.memory_bytes = 0

    def __len__(self) -> int:
        return len(self._asked)

    def __contains__(self, uid: str) -> bool:
        return uid in self._asked

    def of(self, uid: str) -> AskedResources:
        return self._asked.get(uid, NOTHING)

    def take(self, pod: PodSpec) -> None:
        """The pod has what it asks for, instead of what it had."""
        self.release(pod.uid)
        asked = self._asked[pod.uid] = asked_by(pod)
        self.milli_cpus += asked.milli_cpus
        self.memory_bytes += asked.memory_bytes
        for port in asked.ports:
            self._holders.setdefault(port.key, {})[pod.uid] = pod.key

    def release(self, uid: str) -> bool:
        """Whether it had anything."""
        asked = self._asked.pop(uid, None)
        if asked is None:
            return False
        self.milli_cpus -= asked.milli_cpus
        self.memory_bytes -= asked.memory_bytes
        for key in {port.key for port in asked.ports}:
            del self._holders[key][uid]
            if not self._holders[key]:
                del self._holders[key]
        return True

    def clear(self) -> None:
        for uid in list(self._asked):
            self.release(uid)

    @property
    def written(self) -> frozenset[str]:
        """Of all of them; threads ask for it, too."""
        return frozenset().union(*[one.written for one in list(self._asked.values())])

    def holder(self, port: HostPort, uid: str) -> str:
        """Another pod that has this port at an address which overlaps, by its key."""
        for other, key in self._holders.get(port.key, {}).items():
            taken = {one.address for one in self._asked[other].ports if one.key == port.key}
            if other != uid and (port.address == EVERY_ADDRESS or taken & {port.address, EVERY_ADDRESS}):
                return key
        return ""


def why_refused(pod: PodSpec, had_by: str, places: Places, capacity: Capacity) -> Refusal | None:
    """None where there is room. `had_by` is the uid whose place it gets: its own, or that of its predecessor."""
    asked, had = asked_by(pod), places.of(had_by)
    wanted = (
        ("OutOfpods", 1, int(had_by in places), len(places), capacity.pods),
        ("OutOfcpu", asked.milli_cpus, had.milli_cpus, places.milli_cpus, capacity.milli_cpus),
        ("OutOfmemory", asked.memory_bytes, had.memory_bytes, places.memory_bytes, capacity.memory_bytes),
    )
    for reason, requested, kept, total, room in wanted:
        used = total - kept
        if requested > kept and used + requested > room:
            text = f"Node didn't have enough resource: {reason.removeprefix('OutOf')}, requested: {requested}"
            return Refusal(reason, f"{PREFIX}{text}, used: {used}, capacity: {room}")
    for port in sorted(asked.ports - had.ports):
        if holder := places.holder(port, had_by):
            return Refusal("NodePorts", f"{PREFIX}{PORTS}: {port} is used by {holder}")
    return None
