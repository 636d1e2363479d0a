# SPDX-License-Identifier: Apache-2.0
"""/metrics/resource: what a metrics server reads of a kubelet, with the time of each figure."""

from collections.abc import Iterator, Sequence

from agent.observe.kernel.group_text import GroupFigures
from agent.observe.pages.exposition import COUNTER, GAUGE, RenderedFamily, Sample, family, labels
from agent.observe.sample.node_sample import ContainerSample, NodeSample, PodSample

NS = 1e9


def resource_families(sample: NodeSample, *, is_open: bool) -> list[RenderedFamily]:
    """Times are milliseconds in the text format and seconds in OpenMetrics."""
    at = f" {sample.wall_s:.3f}" if is_open else f" {int(sample.wall_s * 1000)}"
    found = [*_node(sample), *_containers(sample), *_pods(sample)]
    written = [family(name, kind, text, samples, is_open=is_open, at=at) for name, kind, text, samples in found]
    error = int(any(not one.is_whole for pod in sample.pods for one in pod.containers))
    for name in ("resource_scrape_error", "scrape_error"):
        text = "1 where something could not be read."
        written.append(family(name, GAUGE, text, [(b"", error)], is_open=is_open))
    return written


Described = tuple[str, str, str, list[Sample]]


def _node(sample: NodeSample) -> Iterator[Described]:
    node = sample.node
    cpu: list[Sample] = [] if node.figures.cpu_ns is None else [(b"", node.figures.cpu_ns / NS)]
    yield "node_cpu_usage_seconds_total", COUNTER, "Processor time of the node.", cpu
    memory: list[Sample] = [] if node.working_set is None else [(b"", node.working_set)]
    yield "node_memory_working_set_bytes", GAUGE, "Memory in use on the node.", memory
    total, free = node.memory.swap_total, node.memory.swap_free
    swap: list[Sample] = [] if total is None or free is None else [(b"", total - free)]
    yield "node_swap_usage_bytes", GAUGE, "Swap in use on the node.", swap


def _containers(sample: NodeSample) -> Iterator[Described]:
    rows = [
        (labels([("container", one.name), ("namespace", pod.namespace), ("pod", pod.name)]), one)
        for pod in sample.pods
        for one in pod.containers
        if one.ended_s is None
    ]
    yield from _usage("container", "a container", [(text, one.figures) for text, one in rows])
    limits: list[Sample] = [(text, found) for text, one in rows if (found := _swap_limit(one.figures)) is not None]
    yield "container_swap_limit_bytes", GAUGE, "Swap that a container may use.", limits
    started: list[Sample] = [(text, one.started_at_s) for text, one in rows if one.started_at_s]
    yield "container_start_time_seconds", GAUGE, "When a container was started.", started


def _swap_limit(figures: GroupFigures) -> int | None:
    """Of swap alone; without a limit of its own a container may use what there is, which no figure here says."""
    if not figures.limits.memory_and_swap or not figures.limits.memory:
        return None
    return max(figures.limits.memory_and_swap - figures.limits.memory, 0)


def _pods(sample: NodeSample) -> Iterator[Described]:
    rows = [
        (labels([("namespace", pod.namespace), ("pod", pod.name)]), pod_figures(pod))
        for pod in sample.pods
        if pod.sandbox.ended_s is None
    ]
    yield from _usage("pod", "a pod", rows)


def pod_figures(pod: PodSample) -> GroupFigures:
    """Of the pod's own group; where it has none, of its containers together."""
    if pod.figures is not None:
        return pod.figures
    living: Sequence[ContainerSample] = [one for one in (pod.sandbox, *pod.containers) if one.ended_s is None]

    def together(field: str) -> int | None:
        known = [found for one in living if (found := getattr(one.figures, field)) is not None]
        return sum(known) if known else None

    return GroupFigures(
        cpu_ns=together("cpu_ns"), usage=together("usage"), working_set=together("working_set"), swap=together("swap")
    )


def _usage(of: str, words: str, rows: Sequence[tuple[bytes, GroupFigures]]) -> Iterator[Described]:
    cpu: list[Sample] = [(text, one.cpu_ns / NS) for text, one in rows if one.cpu_ns is not None]
    memory: list[Sample] = [(text, one.working_set) for text, one in rows if one.working_set is not None]
    swap: list[Sample] = [(text, one.swap) for text, one in rows if one.swap is not None]
    yield f"{of}_cpu_usage_seconds_total", COUNTER, f"Processor time of {words}.", cpu
    yield f"{of}_memory_working_set_bytes", GAUGE, f"Memory in use by {words}.", memory
    yield f"{of}_swap_usage_bytes", GAUGE, f"Swap in use by {words}.", swap
