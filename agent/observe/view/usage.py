# SPDX-License-Identifier: Apache-2.0
"""Two samples as what people see: who uses how much now, and against which limit."""

from collections.abc import Iterator

from agent.model.nodes.usage_report import ContainerUsage, NodeUsage, PodUsage, Reading, Stalls, Usage, UsageReport
from agent.observe.kernel.group_text import GroupFigures, GroupLimits
from agent.observe.pages.resource_page import pod_figures
from agent.observe.sample.node_sample import ContainerSample, NodeSample, PodSample
from agent.observe.sample.rates import Rates


def usage_report(
    before: NodeSample | None,
    after: NodeSample,
    node: str,
    *,
    disk_share: float | None = None,
    with_readings: bool = False,
) -> UsageReport:
    """Pods that run, in the order of their names."""
    rates = Rates(before, after)
    pods = sorted((pod for pod in after.pods if pod.sandbox.ended_s is None), key=lambda pod: pod.key)
    return UsageReport(
        node=_node(after, rates, node, disk_share),
        pods=tuple(_pod(pod, rates, with_readings=with_readings) for pod in pods),
        window_s=rates.seconds,
        taken_at_s=after.wall_s,
    )


def _node(sample: NodeSample, rates: Rates, name: str, disk_share: float | None) -> NodeUsage:
    node = sample.node
    stalls = (node.cpu_pressure, node.memory_pressure, node.io_pressure)
    cpu, memory, io = (one.waiting_avg10 for one in stalls)
    swap = node.memory.swap_total, node.memory.swap_free
    return NodeUsage(
        name=name,
        processors=node.processors,
        usage=Usage(
            cpu_cores=rates.of_node(sample),
            cpu_limit_cores=float(node.processors) or None,
            memory_bytes=node.working_set,
            memory_limit_bytes=node.memory.total,
            swap_bytes=None if swap[0] is None or swap[1] is None else swap[0] - swap[1],
            stalls=Stalls(cpu=cpu, memory=memory, io=io),
        ),
        pods=sum(pod.sandbox.ended_s is None for pod in sample.pods),
        ooms=node.oom_kills or 0,
        disk_share=disk_share,
    )


def _pod(pod: PodSample, rates: Rates, *, with_readings: bool) -> PodUsage:
    living = [one for one in pod.containers if one.ended_s is None]
    figures = pod_figures(pod)
    disks = [one.layer_bytes for one in living if one.layer_bytes is not None]
    return PodUsage(
        namespace=pod.namespace,
        name=pod.name,
        usage=_usage(figures, figures.limits, rates.of_pod(pod), sum(disks) if disks else None),
        restarts=sum(one.attempt for one in living),
        ooms=sum(one.ooms for one in pod.containers),
        created_at_s=pod.created_at_s,
        containers=tuple(_container(one, rates, with_readings=with_readings) for one in living),
    )


def _container(one: ContainerSample, rates: Rates, *, with_readings: bool) -> ContainerUsage:
    usage = _usage(one.figures, one.figures.limits, rates.of_container(one), one.layer_bytes, rates.throttled(one))
    return ContainerUsage(
        name=one.name,
        id=one.id,
        usage=usage,
        restarts=one.attempt,
        ooms=one.ooms,
        started_at_s=one.started_at_s,
        readings=tuple(_readings(one)) if with_readings else (),
    )


def _usage(
    figures: GroupFigures, limits: GroupLimits, cores: float | None, disk: int | None, throttled: float | None = None
) -> Usage:
    quota, period = limits.quota_us, limits.period_us
    return Usage(
        cpu_cores=cores,
        cpu_limit_cores=quota / period if quota and period else None,
        memory_bytes=figures.working_set,
        memory_limit_bytes=limits.memory or None,
        swap_bytes=figures.swap,
        disk_bytes=disk,
        throttled=throttled,
        stalls=Stalls(
            cpu=figures.cpu_pressure.waiting_avg10,
            memory=figures.memory_pressure.waiting_avg10,
            io=figures.io_pressure.waiting_avg10,
        ),
    )


def _readings(one: ContainerSample) -> Iterator[Reading]:
    """Each file as it was read, in one line."""
    for name, path, text in zip(one.files.names, one.files.paths, one.contents, strict=False):
        if text is not None:
            yield Reading(name=name, value=" ".join(text.decode("utf-8", "replace").split()), path=path)
