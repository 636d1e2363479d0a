# SPDX-License-Identifier: Apache-2.0
"""Figures of the pods plane under a kubelet's names, for dashboards that exist.

A kubelet counts a start when it is tried, and errors beside it; kepd knows starts that worked and errors.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from agent.model.histogram import counter_family, gauge_family
from agent.model.pods.state import RUNNING, TERMINATED, PodState
from agent.pods.run.metrics import PodMetrics

TYPES = {"main": "container", "init": "init_container", "sidecar": "init_container", "ephemeral": "ephemeral_container"}
STATES = {RUNNING: "running", TERMINATED: "exited"}


def kubelet_families(metrics: PodMetrics, pods: Iterable[PodState], cgroup_version: int) -> Iterator[Metric]:
    yield from _starts(metrics)
    states: Counter[str] = Counter()
    running = 0
    for pod in pods:
        running += pod.phase == "Running"
        states.update(STATES[one.state] for one in pod.containers if one.state in STATES)
    text = "Number of pods that have a running pod sandbox."
    yield GaugeMetricFamily("kubelet_running_pods", text, value=running)
    text = "Number of containers currently running."
    containers = [(state, states[state]) for state in STATES.values()]
    yield gauge_family("kubelet_running_containers", text, ("container_state",), containers)
    yield metrics.own_starts.family(
        "kubelet_pod_start_sli_duration_seconds", "Time to start a pod without pulls and init containers.", ()
    )
    yield metrics.totals.family("kubelet_pod_start_total_duration_seconds", "Time to start a pod.", ())
    # A kubelet's counter has no suffix, which the library would add to one.
    evictions = Metric("kubelet_evictions", "Pods that were evicted, by signal.", "unknown")
    by_signal: Counter[str] = Counter()
    for (signal, _), count in metrics.evictions.items():
        by_signal[signal] += count
    for signal, count in sorted(by_signal.items()):
        evictions.add_sample("kubelet_evictions", {"eviction_signal": signal}, count)
    yield evictions
    yield GaugeMetricFamily("kubelet_cgroup_version", "Version of control groups.", value=cgroup_version)


def _starts(metrics: PodMetrics) -> Iterator[Metric]:
    tried: Counter[str] = Counter()
    failed: Counter[tuple[str, str]] = Counter()
    for kind, count in metrics.started.items():
        tried[TYPES[kind]] += count
    for (kind, code), count in metrics.start_errors.items():
        tried[TYPES[kind]] += count
        failed[TYPES[kind], code] += count
    labels, starts = ("container_type", "code"), sorted(tried.items())
    yield counter_family("kubelet_started_containers", "Containers started.", labels[:1], starts)
    text = "Errors when starting containers."
    yield counter_family("kubelet_started_containers_errors", text, labels, sorted(failed.items()))
