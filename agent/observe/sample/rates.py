# SPDX-License-Identifier: Apache-2.0
"""Rates, of two samples. None where the two do not tell: another instance, a counter that fell, no time."""

from agent.observe.sample.node_sample import ContainerSample, NodeSample, PodSample

NS = 1e9


def rate(before: int | None, after: int | None, seconds: float) -> float | None:
    """Of a counter, per second."""
    if before is None or after is None or after < before or seconds <= 0:
        return None
    return (after - before) / seconds


def cores(before: int | None, after: int | None, seconds: float) -> float | None:
    """Of nanoseconds of processor time."""
    found = rate(before, after, seconds)
    return None if found is None else found / NS


class Rates:
    """Of everything in the later of two samples, by ids."""

    def __init__(self, before: NodeSample | None, after: NodeSample) -> None:
        self.seconds = after.taken_s - before.taken_s if before is not None else 0.0
        pods = before.pods if before is not None else ()
        self._pods = {pod.sandbox.id: pod for pod in pods}
        self._containers = {one.id: one for pod in pods for one in pod.containers}
        self._node = before.node.figures.cpu_ns if before is not None else None

    def of_node(self, sample: NodeSample) -> float | None:
        return cores(self._node, sample.node.figures.cpu_ns, self.seconds)

    def of_pod(self, pod: PodSample) -> float | None:
        """Where the pod has no group of its own, of its containers together."""
        before = self._pods.get(pod.sandbox.id)
        if pod.figures is None:
            known = [found for one in pod.containers if (found := self.of_container(one)) is not None]
            return sum(known) if known else None
        if before is None or before.figures is None:
            return None
        return cores(before.figures.cpu_ns, pod.figures.cpu_ns, self.seconds)

    def of_container(self, one: ContainerSample) -> float | None:
        before = self._containers.get(one.id)
        return None if before is None else cores(before.figures.cpu_ns, one.figures.cpu_ns, self.seconds)

    def throttled(self, one: ContainerSample) -> float | None:
        """The share of periods in which it was held back."""
        before = self._containers.get(one.id)
        if before is None:
            return None
        periods = rate(before.figures.periods, one.figures.periods, self.seconds)
        throttled = rate(before.figures.throttled_periods, one.figures.throttled_periods, self.seconds)
        return throttled / periods if periods and throttled is not None else None
