# SPDX-License-Identifier: Apache-2.0
"""One control group in figures, from the files of either version (CMX-01).

All sizes are bytes, all times nanoseconds. What a file does not say is None and leaves the pages, never a 0; a limit
that is not set is 0, as cAdvisor has it.
"""

from collections.abc import Callable, Mapping

import msgspec

from agent.observe.kernel.numbers import count_lines, limit, number, one_of, pairs
from agent.observe.kernel.pressure_text import NOTHING, Pressure, read_pressure

Texts = Mapping[str, bytes | None]

TICK_NS, US_NS = 10_000_000, 1000
PERIOD_US = 100_000
# Weights of version 2 as shares of version 1, as runtimes turned them around for years (CMX-CPU).
MOST_SHARES, LEAST_SHARES, MOST_WEIGHT = 262_144, 2, 10_000
MOST_DEVICES = 16

PRESSURES = ("cpu.pressure", "memory.pressure", "io.pressure")
LEGACY_FILES = {
    "cpuacct": ("cpuacct.usage", "cpuacct.stat"),
    "cpu": ("cpu.stat", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares"),
    "memory": (
        "memory.stat", "memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.failcnt",
        "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.soft_limit_in_bytes",
        "memory.kmem.usage_in_bytes", "memory.oom_control",
    ),
    "blkio": ("blkio.throttle.io_service_bytes", "blkio.throttle.io_serviced"),
    "pids": ("pids.current", "pids.max", "cgroup.procs"),
}  # fmt: skip
UNIFIED_FILES = (
    "cpu.stat", "cpu.max", "cpu.weight", "memory.stat", "memory.current", "memory.peak", "memory.events",
    "memory.events.local", "memory.max", "memory.swap.current", "memory.swap.max", "memory.low", "io.stat",
    "pids.current", "pids.max", "cgroup.procs",
)  # fmt: skip


class DeviceUse(msgspec.Struct, frozen=True):
    """Of one block device, `major:minor`."""

    device: str
    read_bytes: int = 0
    written_bytes: int = 0
    reads: int = 0
    writes: int = 0


class GroupFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`quota_us` is None without a quota; then nothing is throttled either. `oom_kills` are processes that the kernel
    killed here for want of memory, `group_kills` whole groups."""

    cpu_ns: int | None = None
    user_ns: int | None = None
    system_ns: int | None = None
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_ns: int | None = None
    burst_periods: int | None = None
    burst_ns: int | None = None
    quota_us: int | None = None
    period_us: int | None = None
    shares: int | None = None
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
    memory_limit: int | None = None
    swap_limit: int | None = None
    reservation: int | None = None
    oom_kills: int | None = None
    group_kills: int | None = None
    own_ooms: int | None = None
    threads: int | None = None
    most_threads: int | None = None
    processes: int | None = None
    devices: tuple[DeviceUse, ...] = ()
    cpu_pressure: Pressure = NOTHING
    memory_pressure: Pressure = NOTHING
    io_pressure: Pressure = NOTHING


NO_FIGURES = GroupFigures()


def read_figures(version: int, texts: Texts) -> GroupFigures:
    found = _legacy(texts) if version == 1 else _unified(texts)
    devices = _legacy_devices(texts) if version == 1 else _unified_devices(texts.get("io.stat") or b"")
    pressures = (read_pressure(text) if (text := texts.get(name)) else NOTHING for name in PRESSURES)
    cpu, memory, io = pressures
    return GroupFigures(**found, devices=devices, cpu_pressure=cpu, memory_pressure=memory, io_pressure=io)


def _of(texts: Texts, name: str, read: Callable[[bytes], int | None] = number) -> int | None:
    text = texts.get(name)
    return None if text is None else read(text)


def _scaled(value: int | None, factor: int) -> int | None:
    return None if value is None else value * factor


def _working_set(usage: int | None, inactive_file: int | None) -> int | None:
    return None if usage is None or inactive_file is None else max(usage - inactive_file, 0)


def _legacy(texts: Texts) -> dict[str, int | None]:
    quota_us = _quota(texts.get("cpu.cfs_quota_us"))
    memory = pairs(texts.get("memory.stat") or b"")
    # Without a hierarchy only the keys of the group itself are there.
    total = b"total_" if b"total_inactive_file" in memory else b""
    usage, inactive = _of(texts, "memory.usage_in_bytes"), one_of(memory, total + b"inactive_file")
    times = pairs(texts.get("cpuacct.stat") or b"")
    return {
        "cpu_ns": _of(texts, "cpuacct.usage"),
        "user_ns": _scaled(one_of(times, b"user"), TICK_NS),
        "system_ns": _scaled(one_of(times, b"system"), TICK_NS),
        **_throttling(pairs(texts.get("cpu.stat") or b""), quota_us, b"throttled_time", b"burst_time", 1),
        "quota_us": quota_us,
        "period_us": _of(texts, "cpu.cfs_period_us"),
        "shares": _of(texts, "cpu.shares"),
        "usage": usage,
        "working_set": _working_set(usage, inactive),
        **{
            name: one_of(memory, total + key)
            for name, key in (
                ("rss", b"rss"), ("cache", b"cache"), ("mapped", b"mapped_file"), ("swap", b"swap"),
                ("active_file", b"active_file"), ("faults", b"pgfault"), ("major_faults", b"pgmajfault"),
            )
        },
        "inactive_file": inactive,
        "kernel": _of(texts, "memory.kmem.usage_in_bytes"),
        "max_usage": _of(texts, "memory.max_usage_in_bytes"),
        "failures": _of(texts, "memory.failcnt"),
        "memory_limit": _of(texts, "memory.limit_in_bytes", limit),
        "swap_limit": _of(texts, "memory.memsw.limit_in_bytes", limit),
        "reservation": _of(texts, "memory.soft_limit_in_bytes", limit),
        "oom_kills": one_of(pairs(texts.get("memory.oom_control") or b""), b"oom_kill"),
        **_tasks(texts),
    }  # fmt: skip


def _unified(texts: Texts) -> dict[str, int | None]:
    quota_us, period_us = _max(texts.get("cpu.max"))
    memory = pairs(texts.get("memory.stat") or b"")
    cpu = pairs(texts.get("cpu.stat") or b"")
    events, own = (pairs(texts.get(one) or b"") for one in ("memory.events", "memory.events.local"))
    usage, inactive = _of(texts, "memory.current"), one_of(memory, b"inactive_file")
    memory_limit, swap_limit = _of(texts, "memory.max", limit), _of(texts, "memory.swap.max", limit)
    return {
        "cpu_ns": _scaled(one_of(cpu, b"usage_usec"), US_NS),
        "user_ns": _scaled(one_of(cpu, b"user_usec"), US_NS),
        "system_ns": _scaled(one_of(cpu, b"system_usec"), US_NS),
        **_throttling(cpu, quota_us, b"throttled_usec", b"burst_usec", US_NS),
        "quota_us": quota_us,
        "period_us": period_us,
        "shares": _shares(_of(texts, "cpu.weight")),
        "usage": usage,
        "working_set": _working_set(usage, inactive),
        **{
            name: one_of(memory, key)
            for name, key in (
                ("rss", b"anon"), ("cache", b"file"), ("mapped", b"file_mapped"), ("active_file", b"active_file"),
                ("kernel", b"kernel"), ("faults", b"pgfault"), ("major_faults", b"pgmajfault"),
            )
        },
        "inactive_file": inactive,
        "swap": _of(texts, "memory.swap.current"),
        "max_usage": _of(texts, "memory.peak"),
        "failures": one_of(events, b"max"),
        "memory_limit": memory_limit,
        "swap_limit": memory_limit + swap_limit if memory_limit and swap_limit is not None else memory_limit,
        "reservation": _of(texts, "memory.low", limit),
        "oom_kills": one_of(events, b"oom_kill"),
        "group_kills": one_of(events, b"oom_group_kill"),
        "own_ooms": one_of(own, b"oom"),
        **_tasks(texts),
    }  # fmt: skip


def _tasks(texts: Texts) -> dict[str, int | None]:
    return {
        "threads": _of(texts, "pids.current"),
        "most_threads": _of(texts, "pids.max", limit),
        "processes": _of(texts, "cgroup.procs", count_lines),
    }


def _throttling(
    cpu: dict[bytes, bytes], quota_us: int | None, throttled: bytes, burst: bytes, factor: int
) -> dict[str, int | None]:
    """Only where there is a quota: elsewhere cAdvisor has no such series, and rates of nothing would be drawn."""
    if quota_us is None:
        return {}
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


def _legacy_devices(texts: Texts) -> tuple[DeviceUse, ...]:
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
    return tuple(DeviceUse(device.decode("ascii", "replace"), **found[device]) for device in list(found)[:MOST_DEVICES])


def _unified_devices(text: bytes) -> tuple[DeviceUse, ...]:
    """Lines of `8:0 rbytes=1 wbytes=2 rios=3 wios=4 …`."""
    found = []
    for line in text.splitlines()[:MOST_DEVICES]:
        device, _, rest = line.partition(b" ")
        counts = {key: number(value) or 0 for key, _, value in (word.partition(b"=") for word in rest.split())}
        if counts:
            order = (counts.get(key, 0) for key in (b"rbytes", b"wbytes", b"rios", b"wios"))
            found.append(DeviceUse(device.decode("ascii", "replace"), *order))
    return tuple(found)
