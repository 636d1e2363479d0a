# SPDX-License-Identifier: Apache-2.0
"""For each alert what makes it fire, and what looks nearly like it and must not; as Prometheus' own tests play them.

Values are in its notation: `0+10x60` is 0 and sixty steps of 10, one a minute.
"""

from typing import Any

import msgspec

AT = 'instance="n1"'
POD = f'{AT},namespace="default",pod="web",container="main"'


class Case(msgspec.Struct, frozen=True):
    """`fires` and `calm` are series with values; `at` is when both are looked at."""

    alert: str
    fires: tuple[tuple[str, str], ...]
    calm: tuple[tuple[str, str], ...]
    at: str = "60m"

    def tests(self) -> list[dict[str, Any]]:
        return [self._test(self.fires, is_firing=True), self._test(self.calm, is_firing=False)]

    def _test(self, given: tuple[tuple[str, str], ...], *, is_firing: bool) -> dict[str, Any]:
        """By a query over what fires, so that the texts need not be repeated here."""
        query = f'count(ALERTS{{alertname="{self.alert}",alertstate="firing"}}) or vector(0)'
        return {
            "name": f"{self.alert} {'fires' if is_firing else 'is calm'}",
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in given],
            "promql_expr_test": [
                {"expr": query, "eval_time": self.at, "exp_samples": [{"labels": "{}", "value": int(is_firing)}]}
            ],
        }


def _gauge(alert: str, series: str, high: str, low: str) -> Case:
    return Case(alert, ((series, f"{high}x120"),), ((series, f"{low}x120"),))


def _counter(alert: str, series: str, step: str = "1") -> Case:
    """It rises, or has risen long ago."""
    return Case(alert, ((series, f"0+{step}x120"),), ((series, "5x120"),))


def _histogram(alert: str, name: str, labels: str) -> Case:
    slow = (
        (f'{name}_bucket{{{labels},le="1"}}', "0x120"), (f'{name}_bucket{{{labels},le="60"}}', "0+10x120"),
        (f'{name}_bucket{{{labels},le="+Inf"}}', "0+10x120"),
    )  # fmt: skip
    quick = tuple((series, "0+10x120") for series, _ in slow)
    return Case(alert, slow, quick)


DISK = f'{AT},mountpoint="/",role="node"'


def _disk(available: str, capacity: str) -> tuple[tuple[str, str], ...]:
    return (
        (f'kepd_filesystem_bytes{{{DISK},kind="available"}}', f"{available}x120"),
        (f'kepd_filesystem_bytes{{{DISK},kind="capacity"}}', f"{capacity}x120"),
    )


def _inodes(free: str, total: str) -> tuple[tuple[str, str], ...]:
    return (
        (f'kepd_filesystem_inodes{{{DISK},kind="free"}}', f"{free}x120"),
        (f'kepd_filesystem_inodes{{{DISK},kind="total"}}', f"{total}x120"),
    )


CALLS = "kepd_cri_request_duration_seconds"
CASES = (
    _gauge("KepdDown", f'up{{job="kepd",{AT}}}', "0", "1"),
    _gauge("KepdPlaneNotReady", f'kepd_plane_ready{{{AT},plane="pods"}}', "0", "1"),
    _counter("KepdPlaneRestarting", f'kepd_plane_restarts_total{{{AT},plane="pods"}}'),
    _gauge("KepdLoopLate", f"kepd_loop_lag_seconds{{{AT}}}", "0.6", "0.4"),
    _histogram("KepdRuntimeSlow", CALLS, f'{AT},method="RunPodSandbox",code="OK"'),
    Case(
        "KepdRuntimeErrors",
        ((f'{CALLS}_count{{{AT},method="RunPodSandbox",code="UNAVAILABLE"}}', "0+10x120"),),
        ((f'{CALLS}_count{{{AT},method="RunPodSandbox",code="NOT_FOUND"}}', "0+10x120"),),
    ),
    _gauge("KepdPullQueueStuck", f"kepd_image_pull_oldest_wait_seconds{{{AT}}}", "901", "899"),
    _counter("KepdPullErrors", f'kepd_image_pull_errors_total{{{AT},registry="r",error_class="denied"}}'),
    _counter("KepdContainerOOM", f'kepd_container_oom_kills_total{{{POD},scope="container"}}'),
    Case(
        "KepdNodeOOM",
        ((f'kepd_node_oom_kills_total{{{AT},scope="node"}}', "0+1x120"),),
        ((f'kepd_node_oom_kills_total{{{AT},scope="pods"}}', "0+1x120"),),
    ),
    Case(
        "KepdMemoryNearLimit",
        (
            (f"container_memory_working_set_bytes{{{POD}}}", "96x120"),
            (f"container_spec_memory_limit_bytes{{{POD}}}", "100x120"),
        ),
        (
            (f"container_memory_working_set_bytes{{{POD}}}", "96x120"),
            (f"container_spec_memory_limit_bytes{{{POD}}}", "0x120"),
        ),
    ),
    Case(
        "KepdThrottled",
        (
            (f"container_cpu_cfs_throttled_periods_total{{{POD}}}", "0+60x120"),
            (f"container_cpu_cfs_periods_total{{{POD}}}", "0+100x120"),
        ),
        (
            (f"container_cpu_cfs_throttled_periods_total{{{POD}}}", "0+40x120"),
            (f"container_cpu_cfs_periods_total{{{POD}}}", "0+100x120"),
        ),
    ),
    Case(
        "KepdMemoryStalled",
        ((f'container_pressure_memory_stalled_seconds_total{{{AT},id="/"}}', "0+9x120"),),
        ((f'container_pressure_memory_stalled_seconds_total{{{AT},id="/"}}', "0+3x120"),),
    ),
    Case(
        "KepdIoStalled",
        ((f'container_pressure_io_stalled_seconds_total{{{AT},id="/"}}', "0+24x120"),),
        ((f'container_pressure_io_stalled_seconds_total{{{AT},id="/kepd"}}', "0+24x120"),),
    ),
    _counter("KepdRestarting", f"kepd_container_restarts_total{{{POD}}}"),
    _histogram("KepdStartSlow", "kepd_container_start_duration_seconds", f'{AT},kind="main",pull="without"'),
    Case("KepdFilesystemFull", _disk("9", "100"), _disk("11", "100")),
    Case("KepdFilesystemFullSoon", _disk("60-0.5", "100"), _disk("60-0.01", "100"), at="100m"),
    Case("KepdInodesLow", _inodes("4", "100"), _inodes("4", "0")),
    Case(
        "KepdCollectionLate",
        ((f"kepd_image_gc_last_run_timestamp_seconds{{{AT}}}", "1x120"),),
        ((f"kepd_image_gc_last_run_timestamp_seconds{{{AT}}}", "0+60x120"),),
        at="100m",
    ),
    _gauge("KepdPressure", f'kepd_node_condition{{{AT},condition="MemoryPressure"}}', "1", "0"),
    _counter("KepdEvicting", f'kepd_evictions_total{{{AT},signal="memory.available",kind="hard"}}'),
    _gauge("KepdServicesStale", f'kepd_services_pending_seconds{{{AT},family="IPv4"}}', "61", "59"),
    _gauge("KepdServicesQuarantined", f'kepd_services_quarantined{{{AT},family="IPv4"}}', "1", "0"),
    _gauge("KepdHoldsOld", f"kepd_proxy_oldest_hold_seconds{{{AT}}}", "601", "599"),
    _counter("KepdProxyFailOpen", f"kepd_proxy_policy_errors_total{{{AT}}}"),
    _counter("KepdSeriesDropped", f'kepd_observe_dropped_series_total{{{AT},group="files"}}'),
)
