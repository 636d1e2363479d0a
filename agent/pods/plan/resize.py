# SPDX-License-Identifier: Apache-2.0
"""What has to be done so that running containers may use what their manifest says now.

What this node cannot grant now or at all is the answer as well. Planning again what has been brought about gives
nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
from msgspec import structs

from agent.model.pods.container_fields import Container
from agent.model.pods.pod import ContainerSpec, PodSpec
from agent.pods.plan.admit import PREFIX, Capacity, PodPlaces, asked_by, why_refused
from agent.pods.plan.remembered import Memory
from agent.pods.runtime.observed import SeenPod, Stage
from agent.pods.runtime.pod_group import PodLimits, room_for
from agent.pods.runtime.qos import Needs, effective_needs, qos_class

DEFERRED, INFEASIBLE = "Deferred", "Infeasible"
RESTART = "RestartContainer"


class Resize(msgspec.Struct, frozen=True, kw_only=True):
    """One container gets other amounts, or, without a name, the group of the pod other `limits`. `memory_limit` is set
    where the new limit is below the old one; `burst_us` is what the container has when all is done."""

    name: str = ""
    instance_id: str = ""
    needs_restart: bool = False
    memory_limit: int | None = None
    burst_us: int = 0
    limits: PodLimits | None = None
    # A burst alone, or the pod following its containers, is no news.
    is_quiet: bool = False

    def __str__(self) -> str:
        if self.limits is not None:
            return "resize the pod"
        return f"restart {self.name} with new resources" if self.needs_restart else f"resize {self.name}"


class ResizePlan(msgspec.Struct, frozen=True, kw_only=True):
    steps: tuple[Resize, ...] = ()
    pending: str = ""
    message: str = ""


def plan_resize(
    pod: PodSpec, memory: Memory, steps: tuple[Resize, ...], limits: PodLimits, places: PodPlaces, capacity: Capacity
) -> ResizePlan:
    """`steps` are of the containers. The group of the pod has room for what they had and will have, until they have
    all changed: one that ends or restarts has not yet."""
    had = memory.group or limits
    limits = structs.replace(limits, pids=had.pids, hugepages=had.hugepages)
    room = room_for(had, limits)
    is_quiet = memory.resources in (None, pod.spec.resources)
    is_restarting = memory.ends or any(one.needs_restart for one in steps)
    is_restarting = is_restarting or any(one.failing for one in memory.containers.values())
    less = limits.memory_bytes if limits.memory_bytes != room.memory_bytes else None
    grown = (Resize(limits=room, is_quiet=is_quiet),) if room != had else ()
    shrunk = (Resize(limits=limits, is_quiet=is_quiet, memory_limit=less),) if limits != room else ()
    steps = (*grown, *steps, *(shrunk if not is_restarting else ()))
    return (steps and _refusal(pod, memory, places, capacity)) or ResizePlan(steps=steps)


def differences(pod: PodSpec, seen: SeenPod, memory: Memory, bursts_us: Mapping[str, int]) -> tuple[Resize, ...]:
    """Whose amounts differ from the manifest's. Decreases come first: what they free is there for the increases."""
    steps: list[tuple[bool, Resize]] = []
    for one in pod.containers:
        instance, given = seen.newest(one.name), memory.of(one.name).resources
        if instance is None or instance.stage is not Stage.RUNNING or given is None:
            continue
        before = effective_needs(given, memory.resources or pod.spec.resources)
        after = effective_needs(one.fields.resources, pod.spec.resources)
        burst_us = bursts_us.get(one.name, 0)
        if before == after and burst_us == memory.of(one.name).burst_us:
            continue
        has_less_memory = 0 < after.memory_limit < (before.memory_limit or after.memory_limit + 1)
        step = Resize(
            name=one.name,
            instance_id=instance.id,
            needs_restart=_needs_restart(one, before, after),
            memory_limit=after.memory_limit if has_less_memory else None,
            burst_us=burst_us,
            is_quiet=before == after,
        )
        steps.append((_total(after) >= _total(before), step))
    return tuple(step for _, step in sorted(steps, key=lambda one: one[0]))


def _total(needs: Needs) -> tuple[int, int, int, int]:
    return needs.memory_limit, needs.cpu_limit, needs.memory_request, needs.cpu_request


def _needs_restart(container: ContainerSpec, before: Needs, after: Needs) -> bool:
    """Only the policy of what changes counts."""
    changed = set()
    if (before.cpu_request, before.cpu_limit) != (after.cpu_request, after.cpu_limit):
        changed.add("cpu")
    if (before.memory_request, before.memory_limit) != (after.memory_request, after.memory_limit):
        changed.add("memory")
    policies = {one.resource_name: one.restart_policy for one in container.fields.resize_policy}
    return any(policies.get(resource) == RESTART for resource in changed)


def _refusal(pod: PodSpec, memory: Memory, places: PodPlaces, capacity: Capacity) -> ResizePlan | None:
    before, after = qos_class(as_given(pod, memory)), qos_class(pod)
    if before != after:
        text = f"Pod QOS Class may not change as a result of resizing: it is {before} and would be {after}"
        return ResizePlan(pending=INFEASIBLE, message=text)
    refusal = why_refused(pod, pod.uid, places, capacity)
    if refusal is None:
        return None
    asked = asked_by(pod)
    for resource, wanted, most in (
        ("cpu", asked.milli_cpus, capacity.milli_cpus),
        ("memory", asked.memory_bytes, capacity.memory_bytes),
    ):
        if wanted > most:
            text = f"Node didn't have enough capacity: {resource}, requested: {wanted}, capacity: {most}"
            return ResizePlan(pending=INFEASIBLE, message=text)
    return ResizePlan(pending=DEFERRED, message=refusal.message.removeprefix(PREFIX))


def as_given(pod: PodSpec, memory: Memory) -> PodSpec:
    def given(listed: Sequence[Container]) -> tuple[Container, ...]:
        return tuple(structs.replace(one, resources=memory.of(one.name).resources or one.resources) for one in listed)

    containers, inits = given(pod.spec.containers), given(pod.spec.init_containers)
    whole = memory.resources or pod.spec.resources
    return replace(pod, spec=structs.replace(pod.spec, containers=containers, init_containers=inits, resources=whole))
