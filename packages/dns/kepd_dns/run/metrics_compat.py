# SPDX-License-Identifier: Apache-2.0
"""The figures of kepd-dns under the names of CoreDNS and node-cache, for dashboards that exist."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from agent.model.histogram import counter_family, gauge_family
from kepd_dns.handover.status import Durations, Status
from kepd_dns.run.metrics import PlaneFigures, buckets
from kepd_dns.wire.records_text import CODES

SERVER, VIEW, PROXY = "dns://:53", "", "forward"
FAMILIES = {"ipv4": "1", "ipv6": "2"}
FROM_CACHE = ("cache", "own", "stale")


def coredns_metrics(plane: PlaneFigures) -> Iterator[Metric]:
    status = plane.status
    asked: Counter[tuple[str, ...]] = Counter()
    answered: Counter[tuple[str, ...]] = Counter()
    for one in status.answers:
        asked[SERVER, one.zone, VIEW, one.protocol, FAMILIES[one.family], one.type] += one.count
        plugin = "cache" if one.source in FROM_CACHE else PROXY
        answered[SERVER, one.zone, VIEW, CODES.get(one.code, str(one.code)), plugin] += one.count
    place = ("server", "zone", "view")
    yield counter_family(
        "coredns_dns_requests", "Questions.", (*place, "proto", "family", "type"), sorted(asked.items())
    )
    yield counter_family("coredns_dns_responses", "Answers.", (*place, "rcode", "plugin"), sorted(answered.items()))
    duration = HistogramMetricFamily(
        "coredns_dns_request_duration_seconds", "Time to the answer.", labels=["server", "zone", "view"]
    )
    together = _together(status)
    duration.add_metric([SERVER, ".", VIEW], buckets(status, together), together.sum_s)
    yield duration
    yield from _of_cache(status)
    yield from _of_servers(status)
    text = "How often rules or addresses could not be put into place."
    errors = [("iptables", plane.setup_errors)]
    yield counter_family("coredns_nodecache_setup_errors", text, ("errortype",), errors)


def _together(status: Status) -> Durations:
    parts = list(status.durations.values())
    counts = tuple(sum(column) for column in zip(*(one.counts for one in parts), strict=True))
    return Durations(counts or (0,) * (len(status.bounds_s) + 1), sum(one.sum_s for one in parts))


def _of_cache(status: Status) -> Iterator[Metric]:
    labels = ("server", "type", "zones", "view")
    success, denial = (SERVER, "success", ".", VIEW), (SERVER, "denial", ".", VIEW)
    entries = [(success, status.entries - status.negative_entries), (denial, status.negative_entries)]
    yield gauge_family("coredns_cache_entries", "Kept answers.", labels, entries)
    evictions = [(success, status.evictions), (denial, status.negative_evictions)]
    yield counter_family("coredns_cache_evictions", "Answers that had to go.", labels, evictions)
    hits = Counter({success: 0, denial: 0})
    for one in status.answers:
        if one.source == "cache":
            hits[denial if one.code == 3 else success] += one.count
    yield counter_family("coredns_cache_hits", "Answers from memory.", labels, hits.items())
    total = sum(one.count for one in status.answers if one.source in ("cache", "stale", "upstream"))
    stale = sum(one.count for one in status.answers if one.source == "stale")
    for name, text, value in (
        ("requests", "Questions to the cache.", total),
        ("prefetch", "Answers asked for ahead of their end.", status.prefetches),
        ("served_stale", "Answers given after their end.", stale),
    ):
        yield counter_family(f"coredns_cache_{name}", text, ("server", "zones", "view"), [((SERVER, ".", VIEW), value)])


def _of_servers(status: Status) -> Iterator[Metric]:
    taken = HistogramMetricFamily(
        "coredns_proxy_request_duration_seconds", "Time of a server.", labels=["proxy_name", "to", "rcode"]
    )
    servers = {one.address: one for one in status.upstreams}.values()
    for one in servers:
        if one.durations is not None:
            taken.add_metric([PROXY, one.address, "NOERROR"], buckets(status, one.durations), one.durations.sum_s)
    yield taken
    failed = [((PROXY, one.address), one.failures.get("timeout", 0)) for one in servers]
    yield counter_family("coredns_proxy_healthcheck_failures", "Silences of a server.", ("proxy_name", "to"), failed)
    text = "Questions that came when every server was out."
    yield CounterMetricFamily("coredns_forward_healthcheck_broken", text, value=status.all_out)
    text = "Questions that found no room."
    rejected = sum(status.overload.values())
    yield CounterMetricFamily("coredns_forward_max_concurrent_rejects", text, value=rejected)
