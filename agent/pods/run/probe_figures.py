# SPDX-License-Identifier: Apache-2.0
"""Outcomes of probes: durations without names, and a page of counts under a kubelet's names."""

from collections import Counter
from collections.abc import Iterator

import msgspec
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from agent.model.histogram import Histogram
from agent.pods.plan.probe import AnswerKind

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
LABELS = ("probe_type", "container", "pod", "namespace")
RESULTS = {
    AnswerKind.SUCCESS: "successful", AnswerKind.WARNING: "successful", AnswerKind.FAILURE: "failed",
    AnswerKind.ERROR: "unknown",
}  # fmt: skip


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """One probe of one container; `kind` is liveness, readiness or startup."""

    kind: str
    container: str
    pod: str
    namespace: str
    uid: str


class ProbeFigures:
    """Those of a pod go with it."""

    def __init__(self) -> None:
        self._durations = Histogram(BOUNDS)
        self._counts: dict[str, Counter[tuple[Probed, str]]] = {}
        self._times: dict[str, dict[Probed, Histogram]] = {}

    def ran(self, probed: Probed, kind: AnswerKind, seconds: float) -> None:
        result = RESULTS[kind]
        self._durations.observe((probed.kind, result), seconds)
        self._counts.setdefault(probed.uid, Counter())[probed, result] += 1
        times = self._times.setdefault(probed.uid, {})
        times.setdefault(probed, Histogram(BOUNDS)).observe(_place(probed), seconds)

    def forget(self, uid: str) -> None:
        self._counts.pop(uid, None)
        self._times.pop(uid, None)

    def duration_family(self) -> Metric:
        return self._durations.family("kepd_pod_probe_duration_seconds", "Duration of probes.", ("type", "result"))

    def named_families(self) -> Iterator[Metric]:
        """With names of pods, so for a page of their own."""
        labels = ("probe_type", "result", "container", "pod", "namespace", "pod_uid")
        total = CounterMetricFamily("prober_probe", "Probes by their result.", labels=labels)
        for counts in self._counts.values():
            for (one, result), count in counts.items():
                total.add_metric((one.kind.title(), result, one.container, one.pod, one.namespace, one.uid), count)
        yield total
        yield self._durations_by_name()

    def _durations_by_name(self) -> Metric:
        whole = HistogramMetricFamily("prober_probe_duration_seconds", "Duration of probes.", labels=LABELS)
        for times in self._times.values():
            for histogram in times.values():
                whole.samples += histogram.family("prober_probe_duration_seconds", "", LABELS).samples
        return whole


def _place(probed: Probed) -> tuple[str, ...]:
    return probed.kind.title(), probed.container, probed.pod, probed.namespace
