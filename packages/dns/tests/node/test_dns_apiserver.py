# SPDX-License-Identifier: Apache-2.0
"""kepd-dns in the place of a cluster's DNS, as a real API server tells of it: interception, endpoints, fallback."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from packages.dns.tests.dns_servers import ScriptedDns, addresses, ask
from packages.dns.tests.node.dns_node import ADDRESSES
from tests.e2e.control import ADDRESS, Control
from tests.e2e.programs import VARIABLES, Programs
from tests.host.process import ROOT, Kepd
from tests.lab.network import POD_RANGES, Network

pytestmark = [pytest.mark.node, pytest.mark.timeout(240), pytest.mark.beside("KEPD_APISERVER")]
VIPS = {"IPv4": "10.96.0.53", "IPv6": "fd00:96::53"}
NAME = "web.default.svc.cluster.local"
ONE, TWO = "192.0.2.1", "192.0.2.2"
SERVICE = {
    "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-dns", "namespace": "kube-system"},
    "spec": {
        "clusterIP": VIPS["IPv4"], "clusterIPs": list(VIPS.values()), "ipFamilyPolicy": "RequireDualStack",
        "ports": [
            {"name": "dns", "protocol": "UDP", "port": 53}, {"name": "dns-tcp", "protocol": "TCP", "port": 53},
            {"name": "metrics", "protocol": "TCP", "port": 9153},
        ],
    },
}  # fmt: skip


class Cluster:
    def __init__(self, network: Network, folder: Path, control: Control) -> None:
        self.network, self.control = network, control
        self.shared = folder / "names"
        self.shared.mkdir()
        (folder / "resolv.conf").touch()
        extra = (
            "services: {source: kubernetes, healthzAddress: '', conntrack: {maxPerCore: 0}, "
            f"detectLocal: {{clusterCIDRs: {json.dumps(list(POD_RANGES.values()))}}}}}\n"
            f"kubernetes: {{kubeconfig: {control.kubeconfig}}}\nimages: {{enabled: false}}\n"
            f"dns: {{enabled: true, directory: {self.shared}, resolvConf: {folder}/resolv.conf}}\n"
        )
        self.kepd = Kepd(folder, 10944, extra=extra, prefix=network.node.namespace.command())
        self.process: subprocess.Popen[bytes] | None = None

    def start_names(self) -> None:
        command = [sys.executable, "-m", "kepd_dns.run.process", "--directory", str(self.shared)]
        with (self.shared / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.network.node.namespace.command(*command, *(f"--listen={one}" for one in ADDRESSES.values())),
                env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=log,
            )  # fmt: skip

    def end_names(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def scale(self, place: str) -> None:
        """The cluster's DNS is there, and there alone."""
        for family in ("IPv4", "IPv6"):
            address = self.network[place].v4 if family == "IPv4" else self.network[place].v6
            made = {
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
                "metadata": {
                    "name": f"kube-dns-{family.lower()}", "namespace": "kube-system",
                    "labels": {"kubernetes.io/service-name": "kube-dns"},
                },
                "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
                "ports": [{"name": "dns", "protocol": "UDP", "port": 53},
                          {"name": "dns-tcp", "protocol": "TCP", "port": 53}],
            }  # fmt: skip
            self.control.kubectl("apply", "-f", "-", given=json.dumps(made))

    async def ask(self, server: str, name: str = NAME, **more: Any) -> list[str]:
        return addresses(await asyncio.to_thread(partial(ask, self.network["pod1"].namespace, server, name, **more)))

    async def until(self, answer: list[str], server: str, name: str, within_s: float) -> float:
        """How long it took, each try with a name of its own, so that no memory answers."""
        begun_s = time.monotonic()
        number = 0
        while await self.ask(server, f"t{begun_s:.3f}-{number}.{name}".replace(".", "-", 1), within_s=0.3) != answer:
            number += 1
            assert time.monotonic() - begun_s < within_s, (self.kepd.log.read_text()[-3000:], self.names_log())
            await asyncio.sleep(0.02)
        return time.monotonic() - begun_s

    async def until_untracked(self, within_s: float) -> float:
        """Until questions to the cluster's DNS stay on the node again."""
        begun_s = time.monotonic()
        while True:
            self.network.node.namespace.run("conntrack", "-F")
            answers = [await self.ask(vip, within_s=1.0) for vip in VIPS.values()]
            if all(answers) and not self.tracked():
                return time.monotonic() - begun_s
            assert time.monotonic() - begun_s < within_s, (self.kepd.log.read_text()[-3000:], self.names_log())

    def names_log(self) -> str:
        return (self.shared / "log").read_text()

    def tracked(self) -> list[str]:
        node, found = self.network.node.namespace, []
        for flag in ("ipv4", "ipv6"):
            listed = node.run("conntrack", "-L", "-f", flag).splitlines()
            found += [
                one for one in listed if "dport=53 " in one and any(f"dst={vip} " in one for vip in VIPS.values())
            ]
        return found


@pytest.fixture
def cluster(network: Network, short_path: Path) -> Iterator[Cluster]:
    found = {part: shutil.which(os.environ.get(name, "")) or "" for part, (name, _) in VARIABLES.items()}
    place, node = network.client.namespace, network.node.namespace
    place.run("ip", "addr", "add", f"{ADDRESS['IPv4']}/32", "dev", "lo")
    node.run("ip", "route", "add", f"{ADDRESS['IPv4']}/32", "via", network.client.v4)
    with ExitStack() as stack:
        control = Control(Programs(**found, images=()), short_path / "c", place)
        stack.callback(control.__exit__, None, None, None)
        control.start_server()
        named = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
        control.kubectl("create", "-f", "-", given=json.dumps(named))
        control.kubectl("create", "-f", "-", given=json.dumps(SERVICE))
        made = Cluster(network, short_path, control)
        made.scale("far1")
        stack.callback(made.end_names)
        made.start_names()
        stack.enter_context(made.kepd)
        made.kepd.start("--planes", "services,dns")
        yield made


async def test_the_clusters_dns_is_answered_for_on_the_node(cluster: Cluster) -> None:
    """DNS-21, DNS-22, DNS-29, DNS-41: its own address, without a change of any pod; its endpoints as the API server
    has them; itself where kepd-dns is gone, and back."""
    network = cluster.network
    place = network["remote"].namespace
    async with (
        ScriptedDns(network["far1"].v4, ONE, place) as first,
        ScriptedDns(network["far1"].v6, ONE, place),
        ScriptedDns(network["far2"].v4, TWO, place),
        ScriptedDns(network["far2"].v6, TWO, place),
    ):
        listed = partial(cluster.kepd.ctl, "get", "dns")
        await asyncio.to_thread(
            cluster.kepd.wait, lambda: listed().stdout.count(" answering ") == 4, "four addresses answer", 60.0
        )
        network.node.namespace.run("conntrack", "-F")
        taken = {
            (server, tcp): await cluster.ask(server, f"a{number}-{tcp}.{NAME}", tcp=tcp)
            for number, server in enumerate((*VIPS.values(), *ADDRESSES.values()))
            for tcp in (False, True)
        }
        ways, tracked = {way for _, way in first.asked}, cluster.tracked()
        shown = network.node.namespace.run("ip", "addr", "show", "dev", "lo")
        await asyncio.to_thread(cluster.scale, "far2")
        followed_s = {vip: await cluster.until([TWO], vip, NAME, 5.0) for vip in VIPS.values()}
        cluster.end_names()
        gone_s = {vip: await cluster.until([TWO], vip, NAME, 5.0) for vip in VIPS.values()}
        through = cluster.tracked()
        cluster.start_names()
        back_s = await cluster.until_untracked(10.0)
        again = [await cluster.ask(vip, f"b.{NAME}") for vip in VIPS.values()]

        assert taken == {key: [ONE] for key in taken}
        assert (ways, tracked) == ({"tcp"}, [])
        assert f"inet {VIPS['IPv4']}/32 scope link deprecated" in shown
        assert through != []
        assert (again, cluster.tracked()) == ([[TWO], [TWO]], [])
        print(f"followed after {followed_s}, fell back after {gone_s}, back after {back_s:.2f} s")
