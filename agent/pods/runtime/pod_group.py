# SPDX-License-Identifier: Apache-2.0
"""The control group of a whole pod: where it stands, what it may use, and the writes that bring that about.

For both ways of managing groups and both versions of them. The kernel rounds memory down to pages;
figures are compared as it keeps them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from agent.model.nodes.control_group import GroupShape
from agent.model.pods.pod import PodSpec
from agent.model.quantity import QuantityError, parse_quantity
from agent.pods.runtime.qos import PAGE_BYTES, cpu_quota, cpu_shares, most_at_once, pod_needs, qos_class

PERIOD_US = 100_000
# What version 1 shows where there is no limit: the largest number of pages.
UNLIMITED_BYTES = (1 << 63) - PAGE_BYTES
LEAST_SHARES, MOST_SHARES, MOST_WEIGHT = 2, 262_144, 10_000
HUGEPAGES = "hugepages-"
UNITS = ("B", "KB", "MB", "GB", "TB")
STEP = 1024
CONTROLLERS = ("cpu", "memory", "pids", "hugetlb")
SWITCH = "cgroup.subtree_control"
BURST_FILES = ("cpu.cfs_burst_us", "cpu.max.burst")


class PodLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one pod; 0 is none, but for pages, where each size of the node has its figure."""

    cpu_shares: int = LEAST_SHARES
    cpu_quota_us: int = 0
    cpu_burst_us: int = 0
    memory_bytes: int = 0
    # What the kernel leaves to it however short memory is; without memory QoS nothing is said of it.
    protected_bytes: int | None = None
    pids: int = 0
    hugepages: tuple[tuple[str, int], ...] = ()

    @property
    def is_binding(self) -> bool:
        """Whether a pod must not run without them; shares alone are a matter of fairness."""
        return bool(self.cpu_quota_us or self.memory_bytes or self.pids or any(size for _, size in self.hugepages))


class LevelNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What pods ask for together; memory only with memory QoS, else nothing is written of it."""

    burstable_milli: int | None = None
    burstable_bytes: int | None = None
    all_bytes: int | None = None


NO_NEEDS = LevelNeeds()


class MakeGroup(msgspec.Struct, frozen=True):
    path: str

    def __str__(self) -> str:
        return f"make {self.path}"


class WriteLimit(msgspec.Struct, frozen=True):
    path: str
    value: str

    def __str__(self) -> str:
        return f"write {self.path} {self.value}"


class WantedGroup(msgspec.Struct, frozen=True):
    """Everything that is wanted, in an order in which it can be made."""

    steps: tuple[MakeGroup | WriteLimit, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(step.path for step in self.steps)


class GroupPlan(msgspec.Struct, frozen=True):
    steps: tuple[MakeGroup | WriteLimit, ...] = ()

    def __str__(self) -> str:
        return "; ".join(map(str, self.steps)) or "nothing"


def group_path(pod: PodSpec, root: str, *, uses_systemd: bool) -> str:
    """Guaranteed pods have no level of their own."""
    quality = qos_class(pod)
    levels = [*root.strip("/").split("/"), *([] if quality == "Guaranteed" else [quality.lower()])]
    if not uses_systemd:
        return "/" + "/".join((*levels, f"pod{pod.uid}"))
    # To systemd a hyphen is a step down, so names of our own have none.
    names = [one.replace("-", "_") for one in (*levels, f"pod{pod.uid}")]
    return "".join(f"/{'-'.join(names[: depth + 1])}.slice" for depth in range(len(names)))


def pod_limits(
    pod: PodSpec, most_pids: int, shape: GroupShape, bursts_us: Iterable[int] = (), *, is_protected: bool = False
) -> PodLimits:
    """A limit holds for the pod if every container has one, or the pod as a whole. What containers may
    burst by the pod may as well, or its own quota would stop them."""
    needs = pod_needs(pod)
    return PodLimits(
        cpu_shares=cpu_shares(needs.cpu_request),
        cpu_quota_us=cpu_quota(needs.cpu_limit),
        cpu_burst_us=min(sum(bursts_us), cpu_quota(needs.cpu_limit)),
        memory_bytes=needs.memory_limit,
        protected_bytes=needs.memory_request if is_protected else None,
        pids=most_pids,
        hugepages=tuple(
            (page_name(size), _hugepages(pod, size)) for size in shape.hugepage_bytes if "hugetlb" in shape.controllers
        ),
    )


def room_for(before: PodLimits, after: PodLimits) -> PodLimits:
    """Enough for both, while containers go from one to the other; no limit is more than any."""
    names = ("cpu_shares", "cpu_burst_us", "cpu_quota_us", "memory_bytes")
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in names}
    most = {name: max(pair) if all(pair) or name in names[:2] else 0 for name, pair in pairs.items()}
    known = [one.protected_bytes for one in (before, after) if one.protected_bytes is not None]
    return msgspec.structs.replace(after, **most, protected_bytes=max(known, default=None))


def page_name(size_bytes: int) -> str:
    """As the kernel writes it: 2MB, 64KB."""
    unit = 0
    while size_bytes >= STEP and size_bytes % STEP == 0 and unit < len(UNITS) - 1:
        size_bytes, unit = size_bytes // STEP, unit + 1
    return f"{size_bytes}{UNITS[unit]}"


def hugepage_limits(limits: Mapping[str, object], shape: GroupShape) -> Iterator[tuple[str, int]]:
    """What a container may have of every size there is; nothing of those that it does not list."""
    if "hugetlb" in shape.controllers:
        for size in shape.hugepage_bytes:
            yield page_name(size), _of_size(limits, size)


def _of_size(limits: Mapping[str, object], size_bytes: int) -> int:
    return sum(
        _bytes(str(value))
        for name, value in limits.items()
        if name.startswith(HUGEPAGES) and _bytes(name.removeprefix(HUGEPAGES)) == size_bytes
    )


def _bytes(text: str) -> int:
    try:
        return parse_quantity(text).nanos // 10**9
    except QuantityError:
        return 0


def _hugepages(pod: PodSpec, size_bytes: int) -> int:
    whole = _of_size(pod.spec.resources.limits, size_bytes)
    return whole or most_at_once(pod, lambda one: _of_size(one.fields.resources.limits, size_bytes))


def wanted_group(limits: PodLimits, path: str, shape: GroupShape, needs: LevelNeeds = NO_NEEDS) -> WantedGroup:
    """For one pod, with the groups above it."""
    controllers = [one for one in CONTROLLERS if one in shape.controllers]
    *above, own = _levels(path)
    if shape.version > 1:
        steps = list(_unified(above, own, controllers))
        files = _unified_files(limits, own, shape)
    else:
        steps = [MakeGroup(f"{controller}/{one}") for controller in controllers for one in (*above, own)]
        files = _legacy_files(limits, own, shape)
    burst = [WriteLimit(_burst_file(own, shape), str(limits.cpu_burst_us))] if shape.has_cpu_burst else []
    return WantedGroup((*steps, *wanted_levels(path, shape, needs).steps, *files, *burst))


def _burst_file(group: str, shape: GroupShape) -> str:
    return f"{group}/{BURST_FILES[1]}" if shape.version > 1 else f"cpu/{group}/{BURST_FILES[0]}"


def burst_files(pod_group: str, instance_id: str, shape: GroupShape) -> tuple[str, ...]:
    """Of one container: where it may stand, by the names that containerd and CRI-O give to its group."""
    names = (instance_id, f"cri-containerd-{instance_id}.scope", f"crio-{instance_id}.scope", f"crio-{instance_id}")
    return tuple(_burst_file(f"{pod_group.strip('/')}/{name}", shape) for name in names)


def wanted_levels(path: str, shape: GroupShape, needs: LevelNeeds) -> WantedGroup:
    """What the quality of service above a pod is worth: Burstable what it asks for, BestEffort what is left over. The
    kernel protects memory of a pod as far as the groups above it are protected."""
    found = []
    above = _levels(path)[:-1]
    qualities = [one for one in above if one.removesuffix(".slice").endswith(("besteffort", "burstable"))]
    for one in qualities if "cpu" in shape.controllers else ():
        milli = needs.burstable_milli if one.removesuffix(".slice").endswith("burstable") else 0
        if milli is not None and shape.version > 1:
            found.append(WriteLimit(f"{one}/cpu.weight", str(cpu_weight(cpu_shares(milli)))))
        elif milli is not None:
            found.append(WriteLimit(f"cpu/{one}/cpu.shares", str(cpu_shares(milli))))
    if shape.version > 1 and "memory" in shape.controllers:
        found += _protected_levels(above, qualities, needs)
    return WantedGroup(tuple(found))


def _protected_levels(above: Sequence[str], qualities: Sequence[str], needs: LevelNeeds) -> Iterator[WriteLimit]:
    """Of kepd's root group and that of all Burstable pods, as a kubelet does."""
    roots = [one for one in above if one not in qualities]
    if roots and needs.all_bytes is not None:
        yield WriteLimit(f"{roots[-1]}/memory.min", str(needs.all_bytes))
    for one in qualities:
        if one.removesuffix(".slice").endswith("burstable") and needs.burstable_bytes is not None:
            yield WriteLimit(f"{one}/memory.min", str(needs.burstable_bytes))


def _levels(path: str) -> list[str]:
    names = path.strip("/").split("/")
    return ["/".join(names[: depth + 1]) for depth in range(len(names))]


def _unified(above: Sequence[str], own: str, controllers: Sequence[str]) -> Iterator[MakeGroup | WriteLimit]:
    """A group has the files of a controller once the group above has switched it on."""
    switches = " ".join(f"+{one}" for one in controllers)
    if switches:
        yield WriteLimit(SWITCH, switches)
    for one in above:
        yield MakeGroup(one)
        if switches:
            yield WriteLimit(f"{one}/{SWITCH}", switches)
    yield MakeGroup(own)


def _unified_files(limits: PodLimits, own: str, shape: GroupShape) -> Iterator[WriteLimit]:
    if "cpu" in shape.controllers:
        yield WriteLimit(f"{own}/cpu.weight", str(cpu_weight(limits.cpu_shares)))
        yield WriteLimit(f"{own}/cpu.max", f"{limits.cpu_quota_us or 'max'} {PERIOD_US}")
    if "memory" in shape.controllers:
        yield WriteLimit(f"{own}/memory.max", str(limits.memory_bytes or "max"))
        if limits.protected_bytes is not None:
            yield WriteLimit(f"{own}/memory.min", str(limits.protected_bytes))
    if "pids" in shape.controllers:
        yield WriteLimit(f"{own}/pids.max", str(limits.pids or "max"))
    for size, most_bytes in limits.hugepages:
        yield WriteLimit(f"{own}/hugetlb.{size}.max", str(most_bytes))


def _legacy_files(limits: PodLimits, own: str, shape: GroupShape) -> Iterator[WriteLimit]:
    if "cpu" in shape.controllers:
        yield WriteLimit(f"cpu/{own}/cpu.shares", str(limits.cpu_shares))
        yield WriteLimit(f"cpu/{own}/cpu.cfs_period_us", str(PERIOD_US))
        yield WriteLimit(f"cpu/{own}/cpu.cfs_quota_us", str(limits.cpu_quota_us or -1))
    if "memory" in shape.controllers:
        yield WriteLimit(f"memory/{own}/memory.limit_in_bytes", str(limits.memory_bytes or -1))
    if "pids" in shape.controllers:
        yield WriteLimit(f"pids/{own}/pids.max", str(limits.pids or "max"))
    for size, most_bytes in limits.hugepages:
        yield WriteLimit(f"hugetlb/{own}/hugetlb.{size}.limit_in_bytes", str(most_bytes))


def cpu_weight(shares: int) -> int:
    """Version 2 counts from 1 to 10000 what version 1 counts from 2 to 262144."""
    return MOST_WEIGHT if shares >= MOST_SHARES else 1 + (shares - LEAST_SHARES) * 9999 // 262_142


def plan_group(wanted: WantedGroup, observed: Mapping[str, str | None]) -> GroupPlan:
    """What differs. `observed` has the text of files, "" for directories, None for what is not there.
    The kernel takes no burst above the quota, so a burst that falls comes first, and one that rises comes last."""

    def is_falling_burst(step: MakeGroup | WriteLimit) -> bool:
        is_burst = isinstance(step, WriteLimit) and step.path.endswith(BURST_FILES)
        return is_burst and int(observed.get(step.path) or 0) > int(str(step).split()[-1])

    steps = (step for step in wanted.steps if not _is_so(step, observed.get(step.path)))
    return GroupPlan(tuple(sorted(steps, key=is_falling_burst, reverse=True)))


def _is_so(step: MakeGroup | WriteLimit, there: str | None) -> bool:
    if there is None or isinstance(step, MakeGroup):
        return there is not None
    if step.path.endswith(SWITCH):
        return {one.lstrip("+") for one in step.value.split()} <= set(there.split())
    return _kept(step) == there.strip()


def _kept(step: WriteLimit) -> str:
    """How the kernel will show it."""
    file = step.path.rpartition("/")[2]
    if file.startswith(("memory.", "hugetlb.")) and step.value.lstrip("-").isdigit():
        size = int(step.value)
        return str(UNLIMITED_BYTES if size < 0 else size // PAGE_BYTES * PAGE_BYTES)
    return step.value
