# SPDX-License-Identifier: Apache-2.0
"""Metrics: plain numbers kept where they arise, turned into OpenMetrics only when a scrape asks.

Planes add sources, which are asked at scrape time.
Never: takes a lock or allocates per observation; labels come from bounded sets only.
"""

import asyncio
import gc
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from agent.api.http import Headers, Page, Query
from agent.model.component import Component
from agent.model.histogram import Histogram, counter_family, gauge_family
from agent.model.span import SpanRef

CALL_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# A page is shown again for so many times what it took to make: scrapes cost at most a tenth of the time.
PAUSE = 9
MOST_KINDS = 8


class FamilyPage:
    """A page of its own for families that have no place on /metrics."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self.collect = families
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def page(self, _query: Query, headers: Headers) -> Page:
        encode, content_type = _encoder(headers)
        return Page(200, encode(self._registry), content_type)


def _encoder(headers: Headers) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    try:
        return choose_encoder(headers.get("accept", ""))
    except (TypeError, ValueError):  # the library stumbles over some versions that clients invent
        return choose_encoder("")


class Metrics:
    def __init__(
        self,
        version: str,
        components: Callable[[], Iterable[Component]],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic_s = monotonic_s
        self._pages: dict[str, tuple[Page, float]] = {}
        self._version = version
        self._components = components
        self._cri = Histogram(CALL_BUCKETS_S)
        self._api_calls: Counter[tuple[str, str]] = Counter()
        self.loop_lag_s = 0.0
        self.config_reloaded_at_s = 0.0
        self.lost_log_lines: Callable[[], int] = lambda: 0
        self._gc_began_s = 0.0
        self._gc_pauses = Histogram((0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0))
        self.sources: list[Callable[[], Iterable[Metric]]] = [self._daemon, self._process]
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def collect(self) -> Iterable[Metric]:
        for source in self.sources:
            yield from source()

    def cri_called(self, method: str, code: str, duration_s: float, span: SpanRef | None = None) -> None:
        self._cri.observe((method, code), duration_s, span)

    def api_called(self, method: str, code: str) -> None:
        self._api_calls[method, code] += 1

    def watch_collector(self, monotonic_s: Callable[[], float]) -> None:
        def note(phase: str, _info: Mapping[str, int]) -> None:
            if phase == "start":
                self._gc_began_s = monotonic_s()
            else:
                self._gc_pauses.observe((), monotonic_s() - self._gc_began_s)

        gc.callbacks.append(note)

    def page(self, _query: Query, headers: Headers) -> Page:
        encode, content_type = _encoder(headers)
        page, until_s = self._pages.get(content_type, (None, 0.0))
        began_s = self._monotonic_s()
        if page is None or began_s >= until_s:
            page = Page(200, encode(self._registry), content_type)
            ended_s = self._monotonic_s()
            if len(self._pages) >= MOST_KINDS:
                self._pages.clear()
            self._pages[content_type] = page, ended_s + PAUSE * (ended_s - began_s)
        return page

    def _daemon(self) -> Iterable[Metric]:
        yield gauge_family("kepd_build_info", "Version of kepd.", ("version",), [(self._version, 1)])
        reloaded = "kepd_config_last_reload_success_timestamp_seconds"
        yield GaugeMetricFamily(reloaded, "When the configuration was last applied.", value=self.config_reloaded_at_s)
        planes = [line for line in self._components() if line.is_plane]
        ready = [(line.name, float(line.is_ready)) for line in planes]
        yield gauge_family("kepd_plane_ready", "Whether a plane is fully operational.", ("plane",), ready)
        restarts = [(line.name, line.restarts) for line in planes]
        yield counter_family("kepd_plane_restarts", "Restarts of a plane after a failure.", ("plane",), restarts)
        yield GaugeMetricFamily(
            "kepd_loop_lag_seconds", "Delay of the event loop at the last check.", value=self.loop_lag_s
        )
        lost = "Lines of the log that could not be written: no room, or nothing reads them."
        yield CounterMetricFamily("kepd_log_lines_lost", lost, value=self.lost_log_lines())
        calls = self._api_calls.items()
        yield counter_family("kepd_api_requests", "Calls to the local API.", ("method", "code"), calls)
        yield self._cri.family(
            "kepd_cri_request_duration_seconds", "Duration of calls to the runtime.", ["method", "code"]
        )
        yield self._gc_pauses.family("kepd_gc_pause_seconds", "Pauses of the garbage collector.", [])

    def _process(self) -> Iterable[Metric]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        resident = int(Path("/proc/self/statm").read_text("ascii").split()[1]) * PAGE_BYTES
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # names are not needed, only how many
        yield CounterMetricFamily("process_cpu_seconds", "CPU time used.", value=usage.ru_utime + usage.ru_stime)
        yield GaugeMetricFamily("process_resident_memory_bytes", "Memory in use.", value=resident)
        yield GaugeMetricFamily("process_open_fds", "Open file descriptors.", value=descriptors)
        yield GaugeMetricFamily("kepd_tasks", "Tasks of the event loop.", value=len(asyncio.all_tasks()))
