# SPDX-License-Identifier: Apache-2.0
"""The services plane in numbers, under our names and, on demand, under kube-proxy's.

Owns: names, labels and buckets. Never: counts; measures.py does.
Source of behaviour: services.md section 8, MET-01, MET-03.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from agent.services.measures import Histogram
from agent.services.plane import ServicesPlane

__all__ = ["compatible_metrics", "service_metrics"]


def service_metrics(plane: ServicesPlane) -> Iterator[Metric]:
    """`kepd_services_*`."""
    measures = plane.measures
    fold = plane.intake.fold
    yield GaugeMetricFamily("kepd_services", "Services that are to be programmed.", len(fold.services))
    yield GaugeMetricFamily("kepd_services_refused", "Services with faults that keep them out.", len(fold.refused))
    yield _by_family(
        GaugeMetricFamily("kepd_services_quarantined", "Services that the kernel refused.", labels=["family"]),
        ((family, len(sync.quarantine)) for family, sync in plane.families.items()),
    )
    duration = HistogramMetricFamily(
        "kepd_services_sync_duration_seconds", "Time of a sync.", labels=["family", "full"]
    )
    for (one, is_full), histogram in measures.durations.items():
        duration.add_metric([one, str(is_full).lower()], histogram.cumulative(), histogram.sum)
    yield duration
    yield _histograms(
        "kepd_services_programming_duration_seconds",
        "Time from the change of an endpoint to the kernel.",
        "family",
        measures.programming.items(),
    )
    yield _by_family(
        CounterMetricFamily("kepd_services_elements_written", "Elements written to the kernel.", labels=["family"]),
        measures.elements.items(),
    )
    transactions = CounterMetricFamily(
        "kepd_services_transactions", "Syncs by how they ended.", labels=["family", "outcome"]
    )
    for (family, outcome), count in measures.transactions.items():
        transactions.add_metric([family, outcome], count)
    yield transactions
    yield _by_family(
        CounterMetricFamily("kepd_services_tamper_repairs", "Repairs of what others changed.", labels=["family"]),
        measures.repairs.items(),
    )
    yield _by_family(
        GaugeMetricFamily("kepd_services_last_sync_timestamp_seconds", "The last sync.", labels=["family"]),
        measures.last_s.items(),
    )
    yield _by_family(
        GaugeMetricFamily("kepd_services_pending_seconds", "Age of the oldest change not written.", labels=["family"]),
        ((family, plane.overdue_s(family)) for family in plane.families),
    )


def compatible_metrics(plane: ServicesPlane) -> Iterator[Metric]:
    """The same under the names that dashboards of kube-proxy know."""
    measures = plane.measures
    merged: dict[str, Histogram] = {}
    for kind, name in ((True, "full"), (False, "partial")):
        chosen = [(family, one) for (family, is_full), one in measures.durations.items() if is_full is kind]
        yield _histograms(
            f"kubeproxy_sync_{name}_proxy_rules_duration_seconds", f"Time of a {name} sync.", "ip_family", chosen
        )
        for family, one in chosen:
            merged[family] = one if family not in merged else merged[family].plus(one)
    yield _histograms("kubeproxy_sync_proxy_rules_duration_seconds", "Time of a sync.", "ip_family", merged.items())
    yield _histograms(
        "kubeproxy_network_programming_duration_seconds",
        "Time from the change of an endpoint to the kernel.",
        "ip_family",
        measures.programming.items(),
    )
    yield _by_family(
        GaugeMetricFamily("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "The last sync.", labels=["ip_family"]),
        measures.last_s.items(),
    )
    queued = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds"
    yield _by_family(
        GaugeMetricFamily(queued, "The last change that was queued.", labels=["ip_family"]),
        ((family, sync.pending_since_s or sync.updated_s) for family, sync in plane.families.items()),
    )
    yield CounterMetricFamily(
        "kubeproxy_sync_proxy_rules_service_changes", "Changes of Services.", plane.intake.service_changes
    )
    yield CounterMetricFamily(
        "kubeproxy_sync_proxy_rules_endpoint_changes", "Changes of slices.", plane.intake.slice_changes
    )
    for page in ("healthz", "livez"):
        rows = [(code, count) for (name, code), count in measures.answers.items() if name == page]
        yield _by_family(CounterMetricFamily(f"kubeproxy_proxy_{page}", "Answers by status.", labels=["code"]), rows)
    failures = ((family, count) for (family, outcome), count in measures.transactions.items() if outcome == "failed")
    yield _by_family(
        CounterMetricFamily(
            "kubeproxy_sync_proxy_rules_nftables_sync_failures", "Syncs that failed.", labels=["ip_family"]
        ),
        failures,
    )


def _by_family(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[tuple[str, float]]) -> Metric:
    for label, value in rows:
        family.add_metric([label], value)
    return family


def _histograms(name: str, text: str, label: str, rows: Iterable[tuple[str, Histogram]]) -> HistogramMetricFamily:
    found = HistogramMetricFamily(name, text, labels=[label])
    for value, histogram in rows:
        found.add_metric([value], histogram.cumulative(), histogram.sum)
    return found
