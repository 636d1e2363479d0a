# SPDX-License-Identifier: Apache-2.0
"""What systemd is asked for where it owns the groups of pods.

Limits that are written into the files of a slice are lost when systemd writes its own view of it, at `daemon-reload`
for one. So each limit that systemd has a property for is asked of systemd; pages and bursts, which it has none for, are
written as elsewhere.
"""

from collections.abc import Iterable

import msgspec

from agent.pods.runtime.pod_group import PERIOD_US, GroupPlan, PodLimits, WantedGroup, WriteLimit

SLICE = ".slice"
NO_LIMIT = (1 << 64) - 1
SECOND_US = 1_000_000
# systemd keeps a share of the processor as a whole number of percent.
PERCENT_US = PERIOD_US // 100
PROPERTIES = {
    "cpu.weight": "CPUWeight",
    "cpu.shares": "CPUShares",
    "cpu.max": "CPUQuotaPerSecUSec",
    "cpu.cfs_quota_us": "CPUQuotaPerSecUSec",
    "memory.min": "MemoryMin",
    "memory.max": "MemoryMax",
    "memory.limit_in_bytes": "MemoryLimit",
    "pids.max": "TasksMax",
}


class SliceLimits(msgspec.Struct, frozen=True):
    """One slice, and its properties by systemd's names."""

    unit: str
    properties: tuple[tuple[str, int], ...]


def whole_percents(limits: PodLimits) -> PodLimits:
    """No less than is allowed, and what systemd can say."""
    return msgspec.structs.replace(limits, cpu_quota_us=-(-limits.cpu_quota_us // PERCENT_US) * PERCENT_US)


def slices_of(wanted: WantedGroup) -> tuple[SliceLimits, ...]:
    """Those with limits, from above to below; a slice without any comes by itself with the one below it."""
    found: dict[str, list[tuple[str, int]]] = {}
    for step in wanted.steps:
        if isinstance(step, WriteLimit) and (name := PROPERTIES.get(step.path.rpartition("/")[2])):
            found.setdefault(_unit(step.path), []).append((name, _value(name, step.value)))
    return tuple(SliceLimits(unit, tuple(found[unit])) for unit in sorted(found, key=len))


def units_of(plan: GroupPlan) -> frozenset[str]:
    """Those whose files are not as wanted."""
    return frozenset(_unit(step.path) for step in plan.steps if isinstance(step, WriteLimit))


def slices_in(groups: Iterable[str]) -> list[str]:
    """The units of groups that systemd owns."""
    return sorted(name for group in groups if (name := group.rstrip("/").rpartition("/")[2]).endswith(SLICE))


def _unit(path: str) -> str:
    return path.rpartition("/")[0].rpartition("/")[2]


def _value(name: str, text: str) -> int:
    first = text.split(maxsplit=1)[0]
    if not first.isdigit():
        return NO_LIMIT
    return int(first) * SECOND_US // PERIOD_US if name == "CPUQuotaPerSecUSec" else int(first)
