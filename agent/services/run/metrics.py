# SPDX-License-Identifier: Apache-2.0
"""Metrics of the services plane, under kepd's names and, on demand, under kube-proxy's (HL-7, MET-01, MET-03)."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from agent.model.iptables_rules import Table
from agent.model.nft_table import Family
from agent.services.ruleset import RuleCounts
from agent.services.run.measures import Measures, SyncHistogram
from agent.services.run.plane import ServicesPlane

COMPATIBLE_TABLES: tuple[Table, ...] = ("filter", "nat")


def service_metrics(plane: ServicesPlane) -> Iterator[Metric]:
    measures = plane.measures
    fold = plane.intake.fold
    yield GaugeMetricFamily("kepd_services", "Services to program.", len(fold.services))
    yield GaugeMetricFamily("kepd_services_refused", "Services not programmed because of faults.", len(fold.refused))
    yield _by_family(
        GaugeMetricFamily("kepd_services_quarantined", "Services that the kernel refused.", labels=["family"]),
        ((family, len(sync.quarantine)) for family, sync in plane.families.items()),
    )
    duration = HistogramMetricFamily(
        "kepd_services_sync_duration_seconds", "Duration of a sync.", labels=["family", "full"]
    )
    for (one, is_full), histogram in measures.durations.items():
        duration.add_metric([one, str(is_full).lower()], histogram.cumulative(), histogram.sum)
    yield duration
    yield _histograms(
        "kepd_services_programming_duration_seconds",
        "Time from an endpoint's change until the kernel has it.",
        "family",
        measures.programming.items(),
    )
    yield _by_family(
        CounterMetricFamily("kepd_services_elements_written", "Elements written to the kernel.", labels=["family"]),
        measures.elements.items(),
    )
    transactions = CounterMetricFamily("kepd_services_transactions", "Syncs by outcome.", labels=["family", "outcome"])
    for (family, outcome), count in measures.transactions.items():
        transactions.add_metric([family, outcome], count)
    yield transactions
    yield _by_family(
        CounterMetricFamily(
            "kepd_services_tamper_repairs", "Repairs of rules that other programs changed.", labels=["family"]
        ),
        measures.repairs.items(),
    )
    yield _by_family(
        CounterMetricFamily("kepd_services_stale_flows_deleted", "Stale flows deleted.", labels=["family"]),
        measures.flows_deleted.items(),
    )
    yield from _affinity(measures)
    without = GaugeMetricFamily(
        "kepd_services_ports_without_local_endpoints",
        "Service ports with a Local policy and no local endpoint.",
        labels=["traffic_policy", "family"],
    )
    for family, tally in measures.tallies.items():
        for policy, count in sorted(tally.ports.items()):
            without.add_metric([policy, family], count)
    yield without
    yield _by_family(
        GaugeMetricFamily("kepd_services_last_sync_timestamp_seconds", "Time of the last sync.", labels=["family"]),
        measures.last_s.items(),
    )
    yield _by_family(
        GaugeMetricFamily(
            "kepd_services_pending_seconds", "Age of the oldest change not in the kernel yet.", labels=["family"]
        ),
        ((family, plane.overdue_s(family)) for family in plane.families),
    )


def _affinity(measures: Measures) -> Iterator[Metric]:
    text = "Clients in the affinity map that Services share."
    clients = GaugeMetricFamily("kepd_services_affinity_clients", text, labels=["family"])
    yield _by_family(clients, measures.affinity_clients.items())
    text = "Clients that were forgotten, or are soon, because a Service had too many."
    trimmed = CounterMetricFamily("kepd_services_affinity_trimmed", text, labels=["family"])
    yield _by_family(trimmed, measures.affinity_trimmed.items())


def compatible_metrics(plane: ServicesPlane) -> Iterator[Metric]:
    """The same under the names that dashboards of kube-proxy know."""
    yield from _compatible_times(plane)
    yield from _compatible_changes(plane)
    for page in ("healthz", "livez"):
        rows = [(code, count) for (name, code), count in plane.measures.answers.items() if name == page]
        yield _by_family(
            CounterMetricFamily(f"kubeproxy_proxy_{page}", "Answers by status code.", labels=["code"]), rows
        )
    without = GaugeMetricFamily(
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        "Service ports with a Local policy and no local endpoint.",
        labels=["traffic_policy", "ip_family"],
    )
    for family, tally in plane.measures.tallies.items():
        for policy, count in sorted(tally.ports.items()):
            without.add_metric([policy, family], count)
    yield without
    yield _histograms(
        "kubeproxy_conntrack_reconciler_sync_duration_seconds",
        "Duration of a check of all tracked flows.",
        "ip_family",
        plane.measures.flow_rounds.items(),
    )
    yield _by_family(
        CounterMetricFamily(
            "kubeproxy_conntrack_reconciler_deleted_entries", "Stale flows deleted.", labels=["ip_family"]
        ),
        plane.measures.flows_deleted.items(),
    )
    rules = {
        family: counts for family, one in plane.families.items() if (counts := one.rules.rule_counts()) is not None
    }
    yield from _of_iptables(plane, rules) if rules else _of_nftables(plane)


def _compatible_times(plane: ServicesPlane) -> Iterator[Metric]:
    measures = plane.measures
    merged: dict[str, SyncHistogram] = {}
    for kind, name in ((True, "full"), (False, "partial")):
        chosen = [(family, one) for (family, is_full), one in measures.durations.items() if is_full is kind]
        yield _histograms(
            f"kubeproxy_sync_{name}_proxy_rules_duration_seconds", f"Duration of a {name} sync.", "ip_family", chosen
        )
        for family, one in chosen:
            merged[family] = one if family not in merged else merged[family].plus(one)
    yield _histograms("kubeproxy_sync_proxy_rules_duration_seconds", "Duration of a sync.", "ip_family", merged.items())
    yield _histograms(
        "kubeproxy_network_programming_duration_seconds",
        "Time from an endpoint's change until the kernel has it.",
        "ip_family",
        measures.programming.items(),
    )
    yield _by_family(
        GaugeMetricFamily(
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds", "Time of the last sync.", labels=["ip_family"]
        ),
        measures.last_s.items(),
    )
    queued = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds"
    yield _by_family(
        GaugeMetricFamily(queued, "Time of the last queued change.", labels=["ip_family"]),
        ((family, sync.pending_since_s or sync.updated_s) for family, sync in plane.families.items()),
    )


def _compatible_changes(plane: ServicesPlane) -> Iterator[Metric]:
    """Pending ones of both families together, as kube-proxy has them."""
    fold = plane.intake.fold
    taken = [sync.taken for sync in plane.families.values()]
    for what, told, behind in (
        ("service", fold.service_changes, [fold.service_changes - services for services, _ in taken]),
        ("endpoint", fold.slice_changes, [fold.slice_changes - slices for _, slices in taken]),
    ):
        name = f"kubeproxy_sync_proxy_rules_{what}_changes"
        yield CounterMetricFamily(name, f"Changes of {what}s seen.", told)
        yield GaugeMetricFamily(f"{name}_pending", f"Changes of {what}s not in the kernel yet.", sum(behind))


def _of_nftables(plane: ServicesPlane) -> Iterator[Metric]:
    name = "kubeproxy_sync_proxy_rules_nftables_sync_failures"
    yield _by_family(CounterMetricFamily(name, "Syncs that failed.", labels=["ip_family"]), _failures(plane))


def _of_iptables(plane: ServicesPlane, rules: Mapping[Family, RuleCounts]) -> Iterator[Metric]:
    name = "kubeproxy_sync_proxy_rules_iptables_restore_failures"
    yield _by_family(CounterMetricFamily(name, "Syncs that failed.", labels=["ip_family"]), _failures(plane))
    name = "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures"
    yield _by_family(
        CounterMetricFamily(name, "Failed partial syncs.", labels=["ip_family"]),
        plane.measures.partial_failures.items(),
    )
    labels = ["table", "ip_family"]
    owned = GaugeMetricFamily("kubeproxy_sync_proxy_rules_iptables_total", "Rules of kepd.", labels=labels)
    last = GaugeMetricFamily("kubeproxy_sync_proxy_rules_iptables_last", "Rules in the last change.", labels=labels)
    for family, counts in rules.items():
        for table in COMPATIBLE_TABLES:
            owned.add_metric([table, family], counts.owned.get(table, 0))
            last.add_metric([table, family], counts.last.get(table, 0))
    yield owned
    yield last


def _failures(plane: ServicesPlane) -> Iterator[tuple[str, float]]:
    return ((family, plane.measures.transactions[family, "failed"]) for family in plane.families)


def _by_family(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[tuple[str, float]]) -> Metric:
    for label, value in rows:
        family.add_metric([label], value)
    return family


def _histograms(name: str, text: str, label: str, rows: Iterable[tuple[str, SyncHistogram]]) -> HistogramMetricFamily:
    found = HistogramMetricFamily(name, text, labels=[label])
    for value, histogram in rows:
        found.add_metric([value], histogram.cumulative(), histogram.sum)
    return found
