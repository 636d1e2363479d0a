# SPDX-License-Identifier: Apache-2.0
"""One control group in figures, from the files of either version.

All sizes are bytes, all times nanoseconds. What a file does not say is None and leaves the pages, never a 0; a limit
that is not set is 0, as cAdvisor has it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from agent.observe.kernel.numbers import chosen, count_lines, limit, number, one_of, pairs
from agent.observe.kernel.pressure_text import NOTHING, PressureFigures, read_pressure

Texts = Mapping[str, bytes | None]

TICK_NS, US_NS = 10_000_000, 1000
PERIOD_US = 100_000
# Weights of version 2 as shares of version 1, as runtimes turned them around for years (CMX-CPU).
MOST_SHARES, LEAST_SHARES, MOST_WEIGHT = 262_144, 2, 10_000
MOST_DEVICES = 16

PRESSURES = ("cpu.pressure", "memory.pressure", "io.pressure")


class DeviceUse(msgspec.Struct, frozen=True, gc=False):
    """Of one block device, `major:minor`."""

    device: str
    read_bytes: int = 0
    written_bytes: int = 0
    reads: int = 0
    writes: int = 0


class GroupLimits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What somebody set; it changes seldom. `quota_us` is None without a quota, and then nothing is throttled."""

    quota_us: int | None = None
    period_us: int | None = None
    shares: int | None = None
    memory: int | None = None
    memory_and_swap: int | None = None
    reservation: int | None = None
    threads: int | None = None


NO_LIMITS = GroupLimits()


class GroupFigures(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`oom_kills` are processes that the kernel killed here for want of memory, `group_kills` whole groups."""

    limits: GroupLimits = NO_LIMITS
    cpu_ns: int | None = None
    user_ns: int | None = None
    system_ns: int | None = None
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_ns: int | None = None
    burst_periods: int | None = None
    burst_ns: int | None = None
    usage: int | None = None
    working_set: int | None = None
    rss: int | None = None
    cache: int | None = None
    mapped: int | None = None
    swap: int | None = None
    active_file: int | None = None
    inactive_file: int | None = None
    kernel: int | None = None
    max_usage: int | None = None
    failures: int | None = None
    faults: int | None = None
    major_faults: int | None = None
    oom_kills: int | None = None
    group_kills: int | None = None
    own_ooms: int | None = None
    threads: int | None = None
    processes: int | None = None
    devices: tuple[DeviceUse, ...] = ()
    cpu_pressure: PressureFigures = NOTHING
    memory_pressure: PressureFigures = NOTHING
    io_pressure: PressureFigures = NOTHING


NO_FIGURES = GroupFigures()

Found = dict[str, Any]
Part = Callable[[Texts, GroupLimits], Found]
"""Figures of some files, by their names."""


def read_figures(
    version: int,
    texts: Texts,
    limits: GroupLimits = NO_LIMITS,
    before: GroupFigures = NO_FIGURES,
    changed: Iterable[str] | None = None,
) -> GroupFigures:
    """`before` are figures with the same limits, and `changed` the names of files whose texts are others since."""
    parts = LEGACY_PARTS if version == 1 else UNIFIED_PARTS
    found: dict[str, Any] = {"limits": limits}
    for part in {parts[name] for name in (texts if changed is None else changed) if name in parts}:
        found.update(part(texts, limits))
    return msgspec.structs.replace(before, **found)


def read_limits(version: int, texts: Texts) -> GroupLimits:
    return _legacy_limits(texts) if version == 1 else _unified_limits(texts)


def _of(texts: Texts, name: str, read: Callable[[bytes], int | None] = number) -> int | None:
    text = texts.get(name)
    return None if text is None else read(text)


def _scaled(value: int | None, factor: int) -> int | None:
    return None if value is None else value * factor


def _working_set(usage: int | None, inactive_file: int | None) -> int | None:
    return None if usage is None or inactive_file is None else max(usage - inactive_file, 0)


LEGACY_KEYS = {
    "rss": b"rss", "cache": b"cache", "mapped": b"mapped_file", "swap": b"swap", "active_file": b"active_file",
    "inactive_file": b"inactive_file", "faults": b"pgfault", "major_faults": b"pgmajfault",
}  # fmt: skip
TOTAL_KEYS = {name: b"total_" + key for name, key in LEGACY_KEYS.items()}
UNIFIED_KEYS = {
    "rss": b"anon", "cache": b"file", "mapped": b"file_mapped", "kernel": b"kernel", "active_file": b"active_file",
    "inactive_file": b"inactive_file", "faults": b"pgfault", "major_faults": b"pgmajfault",
}  # fmt: skip


def _figure(field: str, name: str, read: Callable[[bytes], int | None] = number) -> Part:
    return lambda texts, _limits: {field: _of(texts, name, read)}


def _pressure(field: str, name: str) -> Part:
    return lambda texts, _limits: {field: read_pressure(text) if (text := texts.get(name)) else NOTHING}


def _legacy_memory(texts: Texts, _limits: GroupLimits) -> Found:
    stat = texts.get("memory.stat") or b""
    # Without a hierarchy only the keys of the group itself are there.
    memory = chosen(stat, TOTAL_KEYS if b"total_inactive_file" in stat else LEGACY_KEYS)
    usage = _of(texts, "memory.usage_in_bytes")
    return {**memory, "usage": usage, "working_set": _working_set(usage, memory["inactive_file"])}


def _legacy_times(texts: Texts, _limits: GroupLimits) -> Found:
    times = pairs(texts.get("cpuacct.stat") or b"")
    return {
        "user_ns": _scaled(one_of(times, b"user"), TICK_NS),
        "system_ns": _scaled(one_of(times, b"system"), TICK_NS),
    }


def _legacy_kills(texts: Texts, _limits: GroupLimits) -> Found:
    return {"oom_kills": one_of(pairs(texts.get("memory.oom_control") or b""), b"oom_kill")}


def _legacy_throttling(texts: Texts, limits: GroupLimits) -> Found:
    return _throttling(texts, limits, b"throttled_time", b"burst_time", 1)


def _legacy_limits(texts: Texts) -> GroupLimits:
    return GroupLimits(
        quota_us=_quota(texts.get("cpu.cfs_quota_us")),
        period_us=_of(texts, "cpu.cfs_period_us"),
        shares=_of(texts, "cpu.shares"),
        memory=_of(texts, "memory.limit_in_bytes", limit),
        memory_and_swap=_of(texts, "memory.memsw.limit_in_bytes", limit),
        reservation=_of(texts, "memory.soft_limit_in_bytes", limit),
        threads=_of(texts, "pids.max", limit),
    )


def _unified_memory(texts: Texts, _limits: GroupLimits) -> Found:
    memory = chosen(texts.get("memory.stat") or b"", UNIFIED_KEYS)
    usage = _of(texts, "memory.current")
    return {**memory, "usage": usage, "working_set": _working_set(usage, memory["inactive_file"])}


def _unified_times(texts: Texts, limits: GroupLimits) -> Found:
    cpu = pairs(texts.get("cpu.stat") or b"")
    return {
        "cpu_ns": _scaled(one_of(cpu, b"usage_usec"), US_NS),
        "user_ns": _scaled(one_of(cpu, b"user_usec"), US_NS),
        "system_ns": _scaled(one_of(cpu, b"system_usec"), US_NS),
        **_throttling(texts, limits, b"throttled_usec", b"burst_usec", US_NS),
    }


def _unified_events(texts: Texts, _limits: GroupLimits) -> Found:
    events, own = (pairs(texts.get(one) or b"") for one in ("memory.events", "memory.events.local"))
    return {
        "failures": one_of(events, b"max"),
        "oom_kills": one_of(events, b"oom_kill"),
        "group_kills": one_of(events, b"oom_group_kill"),
        "own_ooms": one_of(own, b"oom"),
    }


def _unified_limits(texts: Texts) -> GroupLimits:
    quota_us, period_us = _max(texts.get("cpu.max"))
    memory, swap = _of(texts, "memory.max", limit), _of(texts, "memory.swap.max", limit)
    return GroupLimits(
        quota_us=quota_us,
        period_us=period_us,
        shares=_shares(_of(texts, "cpu.weight")),
        memory=memory,
        memory_and_swap=memory + swap if memory and swap is not None else memory,
        reservation=_of(texts, "memory.low", limit),
        threads=_of(texts, "pids.max", limit),
    )


def _throttling(texts: Texts, limits: GroupLimits, throttled: bytes, burst: bytes, factor: int) -> Found:
    """Only where there is a quota: elsewhere cAdvisor has no such series, and rates of nothing would be drawn."""
    if limits.quota_us is None:
        return {}
    cpu = pairs(texts.get("cpu.stat") or b"")
    return {
        "periods": one_of(cpu, b"nr_periods"),
        "throttled_periods": one_of(cpu, b"nr_throttled"),
        "throttled_ns": _scaled(one_of(cpu, throttled), factor),
        "burst_periods": one_of(cpu, b"nr_bursts"),
        "burst_ns": _scaled(one_of(cpu, burst), factor),
    }


def _quota(text: bytes | None) -> int | None:
    found = None if text is None else number(text)
    return found or None


def _max(text: bytes | None) -> tuple[int | None, int | None]:
    """Of cpu.max: quota and period."""
    words = (text or b"").split()
    if len(words) != len(("quota", "period")):
        return None, None
    return number(words[0]), number(words[1])


def _shares(weight: int | None) -> int | None:
    if weight is None:
        return None
    return LEAST_SHARES + (weight - 1) * (MOST_SHARES - LEAST_SHARES) // (MOST_WEIGHT - 1)


def _legacy_devices(texts: Texts, _limits: GroupLimits) -> Found:
    """Lines of `8:0 Read 4096`, with other operations and a total among them."""
    sizes, counts = (texts.get(f"blkio.throttle.{one}") or b"" for one in ("io_service_bytes", "io_serviced"))
    found: dict[bytes, dict[str, int]] = {}
    for text, read, write in ((sizes, "read_bytes", "written_bytes"), (counts, "reads", "writes")):
        names = {b"Read": read, b"Write": write}
        for line in text.splitlines():
            device, _, rest = line.partition(b" ")
            operation, _, value = rest.partition(b" ")
            count = number(value)
            if operation in names and count is not None:
                found.setdefault(device, {})[names[operation]] = count
    uses = (DeviceUse(device.decode("ascii", "replace"), **found[device]) for device in list(found)[:MOST_DEVICES])
    return {"devices": tuple(uses)}


def _unified_devices(texts: Texts, _limits: GroupLimits) -> Found:
    """Lines of `8:0 rbytes=1 wbytes=2 rios=3 wios=4 …`."""
    found = []
    for line in (texts.get("io.stat") or b"").splitlines()[:MOST_DEVICES]:
        device, _, rest = line.partition(b" ")
        counts = {key: number(value) or 0 for key, _, value in (word.partition(b"=") for word in rest.split())}
        if counts:
            order = (counts.get(key, 0) for key in (b"rbytes", b"wbytes", b"rios", b"wios"))
            found.append(DeviceUse(device.decode("ascii", "replace"), *order))
    return {"devices": tuple(found)}


# By the names of files: who reads them, and those that say more together have one reader.
_BOTH: Mapping[str, Part] = {
    "pids.current": _figure("threads", "pids.current"),
    "cgroup.procs": _figure("processes", "cgroup.procs", count_lines),
    **{name: _pressure(name.replace(".", "_"), name) for name in PRESSURES},
}
LEGACY_PARTS: Mapping[str, Part] = {
    **_BOTH,
    "cpuacct.usage": _figure("cpu_ns", "cpuacct.usage"),
    "cpuacct.stat": _legacy_times,
    "cpu.stat": _legacy_throttling,
    "memory.stat": _legacy_memory,
    "memory.usage_in_bytes": _legacy_memory,
    "memory.kmem.usage_in_bytes": _figure("kernel", "memory.kmem.usage_in_bytes"),
    "memory.max_usage_in_bytes": _figure("max_usage", "memory.max_usage_in_bytes"),
    "memory.failcnt": _figure("failures", "memory.failcnt"),
    "memory.oom_control": _legacy_kills,
    "blkio.throttle.io_service_bytes": _legacy_devices,
    "blkio.throttle.io_serviced": _legacy_devices,
}
UNIFIED_PARTS: Mapping[str, Part] = {
    **_BOTH,
    "cpu.stat": _unified_times,
    "memory.stat": _unified_memory,
    "memory.current": _unified_memory,
    "memory.swap.current": _figure("swap", "memory.swap.current"),
    "memory.peak": _figure("max_usage", "memory.peak"),
    "memory.events": _unified_events,
    "memory.events.local": _unified_events,
    "io.stat": _unified_devices,
}
