# SPDX-License-Identifier: Apache-2.0
"""What a pod uses of what can run out, as the choice of who ends counts it. Pure."""

from collections.abc import Mapping

import msgspec

from agent.model.nodes.use import ContainerUse, Layout, PodUse
from agent.model.pods.fields import Volume
from agent.model.pods.pod import ContainerKind, ContainerSpec, PodSpec
from agent.model.quantity import binary_quantity
from agent.pods.plan.scarcity.victims import ContainerShare, PossibleVictim
from agent.pods.runtime.qos import amount, container_needs, pod_needs

NANOS = 10**9
STORAGE = "ephemeral-storage"


class TreeUse(msgspec.Struct, frozen=True):
    bytes: int = 0
    inodes: int = 0

    def __add__(self, other: "TreeUse") -> "TreeUse":
        return TreeUse(self.bytes + other.bytes, self.inodes + other.inodes)


class DiskUse(msgspec.Struct, frozen=True, kw_only=True):
    """Of logs by container, and of each volume on the node's disk by its name."""

    logs: Mapping[str, TreeUse] = msgspec.field(default_factory=dict)
    volumes: Mapping[str, TreeUse] = msgspec.field(default_factory=dict)


def size_limit(volume: Volume) -> int:
    """What an emptyDir may have; 0 = no limit."""
    given = volume.empty_dir.size_limit if volume.empty_dir is not None else None
    return amount({"": given}, "") // NANOS if given is not None else 0


def storage_limit(container: ContainerSpec) -> int:
    """0 = none."""
    return amount(container.fields.resources.limits, STORAGE) // NANOS


def storage_request(container: ContainerSpec) -> int:
    """A request that is missing is the limit."""
    resources = container.fields.resources
    given = resources.requests if STORAGE in resources.requests else resources.limits
    return amount(given, STORAGE) // NANOS


def has_storage_limits(pod: PodSpec) -> bool:
    has_volumes = any(one.empty_dir is not None and one.empty_dir.size_limit is not None for one in pod.spec.volumes)
    return has_volumes or any(map(storage_limit, pod.containers))


def why_over_limit(pod: PodSpec, layers: Mapping[str, int], disk: DiskUse) -> str:
    """What a pod has more of than it may, in a kubelet's words and order; empty where all is well. `layers`
    are bytes by container."""
    for volume in pod.spec.volumes:
        limit = volume.empty_dir.size_limit if volume.empty_dir is not None else None
        used = disk.volumes.get(volume.name)
        if limit is not None and used is not None and used.bytes > amount({"": limit}, "") // NANOS:
            return f'Usage of EmptyDir volume "{volume.name}" exceeds the limit "{limit}". '
    own = {one.name: layers.get(one.name, 0) + disk.logs.get(one.name, TreeUse()).bytes for one in pod.containers}
    most = _pod_limit(pod)
    if most and sum(own.values()) + sum(one.bytes for one in disk.volumes.values()) > most:
        shown = binary_quantity(most)
        return f"Pod ephemeral local storage usage exceeds the total limit of containers {shown}. "
    for one in pod.containers:
        limit_bytes = storage_limit(one)
        if limit_bytes and own[one.name] > limit_bytes:
            given = one.fields.resources.limits[STORAGE]
            return f'Container {one.name} exceeded its local ephemeral storage limit "{given}". '
    return ""


def _pod_limit(pod: PodSpec) -> int:
    """The sum of those that run together, or what one init container has, whichever is more; 0 = none."""
    mains = sum(storage_limit(one) for one in pod.containers if one.kind is not ContainerKind.INIT)
    inits = [storage_limit(one) for one in pod.containers if one.kind is ContainerKind.INIT]
    return max([mains, *inits])


def candidate_of(
    pod: PodSpec,
    use: PodUse,
    disk: DiskUse | None,
    layout: Layout,
    *,
    priority: int,
    is_critical: bool,
    is_ending: bool,
    leaving_s: float | None,
    started_s: float,
) -> PossibleVictim:
    used: dict[str, int] = {}
    if use.memory is not None:
        used["memory.available"] = use.memory
    if use.processes is not None:
        used["pid.available"] = use.processes
    if disk is not None:
        used.update(_of_disks(use, disk, layout))
    mains = [one for one in pod.containers if one.kind is not ContainerKind.INIT]
    known = {one.name: one for one in use.containers}
    return PossibleVictim(
        uid=pod.uid,
        key=pod.key,
        priority=priority,
        is_critical=is_critical,
        is_ending=is_ending,
        leaving_s=leaving_s,
        started_s=started_s,
        grace_s=float(pod.grace_s),
        used=used,
        requested={"memory": pod_needs(pod).memory_request, STORAGE: sum(map(storage_request, mains))},
        containers=tuple(_share(one, known.get(one.name), disk) for one in mains),
    )


def _of_disks(use: PodUse, disk: DiskUse, layout: Layout) -> dict[str, int]:
    """Layers lie with the node's files unless images and layers are both apart; if images alone are, no pod has
    anything of theirs."""
    layers = TreeUse(
        sum(one.layer_bytes or 0 for one in use.containers), sum(one.layer_inodes or 0 for one in use.containers)
    )
    own = sum((*disk.logs.values(), *disk.volumes.values()), start=TreeUse())
    of_node = own if layout == "apart" else own + layers
    of_images = {"one": own + layers, "apart": layers, "split": TreeUse()}[layout]
    of_layers = layers if layout == "apart" else of_node
    found = {}
    for name, one in (("nodefs", of_node), ("imagefs", of_images), ("containerfs", of_layers)):
        found[f"{name}.available"], found[f"{name}.inodesFree"] = one.bytes, one.inodes
    return found


def _share(container: ContainerSpec, use: ContainerUse | None, disk: DiskUse | None) -> ContainerShare:
    used: dict[str, int] = {}
    if use is not None and use.memory is not None:
        used["memory"] = use.memory
    if disk is not None:
        logs = disk.logs.get(container.name, TreeUse())
        used[STORAGE] = logs.bytes + ((use.layer_bytes or 0) if use is not None else 0)
    memory = container_needs(container.fields.resources).memory_request
    return ContainerShare(
        name=container.name, used=used, requested={"memory": memory, STORAGE: storage_request(container)}
    )
