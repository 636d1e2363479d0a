# SPDX-License-Identifier: Apache-2.0
"""Figures of the pods plane for /metrics, those of probes included."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator

import msgspec
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from agent.model.finding import printable
from agent.model.histogram import Histogram, counter_family, gauge_family
from agent.model.nodes.drain import NodeDrain
from agent.model.span import SpanRef
from agent.pods.plan.evict import CONDITIONS
from agent.pods.plan.probe import AnswerKind

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
LABELS = ("probe_type", "container", "pod", "namespace")
RESULTS = {
    AnswerKind.SUCCESS: "successful", AnswerKind.WARNING: "successful", AnswerKind.FAILURE: "failed",
    AnswerKind.ERROR: "unknown",
}  # fmt: skip
START_BOUNDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
STOP_BOUNDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
HOOK_BOUNDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)
LAG_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
# As a kubelet's, so that quantiles of both compare.
CONTAINER_BOUNDS = (
    0.1, 0.25, 0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700,
    3600,
)  # fmt: skip
POD_BOUNDS = CONTAINER_BOUNDS[2:]
CHECKPOINT_BOUNDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
MOST_NAMESPACES = 200
CHECKPOINT_STATES = ("ready", "writing", "broken")


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
        total = (
            ((one.kind.title(), result, one.container, one.pod, one.namespace, one.uid), count)
            for counts in self._counts.values()
            for (one, result), count in counts.items()
        )
        yield counter_family("prober_probe", "Probes by their result.", labels, total)
        yield self._durations_by_name()

    def _durations_by_name(self) -> Metric:
        whole = HistogramMetricFamily("prober_probe_duration_seconds", "Duration of probes.", labels=LABELS)
        for times in self._times.values():
            for histogram in times.values():
                whole.samples += histogram.family("prober_probe_duration_seconds", "", LABELS).samples
        return whole


def _place(probed: Probed) -> tuple[str, ...]:
    return probed.kind.title(), probed.container, probed.pod, probed.namespace


class PodMetrics:
    def __init__(self, is_per_namespace: Callable[[], bool] = lambda: False) -> None:
        self._is_per_namespace = is_per_namespace
        self._phases: Callable[[], Counter[str]] = Counter
        self._conditions: Callable[[], Collection[str]] = tuple
        self._restarts: Counter[str] = Counter()
        self.started: Counter[str] = Counter()
        self.start_errors: Counter[tuple[str, str]] = Counter()
        self.evictions: Counter[tuple[str, str]] = Counter()
        self._starts = Histogram(START_BOUNDS)
        self.totals = Histogram(POD_BOUNDS)
        self.own_starts = Histogram(POD_BOUNDS)
        self._stops = Histogram(STOP_BOUNDS)
        self._hooks = Histogram(HOOK_BOUNDS)
        self._lags = Histogram(LAG_BOUNDS)
        self._archives: Callable[[], tuple[Counter[str], int]] = lambda: (Counter(), 0)
        self._drained: Callable[[], NodeDrain | None] = lambda: None
        self._checkpoints = Histogram(CHECKPOINT_BOUNDS)
        self._containers = Histogram(CONTAINER_BOUNDS)
        self._by_namespace = Histogram(CONTAINER_BOUNDS)
        self._namespaces: set[str] = set()
        self.probes = ProbeFigures()

    def watch(
        self,
        phases: Callable[[], Counter[str]],
        conditions: Callable[[], Collection[str]],
        checkpoints: Callable[[], tuple[Counter[str], int]],
        drained: Callable[[], NodeDrain | None],
    ) -> None:
        """What is asked for when figures are."""
        self._phases, self._conditions, self._archives, self._drained = phases, conditions, checkpoints, drained

    def pod_started(self, seconds: float, own_s: float, span: SpanRef | None = None) -> None:
        """Time from first seeing a pod to all its containers started; `own_s` without pulls and init containers."""
        self._starts.observe((), seconds, span)
        self.totals.observe((), seconds)
        self.own_starts.observe((), own_s)

    def pod_stopped(self, outcome: str, seconds: float) -> None:
        """`in_time` or `over_budget`."""
        self._stops.observe((outcome,), seconds)

    def container_started(
        self, kind: str, seconds: float, waited_s: float, span: SpanRef | None = None, *, namespace: str = ""
    ) -> None:
        """Since its turn came; `waited_s` of it for its image. Both are observed, so a slow registry shows as the
        difference."""
        self.started[kind] += 1
        for pull, took_s in (("with", seconds), ("without", max(seconds - waited_s, 0.0))):
            self._containers.observe((kind, pull), took_s, span)
            if self._is_per_namespace():
                self._by_namespace.observe((kind, pull, self._known(namespace)), took_s, span)

    def _known(self, namespace: str) -> str:
        """Who may make namespaces makes no more series than these."""
        if len(self._namespaces) < MOST_NAMESPACES:
            self._namespaces.add(namespace)
        return namespace if namespace in self._namespaces else ""

    def start_failed(self, kind: str, reason: str) -> None:
        self.start_errors[kind, reason] += 1

    def restarted(self, kind: str) -> None:
        self._restarts[kind] += 1

    def evicted(self, signal: str, kind: str) -> None:
        self.evictions[signal, kind] += 1

    def checkpoint_made(self, seconds: float) -> None:
        self._checkpoints.observe((), seconds)

    def hook_ended(self, hook: str, outcome: str, seconds: float) -> None:
        self._hooks.observe((hook, outcome), seconds)

    def probe_ran(self, kind: str, lag_s: float) -> None:
        self._lags.observe((kind,), lag_s)

    def families(self) -> Iterator[Metric]:
        yield gauge_family("kepd_pods", "Pods of this node.", ("phase",), sorted(self._phases().items()))
        restarts = sorted(self._restarts.items())
        yield counter_family("kepd_pod_container_restarts", "Restarts of containers.", ("kind",), restarts)
        text = "Pods that ended because the node ran short of something."
        yield counter_family("kepd_evictions", text, ("signal", "kind"), sorted(self.evictions.items()))
        conditions = [(name, float(name in self._conditions())) for name in CONDITIONS]
        text = "1 while the node is short of something."
        yield gauge_family("kepd_node_condition", text, ("condition",), conditions)
        yield from self._of_drain()
        yield from self._of_checkpoints()
        yield self._starts.family(
            "kepd_pod_start_duration_seconds", "Time from first seeing a pod to all its containers started.", ()
        )
        yield self.totals.family(
            "kepd_pod_start_total_duration_seconds",
            "The same, in a kubelet's buckets: with pulls and init containers.",
            (),
        )
        yield self.own_starts.family(
            "kepd_pod_start_sli_duration_seconds", "Time to start a pod without pulls and init containers.", ()
        )
        yield self._stops.family(
            "kepd_pod_stop_duration_seconds", "Time from the decision to stop a pod to its end.", ("outcome",)
        )
        yield self._hooks.family("kepd_pod_hook_duration_seconds", "Duration of hooks.", ("hook", "outcome"))
        text = "Time from a container's turn to its start; with and without the time for its image."
        times, labels = self._containers, ["kind", "pull"]
        if self._is_per_namespace():
            times, labels = self._by_namespace, [*labels, "namespace"]
        yield times.family("kepd_container_start_duration_seconds", text, labels)
        yield self.probes.duration_family()
        yield self._lags.family("kepd_pod_probe_lag_seconds", "Delay of probes behind their schedule.", ("type",))

    def _of_drain(self) -> Iterator[Metric]:
        since = GaugeMetricFamily(
            "kepd_node_drain_began_timestamp_seconds",
            "Since when the node takes no pods, by who asked for it and why.",
            labels=("mode", "by", "reason"),
        )
        waits = GaugeMetricFamily("kepd_node_drain_pods", "Pods that a drain waits for.", labels=("state",))
        if (drain := self._drained()) is not None:
            mode = "cordoned" if drain.keeps_pods else "drained"
            since.add_metric((mode, drain.by, printable(drain.reason)), drain.began_at_s)
            waits.add_metric(("ending",), float(len(drain.waits_for) - len(drain.kept)))
            waits.add_metric(("kept",), float(len(drain.kept)))
        yield since
        yield waits

    def _of_checkpoints(self) -> Iterator[Metric]:
        states, size = self._archives()
        counts = [(state, states[state]) for state in CHECKPOINT_STATES]
        yield gauge_family("kepd_checkpoints", "Archives of checkpoints.", ("state",), counts)
        yield GaugeMetricFamily("kepd_checkpoint_bytes", "Space that archives of checkpoints take.", value=size)
        yield self._checkpoints.family(
            "kepd_checkpoint_seconds", "Time to make a checkpoint, in most of which the container stood still.", ()
        )
