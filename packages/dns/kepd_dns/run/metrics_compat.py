# SPDX-License-Identifier: Apache-2.0
"""The figures of kepd-dns under the names of CoreDNS and node-cache, for dashboards that exist."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from kepd_dns.handover.status import Durations, Status
from kepd_dns.run.metrics import PlaneFigures, buckets
from kepd_dns.wire.records_text import CODES

SERVER, VIEW, PROXY = "dns://:53", "", "forward"
FAMILIES = {"ipv4": "1", "ipv6": "2"}
FROM_CACHE = ("cache", "own", "stale")


def coredns_metrics(plane: PlaneFigures) -> Iterator[Metric]:
    status = plane.status
    requests = _family("coredns_dns_requests", "Questions.", ("server", "zone", "view", "proto", "family", "type"))
    responses = _family("coredns_dns_responses", "Answers.", ("server", "zone", "view", "rcode", "plugin"))
    asked: Counter[tuple[str, ...]] = Counter()
    answered: Counter[tuple[str, ...]] = Counter()
    for one in status.answers:
        asked[SERVER, one.zone, VIEW, one.protocol, FAMILIES[one.family], one.type] += one.count
        plugin = "cache" if one.source in FROM_CACHE else PROXY
        answered[SERVER, one.zone, VIEW, CODES.get(one.code, str(one.code)), plugin] += one.count
    for family, counts in ((requests, asked), (responses, answered)):
        for key, count in sorted(counts.items()):
            family.add_metric(list(key), count)
    yield from (requests, responses)
    duration = HistogramMetricFamily(
        "coredns_dns_request_duration_seconds", "Time to the answer.", labels=["server", "zone", "view"]
    )
    together = _together(status)
    duration.add_metric([SERVER, ".", VIEW], buckets(status, together), together.sum_s)
    yield duration
    yield from _of_cache(status)
    yield from _of_servers(status)
    text = "How often rules or addresses could not be put into place."
    errors = _family("coredns_nodecache_setup_errors", text, ("errortype",))
    errors.add_metric(["iptables"], plane.setup_errors)
    yield errors


def _family(name: str, text: str, labels: tuple[str, ...]) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=list(labels))


def _together(status: Status) -> Durations:
    parts = list(status.durations.values())
    counts = tuple(sum(column) for column in zip(*(one.counts for one in parts), strict=True))
    return Durations(counts or (0,) * (len(status.bounds_s) + 1), sum(one.sum_s for one in parts))


def _of_cache(status: Status) -> Iterator[Metric]:
    labels = ("server", "type", "zones", "view")
    entries = GaugeMetricFamily("coredns_cache_entries", "Kept answers.", labels=list(labels))
    entries.add_metric([SERVER, "success", ".", VIEW], status.entries - status.negative_entries)
    entries.add_metric([SERVER, "denial", ".", VIEW], status.negative_entries)
    evictions = _family("coredns_cache_evictions", "Answers that had to go.", labels)
    evictions.add_metric([SERVER, "success", ".", VIEW], status.evictions)
    evictions.add_metric([SERVER, "denial", ".", VIEW], status.negative_evictions)
    hits = _family("coredns_cache_hits", "Answers from memory.", labels)
    plain = ("server", "zones", "view")
    by_kind: Counter[str] = Counter()
    for one in status.answers:
        if one.source == "cache":
            by_kind["denial" if one.code == 3 else "success"] += one.count
    for kind in ("success", "denial"):
        hits.add_metric([SERVER, kind, ".", VIEW], by_kind[kind])
    total = sum(one.count for one in status.answers if one.source in ("cache", "stale", "upstream"))
    stale = sum(one.count for one in status.answers if one.source == "stale")
    yield from (entries, evictions, hits)
    for name, text, value in (
        ("requests", "Questions to the cache.", total),
        ("prefetch", "Answers asked for ahead of their end.", status.prefetches),
        ("served_stale", "Answers given after their end.", stale),
    ):
        family = _family(f"coredns_cache_{name}", text, plain)
        family.add_metric([SERVER, ".", VIEW], value)
        yield family


def _of_servers(status: Status) -> Iterator[Metric]:
    taken = HistogramMetricFamily(
        "coredns_proxy_request_duration_seconds", "Time of a server.", labels=["proxy_name", "to", "rcode"]
    )
    failed = _family("coredns_proxy_healthcheck_failures", "Silences of a server.", ("proxy_name", "to"))
    for one in {one.address: one for one in status.upstreams}.values():
        if one.durations is not None:
            taken.add_metric([PROXY, one.address, "NOERROR"], buckets(status, one.durations), one.durations.sum_s)
        failed.add_metric([PROXY, one.address], one.failures.get("timeout", 0))
    yield from (taken, failed)
    text = "Questions that came when every server was out."
    yield CounterMetricFamily("coredns_forward_healthcheck_broken", text, value=status.all_out)
    text = "Questions that found no room."
    rejected = sum(status.overload.values())
    yield CounterMetricFamily("coredns_forward_max_concurrent_rejects", text, value=rejected)
