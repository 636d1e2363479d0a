# SPDX-License-Identifier: Apache-2.0
"""The figures of kepd-dns as metrics of the daemon. Zones are those of the configuration, never names."""

from collections import Counter
from collections.abc import Iterator

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

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
    live = GaugeMetricFamily(
        "kepd_dns_rules_live", "Whether questions to an address reach kepd-dns.", labels=["address"]
    )
    for address, one in sorted(plane.live.items()):
        live.add_metric([address], float(one))
    yield live
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
    yield _counted("kepd_dns_questions", "Questions that were answered.", labels, questions)
    yield _counted(
        "kepd_dns_answers", "Answers by code and by where they are from.", ["zone", "rcode", "source"], answers
    )
    durations = HistogramMetricFamily(
        "kepd_dns_duration_seconds", "Time from a question to its answer.", labels=["source"]
    )
    for source, taken in sorted(status.durations.items()):
        durations.add_metric([source], buckets(status, taken), taken.sum_s)
    yield durations
    yield from _of_cache(status)
    yield from _of_upstreams(status)
    yield GaugeMetricFamily("kepd_dns_inflight", "Questions that servers are asked now.", value=status.in_flight)
    yield _by_reason("kepd_dns_overload", "Questions that found no room.", status.overload)
    yield _by_reason("kepd_dns_malformed", "Packets that are no questions.", status.malformed)
    yield CounterMetricFamily("kepd_dns_limited", "Questions over the limit of one source.", value=status.limited)
    yield CounterMetricFamily(
        "kepd_dns_spoofed", "Questions that received replies with a wrong id.", value=status.spoofed
    )
    text = "Packets that the kernel dropped because the socket was full."
    yield CounterMetricFamily("kepd_dns_receive_drops", text, value=status.receive_drops)


def _of_cache(status: Status) -> Iterator[Metric]:
    kinds = ("positive", "negative")
    figures = (
        (GaugeMetricFamily("kepd_dns_cache_bytes", "Memory of kept answers.", labels=["kind"]),
         (status.cache_bytes - status.negative_bytes, status.negative_bytes)),
        (GaugeMetricFamily("kepd_dns_cache_entries", "Kept answers.", labels=["kind"]),
         (status.entries - status.negative_entries, status.negative_entries)),
        (CounterMetricFamily("kepd_dns_evictions", "Answers that had to go.", labels=["kind"]),
         (status.evictions, status.negative_evictions)),
    )  # fmt: skip
    for family, values in figures:
        for kind, value in zip(kinds, values, strict=True):
            family.add_metric([kind], value)
        yield family
    yield CounterMetricFamily("kepd_dns_prefetches", "Answers asked for ahead of their end.", value=status.prefetches)
    yield CounterMetricFamily("kepd_dns_merged", "Questions that waited for an equal one.", value=status.merged)


def _of_upstreams(status: Status) -> Iterator[Metric]:
    taken = HistogramMetricFamily("kepd_dns_upstream_seconds", "Time of a server to its answer.", labels=["upstream"])
    failed = CounterMetricFamily(
        "kepd_dns_upstream_failures", "Questions a server failed.", labels=["upstream", "reason"]
    )
    up = GaugeMetricFamily("kepd_dns_upstream_up", "Whether a server is asked.", labels=["upstream"])
    for one in {one.address: one for one in status.upstreams}.values():
        up.add_metric([one.address], float(one.is_up and not one.is_loop))
        if one.durations is not None:
            taken.add_metric([one.address], buckets(status, one.durations), one.durations.sum_s)
        for reason, count in sorted(one.failures.items()):
            failed.add_metric([one.address, reason], count)
    yield from (taken, failed, up)


def _counted(name: str, text: str, labels: list[str], counts: Counter[tuple[str, ...]]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, count in sorted(counts.items()):
        family.add_metric(list(key), count)
    return family


def _by_reason(name: str, text: str, counts: dict[str, int]) -> Metric:
    return _counted(name, text, ["reason"], Counter({(reason,): count for reason, count in counts.items()}))


def buckets(status: Status, taken: Durations) -> list[tuple[str, float]]:
    bounds = [*map(str, status.bounds_s), "+Inf"]
    found, total = [], 0
    for bound, count in zip(bounds, taken.counts, strict=True):
        total += count
        found.append((bound, float(total)))
    return found
