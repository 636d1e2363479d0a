# SPDX-License-Identifier: Apache-2.0
"""The figures of kepd-dns as metrics of the daemon. Zones are those of the configuration, never names."""

from collections import Counter
from collections.abc import Iterator

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from agent.model.histogram import counter_family, gauge_family
from kepd_dns.handover.status import Durations, Status
from kepd_dns.run.plane import DnsPlane
from kepd_dns.wire.records_text import CODES

UNKNOWN = Status(instance="", pid=0, started_s=0, uptime_s=0, number=-1, state_age_s=0)


class PlaneFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`live`: whether each address is. `strangers`: packets of those who may not ask."""

    live: dict[str, bool]
    fallbacks: int
    strangers: int
    setup_errors: int = 0
    status: Status


def figures(plane: DnsPlane) -> PlaneFigures:
    return PlaneFigures(
        live={address: one.is_live for address, one in plane.live.items()},
        fallbacks=plane.fallbacks,
        strangers=sum(plane.strangers.values()),
        setup_errors=plane.setup_errors,
        status=plane.status or UNKNOWN,
    )


def dns_metrics(plane: PlaneFigures) -> Iterator[Metric]:
    text = "Whether questions to an address reach kepd-dns."
    yield gauge_family("kepd_dns_rules_live", text, ["address"], sorted(plane.live.items()))
    yield CounterMetricFamily("kepd_dns_fallbacks", "How often kepd-dns stopped answering.", value=plane.fallbacks)
    text = "Packets from clients outside dns.allowFrom."
    yield CounterMetricFamily("kepd_dns_foreign", text, value=plane.strangers)
    yield from _of_process(plane.status)


def _of_process(status: Status) -> Iterator[Metric]:
    questions: Counter[tuple[str, ...]] = Counter()
    answers: Counter[tuple[str, ...]] = Counter()
    for one in status.answers:
        questions[one.protocol, one.family, one.zone, one.type] += one.count
        answers[one.zone, CODES.get(one.code, str(one.code)), one.source] += one.count
    labels = ["protocol", "family", "zone", "type"]
    yield counter_family("kepd_dns_questions", "Questions that were answered.", labels, sorted(questions.items()))
    text, labels = "Answers by code and by where they are from.", ["zone", "rcode", "source"]
    yield counter_family("kepd_dns_answers", text, labels, sorted(answers.items()))
    durations = HistogramMetricFamily(
        "kepd_dns_duration_seconds", "Time from a question to its answer.", labels=["source"]
    )
    for source, taken in sorted(status.durations.items()):
        durations.add_metric([source], buckets(status, taken), taken.sum_s)
    yield durations
    yield from _of_cache(status)
    yield from _of_upstreams(status)
    yield GaugeMetricFamily("kepd_dns_inflight", "Questions that servers are asked now.", value=status.in_flight)
    reason, overload, malformed = ["reason"], sorted(status.overload.items()), sorted(status.malformed.items())
    yield counter_family("kepd_dns_overload", "Questions that found no room.", reason, overload)
    yield counter_family("kepd_dns_malformed", "Packets that are no questions.", reason, malformed)
    yield CounterMetricFamily("kepd_dns_limited", "Questions over the limit of one source.", value=status.limited)
    yield CounterMetricFamily(
        "kepd_dns_spoofed", "Questions that received replies with a wrong id.", value=status.spoofed
    )
    text = "Packets that the kernel dropped because the socket was full."
    yield CounterMetricFamily("kepd_dns_receive_drops", text, value=status.receive_drops)


def _of_cache(status: Status) -> Iterator[Metric]:
    kind = ["kind"]
    kept = [("positive", status.cache_bytes - status.negative_bytes), ("negative", status.negative_bytes)]
    yield gauge_family("kepd_dns_cache_bytes", "Memory of kept answers.", kind, kept)
    entries = [("positive", status.entries - status.negative_entries), ("negative", status.negative_entries)]
    yield gauge_family("kepd_dns_cache_entries", "Kept answers.", kind, entries)
    gone = [("positive", status.evictions), ("negative", status.negative_evictions)]
    yield counter_family("kepd_dns_evictions", "Answers that had to go.", kind, gone)
    yield CounterMetricFamily("kepd_dns_prefetches", "Answers asked for ahead of their end.", value=status.prefetches)
    yield CounterMetricFamily("kepd_dns_merged", "Questions that waited for an equal one.", value=status.merged)


def _of_upstreams(status: Status) -> Iterator[Metric]:
    taken = HistogramMetricFamily("kepd_dns_upstream_seconds", "Time of a server to its answer.", labels=["upstream"])
    servers = {one.address: one for one in status.upstreams}.values()
    for one in servers:
        if one.durations is not None:
            taken.add_metric([one.address], buckets(status, one.durations), one.durations.sum_s)
    yield taken
    failed = [((one.address, reason), count) for one in servers for reason, count in sorted(one.failures.items())]
    yield counter_family("kepd_dns_upstream_failures", "Questions a server failed.", ["upstream", "reason"], failed)
    up = [(one.address, float(one.is_up and not one.is_loop)) for one in servers]
    yield gauge_family("kepd_dns_upstream_up", "Whether a server is asked.", ["upstream"], up)


def buckets(status: Status, taken: Durations) -> list[tuple[str, float]]:
    bounds = [*map(str, status.bounds_s), "+Inf"]
    found, total = [], 0
    for bound, count in zip(bounds, taken.counts, strict=True):
        total += count
        found.append((bound, float(total)))
    return found
