# SPDX-License-Identifier: Apache-2.0
"""Metrics of the services plane, under kepd's names and, on demand, under kube-proxy's."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily as Counted
from prometheus_client.core import GaugeMetricFamily as Gauged
from prometheus_client.core import Metric

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
    yield _by(Gauged, "kepd_services_quarantined", "Services that the kernel refused.", quarantined)
    rooms = {family: sync.desired.room for family, sync in plane.families.items()}
    text = "Elements of services.elementsMax that Services have."
    yield _by(Gauged, "kepd_services_room_used", text, ((family, one.used) for family, one in rooms.items()))
    text = "Services without room."
    without = ((family, one.refused) for family, one in rooms.items())
    yield _by(Gauged, "kepd_services_without_room", text, without)
    yield measures.durations.family("kepd_services_sync_duration_seconds", "Duration of a sync.", ["family", "full"])
    yield measures.programming.family("kepd_services_programming_duration_seconds", PROGRAMMING, ["family"])
    text = "Elements written to the kernel."
    yield _by(Counted, "kepd_services_elements_written", text, measures.elements.items())
    transactions = Counted("kepd_services_transactions", "Syncs by outcome.", labels=["family", "outcome"])
    for (family, outcome), count in measures.transactions.items():
        transactions.add_metric([family, outcome], count)
    yield transactions
    text = "Repairs of rules that other programs changed."
    yield _by(Counted, "kepd_services_tamper_repairs", text, measures.repairs.items())
    yield _by(Counted, "kepd_services_stale_flows_deleted", FLOWS_DELETED, measures.flows_deleted.items())
    ended = Counted("kepd_services_terminated_connections", ENDED, labels=["family", "how"])
    for (family, how), count in measures.ended.items():
        ended.add_metric([family, how], count)
    yield ended
    counts = relayed or RelayCounts()
    outcomes = (("relayed", counts.relayed), ("unserved", counts.unserved), ("crowded", counts.crowded))
    yield _by(Counted, "kepd_services_localhost_connections", RELAYED, outcomes, "outcome")
    text = "Clients in the affinity map that Services share."
    yield _by(Gauged, "kepd_services_affinity_clients", text, measures.affinity_clients.items())
    text = "Clients that were forgotten, or are soon, because a Service had too many."
    yield _by(Counted, "kepd_services_affinity_trimmed", text, measures.affinity_trimmed.items())
    yield _ports_without_local(plane, "kepd_services_ports_without_local_endpoints", "family")
    yield _by(Gauged, "kepd_services_last_sync_timestamp_seconds", LAST_SYNC, measures.last_s.items())
    text = "Age of the oldest change not in the kernel yet."
    overdue = ((family, plane.overdue_s(family)) for family in plane.families)
    yield _by(Gauged, "kepd_services_pending_seconds", text, overdue)


def outage_metrics(keeper: OutageKeeper) -> Iterator[Metric]:
    yield Gauged("kepd_services_alone_seconds", "Time since any API server was heard; 0 with one.", keeper.alone_s)
    text = "Endpoints that are dead by checks while no API server answers."
    yield Gauged("kepd_services_dead_endpoints", text, len(keeper.dead))
    text = "Checks of endpoints while no API server answers."
    yield _by(Counted, "kepd_services_endpoint_checks", text, sorted(keeper.outcomes.items()), "outcome")
    doubted = sum(kind == LIST for kind, _, _ in keeper.plane.intake.findings)
    yield Gauged("kepd_services_doubted_lists", "Lists of the API server that are not believed yet.", doubted)


def compatible_metrics(plane: ServicesPlane) -> Iterator[Metric]:
    """The same under the names that dashboards of kube-proxy know."""
    yield from _compatible_times(plane)
    yield from _compatible_changes(plane)
    for page in ("healthz", "livez"):
        answers = [(code, count) for (name, code), count in plane.measures.answers.items() if name == page]
        yield _by(Counted, f"kubeproxy_proxy_{page}", "Answers by status code.", answers, "code")
    yield _ports_without_local(plane, "kubeproxy_sync_proxy_rules_no_local_endpoints_total", "ip_family")
    name = "kubeproxy_conntrack_reconciler_sync_duration_seconds"
    yield plane.measures.flow_rounds.family(name, "Duration of a check of all tracked flows.", ["ip_family"])
    name = "kubeproxy_conntrack_reconciler_deleted_entries"
    yield _by(Counted, name, FLOWS_DELETED, plane.measures.flows_deleted.items(), "ip_family")
    rules = {
        family: counts for family, one in plane.families.items() if (counts := one.rules.rule_counts()) is not None
    }
    failed = ((family, plane.measures.transactions[family, "failed"]) for family in plane.families)
    name = f"kubeproxy_sync_proxy_rules_{'iptables_restore' if rules else 'nftables_sync'}_failures"
    yield _by(Counted, name, "Syncs that failed.", failed, "ip_family")
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
    yield _by(Gauged, name, LAST_SYNC, measures.last_s.items(), "ip_family")
    name = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds"
    queued = ((family, sync.pending_since_s or sync.updated_s) for family, sync in plane.families.items())
    yield _by(Gauged, name, "Time of the last queued change.", queued, "ip_family")


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
    yield _by(Counted, name, "Failed partial syncs.", plane.measures.partial_failures.items(), "ip_family")
    labels = ["table", "ip_family"]
    owned = Gauged("kubeproxy_sync_proxy_rules_iptables_total", "Rules of kepd.", labels=labels)
    last = Gauged("kubeproxy_sync_proxy_rules_iptables_last", "Rules in the last change.", labels=labels)
    for family, counts in rules.items():
        for table in COMPATIBLE_TABLES:
            owned.add_metric([table, family], counts.owned.get(table, 0))
            last.add_metric([table, family], counts.last.get(table, 0))
    yield owned
    yield last


def _ports_without_local(plane: ServicesPlane, name: str, label: str) -> Metric:
    text = "Service ports with a Local policy and no local endpoint."
    found = Gauged(name, text, labels=["traffic_policy", label])
    for family, tally in plane.measures.tallies.items():
        for policy, count in sorted(tally.ports.items()):
            found.add_metric([policy, family], count)
    return found


def _by(
    kind: type[Gauged | Counted], name: str, text: str, rows: Iterable[tuple[str, float]], label: str = "family"
) -> Metric:
    """One series for each value of the label."""
    found = kind(name, text, labels=[label])
    for value, number in rows:
        found.add_metric([value], number)
    return found
