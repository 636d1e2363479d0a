# SPDX-License-Identifier: Apache-2.0
"""A sample to make pages and listings of."""

from typing import Any

from agent.observe.kernel.group_text import DeviceUse, GroupFigures, GroupLimits
from agent.observe.kernel.node_text import Interface, NodeMemory
from agent.observe.kernel.pressure_text import PressureFigures
from agent.observe.sample.node_sample import ContainerSample, NodeFigures, NodeSample, ParentSample, PodSample

PRESSURE = PressureFigures(2_000_000, 1_000_000, 5.0, 1.0)
ETH0 = Interface(
    name="eth0", received_bytes=10, received_packets=2, received_errors=0, received_dropped=0,
    sent_bytes=20, sent_packets=3, sent_errors=0, sent_dropped=0,
)  # fmt: skip


LIMITS = GroupLimits(
    quota_us=20_000, period_us=100_000, shares=204, memory=64 << 20, memory_and_swap=96 << 20, reservation=0, threads=0
)


def figures(**more: Any) -> GroupFigures:
    return GroupFigures(
        **{
            "cpu_ns": 1_500_000_000, "user_ns": 1_000_000_000, "system_ns": 500_000_000, "periods": 10,
            "throttled_periods": 5, "throttled_ns": 250_000_000, "burst_periods": 0, "burst_ns": 0, "limits": LIMITS,
            "usage": 9000, "working_set": 7000, "rss": 6000, "cache": 3000, "mapped": 0, "swap": 0,
            "active_file": 1000, "inactive_file": 2000, "kernel": 400, "max_usage": 9500, "failures": 0, "faults": 11,
            "major_faults": 1, "oom_kills": 0, "threads": 3, "processes": 2,
            "devices": (DeviceUse("8:0", 1, 2, 3, 4),), "cpu_pressure": PRESSURE, "memory_pressure": PRESSURE,
            "io_pressure": PRESSURE, **more,
        }
    )  # fmt: skip


def container(name: str = "main", **more: Any) -> ContainerSample:
    return ContainerSample(
        **{
            "id": f"id-{name}", "name": name, "image": "busybox:1", "group": f"/kepd/pod1/id-{name}",
            "started_at_s": 1000.5, "figures": figures(), "layer_bytes": 4096, **more,
        }
    )  # fmt: skip


def pod(name: str = "web", **more: Any) -> PodSample:
    return PodSample(
        **{
            "namespace": "default", "name": name, "uid": "1",
            "sandbox": container("", id=f"s-{name}", image="pause:3", group=f"/kepd/pod1/s-{name}"),
            "group": "/kepd/pod1", "figures": figures(), "interfaces": (ETH0,), "containers": (container(),), **more,
        }
    )  # fmt: skip


def sample(*pods: PodSample, **more: Any) -> NodeSample:
    node = NodeFigures(
        figures=figures(), memory=NodeMemory(1 << 30, 1 << 29, 1 << 29, 0, 0), interfaces=(ETH0,), processors=2,
        cpu_pressure=PRESSURE, memory_pressure=PRESSURE, io_pressure=PRESSURE, working_set=5000,
    )  # fmt: skip
    parents = (ParentSample("/kepd", figures()),)
    return NodeSample(**{"taken_s": 10.0, "wall_s": 2000.25, "node": node, "pods": pods, "parents": parents, **more})
