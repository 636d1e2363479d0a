# SPDX-License-Identifier: Apache-2.0
"""Numbers of the proxy: counts where they arise, families only for a scrape, rows for people.

No label per pod, container or image. A client can make up any path: what is no method of CRI counts as `other`.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.model.histogram import Histogram, counter_family, gauge_family
from agent.model.rpc import code_name
from agent.model.span import SpanRef
from agent.wire.cri import runtime_v1_pb2 as pb

ADDED_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.01, 0.05, 0.25, 1.0)
HOLD_BUCKETS_S = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)
OTHER = "other"
SERVICES = pb.DESCRIPTOR.services_by_name.values()
METHODS = {f"/{service.full_name}/{name}": name for service in SERVICES for name in service.methods_by_name}


def _method_name(path: str) -> str:
    """The label of a path; the methods of v1alpha2 had the names they have in v1."""
    return METHODS.get(path.replace("/runtime.v1alpha2.", "/runtime.v1.", 1), OTHER)


class MethodFigures(msgspec.Struct):
    codes: Counter[str] = msgspec.field(default_factory=Counter)
    held_s: float = 0.0
    held: int = 0


class Figures:
    def __init__(self) -> None:
        self.methods: dict[str, MethodFigures] = {}
        self.added = Histogram(ADDED_BUCKETS_S)
        """By method."""
        self.holds = Histogram(HOLD_BUCKETS_S)
        """By method and reason."""
        self.policy_errors: Counter[str] = Counter()

    def method(self, path: str) -> MethodFigures:
        return self.methods.setdefault(_method_name(path), MethodFigures())

    def called(self, path: str, code: int | None, added_s: float, span: SpanRef | None = None) -> None:
        """A call is over. `added_s` is without the time it was held."""
        self.method(path).codes[code_name(code)] += 1
        self.added.observe((_method_name(path),), added_s, span)

    def held(self, path: str, reason: str, duration_s: float) -> None:
        found = self.method(path)
        found.held += 1
        found.held_s += duration_s
        self.holds.observe((_method_name(path), reason), duration_s)

    def families(self, holds_now: Iterable[str], oldest_s: float, links: int) -> Iterable[Metric]:
        codes = [((name, code), n) for name, one in self.methods.items() for code, n in one.codes.items()]
        yield counter_family("kepd_proxy_requests", "Calls through the proxy.", ("method", "code"), codes)
        text = "Time that calls spent in the proxy, without holds."
        yield self.added.family("kepd_proxy_added_seconds", text, ("method",))
        yield self.holds.family("kepd_proxy_hold_seconds", "How long calls were held.", ("method", "reason"))
        yield gauge_family("kepd_proxy_holds", "Calls held now.", ("reason",), Counter(holds_now).items())
        yield GaugeMetricFamily("kepd_proxy_oldest_hold_seconds", "Age of the oldest held call.", oldest_s)
        text = "Calls that passed because kepd could not decide."
        yield CounterMetricFamily("kepd_proxy_policy_errors", text, sum(self.policy_errors.values()))
        yield GaugeMetricFamily("kepd_proxy_connections", "Open connections of clients.", links)
