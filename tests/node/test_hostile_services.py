# SPDX-License-Identifier: Apache-2.0
"""A tenant who may create Services and EndpointSlices, and nothing else, against a whole kepd beside an API server.

After each attack the daemon is alive in a control group with the memory that the DaemonSet gives it, and a Service of
another tenant is programmed within a second.
"""

import asyncio
import re
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from agent.drivers.netlink.connection import open_socket
from agent.drivers.nft.driver import NftTable
from agent.model.services.nft_error import RulesRefused
from agent.model.services.nft_table import CLIENTS, Batch
from agent.services.nftables.structure import MOST_CLIENTS
from tests.drivers.kube.api_server import ApiServer, serving
from tests.drivers.kube.certificates import make_certificates
from tests.host.process import Kepd
from tests.lab.limited import Limited, limited
from tests.lab.namespace import Namespace
from tests.node.programmed import Programmed

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

LIMIT_KIB = 384 << 10
# A second is what it takes with nothing beside it; who is held up waits for minutes.
WITHIN_S = 60.0
MOST_CHAINS = 250
"""80 or so that every table has, and as many that wait to be removed."""


def service(name: str, ip: str, ports: list[dict[str, Any]], *, namespace: str = "shop", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterIP": ip, "ports": ports, **spec}}


def pieces(
    name: str, owner: str, ports: list[dict[str, Any]], addresses: list[str], *, namespace: str = "shop"
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": owner}},
        "addressType": "IPv4",
        "ports": ports,
        "endpoints": [{"addresses": [one], "conditions": {"ready": True}} for one in addresses],
    }


def numbered(count: int, first: int = 1) -> list[dict[str, Any]]:
    return [{"name": f"p{number}", "port": first + number, "protocol": "TCP"} for number in range(count)]


def pods(count: int, net: int = 1) -> list[str]:
    return [f"10.{net}.{number // 250}.{number % 250 + 1}" for number in range(count)]


HTTP = [{"name": "http", "port": 80, "protocol": "TCP"}]


class Cluster:
    def __init__(self, server: ApiServer, kepd: Kepd, node: Namespace) -> None:
        self.server, self.kepd, self.node = server, kepd, node
        self.turn = 0
        self.kernel = node.call(Programmed)

    def put(self, kind: str, item: dict[str, Any]) -> None:
        self.server.objects.put(kind, item)

    async def honest(self, what: str) -> None:
        """Another endpoint for the Service of somebody else, until the kernel has it; and what the daemon takes."""
        self.turn += 1
        address = f"10.9.9.{self.turn}"
        began_s = time.monotonic()
        self.put("endpointslices", pieces("honest-1", "honest", HTTP, [address]))
        async with asyncio.timeout(WITHIN_S):
            while ip_address(address).packed not in await asyncio.to_thread(self.kernel.endpoint, "10.96.0.10"):
                assert self.kepd.process is not None
                assert self.kepd.process.poll() is None, what
                await asyncio.sleep(0.05)
        took_s, peak = time.monotonic() - began_s, self.peak_kib()
        print(f"{what}: {took_s:.2f} s until programmed, {peak >> 10} MiB at most")
        assert peak < LIMIT_KIB, what

    def peak_kib(self) -> int:
        assert self.kepd.process is not None
        status = Path(f"/proc/{self.kepd.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+)", status)[0])

    async def nft(self, *words: str) -> str:
        with suppress(RuntimeError):
            return await asyncio.to_thread(self.node.run, "nft", *words, within_s=120.0)
        return ""


async def wide_slices(cluster: Cluster) -> None:
    """FS-20: 160 KiB of JSON, for a Service with one of its ports and for none at all."""
    cluster.put("services", service("wide", "10.96.1.1", numbered(1)))
    for owner in ("wide", "nobody"):
        cluster.put("endpointslices", pieces(f"{owner}-1", owner, numbered(3000), pods(1000)))


async def many_ports(cluster: Cluster) -> None:
    cluster.put("services", service("ports", "10.96.1.2", numbered(2)))
    cluster.put("endpointslices", pieces("ports-1", "ports", numbered(20_000), pods(50)))


async def many_pairs(cluster: Cluster) -> None:
    for number in range(7):
        cluster.put("services", service(f"pairs{number}", f"10.96.2.{number + 1}", numbered(1000)))
        cluster.put("endpointslices", pieces(f"pairs{number}-1", f"pairs{number}", numbered(1000), pods(100, number)))


async def many_external_ips(cluster: Cluster) -> None:
    """SY-12: each below the bound of a Service, 24 of them far above what a node has."""
    for number in range(24):
        addresses = [f"{30 + number}.0.{one >> 8}.{one & 255}" for one in range(1, 8001)]
        spec = {"namespace": f"addresses{number % 2}", "externalIPs": addresses}
        cluster.put("services", service(f"e{number}", f"10.96.3.{number + 1}", HTTP, **spec))
        cluster.put("endpointslices", pieces(f"e{number}-1", f"e{number}", HTTP, pods(10), namespace=spec["namespace"]))
        await asyncio.sleep(0.1)
    await cluster.honest("while external IPs fill the room")
    for number in range(24):
        cluster.server.objects.delete("services", f"addresses{number % 2}", f"e{number}")
    await cluster.honest("while they go, all at once")


async def many_small(cluster: Cluster) -> None:
    """SY-12: more than there is room for, and each smaller than the Service of somebody else."""
    large = service("large", "10.96.4.1", numbered(2), namespace="neighbour")
    cluster.put("services", large)
    cluster.put("endpointslices", pieces("large-1", "large", numbered(2), pods(500), namespace="neighbour"))
    await cluster.honest("a large Service of a neighbour")
    for number in range(1200):
        name, spec = f"m{number}", {"namespace": f"small{number % 3}"}
        cluster.put("services", service(name, f"10.97.{number >> 8}.{number & 255}", numbered(13), **spec))
        cluster.put("endpointslices", pieces(f"{name}-1", name, numbered(13), pods(30), **spec))
        if number % 20 == 0:
            await asyncio.sleep(0.1)
    await cluster.honest("while small ones fill the room")
    assert await asyncio.to_thread(cluster.kernel.endpoint, "10.96.4.1", 1)
    for number in range(1200):
        cluster.server.objects.delete("services", f"small{number % 3}", f"m{number}")
        cluster.server.objects.delete("endpointslices", f"small{number % 3}", f"m{number}-1")
    await cluster.honest("while they go, all at once")


async def slices_of_no_service(cluster: Cluster) -> None:
    """SY-12."""
    for number in range(700):
        cluster.put("endpointslices", pieces(f"none-{number}", "none", HTTP, pods(1000), namespace="slices"))
        await asyncio.sleep(0.005)
    await cluster.honest("while slices of no Service fill the room")
    for number in range(700):
        cluster.server.objects.delete("endpointslices", "slices", f"none-{number}")
    await cluster.honest("while they go, all at once")


async def edited_timeouts(cluster: Cluster) -> None:
    """FS-13."""
    cluster.put("endpointslices", pieces("edited-1", "edited", HTTP, pods(20)))
    for number in range(3000):
        config = {"clientIP": {"timeoutSeconds": number + 1}}
        spec = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": config}
        cluster.put("services", service("edited", "10.96.1.3", HTTP, **spec))
        await asyncio.sleep(0.001)


async def one_address(cluster: Cluster) -> None:
    """FS-18."""
    for number in range(2000):
        ip = f"10.96.{10 + number // 250}.{number % 250 + 1}"
        cluster.put("services", service(f"claim{number}", ip, HTTP, externalIPs=["203.0.113.7"]))
        if number % 50 == 0:
            await asyncio.sleep(0)


async def a_crowd_of_clients(cluster: Cluster) -> None:
    """FS-14: more sources than a chain of the loud Service meets; what does not fit is not remembered."""
    for name, ip in (("quiet", "10.96.1.4"), ("loud", "10.96.1.5")):
        cluster.put("services", service(name, ip, HTTP, sessionAffinity="ClientIP"))
        cluster.put("endpointslices", pieces(f"{name}-1", name, HTTP, ["10.1.0.1"]))
    await cluster.honest("two Services with affinity")
    began_s = time.monotonic()
    kernel = NftTable("IPv4", opens=lambda: cluster.node.call(open_socket))
    quiet = clients("quiet", range(100))
    await kernel.apply(quiet)
    for first in range(0, 2 * MOST_CLIENTS, 4000):
        with suppress(RulesRefused):
            await kernel.apply(clients("loud", range(first, first + 4000)))
    async with asyncio.timeout(WITHIN_S):
        while (await kernel.client_count(CLIENTS) or 0) > 0.9 * MOST_CLIENTS:
            await asyncio.sleep(0.1)
    came_s = time.monotonic() - began_s
    await kernel.apply(Batch(deletes={CLIENTS: [key for key, _ in quiet.adds[CLIENTS]]}))
    await kernel.close()
    # These came by netlink, as no packet does, so kepd lost count of what others changed and reads everything again.
    await cluster.honest("while the rules are read again")
    print(f"a crowd of clients: {came_s:.1f} s until there was room again; those of others are all there")


def clients(name: str, numbers: range) -> Batch:
    """Of a Service, for three hours each."""
    number = sha256(f"shop/{name}:http/TCP".encode()).digest()[:4]
    data = bytes(4) + ip_address("10.1.0.1").packed + struct.pack(">HH", 80, 0) + (10_800_000).to_bytes(8, "big")
    return Batch(adds={CLIENTS: [(struct.pack(">I", 0x0B000000 + one) + number, data) for one in numbers]})


ATTACKS: list[Callable[[Cluster], Any]] = [
    wide_slices, many_ports, many_pairs, many_external_ips, many_small, slices_of_no_service, edited_timeouts,
    one_address, a_crowd_of_clients,
]  # fmt: skip


async def scenario(folder: Path, node: Namespace, group: Limited) -> None:
    certificates = make_certificates(folder)
    async with serving(certificates) as server:
        server.objects.put("nodes", {"metadata": {"name": "n1"}})
        server.objects.put("services", service("honest", "10.96.0.10", HTTP))
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\n"
            f"clusters: [{{name: c, cluster: {{server: '{server.url}', certificate-authority: {certificates.ca}}}}}]\n"
            "users: [{name: u, user: {token: good-token}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
        )
        settings = (
            f"kubernetes: {{kubeconfig: {kubeconfig}}}\n"
            "services: {source: kubernetes, healthzAddress: '', conntrack: {maxPerCore: 0}}\n"
        )
        with Kepd(folder, 10951, extra=settings, prefix=group.prefix(*node.command())) as kepd:
            cluster = Cluster(server, kepd, node)
            await asyncio.to_thread(kepd.start, "--planes", "services")
            await cluster.honest("at the start")
            for attack in ATTACKS:
                await attack(cluster)
                await cluster.honest(attack.__name__)
            chains = (await cluster.nft("-t", "list", "table", "ip", "kepd")).count("\tchain ")
            print(f"{chains} chains")
            assert 50 < chains < MOST_CHAINS
            await asyncio.to_thread(kepd.end)
            await asyncio.to_thread(kepd.start, "--planes", "services")
            await cluster.honest("a restart, with the start of the process and its first sync")
            await cluster.honest("after a restart")
            cluster.kernel.close()
            print(f"with the kernel's part and caches {group.peak_bytes() >> 20} MiB")
            assert not group.was_killed()


def test_tenants_harm_nobody_else(short_path: Path) -> None:
    """FS-13, FS-18, FS-20, FX-1, SY-12."""
    with Namespace() as node, limited(LIMIT_KIB << 10) as group:
        node.run("ip", "link", "set", "lo", "up")
        node.call(lambda: asyncio.run(scenario(short_path, node, group)))
