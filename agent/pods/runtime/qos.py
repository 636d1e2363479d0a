# SPDX-License-Identifier: Apache-2.0
"""Requests and limits as the kernel wants them: QoS class, shares, quota, scores."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import msgspec

from agent.model.pods.container_fields import Resources
from agent.model.pods.pod import ContainerKind, ContainerSpec, PodSpec
from agent.model.quantity import QuantityError, parse_quantity

PERIOD_US = 100_000
LEAST_SHARES, MOST_SHARES = 2, 262_144
LEAST_QUOTA_US = 1000
CRITICAL = "system-node-critical"
GUARANTEED_SCORE, BEST_EFFORT_SCORE = -997, 1000
NANOS = 10**9
PAGE_BYTES = 4096


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """CPU in thousandths, memory in bytes; 0 is none."""

    cpu_request: int = 0
    cpu_limit: int = 0
    memory_request: int = 0
    memory_limit: int = 0


@lru_cache(maxsize=4096)
def _nanos(text: str) -> int:
    try:
        return parse_quantity(text).nanos
    except QuantityError:
        return 0


def amount(given: Mapping[str, object], resource: str) -> int:
    """Billionths of the unit; 0 if none is given."""
    value = given.get(resource)
    return 0 if value is None else _nanos(str(value))


def container_needs(resources: Resources) -> Needs:
    """A request that is missing is the limit."""
    cpu_limit = -(-amount(resources.limits, "cpu") // 10**6)
    memory_limit = -(-amount(resources.limits, "memory") // NANOS)
    cpu = -(-amount(resources.requests, "cpu") // 10**6) if "cpu" in resources.requests else cpu_limit
    memory = -(-amount(resources.requests, "memory") // NANOS) if "memory" in resources.requests else memory_limit
    return Needs(cpu_request=cpu, cpu_limit=cpu_limit, memory_request=memory, memory_limit=memory_limit)


def effective_needs(own: Resources, whole: Resources) -> Needs:
    """Where a container has no limit, the pod's applies."""
    needs, pod = container_needs(own), container_needs(whole)
    cpu_limit, memory_limit = needs.cpu_limit or pod.cpu_limit, needs.memory_limit or pod.memory_limit
    return msgspec.structs.replace(needs, cpu_limit=cpu_limit, memory_limit=memory_limit)


def memory_qos(needs: Needs, allocatable_bytes: int) -> dict[str, str]:
    """KEP-2570: what is not taken away, and from where on a container is slowed down before it is killed."""
    request, most = needs.memory_request, needs.memory_limit or allocatable_bytes
    found = {"memory.min": str(request)} if request else {}
    high = (request + (most - request) * 9 // 10) // PAGE_BYTES * PAGE_BYTES
    return {**found, "memory.high": str(high)} if request != needs.memory_limit and high > request else found


def cpu_shares(milli_cpu: int) -> int:
    return max(LEAST_SHARES, min(MOST_SHARES, milli_cpu * 1024 // 1000)) if milli_cpu else LEAST_SHARES


def cpu_quota(milli_cpu: int) -> int:
    """Of a period of 100 ms; 0 = none."""
    return max(milli_cpu * PERIOD_US // 1000, LEAST_QUOTA_US) if milli_cpu else 0


def qos_class(pod: PodSpec) -> str:
    """Resources of the pod as a whole win (KEP-2837)."""
    if pod.spec.resources.limits or pod.spec.resources.requests:
        return _class_of([pod.spec.resources])
    return _class_of([one.fields.resources for one in pod.containers])


def _class_of(listed: Iterable[Resources]) -> str:
    needs = [container_needs(one) for one in listed]
    figures = [(one.cpu_request, one.cpu_limit, one.memory_request, one.memory_limit) for one in needs]
    if not any(any(figure) for figure in figures):
        return "BestEffort"
    is_exact = all(cl and ml and cr == cl and mr == ml for cr, cl, mr, ml in figures)
    return "Guaranteed" if is_exact else "Burstable"


def oom_score(pod: PodSpec, container: ContainerSpec, capacity_bytes: int) -> int:
    """A sidecar is not killed before the main that asked for least."""
    if is_critical(pod):
        return GUARANTEED_SCORE
    quality = qos_class(pod)
    if quality == "Guaranteed":
        return GUARANTEED_SCORE
    if quality == "BestEffort":
        return BEST_EFFORT_SCORE
    own = _score(_request(pod, container), capacity_bytes)
    if container.kind is not ContainerKind.SIDECAR:
        return own
    mains = [one for one in pod.containers if one.kind is ContainerKind.MAIN]
    return min(own, _score(min(_request(pod, one) for one in mains), capacity_bytes)) if mains else own


def is_critical(pod: PodSpec) -> bool:
    return pod.spec.priority_class_name == CRITICAL


def _request(pod: PodSpec, container: ContainerSpec) -> int:
    own = container_needs(container.fields.resources).memory_request
    whole = container_needs(pod.spec.resources).memory_request
    if not whole:
        return own
    counted = [one for one in pod.containers if one.kind is not ContainerKind.INIT] or list(pod.containers)
    left = whole - sum(container_needs(one.fields.resources).memory_request for one in counted)
    return own + max(left, 0) // len(counted)


def _score(request_bytes: int, capacity_bytes: int) -> int:
    score = 1000 - 1000 * request_bytes // max(capacity_bytes, 1)
    return max(3, min(score, 999))


def pod_needs(pod: PodSpec) -> Needs:
    """What the cgroup of the whole pod gets, with what its runtime takes for itself (`overhead`)."""
    own, more = own_needs(pod), container_needs(Resources(requests=pod.spec.overhead))
    return Needs(
        cpu_request=own.cpu_request + more.cpu_request,
        cpu_limit=own.cpu_limit and own.cpu_limit + more.cpu_request,
        memory_request=own.memory_request + more.memory_request,
        memory_limit=own.memory_limit and own.memory_limit + more.memory_request,
    )


def own_needs(pod: PodSpec) -> Needs:
    whole = container_needs(pod.spec.resources)
    cpu, memory = _effective(pod, "cpu_request"), _effective(pod, "memory_request")
    cpu_limit = _effective(pod, "cpu_limit") if _all_limited(pod, "cpu_limit") else 0
    memory_limit = _effective(pod, "memory_limit") if _all_limited(pod, "memory_limit") else 0
    return Needs(
        cpu_request=whole.cpu_request or cpu,
        cpu_limit=whole.cpu_limit or cpu_limit,
        memory_request=whole.memory_request or memory,
        memory_limit=whole.memory_limit or memory_limit,
    )


def _figure(container: ContainerSpec, which: str) -> int:
    value: int = getattr(container_needs(container.fields.resources), which)
    return value


def _all_limited(pod: PodSpec, which: str) -> bool:
    return all(_figure(one, which) for one in pod.containers)


def _effective(pod: PodSpec, which: str) -> int:
    return most_at_once(pod, lambda one: _figure(one, which))


def most_at_once(pod: PodSpec, figure: Callable[[ContainerSpec], int]) -> int:
    """Mains and sidecars together, or an init with the sidecars that run beside it, whichever is more."""
    beside = most_at_init = 0
    for one in pod.containers:
        if one.kind is ContainerKind.SIDECAR:
            beside += figure(one)
        elif one.kind is ContainerKind.INIT:
            most_at_init = max(most_at_init, beside + figure(one))
    mains = sum(figure(one) for one in pod.containers if one.kind is ContainerKind.MAIN)
    return max(beside + mains, most_at_init)


class PodRequests:
    """What the pods of the node ask for together, one entry per pod, so that nothing walks over pods."""

    def __init__(self) -> None:
        self._burstable: dict[str, Needs] = {}
        self._guaranteed: dict[str, Needs] = {}

    @property
    def burstable_milli(self) -> int:
        return sum(one.cpu_request for one in self._burstable.values())

    @property
    def burstable_bytes(self) -> int:
        return sum(one.memory_request for one in self._burstable.values())

    @property
    def all_bytes(self) -> int:
        return self.burstable_bytes + sum(one.memory_request for one in self._guaranteed.values())

    def note(self, pod: PodSpec) -> None:
        self.forget(pod.uid)
        quality = qos_class(pod)
        if quality == "Burstable":
            self._burstable[pod.uid] = pod_needs(pod)
        elif quality == "Guaranteed":
            self._guaranteed[pod.uid] = pod_needs(pod)

    def forget(self, uid: str) -> None:
        self._burstable.pop(uid, None)
        self._guaranteed.pop(uid, None)
