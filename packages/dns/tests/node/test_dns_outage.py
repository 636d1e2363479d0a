# SPDX-License-Identifier: Apache-2.0
"""Names while no API server answers, and its DNS with it: Services by kepd-dns itself, old answers of the cluster with
a short life, after a boot too; the cluster's DNS again when the server is back."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

import dns.message
import pytest

from packages.dns.tests.dns_servers import ScriptedDns, addresses, answered, ask
from packages.dns.tests.node.dns_node import ADDRESSES
from tests.drivers.kube.api_server import ApiServer, serving
from tests.drivers.kube.certificates import make_certificates
from tests.drivers.kube.following import service
from tests.host.process import ROOT, Kepd
from tests.lab.network import PORT, Network
from tests.node.test_outage import drop_all_to
from tests.node.test_startup_taint import daemon, put_node

pytestmark = [pytest.mark.node, pytest.mark.timeout(180)]

DNS_VIP, WEB_VIP = "10.96.0.53", "10.96.0.10"
WEB, OLD = "web.default.svc.cluster.local", "db-0.db.default.svc.cluster.local"
ITS = "192.0.2.1"
"""What the cluster's DNS answers to everything."""
OUTAGE_TTL_S = 5
MORE = "outage: judge, outageAfter: 1s, serviceCIDRs: ['10.96.0.0/16']"


def test_names_outlive_the_server_and_its_dns(network: Network, short_path: Path) -> None:
    """SVN-128."""
    network.node.caller.run(lambda: asyncio.run(story(network, short_path)), 170.0)


async def story(network: Network, folder: Path) -> None:
    certificates = make_certificates(folder)
    shared = folder / "names"
    shared.mkdir()
    (folder / "resolv.conf").touch()
    async with serving(certificates) as server:
        put_node(server)
        put_service(server, "default", "web", WEB_VIP, PORT, network["far1"].v4)
        put_service(server, "kube-system", "kube-dns", DNS_VIP, 53, network["far1"].v4)
        with ExitStack() as stack:
            names = stack.enter_context(Names(network, shared))
            kepd = stack.enter_context(
                daemon(folder, network.node.namespace, server.url, str(certificates.ca), MORE)
            )  # fmt: skip
            with kepd.config.open("a") as config:
                config.write(f"dns: {{enabled: true, directory: {shared}, resolvConf: {folder}/resolv.conf}}\n")
            asked = partial(ask, network["pod1"].namespace, ADDRESSES["IPv4"])
            await asyncio.to_thread(kepd.start, "--planes", "services,dns")
            async with ScriptedDns(network["far1"].v4, ITS, network["remote"].namespace, answers=brief):
                for name in (OLD, WEB):
                    await until(lambda name=name: addresses(asked(name)) == [ITS])
                await until((folder / "state" / "services" / "changes.bin").exists)
                await server.refuse()
                # The host of the cluster's DNS is gone, with the connections to it.
                drop_all_to(network, "far1")
            await until(lambda: '"alone"' in kepd.ctl("explain", "outage", "-o", "json").stdout)
            await until(lambda: addresses(asked(WEB)) == [WEB_VIP])
            await until(lambda: ttl(asked(OLD)) == OUTAGE_TTL_S)
            assert addresses(asked(OLD)) == [ITS]
            await until(lambda: counts(kepd, 'source="own"') and counts(kepd, 'source="stale"'))

            await asyncio.to_thread(kepd.end, signal.SIGKILL)
            network.node.namespace.run("nft", "flush", "ruleset")
            names.boot()
            await asyncio.to_thread(kepd.start, "--planes", "services,dns")
            await until(lambda: addresses(asked(WEB)) == [WEB_VIP])

            async with ScriptedDns(network["far1"].v4, ITS, network["remote"].namespace, answers=brief):
                network["far1"].namespace.run("nft", "delete", "table", "inet", "lost")
                await server.accept()
                await until(lambda: addresses(asked(WEB)) == [ITS])
                await asyncio.to_thread(kepd.end)


def brief(server: ScriptedDns, data: bytes, _way: str) -> Iterable[bytes]:
    return (answered(data, server.says, ttl=1),)


class Names:
    """kepd-dns, which a boot ends and begins anew."""

    def __init__(self, network: Network, shared: Path) -> None:
        command = (sys.executable, "-m", "kepd_dns.run.process", "--directory", str(shared))
        self._command = network.node.namespace.command(*command, f"--listen={ADDRESSES['IPv4']}")
        self._log = shared / "log"

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            self._child = subprocess.Popen(self._command, env=environment, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait(10)

    def boot(self) -> None:
        self.__exit__()
        self.__enter__()


def put_service(server: ApiServer, namespace: str, name: str, vip: str, port: int, endpoint: str) -> None:
    ports = [{"name": kind.lower(), "protocol": kind, "port": 53 if port == 53 else 80} for kind in ("TCP", "UDP")]
    made = service(name, clusterIP=vip, ports=ports)
    made["metadata"]["namespace"] = namespace
    server.objects.put("services", made)
    labels = {"kubernetes.io/service-name": name}
    slice_ = {
        "metadata": {"name": f"{name}-1", "namespace": namespace, "labels": labels}, "addressType": "IPv4",
        "ports": [{**one, "port": port} for one in ports],
        "endpoints": [{"addresses": [endpoint], "conditions": {"ready": True}}],
    }  # fmt: skip
    server.objects.put("endpointslices", slice_)


async def until(holds: Callable[[], object]) -> None:
    """Meanwhile the servers answer."""
    async with asyncio.timeout(40.0):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.05)


def ttl(found: dns.message.Message | None) -> int:
    return found.answer[0].ttl if found is not None and found.answer else -1


def counts(kepd: Kepd, label: str) -> bool:
    _, text = kepd.get("/metrics")
    return any(line.startswith("kepd_dns_answers_total{") and label in line for line in text.splitlines())
