# SPDX-License-Identifier: Apache-2.0
"""Which files tell about one group, and where they lie in each version.

A sandbox does nothing and a pod is the sum of what runs in it, so fewer of theirs are read; limits are read seldom. On
a node with hundreds of groups what is not read is most of the cost.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum

import msgspec

from agent.observe.kernel.group_text import PRESSURES
from agent.observe.kernel.hierarchies import UNIFIED, Hierarchies

THROTTLING = "cpu.stat"


class GroupKind(Enum):
    CONTAINER = "container"
    SANDBOX = "sandbox"
    POD = "pod"


class GroupFiles(msgspec.Struct, frozen=True):
    """Names and paths, in the same order: first so many `signs` that change when anything in the group does something,
    then `always` files that change by waiting as well, then those that only change with a sign."""

    names: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    signs: int = 0
    always: int = 0


NO_FILES = GroupFiles()
SIGNS = ("cpuacct.usage", "memory.usage_in_bytes", "cpu.stat", "memory.current")
"""Who uses no processor does nothing, and memory that is taken away from it shows."""
ALWAYS = (*PRESSURES, "memory.oom_control", "memory.events", "memory.events.local")
LEGACY_SIGNS, UNIFIED_SIGNS = SIGNS[:2], SIGNS[2:]
_LEGACY_TIMES = {"cpuacct": ("cpuacct.usage", "cpuacct.stat")}
_LEGACY_SIZES = ("memory.stat", "memory.usage_in_bytes", "memory.failcnt")
_UNIFIED_FEW = ("cpu.stat", "memory.stat", "memory.current", "memory.events")
LEGACY_FILES: Mapping[GroupKind, Mapping[str, tuple[str, ...]]] = {
    GroupKind.SANDBOX: {**_LEGACY_TIMES, "memory": _LEGACY_SIZES},
    GroupKind.POD: {**_LEGACY_TIMES, "cpu": (THROTTLING,), "memory": _LEGACY_SIZES, "pids": ("pids.current",)},
    GroupKind.CONTAINER: {
        **_LEGACY_TIMES,
        "cpu": (THROTTLING,),
        "memory": (
            *_LEGACY_SIZES, "memory.max_usage_in_bytes", "memory.kmem.usage_in_bytes", "memory.oom_control",
        ),
        "blkio": ("blkio.throttle.io_service_bytes", "blkio.throttle.io_serviced"),
        "pids": ("pids.current", "cgroup.procs"),
    },
}  # fmt: skip
UNIFIED_FILES: Mapping[GroupKind, tuple[str, ...]] = {
    GroupKind.SANDBOX: _UNIFIED_FEW,
    GroupKind.POD: (*_UNIFIED_FEW, "memory.events.local", "memory.swap.current", "pids.current"),
    GroupKind.CONTAINER: (
        *_UNIFIED_FEW, "memory.events.local", "memory.swap.current", "memory.peak", "io.stat", "pids.current",
        "cgroup.procs",
    ),
}  # fmt: skip
LEGACY_LIMITS = {
    "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares"),
    "memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.soft_limit_in_bytes"),
    "pids": ("pids.max",),
}
LIMIT_SIGNS = ("cpu.cfs_quota_us", "cpu.shares", "memory.limit_in_bytes", "cpu.max", "cpu.weight", "memory.max")
"""Who changes a limit of a group changes one of these."""
UNIFIED_LIMITS = ("cpu.max", "cpu.weight", "memory.max", "memory.swap.max", "memory.low", "pids.max")


def group_files(
    kind: GroupKind, groups: Mapping[str, str], hierarchies: Hierarchies, *, has_pressure: bool
) -> GroupFiles:
    """`groups` are the paths of one group by hierarchy. On a hybrid node pressure is counted in the unified hierarchy,
    if the runtime put the group there."""
    is_legacy = hierarchies.version == 1
    files = dict(LEGACY_FILES[kind]) if is_legacy else {UNIFIED: UNIFIED_FILES[kind]}
    if has_pressure and kind is not GroupKind.SANDBOX and groups.get(UNIFIED, "/") != "/":
        files[UNIFIED] = (*files.get(UNIFIED, ()), *PRESSURES)
    return _in_order(_files(files, groups, hierarchies), LEGACY_SIGNS if is_legacy else UNIFIED_SIGNS)


def limit_files(groups: Mapping[str, str], hierarchies: Hierarchies) -> GroupFiles:
    files = LEGACY_LIMITS if hierarchies.version == 1 else {UNIFIED: UNIFIED_LIMITS}
    pairs = sorted(_files(files, groups, hierarchies), key=lambda pair: pair[0] not in LIMIT_SIGNS)
    return msgspec.structs.replace(_placed(pairs), signs=sum(name in LIMIT_SIGNS for name, _ in pairs))


def without_throttling(files: GroupFiles) -> GroupFiles:
    """Of a group of version 1 without a quota, where the file says nothing else."""
    kept = (pair for pair in zip(files.names, files.paths, strict=True) if pair[0] != THROTTLING)
    return _in_order(kept, LEGACY_SIGNS)


def _in_order(found: Iterable[tuple[str, str]], signs: Collection[str]) -> GroupFiles:
    pairs = list(found)
    first = [one for one in pairs if one[0] in signs]
    then = [one for one in pairs if one[0] in ALWAYS]
    rest = [one for one in pairs if one not in first and one not in then]
    placed = _placed((*first, *then, *rest))
    # One of them alone does not show that nothing happened.
    return msgspec.structs.replace(placed, signs=len(first) if len(first) == len(signs) else 0, always=len(then))


def _placed(found: Iterable[tuple[str, str]]) -> GroupFiles:
    pairs = tuple(found)
    return GroupFiles(tuple(name for name, _ in pairs), tuple(path for _, path in pairs))


def _files(
    files: Mapping[str, tuple[str, ...]], groups: Mapping[str, str], hierarchies: Hierarchies
) -> Iterator[tuple[str, str]]:
    for controller, names in files.items():
        folder = hierarchies.folder(controller, groups[controller]) if controller in groups else None
        if folder is not None:
            yield from ((name, f"{folder}/{name}") for name in names)
