# SPDX-License-Identifier: Apache-2.0
"""Whether a pod may begin here: whether it is meant for this node, and has room; and who goes for a critical one.

The reasons are a kubelet's. There a pod that is refused has failed; a pod from a file waits until there is room. What
a pod has already it keeps: only what it asks for beyond that can be refused, so that a node that became smaller ends
nothing. Nodes share manifests by `nodeSelector` and required node affinity; preferences and taints do not count, for a
manifest lies beside a node on purpose. Pure.
"""

import platform
from collections.abc import Mapping, Sequence

import msgspec

from agent.model.nodes.terms import term_fits
from agent.model.pods.fields import PodFields
from agent.model.pods.pod import ContainerKind, PodSpec
from agent.pods.admission.rules import AdmissionRules, Charge, charge_of, why_out_of_limits, why_over_quota
from agent.pods.plan.remembered import PodOutcome
from agent.pods.runtime.qos import pod_needs
from agent.pods.runtime.volume_plan import written_paths

EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - what a port without an address means
PREFIX = "Pod was rejected: "
PORTS = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
REFUSAL = "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
# Without an API server classes cannot be looked up; these two are part of Kubernetes itself.
CLASSES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
CRITICAL_PRIORITY = CLASSES["system-cluster-critical"]
REASON = "Preempting"
MESSAGE = "Preempted in order to admit critical pod"
OUTCOME = PodOutcome(phase="Failed", reason=REASON, message=MESSAGE)
OS = "linux"
# They have a value of their own in each pod, and harm no other.
SAFE_SYSCTLS = frozenset({
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
})  # fmt: skip
CPU, MEMORY, PODS = "cpu", "memory", "pods"
# What is still missing, by resource; what is not missing has no entry.
Missing = Mapping[str, int]


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
    charge: Charge | None = None
    """What it counts for in quotas."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What the node has for pods."""

    milli_cpus: int
    memory_bytes: int
    pods: int


class AdmissionRefusal(msgspec.Struct, frozen=True):
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
        charge=charge_of(pod),
    )


class PodPlaces:
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

    @property
    def charges(self) -> list[Charge]:
        return [one.charge for one in self._asked.values() if one.charge is not None]

    def holder(self, port: HostPort, uid: str) -> str:
        """Another pod that has this port at an address which overlaps, by its key."""
        for other, key in self._holders.get(port.key, {}).items():
            taken = {one.address for one in self._asked[other].ports if one.key == port.key}
            if other != uid and (port.address == EVERY_ADDRESS or taken & {port.address, EVERY_ADDRESS}):
                return key
        return ""


def why_refused(pod: PodSpec, had_by: str, places: PodPlaces, capacity: Capacity) -> AdmissionRefusal | None:
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
            return AdmissionRefusal(reason, f"{PREFIX}{text}, used: {used}, capacity: {room}")
    for port in sorted(asked.ports - had.ports):
        if holder := places.holder(port, had_by):
            return AdmissionRefusal("NodePorts", f"{PREFIX}{PORTS}: {port} is used by {holder}")
    return None


def why_unfit(spec: PodFields, allowed: Sequence[str]) -> AdmissionRefusal | None:
    """What no room helps: another system, and settings of the kernel that reach beyond their pod. `allowed` are names
    of more of these, or their beginnings with `*`."""
    if spec.os is not None and spec.os.name not in ("", OS):
        text = f"{PREFIX}the pod is for {spec.os.name}, and this node runs {OS}"
        return AdmissionRefusal("PodOSNotSupported", text)
    given = spec.security_context.sysctls if spec.security_context is not None else ()
    for name in (one.name.replace("/", ".") for one in given):
        is_allowed = name in SAFE_SYSCTLS or any(
            name.startswith(one[:-1]) if one.endswith("*") else name == one for one in allowed
        )
        if not is_allowed:
            text = f'forbidden sysctl: "{name}" is not allowed here; see pods.allowedUnsafeSysctls'
            return AdmissionRefusal("SysctlForbidden", text)
    return None


def why_against_rules(pod: PodSpec, places: PodPlaces, rules: AdmissionRules) -> AdmissionRefusal | None:
    """Where the namespace of a pod does not let it begin; it waits until that, or the pod, is another."""
    if why := why_out_of_limits(pod, rules):
        return AdmissionRefusal("LimitRange", f"{PREFIX}{why}")
    if any(rules.of(pod.namespace)) and (why := why_over_quota(charge_of(pod), rules, places.charges)):
        return AdmissionRefusal("ExceededQuota", f"{PREFIX}{why}")
    return None


def labels_of_node(name: str, configured: Mapping[str, str]) -> dict[str, str]:
    machine = platform.machine()
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": ARCHITECTURES.get(machine, machine),
        **configured,
    }


def why_not_here(spec: PodFields, labels: Mapping[str, str], node: str) -> str:
    """Empty for a pod that may run."""
    wrong = [_said(key, value, labels) for key, value in spec.node_selector.items() if labels.get(key) != value]
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    if required is not None and not any(term_fits(term, labels, node) for term in required.node_selector_terms):
        wrong.append(f"none of {len(required.node_selector_terms)} nodeSelectorTerms fits")
    return f"{REFUSAL}: {'; '.join(wrong)} (labels: node.labels of the configuration)" if wrong else ""


def _said(key: str, value: str, labels: Mapping[str, str]) -> str:
    mine = f"is {labels[key]!r}" if key in labels else "is not set"
    return f"nodeSelector wants {key}={value}, which here {mine}"


class Occupant(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that has a place."""

    uid: str
    asked: AskedResources
    qos: str = "BestEffort"
    is_critical: bool = False
    is_ending: bool = False


def is_critical(pod: PodSpec) -> bool:
    return priority_of(pod.spec) >= CRITICAL_PRIORITY


def plan_preemption(pod: PodSpec, there: Sequence[Occupant], capacity: Capacity) -> tuple[str, ...]:
    """Uids of the pods to end, those that lose least first; none where nothing, or nothing that helps, can end."""
    staying = [one for one in there if not one.is_ending]
    candidates = sorted((one for one in staying if not one.is_critical), key=lambda one: one.uid)
    missing = _missing(asked_by(pod), staying, capacity)
    if not is_critical(pod) or not missing or _without(missing, candidates):
        return ()
    best_effort, burstable, guaranteed = (
        [one for one in candidates if one.qos == qos] for qos in ("BestEffort", "Burstable", "Guaranteed")
    )
    last = _nearest(guaranteed, _without(missing, best_effort + burstable))
    then = _nearest(burstable, _without(missing, best_effort + last))
    first = _nearest(best_effort, _without(missing, then + last))
    return tuple(one.uid for one in (*first, *then, *last))


def _amounts(asked: AskedResources) -> dict[str, int]:
    return {CPU: asked.milli_cpus, MEMORY: asked.memory_bytes, PODS: 1}


def _missing(wanted: AskedResources, staying: Sequence[Occupant], capacity: Capacity) -> Missing:
    room = {CPU: capacity.milli_cpus, MEMORY: capacity.memory_bytes, PODS: capacity.pods}
    used = {name: sum(_amounts(one.asked)[name] for one in staying) for name in room}
    short = {name: used[name] + amount - room[name] for name, amount in _amounts(wanted).items() if amount}
    return {name: amount for name, amount in short.items() if amount > 0}


def _without(missing: Missing, gone: Sequence[Occupant]) -> Missing:
    left = {name: amount - sum(_amounts(one.asked)[name] for one in gone) for name, amount in missing.items()}
    return {name: amount for name, amount in left.items() if amount > 0}


def _nearest(pods: Sequence[Occupant], missing: Missing) -> list[Occupant]:
    """As many as are needed, which is certain to be enough."""
    left, chosen = list(pods), list[Occupant]()
    while missing and left:
        best = min(left, key=lambda one: (_distance(one, missing), one.asked.memory_bytes, one.asked.milli_cpus))
        left.remove(best)
        chosen.append(best)
        missing = _without(missing, [best])
    return chosen


def _distance(one: Occupant, missing: Missing) -> float:
    """Squares of the shares that would still be missing; more than what is missing counts as exact."""
    amounts = _amounts(one.asked)
    return sum((max(amount - amounts[name], 0) / amount) ** 2 for name, amount in missing.items())


def priority_of(spec: PodFields) -> int:
    return spec.priority or CLASSES.get(spec.priority_class_name, 0)
