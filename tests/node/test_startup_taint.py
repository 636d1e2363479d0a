# SPDX-License-Identifier: Apache-2.0
"""A whole kepd beside an API server: the startup taint goes when Services answer, and not before."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent.services.run.cluster.startup_taint import STARTUP_TAINT
from tests.drivers.kube.api_server import ApiServer, serving
from tests.drivers.kube.certificates import make_certificates
from tests.drivers.kube.following import service
from tests.host.process import PROGRAMS, Kepd
from tests.lab.namespace import Namespace
from tests.lab.network import POD_RANGES, Network

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

OTHER = {"key": "example.com/gpu", "effect": "NoSchedule"}
OURS = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
SLICE: dict[str, Any] = {
    "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
    "addressType": "IPv4", "ports": [{"name": "", "port": 80, "protocol": "TCP"}], "endpoints": [],
}  # fmt: skip
WITHIN_S = 40.0


def test_it_goes_with_the_first_sync_and_whenever_it_comes_back(short_path: Path) -> None:
    """DS-10. While another program owns the table of Services nothing answers, so the taint stays."""
    with Network(pods=1, far_pods=0) as network:
        space = network.node.namespace
        network.node.caller.run(lambda: asyncio.run(scenario(short_path, space)), 100.0)


RIVAL = "table ip kube-proxy { chain services { ip daddr 10.96.0.1 drop\n }\n}\n"


async def scenario(folder: Path, space: Namespace) -> None:
    certificates = make_certificates(folder)
    async with serving(certificates) as server:
        put_node(server, OTHER, OURS)
        server.objects.put("services", service("web", clusterIP="10.96.0.10"))
        await asyncio.to_thread(space.run, "nft", "-f", "-", text=RIVAL)
        with daemon(folder, space, server.url, str(certificates.ca)) as kepd:
            await asyncio.to_thread(kepd.start, "--planes", "services")
            await until(lambda: "service_sync_failed" in kepd.log.read_text())
            assert taints(server) == [OTHER, OURS]

            await asyncio.to_thread(space.run, "nft", "delete", "table", "ip", "kube-proxy")
            await until(lambda: taints(server) == [OTHER])
            assert "10.96.0.10" in await asyncio.to_thread(space.run, "nft", "list", "table", "ip", "kepd")

            put_node(server, OURS)
            await until(lambda: taints(server) == [])


def test_it_is_there_before_the_first_rules_after_a_boot(short_path: Path) -> None:
    """SVN-60, SVN-64. A boot is a kernel without rules and another id than the one kept."""
    with Network(pods=1, far_pods=0) as network:
        space = network.node.namespace
        network.node.caller.run(lambda: asyncio.run(boots(short_path, space)), 100.0)


async def boots(folder: Path, space: Namespace) -> None:
    certificates = make_certificates(folder)
    async with serving(certificates) as server:
        put_node(server, OTHER)
        server.objects.put("services", service("web", clusterIP="10.96.0.10"))
        # A list of none, where there are rules, would be looked at twice.
        server.objects.put("endpointslices", SLICE)
        with daemon(folder, space, server.url, str(certificates.ca), "taintWhenDown: boot") as kepd:
            await start_and_end(kepd)
            assert patched(kepd) == ["startup_taint_added", "startup_taint_removed"]
            await start_and_end(kepd)
            assert len(patched(kepd)) == 2, "a restart alone"

            (folder / "state" / "services" / "boot-id").write_text("another\n")
            await start_and_end(kepd)
            assert len(patched(kepd)) == 2, "rules in place"

            await asyncio.to_thread(space.run, "nft", "flush", "ruleset")
            (folder / "state" / "services" / "boot-id").write_text("another\n")
            await start_and_end(kepd)
            assert patched(kepd)[2:] == ["startup_taint_added", "startup_taint_removed"]
        first = kepd.log.read_text()
        assert first.index("startup_taint_added") < first.index("service_sync_finished")
        assert first.index("startup_taint_added") < first.index("daemon_ready")
        assert taints(server) == [OTHER]

        put_node(server, OTHER, OURS)
        cleanup = (str(PROGRAMS / "kepd"), "cleanup", "--services", "--config", str(kepd.config))
        printed = await asyncio.to_thread(space.run, *cleanup)
        assert "removed the taint kepd.dev/not-ready of node n1" in printed
        assert taints(server) == [OTHER]


async def start_and_end(kepd: Kepd) -> None:
    kepd.log.touch()
    count = kepd.log.read_text().count("daemon_ready")
    await asyncio.to_thread(kepd.start, "--planes", "services")
    await until(lambda: kepd.log.read_text().count("daemon_ready") > count and kepd.get("/readyz")[0] == 200)
    await asyncio.to_thread(kepd.end)


def patched(kepd: Kepd) -> list[str]:
    lines = kepd.log.read_text().splitlines()
    return [word for line in lines for word in ("startup_taint_added", "startup_taint_removed") if word in line]


def put_node(server: ApiServer, *kept: dict[str, str]) -> None:
    server.objects.put("nodes", {"metadata": {"name": "n1"}, "spec": {"taints": list(kept)}})


def taints(server: ApiServer) -> list[dict[str, str]]:
    found: list[dict[str, str]] = server.objects.get("nodes", "", "n1")["spec"].get("taints", [])
    return found


async def until(condition: Any) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.02)


def daemon(folder: Path, space: Namespace, url: str, ca: str, more: str = "startupTaint: true") -> Kepd:
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\n"
        f"clusters: [{{name: c, cluster: {{server: '{url}', certificate-authority: {ca}}}}}]\n"
        "users: [{name: u, user: {token: good-token}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
    )
    settings = (
        f"kubernetes: {{kubeconfig: {kubeconfig}}}\n"
        f"services: {{source: kubernetes, {more}, healthzAddress: '', conntrack: {{maxPerCore: 0}},"
        f" syncPeriod: 1s, detectLocal: {{clusterCIDRs: ['{POD_RANGES['IPv4']}']}}}}\n"
    )
    return Kepd(folder, 10949, extra=settings, prefix=space.command())
