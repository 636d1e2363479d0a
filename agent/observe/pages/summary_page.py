# SPDX-License-Identifier: Apache-2.0
"""/stats/summary: what a kubelet says of its node and pods as JSON (stats/v1alpha1). What is unknown is left out."""

from collections.abc import Mapping, Sequence

import msgspec

from agent.model.nodes.file_system import FileSystemReport
from agent.model.pods.space import PodSpace, VolumeSpace
from agent.model.pods.wall_clock import stamp
from agent.observe.kernel.group_text import GroupFigures
from agent.observe.kernel.node_text import Interface
from agent.observe.sample.node_sample import ContainerSample, NodeSample, PodSample
from agent.observe.sample.rates import Rates

NANOS = 1e9
# Of several interfaces the one whose figures stand for all, as a kubelet has it.
MAIN_INTERFACE = "eth0"

Part = dict[str, object]


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What a summary has beside two samples. `is_short`: processor and memory alone."""

    node: str
    disks: Sequence[FileSystemReport] = ()
    spaces: Sequence[PodSpace] = ()
    is_short: bool = False


def summary(before: NodeSample | None, sample: NodeSample, around: Around) -> Part:
    rates, time = Rates(before, sample), stamp(sample.wall_s)
    node = sample.node
    found: Part = {
        "nodeName": around.node,
        "cpu": _cpu(time, node.figures, rates.of_node(sample)),
        "memory": _memory(time, node.figures, node.memory.total, node.working_set),
    }
    if node.booted_at_s is not None:
        found["startTime"] = stamp(node.booted_at_s)
    if not around.is_short:
        disks = {role: one for one in reversed(around.disks) for role in one.roles}
        found |= _known(
            network=_network(time, node.interfaces),
            fs=_disk(time, disks.get("node")),
            runtime=_known(
                imageFs=_disk(time, disks.get("image")),
                containerFs=_disk(time, disks.get("container", disks.get("image"))),
            ),
        )
    pods = [_pod(pod, rates, time, around) for pod in sample.pods if pod.sandbox.ended_s is None]
    return {"node": found, "pods": pods}


def _pod(pod: PodSample, rates: Rates, time: str, around: Around) -> Part:
    space = next((one for one in around.spaces if one.uid == pod.uid), None)
    disks = {role: one for one in reversed(around.disks) for role in one.roles}
    living = [one for one in pod.containers if one.ended_s is None]
    found: Part = {
        "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "startTime": stamp(pod.created_at_s),
        "containers": [_container(one, rates, time, space, disks, is_short=around.is_short) for one in living],
    }
    if pod.figures is not None:
        found["cpu"] = _cpu(time, pod.figures, rates.of_pod(pod))
        found["memory"] = _memory(time, pod.figures, None, pod.figures.working_set)
    if around.is_short:
        return found
    counts = [one.figures.processes for one in (pod.sandbox, *living) if one.figures.processes is not None]
    volumes = [_volume(time, one) for one in space.volumes] if space is not None else []
    return (
        found
        | _known(
            network=_network(time, pod.interfaces),
            volume=volumes,
            process_stats=_known(process_count=sum(counts) if counts else None),
        )
        | _known(**{"ephemeral-storage": _whole(time, living, space, disks.get("node"))})
    )


def _container(
    one: ContainerSample,
    rates: Rates,
    time: str,
    space: PodSpace | None,
    disks: Mapping[str, FileSystemReport],
    *,
    is_short: bool,
) -> Part:
    limit = one.figures.limits.memory or None
    found: Part = {
        "name": one.name,
        "startTime": stamp(one.started_at_s),
        "cpu": _cpu(time, one.figures, rates.of_container(one)),
        "memory": _memory(time, one.figures, limit, one.figures.working_set),
    }
    if is_short:
        return found
    found |= _known(swap=_known(time=time, swapUsageBytes=one.figures.swap) if one.figures.swap is not None else None)
    layers = disks.get("container", disks.get("image"))
    if one.layer_bytes is not None:
        found["rootfs"] = _disk(time, layers) | _known(usedBytes=one.layer_bytes, inodesUsed=one.layer_inodes)
    if space is not None and one.name in space.logs:
        found["logs"] = _disk(time, disks.get("logs")) | {"usedBytes": space.logs[one.name]}
    return found


def _cpu(time: str, figures: GroupFigures, cores: float | None) -> Part:
    return {"time": time} | _known(
        usageNanoCores=None if cores is None else int(cores * NANOS), usageCoreNanoSeconds=figures.cpu_ns
    )


def _memory(time: str, figures: GroupFigures, most: int | None, working_set: int | None) -> Part:
    left = max(most - working_set, 0) if most is not None and working_set is not None else None
    return {"time": time} | _known(
        availableBytes=left,
        usageBytes=figures.usage,
        workingSetBytes=working_set,
        rssBytes=figures.rss,
        pageFaults=figures.faults,
        majorPageFaults=figures.major_faults,
    )


def _network(time: str, interfaces: Sequence[Interface]) -> Part:
    if not interfaces:
        return {}
    every = [_interface(one) for one in interfaces]
    main = next((one for one in every if one["name"] == MAIN_INTERFACE), {})
    return {"time": time, **main, "interfaces": every}


def _interface(one: Interface) -> Part:
    return {
        "name": one.name, "rxBytes": one.received_bytes, "rxErrors": one.received_errors,
        "txBytes": one.sent_bytes, "txErrors": one.sent_errors,
    }  # fmt: skip


def _disk(time: str, disk: FileSystemReport | None) -> Part:
    if disk is None or not disk.size_bytes:
        return {}
    found: Part = {
        "time": time, "availableBytes": disk.available_bytes, "capacityBytes": disk.size_bytes,
        "usedBytes": disk.used_bytes,
    }  # fmt: skip
    if disk.inodes:
        found |= {"inodes": disk.inodes, "inodesFree": disk.inodes_free, "inodesUsed": disk.inodes - disk.inodes_free}
    return found


def _volume(time: str, one: VolumeSpace) -> Part:
    found: Part = {
        "time": time, "name": one.name, "availableBytes": one.available_bytes, "capacityBytes": one.capacity_bytes,
        "usedBytes": one.used_bytes, "inodesUsed": one.used_inodes,
    }  # fmt: skip
    return found | ({"inodes": one.inodes, "inodesFree": one.inodes_free} if one.inodes else {})


def _whole(time: str, living: Sequence[ContainerSample], space: PodSpace | None, disk: FileSystemReport | None) -> Part:
    """What a pod has on disks: writable layers, logs and volumes."""
    if space is None:
        return {}
    layers = sum(one.layer_bytes or 0 for one in living)
    used = layers + sum(space.logs.values()) + sum(one.used_bytes for one in space.volumes if not one.is_memory)
    return _disk(time, disk) | {"usedBytes": used}


def _known(**parts: object) -> Part:
    return {name: part for name, part in parts.items() if part is not None and part != {} and part != []}
