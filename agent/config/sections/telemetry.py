# SPDX-License-Identifier: Apache-2.0
"""The section of the configuration about logs, metrics, events and traces, as document.py has the others."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agent.config.keys import Words, key, restart
from agent.config.kinds import BOOL, COLLECTOR, choice, duration, either, integer, list_of, map_of, number
from agent.config.sections.node_logs import NodeLogsSection

LEVEL = integer(0, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsSection:
    ring: int = restart(integer(1, 1_000_000), 10000, "Number of events kept.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFigures:
    page: bool | Literal["auto"] = restart(
        either("auto", BOOL),
        "auto",
        "Serve pages with names of pods, such as /metrics/cadvisor; `auto`: on a loopback address, or to clients with "
        "a certificate (`api.httpTLS`).",
    )
    of: str = key(
        choice("auto", "own", "all"),
        "auto",
        "Whose pods: kepd's, or all of this node; `auto` is all, beside a kubelet kepd's.",
    )
    psi: bool = key(BOOL, True, "Read pressure stall information of each container and pod.")
    oom_watch: bool = key(BOOL, True, "Look at a container as soon as it ran out of memory.")
    descriptors: bool = key(
        BOOL, False, "Count what containers have open, with each scrape of /metrics/cadvisor; it walks /proc."
    )
    keep_ended: float = key(
        duration(0.0), 300.0, "How long counters of a container stay after its end; at least two scrapes."
    )
    max_files: int = restart(integer(0, 1_000_000), 8192, "Files of the kernel that are kept open between scrapes.")
    max_series: int = key(
        integer(1000, 10_000_000), 50_000, "Most series of /metrics/cadvisor; beyond, families are left out."
    )
    space_every: float = key(duration(1.0), 60.0, "How often the runtime is asked for the size of writable layers.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSection:
    endpoint: str = restart(
        COLLECTOR,
        "",
        "Collector that gets traces, by OTLP over gRPC; http is without TLS. Empty: no traces. Needs the extra `otel`.",
    )
    ratio: float = key(
        number(0, 1), 0.01, "Share of traces without a parent that is kept; slow and failed starts of pods always are."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    verbosity: int = key(LEVEL, 2, "Log level as in klog: 2 logs one line per operation, 4 also plans.")
    vmodule: Mapping[str, int] = key(map_of(LEVEL, "plane: level"), {}, "Log levels of single planes.")
    log_format: str = restart(
        choice("auto", "json", "logfmt", "console"), "auto", "Log format; `auto`: console on a terminal, else logfmt."
    )
    metrics_compat: Words = key(
        list_of(choice("kube-proxy", "coredns", "kubelet"), "metric families"),
        (),
        "Also export metrics as `kube-proxy`, `coredns` and `kubelet` name them; port 10249 opens at the next restart.",
    )
    per_namespace: bool = key(
        BOOL, False, "Start durations of containers by namespace; of the first 200, the others together."
    )
    per_service: bool = key(BOOL, False, "Export metrics with one series per Service.")
    events: EventsSection = EventsSection()
    containers: ContainerFigures = ContainerFigures()
    node_logs: NodeLogsSection = NodeLogsSection()
    tracing: TracingSection = TracingSection()
