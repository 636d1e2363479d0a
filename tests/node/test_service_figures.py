# SPDX-License-Identifier: Apache-2.0
"""Figures of Services on a real node, under kepd's names and kube-proxy's, with connections that really happened."""

import json
from pathlib import Path

import pytest

from tests.lab.network import Network
from tests.node.test_services_daemon import VIP, Node

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

CONNECTS = 30
EXTRA = "telemetry: {metricsCompat: [kube-proxy], perService: true}\n"
HISTOGRAMS = (
    "sync_proxy_rules_duration_seconds", "sync_full_proxy_rules_duration_seconds",
    "sync_partial_proxy_rules_duration_seconds", "network_programming_duration_seconds",
    "conntrack_reconciler_sync_duration_seconds",
)  # fmt: skip
BOTH = {
    *HISTOGRAMS, "sync_proxy_rules_last_timestamp_seconds", "sync_proxy_rules_last_queued_timestamp_seconds",
    "sync_proxy_rules_endpoint_changes_pending", "sync_proxy_rules_endpoint_changes",
    "sync_proxy_rules_service_changes_pending", "sync_proxy_rules_service_changes",
    "sync_proxy_rules_no_local_endpoints_total", "proxy_healthz", "proxy_livez",
    "conntrack_reconciler_deleted_entries",
}  # fmt: skip
ALONE = {
    "nftables": {"sync_proxy_rules_nftables_sync_failures"},
    "iptables": {
        "sync_proxy_rules_iptables_restore_failures", "sync_proxy_rules_iptables_partial_restore_failures",
        "sync_proxy_rules_iptables_total", "sync_proxy_rules_iptables_last",
    },
}  # fmt: skip


@pytest.mark.parametrize("backend", ["nftables", "iptables"])
def test_what_dashboards_of_kube_proxy_find(network: Network, short_path: Path, backend: str) -> None:
    """HL-7, NF-65."""
    made = Node(network, short_path, EXTRA, backend)
    text = made.kepd.config.read_text().replace("syncPeriod:", "counters: {export: true}, syncPeriod:")
    made.kepd.config.write_text(text)
    with made.kepd:
        made.put("pod1", "pod2", "far1", "far2", internalTrafficPolicy="Cluster")
        made.start()
        made.wait_used("pod1", "pod2", "far1", "far2")
        answered = network["pod3"].caller.spread(VIP, 80, CONNECTS, wait_s=5.0)
        assert sum(answered.values()) == CONNECTS

        page = ask(network, "/metrics")
        types = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE kubeproxy_")}
        assert {name.removeprefix("kubeproxy_").removesuffix("_total") for name in types} == {
            name.removesuffix("_total") for name in BOTH | ALONE[backend]
        }
        assert ask(network, "/proxyMode") == backend
        shown = json.loads(ask(network, "/configz"))["config.kepd.dev"]
        assert (shown["services"]["backend"], "images" in shown) == (backend, False)
        assert f"shop/web {CONNECTS}" in listed(made) or backend == "iptables"
        if backend == "nftables":
            series = 'namespace="shop",port="http",service="web"'
            made.kepd.wait(lambda: counted(ask(network, "/metrics"), series) == CONNECTS, "the connects", 25.0)


def ask(network: Network, path: str) -> str:
    return network.node.namespace.run("curl", "-sS", "-m", "5", f"http://127.0.0.1:10249{path}")


def counted(page: str, series: str) -> int:
    lines = [line for line in page.splitlines() if line.startswith("kepd_service_connections_total{")]
    wanted = set(series.split(","))
    return sum(int(float(line.split()[-1])) for line in lines if all(part in line for part in wanted))


def listed(made: Node) -> str:
    found = [one["kepd"] for one in made.kepd.objects("services")]
    return "\n".join(f"{one['namespace']}/{one['name']} {one['connections']}" for one in found)
