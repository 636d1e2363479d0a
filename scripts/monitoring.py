#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write deploy/monitoring: alert rules and dashboards, from the lists in this module.

Lists and not files by hand, because one alert stands in two kinds of file, and because a dashboard of a hundred panels
is nothing that a reviewer can read. `--check` writes nothing and fails if the files are not what the lists say.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "deploy/monitoring"
# In this repository; who serves the page elsewhere puts its address in front.
RUNBOOKS = "docs/runbooks.md"
HEAD = "# SPDX-License-Identifier: Apache-2.0\n# Made by `python -m scripts.monitoring`; do not edit.\n"
SCHEMA = 39
WIDTH, HEIGHT, ACROSS = 12, 8, 2


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """`summary` is one line; `description` may have values."""

    name: str
    expr: str
    wait: str = "0m"
    severity: str = "warning"
    summary: str
    description: str

    @property
    def anchor(self) -> str:
        return self.name.lower()


def _quantile(share: str, by: str, name: str, window: str, extra: str = "") -> str:
    return f"histogram_quantile({share}, sum by ({by}) (rate({name}_bucket{extra}[{window}])))"


ON = "on(instance, role, mountpoint)"
CRI = "kepd_cri_request_duration_seconds"
LONG_CALLS = '{method!="PullImage",method!="StopContainer",method!="ExecSync"}'
FINE_CODES = '{code!="OK",code!="NOT_FOUND",code!="UNIMPLEMENTED"}'
USED = 'container_memory_working_set_bytes{container!=""}'
LIMIT = '(container_spec_memory_limit_bytes{container!=""} > 0)'
HELD = 'rate(container_cpu_cfs_throttled_periods_total{container!=""}[10m])'
PERIODS = '(rate(container_cpu_cfs_periods_total{container!=""}[10m]) > 0)'
AT = "{{ $labels.instance }}"
OF = "{{ $labels.namespace }}/{{ $labels.pod }}"
ONE = f"{OF} container {{{{ $labels.container }}}}"
VALUE, SHARE = "{{ $value | humanize }}", "{{ $value | humanizePercentage }}"

ALERTS = (
    Alert(
        name="KepdDown", expr='up{job="kepd"} == 0', wait="2m", severity="critical",
        summary="kepd does not answer", description=f"Prometheus cannot read /metrics of kepd on {AT}.",
    ),
    Alert(
        name="KepdPlaneNotReady", expr="kepd_plane_ready == 0", wait="5m", severity="critical",
        summary="A plane of kepd is not ready",
        description=f"Plane {{{{ $labels.plane }}}} on {AT} is not fully operational.",
    ),
    Alert(
        name="KepdPlaneRestarting", expr="increase(kepd_plane_restarts_total[15m]) > 3",
        summary="A plane of kepd restarts again and again",
        description=f"Plane {{{{ $labels.plane }}}} on {AT} restarted {VALUE} times in 15 minutes.",
    ),
    Alert(
        name="KepdLoopLate", expr="kepd_loop_lag_seconds > 0.5", wait="5m",
        summary="kepd is late with everything", description=f"The event loop on {AT} is {VALUE} s late.",
    ),
    Alert(
        name="KepdRuntimeSlow", wait="10m",
        expr=_quantile("0.99", "instance, le, method", CRI, "10m", LONG_CALLS) + " > 10",
        summary="The container runtime is slow",
        description=f"{{{{ $labels.method }}}} on {AT} takes {VALUE} s at the 99th percentile.",
    ),
    Alert(
        name="KepdRuntimeErrors", wait="10m",
        expr=f"sum by (instance, method) (rate(kepd_cri_request_duration_seconds_count{FINE_CODES}[10m])) > 0.1",
        summary="The container runtime refuses calls",
        description=f"{{{{ $labels.method }}}} on {AT} fails {VALUE} times a second.",
    ),
    Alert(
        name="KepdPullQueueStuck", expr="kepd_image_pull_oldest_wait_seconds > 900", wait="5m",
        summary="A pull waits for its turn", description=f"The oldest pull on {AT} has waited for {VALUE} s.",
    ),
    Alert(
        name="KepdPullErrors", wait="5m",
        expr="sum by (instance, registry, error_class) (increase(kepd_image_pull_errors_total[15m])) > 5",
        summary="Pulls fail",
        description=f"{VALUE} pulls from {{{{ $labels.registry }}}} on {AT} failed: {{{{ $labels.error_class }}}}.",
    ),
    Alert(
        name="KepdContainerOOM",
        expr="sum by (instance, namespace, pod, container) (increase(kepd_container_oom_kills_total[10m])) > 0",
        summary="A container was killed for want of memory", description=f"{ONE} on {AT} was killed {VALUE} times.",
    ),
    Alert(
        name="KepdNodeOOM", expr='increase(kepd_node_oom_kills_total{scope="node"}[10m]) > 0', severity="critical",
        summary="The kernel kills outside of pods", description=f"{AT} had too little memory {VALUE} times.",
    ),
    Alert(
        name="KepdMemoryNearLimit", expr=f"({USED} / {LIMIT}) > 0.95", wait="10m",
        summary="A container is near its memory limit", description=f"{ONE} on {AT} uses {SHARE} of its limit.",
    ),
    Alert(
        name="KepdThrottled", expr=f"{HELD} / {PERIODS} > 0.5", wait="15m", severity="info",
        summary="A container is held back by its CPU limit",
        description=f"{ONE} on {AT} is held back in {SHARE} of its periods.",
    ),
    Alert(
        name="KepdMemoryStalled", expr='rate(container_pressure_memory_stalled_seconds_total{id="/"}[5m]) > 0.1',
        wait="5m", severity="critical", summary="The node waits for memory",
        description=f"All of {AT} waits for memory in {SHARE} of the time.",
    ),
    Alert(
        name="KepdIoStalled", expr='rate(container_pressure_io_stalled_seconds_total{id="/"}[5m]) > 0.3', wait="15m",
        summary="The node waits for disks", description=f"All of {AT} waits for disks in {SHARE} of the time.",
    ),
    Alert(
        name="KepdRestarting", wait="5m",
        expr="sum by (instance, namespace, pod, container) (increase(kepd_container_restarts_total[1h])) > 5",
        summary="A container restarts again and again",
        description=f"{ONE} on {AT} restarted {VALUE} times in an hour.",
    ),
    Alert(
        name="KepdStartSlow", wait="15m",
        expr=_quantile(
            "0.9", "instance, le, kind", "kepd_container_start_duration_seconds", "30m", '{pull="without"}'
        ) + " > 10",
        summary="Containers start slowly", description=f"One in ten starts on {AT} takes more than {VALUE} s.",
    ),
    Alert(
        name="KepdFilesystemFull", wait="5m", severity="critical",
        expr=f'kepd_filesystem_bytes{{kind="available"}} / {ON} kepd_filesystem_bytes{{kind="capacity"}} < 0.1',
        summary="A file system of the node is full",
        description=f"{SHARE} of {{{{ $labels.mountpoint }}}} ({{{{ $labels.role }}}}) on {AT} is left.",
    ),
    Alert(
        name="KepdFilesystemFullSoon", wait="30m",
        expr='predict_linear(kepd_filesystem_bytes{kind="available"}[6h], 86400) < 0 and '
        f'{ON} kepd_filesystem_bytes{{kind="available"}} / {ON} kepd_filesystem_bytes{{kind="capacity"}} < 0.4',
        summary="A file system of the node will be full within a day",
        description=f"At this pace {{{{ $labels.mountpoint }}}} ({{{{ $labels.role }}}}) on {AT} is full in a day.",
    ),
    Alert(
        name="KepdInodesLow", wait="5m",
        expr=f'kepd_filesystem_inodes{{kind="free"}} / {ON} (kepd_filesystem_inodes{{kind="total"}} > 0) < 0.05',
        summary="A file system of the node has few inodes",
        description=f"{SHARE} of the inodes of {{{{ $labels.mountpoint }}}} on {AT} are left.",
    ),
    Alert(
        name="KepdCollectionLate", expr="time() - kepd_image_gc_last_run_timestamp_seconds > 3600", wait="15m",
        summary="Images are not collected", description=f"The last collection on {AT} was {VALUE} s ago.",
    ),
    Alert(
        name="KepdPressure", expr="kepd_node_condition == 1", wait="1m",
        summary="The node is short of something", description=f"{AT} has {{{{ $labels.condition }}}}.",
    ),
    Alert(
        name="KepdEvicting", expr="sum by (instance, signal) (increase(kepd_evictions_total[15m])) > 0", wait="0m",
        summary="Pods are evicted", description=f"On {AT} {VALUE} pods ended for {{{{ $labels.signal }}}}.",
    ),
    Alert(
        name="KepdServicesStale", expr="kepd_services_pending_seconds > 60", wait="2m", severity="critical",
        summary="Changes of Services do not reach the kernel",
        description=f"The oldest change of {{{{ $labels.family }}}} on {AT} has waited for {VALUE} s.",
    ),
    Alert(
        name="KepdServicesQuarantined", expr="kepd_services_quarantined > 0", wait="10m",
        summary="The kernel refuses rules of a Service", description=f"{VALUE} Services on {AT} have no rules.",
    ),
    Alert(
        name="KepdHoldsOld", expr="kepd_proxy_oldest_hold_seconds > 600", wait="5m",
        summary="The CRI proxy holds a call", description=f"A call on {AT} has been held for {VALUE} s.",
    ),
    Alert(
        name="KepdProxyFailOpen", expr="increase(kepd_proxy_policy_errors_total[15m]) > 0",
        summary="The CRI proxy passed calls without judging them",
        description=f"{VALUE} calls on {AT} passed because kepd failed inside.",
    ),
    Alert(
        name="KepdSeriesDropped", expr="increase(kepd_observe_dropped_series_total[15m]) > 0", wait="15m",
        severity="info", summary="Figures of containers are left out",
        description=f"{VALUE} series of {{{{ $labels.group }}}} are missing on {AT}.",
    ),
)  # fmt: skip


class Panel(msgspec.Struct, frozen=True):
    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """Expressions with their legends."""


def _one(title: str, unit: str, expr: str, legend: str = "{{instance}}") -> Panel:
    return Panel(title, unit, ((expr, legend),))


def _rate(name: str, by: str, extra: str = "") -> str:
    return f"sum by ({by}) (rate({name}{{{_where(extra)}}}[$__rate_interval]))"


def _where(extra: str = "") -> str:
    return ",".join(one for one in ('instance=~"$instance"', extra) if one)


def _p(share: str, name: str, by: str) -> str:
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({name}_bucket{{{_where()}}}[$__rate_interval])))"


ROOT_GROUP = 'id="/"'
AVAILABLE = 'kind="available"'
NODE_PANELS = (
    _one("Planes ready", "short", f"kepd_plane_ready{{{_where()}}}", "{{instance}} {{plane}}"),
    _one("Processor time", "percentunit", _rate("container_cpu_usage_seconds_total", "instance", ROOT_GROUP)),
    Panel("Memory", "bytes", (
        (f"container_memory_working_set_bytes{{{_where(ROOT_GROUP)}}}", "in use"),
        (f"machine_memory_bytes{{{_where()}}}", "of"),
    )),
    Panel("Pressure: some wait", "percentunit", tuple(
        (_rate(f"container_pressure_{what}_waiting_seconds_total", "instance", ROOT_GROUP), what)
        for what in ("cpu", "memory", "io")
    )),
    _one("File systems: available", "bytes", f"kepd_filesystem_bytes{{{_where(AVAILABLE)}}}",
         "{{mountpoint}} {{role}}"),
    _one("Images on disk", "bytes", f"kepd_image_fs_bytes{{{_where()}}}", "{{instance}} {{kind}}"),
    _one("Kills for want of memory", "short", _rate("kepd_node_oom_kills_total", "instance, scope"), "{{scope}}"),
    _one("Short of", "short", f"kepd_node_condition{{{_where()}}}", "{{condition}}"),
    _one("Evictions", "short", _rate("kepd_evictions_total", "instance, signal"), "{{signal}}"),
    Panel("Pulls", "short", (
        (f"sum by (instance) (kepd_image_pulls_in_flight{{{_where()}}})", "running"),
        (f"sum by (instance) (kepd_image_pull_queue_length{{{_where()}}})", "waiting"),
    )),
    _one("Oldest pull that waits", "s", f"kepd_image_pull_oldest_wait_seconds{{{_where()}}}"),
    _one("Pull, 90th percentile by size", "s", _p("0.9", "kepd_image_pull_duration_seconds", "image_size_in_bytes"),
         "{{image_size_in_bytes}}"),
    _one("Start of a pod, 90th percentile", "s", _p("0.9", "kepd_pod_start_duration_seconds", "instance")),
    _one("Start of a container, 90th percentile", "s", _p("0.9", "kepd_container_start_duration_seconds", "kind, pull"),
         "{{kind}} {{pull}} its image"),
    _one("Calls to the runtime, 99th percentile", "s", _p("0.99", "kepd_cri_request_duration_seconds", "method"),
         "{{method}}"),
    _one("Calls to the runtime by outcome", "ops", _rate("kepd_cri_request_duration_seconds_count", "code"),
         "{{code}}"),
    _one("Added by the proxy, 99th percentile", "s", _p("0.99", "kepd_proxy_added_seconds", "method"), "{{method}}"),
    _one("Calls that the proxy holds", "short", f"kepd_proxy_holds{{{_where()}}}", "{{reason}}"),
    _one("Services: oldest change that waits", "s", f"kepd_services_pending_seconds{{{_where()}}}", "{{family}}"),
    _one("Services: sync, 99th percentile", "s", _p("0.99", "kepd_services_sync_duration_seconds", "family"),
         "{{family}}"),
    _one("Services: elements written", "ops", _rate("kepd_services_elements_written_total", "family"), "{{family}}"),
    _one("Names: answers by where they are from", "ops", _rate("kepd_dns_answers_total", "source, rcode"),
         "{{source}} {{rcode}}"),
    _one("Names: answer, 99th percentile", "s", _p("0.99", "kepd_dns_duration_seconds", "source"), "{{source}}"),
    _one("Names: questions reach kepd-dns", "short", f"kepd_dns_rules_live{{{_where()}}}", "{{instance}} {{address}}"),
    _one("Names: servers that fail", "ops", _rate("kepd_dns_upstream_failures_total", "upstream, reason"),
         "{{upstream}} {{reason}}"),
    _one("Event loop late", "s", f"kepd_loop_lag_seconds{{{_where()}}}"),
    _one("Memory of kepd", "bytes", f"process_resident_memory_bytes{{{_where()}}}"),
    _one("Pass over the figures, 99th percentile", "s", _p("0.99", "kepd_observe_pass_seconds", "instance")),
    _one("Series by page", "short", f"kepd_observe_series{{{_where()}}}", "{{page}}"),
)  # fmt: skip
CONTAINER = 'namespace=~"$namespace",pod=~"$pod",container!=""'
BY = "namespace, pod, container"
NAME = "{{pod}} {{container}}"


def _gauge(name: str) -> str:
    return f"{name}{{{_where(CONTAINER)}}}"


POD_PANELS = (
    Panel("Processor time and limit", "short", (
        (_rate("container_cpu_usage_seconds_total", BY, CONTAINER), NAME),
        (f"{_gauge('container_spec_cpu_quota')} / {_gauge('container_spec_cpu_period')}", f"{NAME} limit"),
    )),
    _one("Held back by the limit", "percentunit",
         f"{_rate('container_cpu_cfs_throttled_periods_total', BY, CONTAINER)} / "
         f"{_rate('container_cpu_cfs_periods_total', BY, CONTAINER)}", NAME),
    Panel("Memory in use and limit", "bytes", (
        (_gauge("container_memory_working_set_bytes"), NAME),
        (f"{_gauge('container_spec_memory_limit_bytes')} > 0", f"{NAME} limit"),
    )),
    Panel("Memory by kind", "bytes", tuple(
        (_gauge(f"container_memory_{what}"), f"{NAME} {what}") for what in ("rss", "cache", "kernel_usage")
    )),
    _one("Kills for want of memory", "short", _rate("container_oom_events_total", BY, CONTAINER), NAME),
    Panel("Pressure: some wait", "percentunit", tuple(
        (_rate(f"container_pressure_{what}_waiting_seconds_total", BY, CONTAINER), f"{NAME} {what}")
        for what in ("cpu", "memory", "io")
    )),
    Panel("Network", "Bps", tuple(
        (_rate(f"container_network_{way}_bytes_total", "namespace, pod",
               'namespace=~"$namespace",pod=~"$pod"'), f"{{{{pod}}}} {way}")
        for way in ("receive", "transmit")
    )),
    Panel("Disk", "Bps", tuple(
        (_rate(f"container_fs_{way}_bytes_total", BY, CONTAINER), f"{NAME} {way}") for way in ("reads", "writes")
    )),
    _one("Writable layer", "bytes", _gauge("container_fs_usage_bytes"), NAME),
    _one("Threads", "short", _gauge("container_threads"), NAME),
)  # fmt: skip


def rule_groups() -> list[dict[str, Any]]:
    rules = [
        {
            "alert": one.name,
            "expr": one.expr,
            "for": one.wait,
            "labels": {"severity": one.severity},
            "annotations": {
                "summary": one.summary, "description": one.description, "runbook_url": f"{RUNBOOKS}#{one.anchor}",
            },
        }
        for one in ALERTS
    ]  # fmt: skip
    return [{"name": "kepd", "rules": rules}]


def dashboard(title: str, uid: str, panels: Iterable[Panel], variables: Iterable[tuple[str, str]]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    chosen: list[dict[str, Any]] = [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
    chosen += [
        {
            "name": name, "type": "query", "datasource": source, "query": query, "includeAll": True, "multi": True,
            "current": {"text": "All", "value": "$__all"}, "refresh": 2, "sort": 1,
        }
        for name, query in variables
    ]  # fmt: skip
    return {
        "title": title,
        "uid": uid,
        "schemaVersion": SCHEMA,
        "tags": ["kepd"],
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": chosen},
        "panels": list(_placed(panels, source)),
    }


def _placed(panels: Iterable[Panel], source: dict[str, str]) -> Iterator[dict[str, Any]]:
    for place, one in enumerate(panels):
        row, column = divmod(place, ACROSS)
        yield {
            "id": place + 1,
            "type": "timeseries",
            "title": one.title,
            "datasource": source,
            "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
            "fieldConfig": {"defaults": {"unit": one.unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + number), "expr": expr, "legendFormat": legend, "exemplar": True}
                for number, (expr, legend) in enumerate(one.queries)
            ],
        }


def files() -> dict[str, str]:
    instance = ("instance", "label_values(kepd_build_info, instance)")
    namespace = ("namespace", "label_values(container_memory_working_set_bytes, namespace)")
    pod = ("pod", 'label_values(container_memory_working_set_bytes{namespace=~"$namespace"}, pod)')
    node = dashboard("kepd: node", "kepd-node", NODE_PANELS, [instance])
    node_pods = dashboard("kepd: pods", "kepd-pods", POD_PANELS, [instance, namespace, pod])
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "kepd"},
        "spec": {"groups": rule_groups()},
    }
    return {
        "alerts.yaml": HEAD + yaml.safe_dump({"groups": rule_groups()}, sort_keys=True, width=120),
        "prometheus-rule.yaml": HEAD + yaml.safe_dump(rule, sort_keys=True, width=120),
        "dashboard-node.json": json.dumps(node, indent=1, sort_keys=True) + "\n",
        "dashboard-pods.json": json.dumps(node_pods, indent=1, sort_keys=True) + "\n",
    }


def main() -> int:
    stale = [name for name, text in files().items() if _there(name) != text]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"deploy/monitoring/{name} is not what the lists say; run `make docs`")
        return 1 if stale else 0
    for name in stale:
        (FOLDER / name).write_text(files()[name], "utf-8")
    return 0


def _there(name: str) -> str:
    path = FOLDER / name
    return path.read_text("utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
