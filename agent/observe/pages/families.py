# SPDX-License-Identifier: Apache-2.0
"""The families that a kubelet's /metrics/cadvisor shows, and how each follows from the figures of a group (CMX).

Left out are those that cAdvisor names and a kubelet never fills; docs/observation.md lists them.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter

import msgspec

from agent.observe.kernel.group_text import DeviceUse, GroupFigures
from agent.observe.kernel.node_text import Interface
from agent.observe.kernel.pressure_text import PressureFigures
from agent.observe.pages.exposition import COUNTER, GAUGE

NS, US = 1e9, 1e6

# What is left out first where there are too many series; those of no group stay whatever happens.
DEVICES, LIMITS, ERRORS, POD_GROUPS, NETWORK, PSI, FILES, DETAILS = (
    "devices", "tasks", "network-errors", "pod-groups", "network", "pressure", "files", "details",
)  # fmt: skip
# Details of processor and memory go last: with them the usual bound is met by 1 200 containers, without by 4 000.
DROP_ORDER = (DEVICES, LIMITS, ERRORS, POD_GROUPS, NETWORK, PSI, FILES, DETAILS)
# Of processor and memory, what alerts and screens go by.
ALWAYS = frozenset({
    "container_cpu_usage_seconds_total", "container_cpu_cfs_periods_total", "container_cpu_cfs_throttled_periods_total",
    "container_memory_usage_bytes", "container_memory_working_set_bytes", "container_memory_rss",
    "container_spec_memory_limit_bytes",
})  # fmt: skip


class Variant(msgspec.Struct, frozen=True):
    """A figure with labels of its own; its unit is such a part of that of the page, or that of the page."""

    labels: str
    field: str
    unit: float | None


class Family(msgspec.Struct, frozen=True):
    name: str
    kind: str
    text: str
    variants: tuple[Variant, ...]
    group: str = ""


def _one(
    name: str, kind: str, text: str, field: str, group: str = "", *, unit: float | None = None, labels: str = ""
) -> Family:
    return Family(name, kind, text, (Variant(labels, field, unit),), group or ("" if name in ALWAYS else DETAILS))


def _failures() -> Family:
    fields = {"pgfault": "faults", "pgmajfault": "major_faults"}
    variants = tuple(
        Variant(f'failure_type="{kind}",scope="{scope}"', field, None)
        for kind, field in fields.items()
        for scope in ("container", "hierarchy")
    )
    return Family("container_memory_failures_total", COUNTER, "Memory faults.", variants, DETAILS)


def _pressures() -> Iterable[Family]:
    for what, field in (("cpu", "cpu_pressure"), ("memory", "memory_pressure"), ("io", "io_pressure")):
        for word, part in (("waiting", "waiting_us"), ("stalled", "stalled_us")):
            yield _one(
                f"container_pressure_{what}_{word}_seconds_total", COUNTER,
                f"Time in which {'some tasks' if word == 'waiting' else 'all tasks'} waited for {what}.",
                f"{field}.{part}", PSI, unit=US,
            )  # fmt: skip


def _memory() -> Iterable[Family]:
    for name, kind, text, field in (
        ("usage_bytes", GAUGE, "Memory in use, cache included.", "usage"),
        ("working_set_bytes", GAUGE, "Memory in use without cache that is idle.", "working_set"),
        ("rss", GAUGE, "Memory that belongs to no file.", "rss"),
        ("cache", GAUGE, "Memory that caches files.", "cache"),
        ("mapped_file", GAUGE, "Memory of files that are mapped.", "mapped"),
        ("swap", GAUGE, "Memory in swap.", "swap"),
        ("total_active_file_bytes", GAUGE, "Cache that was used lately.", "active_file"),
        ("total_inactive_file_bytes", GAUGE, "Cache that is idle.", "inactive_file"),
        ("kernel_usage", GAUGE, "Memory of the kernel.", "kernel"),
        ("max_usage_bytes", GAUGE, "The most memory that was in use.", "max_usage"),
        ("failcnt", COUNTER, "How often the limit of memory was met.", "failures"),
    ):
        yield _one(f"container_memory_{name}", kind, text, field)


def _specs() -> Iterable[Family]:
    for name, text, field in (
        ("cpu_period", "Period of the processor's quota in microseconds.", "limits.period_us"),
        ("cpu_quota", "Quota of the processor in microseconds.", "limits.quota_us"),
        ("cpu_shares", "Share of the processor.", "limits.shares"),
        ("memory_limit_bytes", "Memory limit; 0 = unlimited.", "limits.memory"),
        ("memory_swap_limit_bytes", "Limit of memory with swap; 0 is none.", "limits.memory_and_swap"),
        ("memory_reservation_limit_bytes", "Memory that is protected; 0 is none.", "limits.reservation"),
    ):
        yield _one(f"container_spec_{name}", GAUGE, text, field)


def _cpu() -> Iterable[Family]:
    yield _one("container_cpu_usage_seconds_total", COUNTER, "Processor time.", "cpu_ns", unit=NS, labels='cpu="total"')
    yield _one("container_cpu_user_seconds_total", COUNTER, "Processor time outside the kernel.", "user_ns", unit=NS)
    yield _one("container_cpu_system_seconds_total", COUNTER, "Processor time in the kernel.", "system_ns", unit=NS)
    yield _one("container_cpu_cfs_periods_total", COUNTER, "Periods of the quota.", "periods")
    yield _one(
        "container_cpu_cfs_throttled_periods_total", COUNTER, "Periods in which the quota was used up.",
        "throttled_periods",
    )  # fmt: skip
    yield _one(
        "container_cpu_cfs_throttled_seconds_total", COUNTER, "Time held back by the quota.",
        "throttled_ns", unit=NS,
    )  # fmt: skip
    yield _one("container_cpu_cfs_burst_periods_total", COUNTER, "Periods with a burst.", "burst_periods")
    yield _one("container_cpu_cfs_burst_seconds_total", COUNTER, "Time of bursts.", "burst_ns", unit=NS)


def _tasks() -> Iterable[Family]:
    yield _one("container_processes", GAUGE, "Processes.", "processes", LIMITS)
    yield _one("container_threads", GAUGE, "Threads.", "threads", LIMITS)
    yield _one("container_threads_max", GAUGE, "Limit of threads; 0 is none.", "limits.threads", LIMITS)


FAMILIES = (*_cpu(), *_memory(), _failures(), *_pressures(), *_specs(), *_tasks())
"""Of every group: container, sandbox, pod, and those above them."""

DEVICE_FAMILIES: tuple[tuple[str, str, Callable[[DeviceUse], int]], ...] = (
    ("container_fs_reads_bytes_total", "Bytes read from a device.", attrgetter("read_bytes")),
    ("container_fs_writes_bytes_total", "Bytes written to a device.", attrgetter("written_bytes")),
    ("container_fs_reads_total", "Reads of a device.", attrgetter("reads")),
    ("container_fs_writes_total", "Writes to a device.", attrgetter("writes")),
)

NETWORK_FAMILIES: tuple[tuple[str, str, str, Callable[[Interface], int]], ...] = (
    ("receive_bytes", "Bytes received.", NETWORK, attrgetter("received_bytes")),
    ("receive_packets", "Packets received.", NETWORK, attrgetter("received_packets")),
    ("receive_packets_dropped", "Received packets that were dropped.", ERRORS, attrgetter("received_dropped")),
    ("receive_errors", "Errors on receipt.", ERRORS, attrgetter("received_errors")),
    ("transmit_bytes", "Bytes sent.", NETWORK, attrgetter("sent_bytes")),
    ("transmit_packets", "Packets sent.", NETWORK, attrgetter("sent_packets")),
    ("transmit_packets_dropped", "Packets to send that were dropped.", ERRORS, attrgetter("sent_dropped")),
    ("transmit_errors", "Errors on sending.", ERRORS, attrgetter("sent_errors")),
)


def with_pressure(
    figures: GroupFigures, cpu: PressureFigures, memory: PressureFigures, io: PressureFigures
) -> GroupFigures:
    """The root of version 1 has no pressure files; the node's own say the same."""
    return msgspec.structs.replace(figures, cpu_pressure=cpu, memory_pressure=memory, io_pressure=io)
