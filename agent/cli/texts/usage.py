# SPDX-License-Identifier: Apache-2.0
"""What a node, its pods and containers use, in columns; units as kubectl has them. An unknown figure is `-`."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from agent.cli.session import CommandFailed
from agent.kinds.ages import age
from agent.kinds.table import Column, Columns, Listing
from agent.model.exit_codes import USAGE
from agent.wire.kepd.v1 import node_pb2 as pb

UNKNOWN = "-"
MIB, GIB = 1 << 20, 1 << 30
TEN = 10
WHAT = ("node", "pods", "containers")
ORDERS = ("cpu", "memory", "psi", "restarts", "oom", "name")


class ContainerRow(msgspec.Struct, frozen=True):
    """A container and the pod that it is in."""

    pod: pb.PodUsage
    container: pb.ContainerUsage


def cores_text(usage: pb.Usage) -> str:
    return f"{round(usage.cpu_cores * 1000)}m" if usage.HasField("cpu_cores") else UNKNOWN


def size_text(size: int | None) -> str:
    if size is None:
        return UNKNOWN
    return f"{size / GIB:.1f}Gi" if size >= TEN * GIB else f"{round(size / MIB)}Mi"


def memory_text(usage: pb.Usage) -> str:
    return size_text(usage.memory_bytes if usage.HasField("memory_bytes") else None)


def percent(part: float | None, whole: float | None = 1.0) -> str:
    return UNKNOWN if part is None or not whole else f"{part / whole * 100:.0f}%"


def of_limit(usage: pb.Usage, used: str, limit: str) -> float | None:
    """The share of the limit that is used; None without a limit or a figure."""
    if not usage.HasField(used) or not usage.HasField(limit):
        return None
    share: float = getattr(usage, used) / getattr(usage, limit)
    return share


def cpu_share(usage: pb.Usage) -> float | None:
    return of_limit(usage, "cpu_cores", "cpu_limit_cores")


def memory_share(usage: pb.Usage) -> float | None:
    return of_limit(usage, "memory_bytes", "memory_limit_bytes")


def stalls_of(usage: pb.Usage) -> list[tuple[str, float]]:
    found = usage.stalls
    return [(name, getattr(found, name)) for name in ("cpu", "memory", "io") if found.HasField(name)]


def stalls_text(usage: pb.Usage) -> str:
    """Processor, memory and disk, in percent of the last ten seconds."""
    values = [f"{getattr(usage.stalls, one):.1f}" if usage.stalls.HasField(one) else UNKNOWN
              for one in ("cpu", "memory", "io")]  # fmt: skip
    return " ".join(values)


def worst_stall(usage: pb.Usage) -> str:
    """For a narrow screen: the highest, with its letter."""
    found = max(stalls_of(usage), key=lambda one: one[1], default=None)
    return UNKNOWN if found is None else f"{found[0][0]} {found[1]:.1f}"


def node_listing(answer: pb.ListStatsResponse) -> Listing[pb.NodeUsage]:
    columns: Columns[pb.NodeUsage] = (
        Column("NAME", lambda node: node.name),
        Column("CPU%", lambda node: percent(cpu_share(node.usage))),
        Column("CPU(cores)", lambda node: cores_text(node.usage)),
        Column("MEMORY", lambda node: memory_text(node.usage)),
        Column("MEMORY%", lambda node: percent(memory_share(node.usage))),
        Column("PRESSURE(cpu mem io)", lambda node: stalls_text(node.usage)),
        Column("DISK%", lambda node: percent(node.disk_share if node.HasField("disk_share") else None)),
        Column("PODS", lambda node: str(node.pods)),
        Column("OOM", lambda node: str(node.ooms)),
    )
    return Listing("NodeUsage", [answer.node], columns, lambda node: f"node/{node.name}")


def pod_usage_columns() -> Columns[pb.PodUsage]:
    return (
        Column("NAMESPACE", lambda pod: pod.namespace),
        Column("NAME", lambda pod: pod.name),
        Column("CPU", lambda pod: cores_text(pod.usage)),
        Column("MEMORY", lambda pod: memory_text(pod.usage)),
        Column("CPU/LIMIT", lambda pod: percent(cpu_share(pod.usage))),
        Column("MEM/LIMIT", lambda pod: percent(memory_share(pod.usage))),
        Column("PRESSURE(cpu mem io)", lambda pod: stalls_text(pod.usage)),
        Column("RESTARTS", lambda pod: str(pod.restarts)),
        Column("OOM", lambda pod: str(pod.ooms)),
        Column("AGE", lambda pod: age(pod.created_at)),
    )


def pod_usage_listing(pods: Sequence[pb.PodUsage]) -> Listing[pb.PodUsage]:
    return Listing(
        "PodUsage", pods, pod_usage_columns(), lambda pod: f"pod/{pod.namespace}/{pod.name}", "no pods run here"
    )


def container_columns() -> Sequence[tuple[str, Callable[[ContainerRow], str]]]:
    return (
        ("NAMESPACE", lambda row: row.pod.namespace),
        ("POD", lambda row: row.pod.name),
        ("CONTAINER", lambda row: row.container.name),
        ("CPU", lambda row: cores_text(row.container.usage)),
        ("MEMORY", lambda row: memory_text(row.container.usage)),
        ("CPU/LIMIT", lambda row: percent(cpu_share(row.container.usage))),
        ("MEM/LIMIT", lambda row: percent(memory_share(row.container.usage))),
        ("THROTTLED%", lambda row: _throttled(row.container.usage)),
        ("PRESSURE(cpu mem io)", lambda row: stalls_text(row.container.usage)),
        ("SWAP", lambda row: _size_of(row.container.usage, "swap_bytes")),
        ("DISK", lambda row: _size_of(row.container.usage, "disk_bytes")),
        ("RESTARTS", lambda row: str(row.container.restarts)),
        ("OOM", lambda row: str(row.container.ooms)),
        ("AGE", lambda row: age(row.container.started_at)),
    )


def _throttled(usage: pb.Usage) -> str:
    return percent(usage.throttled if usage.HasField("throttled") else None)


def _size_of(usage: pb.Usage, field: str) -> str:
    return size_text(getattr(usage, field) if usage.HasField(field) else None)


def container_rows(pods: Iterable[pb.PodUsage]) -> list[ContainerRow]:
    return [ContainerRow(pod, one) for pod in pods for one in pod.containers]


def ordered_pods(pods: Iterable[pb.PodUsage], order: str) -> list[pb.PodUsage]:
    return sorted(pods, key=lambda pod: (*_rank(pod.usage, pod.restarts, pod.ooms, order), pod.namespace, pod.name))


def ordered_rows(rows: Iterable[ContainerRow], order: str) -> list[ContainerRow]:
    def key(row: ContainerRow) -> tuple[object, ...]:
        one = row.container
        return (*_rank(one.usage, one.restarts, one.ooms, order), row.pod.namespace, row.pod.name, one.name)

    return sorted(rows, key=key)


def _rank(usage: pb.Usage, restarts: int, ooms: int, order: str) -> tuple[float, ...]:
    """Most first; what is not known comes last."""
    match order:
        case "cpu":
            return (-usage.cpu_cores if usage.HasField("cpu_cores") else 1.0,)
        case "memory":
            return (-float(usage.memory_bytes) if usage.HasField("memory_bytes") else 1.0,)
        case "psi":
            return (-max((value for _, value in stalls_of(usage)), default=-1.0),)
        case "restarts":
            return (-restarts,)
        case "oom":
            return (-ooms,)
        case "name":
            return ()
    raise CommandFailed(f"--sort-by {order} is no order; expected one of {', '.join(ORDERS)}", USAGE)
