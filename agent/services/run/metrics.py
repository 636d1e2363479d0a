# SPDX-License-Identifier: Apache-2.0
"""Metrics of the services plane, under kepd's names and, on demand, under kube-proxy's."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily as Counted
from prometheus_client.core import GaugeMetricFamily as Gauged
from prometheus_client.core import Metric

from agent.model.histogram import counter_family, gauge_family
from agent.model.services.iptables_rules import Table
from agent.model.services.nft_table import Family
from agent.services.ruleset import RuleCounts
from agent.services.run.cluster.outage import OutageKeeper
from agent.services.run.intake import LIST
from agent.services.run.localhost_relay import RelayCounts
from agent.services.run.plane import ServicesPlane

COMPATIBLE_TABLES: tuple[Table, ...] = ("filter", "nat")
PROGRAMMING = "Time from an endpoint's change until the kernel has it."
LAST_SYNC = "Time of the last sync."
ENDED = "Ended connections to endpoints that are gone: entries of connection tracking, and sockets of this host."
RELAYED = "Connections to node ports on localhost: relayed, reset for want of an endpoint, reset as one too many."
FLOWS_DELETED = "Stale flows deleted."


def service_metrics(plane: ServicesPlane, relayed: RelayCounts | None = None) -> Iterator[Metric]:
    measures = plane.measures
    fold = plane.intake.fold
    yield Gauged("kepd_services", "Services to program.", len(fold.services))
    yield Gauged("kepd_services_refused", "Services not programmed because of faults.", len(fold.refused))
    quarantined = ((family, len(sync.quarantine)) for family, sync in plane.families.items())
    yield gauge_family("kepd_services_quarantined", "Services that the kernel refused.", ("family",), quarantined)
    rooms = {family: sync.desired.room for family, sync in plane.families.items()}
    text = "Elements of services.elementsMax that Services have."
    used = ((family, one.used) for family, one in rooms.items())
    yield gauge_family("kepd_services_room_used", text, ("family",), used)
    text = "Services without room."
    without = ((family, one.refused) for family, one in rooms.items())
    yield gauge_family("kepd_services_without_room", text, ("family",), without)
    yield measures.durations.family("kepd_services_sync_duration_seconds", "Duration of a sync.", ["family", "full"])
    yield measures.programming.family("kepd_services_programming_duration_seconds", PROGRAMMING, ["family"])
    text = "Elements written to the kernel."
    yield counter_family("kepd_services_elements_written", text, ("family",), measures.elements.items())
    labels = ("family", "outcome")
    yield counter_family("kepd_services_transactions", "Syncs by outcome.", labels, measures.transactions.items())
    text = "Repairs of rules that other programs changed."
    yield counter_family("kepd_services_tamper_repairs", text, ("family",), measures.repairs.items())
    deleted = measures.flows_deleted.items()
    yield counter_family("kepd_services_stale_flows_deleted", FLOWS_DELETED, ("family",), deleted)
    yield counter_family("kepd_services_terminated_connections", ENDED, ("family", "how"), measures.ended.items())
    counts = relayed or RelayCounts()
    outcomes = (("relayed", counts.relayed), ("unserved", counts.unserved), ("crowded", counts.crowded))
    yield counter_family("kepd_services_localhost_connections", RELAYED, ("outcome",), outcomes)
    text = "Clients in the affinity map that Services share."
    yield gauge_family("kepd_services_affinity_clients", text, ("family",), measures.affinity_clients.items())
    text = "Clients that were forgotten, or are soon, because a Service had too many."
    yield counter_family("kepd_services_affinity_trimmed", text, ("family",), measures.affinity_trimmed.items())
    yield _ports_without_local(plane, "kepd_services_ports_without_local_endpoints", "family")
    yield gauge_family("kepd_services_last_sync_timestamp_seconds", LAST_SYNC, ("family",), measures.last_s.items())
    text = "Age of the oldest change not in the kernel yet."
    overdue = ((family, plane.overdue_s(family)) for family in plane.families)
    yield gauge_family("kepd_services_pending_seconds", text, ("family",), overdue)


def outage_metrics(keeper: OutageKeeper) -> Iterator[Metric]:
    yield Gauged("kepd_services_alone_seconds", "Time since any API server was heard; 0 with one.", keeper.alone_s)
    text = "Endpoints that are dead by checks while no API server answers."
    yield Gauged("kepd_services_dead_endpoints", text, len(keeper.dead))
    text = "Checks of endpoints while no API server answers."
    yield counter_family("kepd_services_endpoint_checks", text, ("outcome",), sorted(keeper.outcomes.items()))
    doubted = sum(kind == LIST for kind, _, _ in keeper.plane.intake.findings)
    yield Gauged("kepd_services_doubted_lists", "Lists of the API server that are not believed yet.", doubted)


def compatible_metrics(plane: ServicesPlane) -> Iterator[Metric]:
    """The same under the names that dashboards of kube-proxy know."""
    yield from _compatible_times(plane)
    yield from _compatible_changes(plane)
    for page in ("healthz", "livez"):
        answers = [(code, count) for (name, code), count in plane.measures.answers.items() if name == page]
        yield counter_family(f"kubeproxy_proxy_{page}", "Answers by status code.", ("code",), answers)
    yield _ports_without_local(plane, "kubeproxy_sync_proxy_rules_no_local_endpoints_total", "ip_family")
    name = "kubeproxy_conntrack_reconciler_sync_duration_seconds"
    yield plane.measures.flow_rounds.family(name, "Duration of a check of all tracked flows.", ["ip_family"])
    name = "kubeproxy_conntrack_reconciler_deleted_entries"
    yield counter_family(name, FLOWS_DELETED, ("ip_family",), plane.measures.flows_deleted.items())
    rules = {
        family: counts for family, one in plane.families.items() if (counts := one.rules.rule_counts()) is not None
    }
    failed = ((family, plane.measures.transactions[family, "failed"]) for family in plane.families)
    name = f"kubeproxy_sync_proxy_rules_{'iptables_restore' if rules else 'nftables_sync'}_failures"
    yield counter_family(name, "Syncs that failed.", ("ip_family",), failed)
    if rules:
        yield from _of_iptables(plane, rules)


def _compatible_times(plane: ServicesPlane) -> Iterator[Metric]:
    measures = plane.measures
    for kind, histogram in measures.durations_by_kind.items():
        name = "_".join(filter(None, ("kubeproxy_sync", kind, "proxy_rules_duration_seconds")))
        yield histogram.family(name, " ".join(filter(None, ("Duration of a", kind, "sync."))), ["ip_family"])
    name = "kubeproxy_network_programming_duration_seconds"
    yield measures.programming.family(name, PROGRAMMING, ["ip_family"])
    name = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
    yield gauge_family(name, LAST_SYNC, ("ip_family",), measures.last_s.items())
    name = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds"
    queued = ((family, sync.pending_since_s or sync.updated_s) for family, sync in plane.families.items())
    yield gauge_family(name, "Time of the last queued change.", ("ip_family",), queued)


def _compatible_changes(plane: ServicesPlane) -> Iterator[Metric]:
    """Pending ones of both families together, as kube-proxy has them."""
    fold = plane.intake.fold
    taken = [sync.taken for sync in plane.families.values()]
    for what, told, behind in (
        ("service", fold.service_changes, [fold.service_changes - services for services, _ in taken]),
        ("endpoint", fold.slice_changes, [fold.slice_changes - slices for _, slices in taken]),
    ):
        name = f"kubeproxy_sync_proxy_rules_{what}_changes"
        yield Counted(name, f"Changes of {what}s seen.", told)
        yield Gauged(f"{name}_pending", f"Changes of {what}s not in the kernel yet.", sum(behind))


def _of_iptables(plane: ServicesPlane, rules: Mapping[Family, RuleCounts]) -> Iterator[Metric]:
    name = "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures"
    yield counter_family(name, "Failed partial syncs.", ("ip_family",), plane.measures.partial_failures.items())
    labels = ["table", "ip_family"]
    each = [(table, family, counts) for family, counts in rules.items() for table in COMPATIBLE_TABLES]
    owned = [((table, family), counts.owned.get(table, 0)) for table, family, counts in each]
    yield gauge_family("kubeproxy_sync_proxy_rules_iptables_total", "Rules of kepd.", labels, owned)
    last = [((table, family), counts.last.get(table, 0)) for table, family, counts in each]
    yield gauge_family("kubeproxy_sync_proxy_rules_iptables_last", "Rules in the last change.", labels, last)


def _ports_without_local(plane: ServicesPlane, name: str, label: str) -> Metric:
    text = "Service ports with a Local policy and no local endpoint."
    ports = [
        ((policy, family), count)
        for family, tally in plane.measures.tallies.items()
        for policy, count in sorted(tally.ports.items())
    ]
    return gauge_family(name, text, ("traffic_policy", label), ports)
