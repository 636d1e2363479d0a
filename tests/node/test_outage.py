# SPDX-License-Identifier: Apache-2.0
"""A whole kepd whose API server goes away, loses endpoints meanwhile, boots, and gets its server back (SVN-120 to
SVN-129). For both backends and families."""

import asyncio
import json
import os
import signal
import socket
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from tests.drivers.kube.api_server import ApiServer, serving
from tests.drivers.kube.certificates import make_certificates
from tests.drivers.kube.following import service
from tests.e2e.control import ADDRESS, URL, Control
from tests.e2e.programs import Programs
from tests.host.process import Kepd
from tests.lab.network import POD_RANGES, PORT, Network
from tests.node.test_startup_taint import daemon, put_node, until

pytestmark = [pytest.mark.node, pytest.mark.timeout(180)]

VIPS = {"IPv4": "10.96.0.10", "IPv6": "fd00:96::10"}
PODS, FAR = 3, 7
ROUNDS = 100
LOST = {"pod2", "far1", "far2"}
"""far1 says nothing any more, the others refuse."""
MORE = (
    "outage: judge, outageAfter: 1s, outageChecks: 200, listDoubt: 4s, serviceCIDRs: ['10.96.0.0/16', 'fd00:96::/112'],"
    " backend: {}"
)


@pytest.mark.parametrize("backend", ["nftables", "iptables"])
def test_a_node_outlives_its_control_plane(short_path: Path, backend: str) -> None:
    """SVN-120, SVN-122, SVN-125, SVN-126, SVN-127."""
    with Network(pods=PODS, far_pods=FAR) as network:
        network.node.caller.run(lambda: asyncio.run(Story(network, short_path, backend).play()), 170.0)


@pytest.mark.parametrize(("left", "is_killed"), [(0, False), (1, False), (0, True), (1, True)])
def test_a_list_that_is_empty_or_a_tenth_loses_nothing_until_its_time_is_over(
    short_path: Path, left: int, is_killed: bool
) -> None:
    """SVN-129: also where kepd was killed meanwhile, and knows what there was by its snapshot alone."""
    with Network(pods=1, far_pods=1) as network:
        work = shrinking(network, short_path, left, is_killed=is_killed)
        network.node.caller.run(lambda: asyncio.run(work), 170.0)


@pytest.mark.beside("KEPD_APISERVER")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["nftables", "iptables"])
def test_a_node_outlives_a_real_api_server(short_path: Path, backend: str) -> None:
    """SVN-125, SVN-126: its word comes by its own lists and watches."""
    with Network(pods=PODS, far_pods=FAR) as network, RealServer(network, short_path, "proxy") as server:
        story = Story(network, short_path, backend)
        work = story.beside(server, URL, str(server.control.folder / "ca.crt"))
        network.node.caller.run(lambda: asyncio.run(work), 250.0)


@pytest.mark.beside("KEPD_KUBE_PROXY")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["nftables", "iptables"])
def test_what_kube_proxy_does_meanwhile(short_path: Path, backend: str) -> None:
    """For comparison: it goes on with what died, and knows nothing after a boot."""
    with Network(pods=PODS, far_pods=FAR) as network, RealServer(network, short_path) as server:
        story = Story(network, short_path, backend)
        put_web(server, network, story.names)
        flags = {"kubeconfig": server.control.kubeconfig, "proxy-mode": backend, "hostname-override": "n1"}
        nothing = {"conntrack-max-per-core": 0, "cluster-cidr": ",".join(POD_RANGES.values())}
        proxy = server.control.start_proxy(**flags, **nothing)
        network.node.caller.run(lambda: asyncio.run(until(lambda: all(story.lost(100) == 0 for _ in range(3)))), 90.0)
        server.child.stop()
        story.lose()
        without = story.lost(ROUNDS)
        proxy.stop()
        clear_rules(network)
        proxy.start()
        after_boot = story.lost(10)
        print(f"kube-proxy, {backend}: {without} of {2 * ROUNDS} fail; after a boot {after_boot} of 20")
        assert without > 0
        assert after_boot == 20


class RealServer:
    """Like that of the tests, as far as they ask, in the node's network."""

    def __init__(self, network: Network, folder: Path, *without: str) -> None:
        space = network.node.namespace
        space.run("ip", "addr", "add", f"{ADDRESS['IPv4']}/32", "dev", "lo")
        programs = Programs.find(os.environ, "suite", "kubelet", "controllers", "scheduler", "images", *without)
        self.control = Control(programs, folder / "control", space)
        self.objects = self

    def __enter__(self) -> Self:
        self.child = self.control.start_server()
        self.put("nodes", {"metadata": {"name": "n1"}})
        return self

    def __exit__(self, *_: object) -> None:
        self.control.__exit__()

    def put(self, plural: str, stored: dict[str, Any]) -> None:
        kind = {"nodes": "Node", "services": "Service", "endpointslices": "EndpointSlice"}[plural]
        version = "discovery.k8s.io/v1" if kind == "EndpointSlice" else "v1"
        meta = {key: one for key, one in stored["metadata"].items() if key != "managedFields"}
        spec = {"spec": {**stored["spec"], "ipFamilyPolicy": "RequireDualStack"}} if kind == "Service" else {}
        given = {"apiVersion": version, "kind": kind, **stored, "metadata": meta, **spec}
        given.pop("status", None)
        self.control.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", given=json.dumps(given))

    async def refuse(self) -> None:
        await asyncio.to_thread(self.child.stop)

    async def accept(self) -> None:
        self.child.start()


class Story:
    def __init__(self, network: Network, folder: Path, backend: str) -> None:
        self.network, self.folder, self.backend = network, folder, backend
        self.space = network.node.namespace
        self.names = [*(f"pod{one + 1}" for one in range(PODS)), *(f"far{one + 1}" for one in range(FAR))]
        self.kepd: Kepd

    async def play(self) -> None:
        certificates = make_certificates(self.folder)
        async with serving(certificates) as server:
            put_node(server)
            await self.beside(server, server.url, str(certificates.ca))

    async def beside(self, server: "ApiServer | RealServer", url: str, ca: str) -> None:
        put_web(server, self.network, self.names)
        with daemon(self.folder, self.space, url, ca, MORE.format(self.backend)) as kepd:
            self.kepd = kepd
            if isinstance(server, RealServer):
                (self.folder / "kubeconfig").write_text(server.control.kubeconfig.read_text())
            await self.start()
            await self.until_answered(set(self.names))
            # A snapshot is there some seconds after a start.
            await until((self.folder / "state" / "services" / "changes.bin").exists)
            with ExitStack() as held:
                flows = [held.enter_context(self.hold(family)) for family in VIPS for _ in range(20)]
                owners = [flow.recv(100).split()[0].decode() for flow in flows]
                await self.goes_away(server)
                await self.boots()
                await self.returns(server)
                for flow, owner in zip(flows, owners, strict=True):
                    if owner not in LOST:
                        await asyncio.to_thread(echoed, flow, owner)

    async def start(self) -> None:
        await asyncio.to_thread(self.kepd.start, "--planes", "services")

    def hold(self, family: str) -> socket.socket:
        return self.network["pod1"].caller.hold(VIPS[family], 80)

    async def goes_away(self, server: "ApiServer | RealServer") -> None:
        await server.refuse()
        await self.until_report(lambda report: report.get("phase") == "alone" and report.get("checked") == 4 * 10)
        self.lose()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        # By UDP the one that says nothing comes last: its silence by TCP has to be known first.
        await self.until_report(lambda report: by_tcp(report) == 2 * len(LOST))
        judged_s = loop.time() - began_s
        await self.until_answered(set(self.names) - LOST)
        print(
            f"{self.backend}: judged {judged_s:.1f} s after the loss, 200 connections by {loop.time() - began_s:.1f} s"
        )
        await self.until_report(lambda report: report.get("deadTotal") == 4 * len(LOST))
        await self.until_answered(set(self.names) - LOST, "UDP")
        told = await asyncio.to_thread(self.kepd.ctl, "explain", "outage")
        assert "OUTAGE alone for" in told.stdout
        assert f"{4 * len(LOST)} of 40 endpoints are dead" in told.stdout
        assert "alone, services.outage judge" in (await asyncio.to_thread(self.kepd.ctl, "get", "planes")).stdout
        route = await asyncio.to_thread(self.kepd.ctl, "explain", "route", "default/web")
        assert "no API server answers, and it refuses connections" in route.stdout

    def lose(self) -> None:
        for name in LOST - {"far1"}:
            self.network.servers.remove(name)
        drop_all_to(self.network, "far1")

    def lost(self, count: int) -> int:
        """Of so many connections for each family, how many found nobody."""
        pod = self.network["pod1"].caller
        found = [pod.spread(vip, 80, count, wait_s=0.5) for vip in VIPS.values()]
        return sum(number for one in found for name, number in one.items() if name not in self.names)

    async def boots(self) -> None:
        """With the power cut off: no rules, no kepd that could have written anything, and no server."""
        await asyncio.to_thread(self.kepd.end, signal.SIGKILL)
        await asyncio.to_thread(clear_rules, self.network)
        await self.start()
        await self.until_report(lambda report: report.get("phase") == "alone" and "snapshot" in report)
        await self.until_report(lambda report: report.get("deadTotal") == 4 * len(LOST))
        for protocol in ("TCP", "UDP"):
            await self.until_answered(set(self.names) - LOST, protocol)

    async def returns(self, server: "ApiServer | RealServer") -> None:
        """With an endpoint that is new, and without those that died."""
        living = [name for name in self.names if name not in LOST]
        if isinstance(server, RealServer):
            await server.accept()
            await until(lambda: server.control.kubectl("get", "--raw=/readyz", check=False))
        put_web(server, self.network, living)
        if not isinstance(server, RealServer):
            await server.accept()
        await self.until_report(lambda report: report.get("phase") == "with server")
        await self.until_answered(set(living))
        await until(lambda: self.kepd.ctl("diff").returncode == 0)
        after = self.rules()
        await asyncio.to_thread(self.kepd.end)
        await asyncio.to_thread(clear_rules, self.network)
        await self.start()
        await self.until_answered(set(living))
        await until(lambda: self.rules() == after)

    def rules(self) -> Counter[tuple[str, str, str]]:
        """Slots of a draw may be in another order."""
        done = self.kepd.ctl("rules", "default/web", "-o", "json")
        rows = json.loads(done.stdout)["items"] if done.returncode == 0 else []
        return Counter((one["family"], one["map"], one.get("data", "")) for one in rows)

    async def until_report(self, holds: Any) -> None:
        def ask() -> bool:
            done = self.kepd.ctl("explain", "outage", "-o", "json")
            return done.returncode == 0 and bool(holds(json.loads(done.stdout)))

        await until(ask)

    def has_written(self) -> bool:
        status, text = self.kepd.get("/metrics")
        found = [line for line in text.splitlines() if line.startswith("kepd_services_pending_seconds{")]
        return status == 200 and bool(found) and all(line.endswith(" 0.0") for line in found)

    async def until_answered(self, names: set[str], protocol: str = "TCP") -> None:
        """Then a hundred rounds of each family have no other answers."""
        pod = self.network["pod1"].caller
        # A verdict is there a moment before its rules are, and so is a list.
        await until(self.has_written)
        for vip in VIPS.values():
            await until(lambda vip=vip: pod.connect(vip, 80, protocol, wait_s=0.5).outcome == "answered")  # type: ignore[arg-type]
            found = await asyncio.to_thread(pod.spread, vip, 80, ROUNDS, protocol)  # type: ignore[arg-type]
            assert found.keys() <= names, (vip, protocol, found)


def by_tcp(report: dict[str, Any]) -> int:
    return sum(one["protocol"] == "TCP" for one in report.get("dead", ()))


def echoed(flow: socket.socket, owner: str) -> None:
    flow.settimeout(5.0)
    flow.sendall(b"still there\n")
    assert flow.recv(100) == owner.encode() + b" still there\n"


def drop_all_to(network: Network, name: str) -> None:
    place = network[name]
    rules = f"ip daddr {place.v4} drop\nip6 daddr {place.v6} drop"
    text = f"table inet lost {{\nchain input {{\ntype filter hook prerouting priority -300\n{rules}\n}}\n}}\n"
    place.namespace.run("nft", "-f", "-", text=text)


def clear_rules(network: Network) -> None:
    """As a boot does, but for connections."""
    space = network.node.namespace
    space.run("nft", "flush", "ruleset")


def put_web(server: "ApiServer | RealServer", network: Network, names: list[str]) -> None:
    ports = [{"name": kind.lower(), "protocol": kind, "port": 80} for kind in ("TCP", "UDP")]
    both = list(VIPS.values())
    server.objects.put("services", service("web", clusterIP=both[0], clusterIPs=both, ports=ports))
    for family in VIPS:
        server.objects.put(
            "endpointslices",
            {
                "metadata": {
                    "name": f"web-{family.lower()}",
                    "namespace": "default",
                    "labels": {"kubernetes.io/service-name": "web"},
                },
                "addressType": family,
                "ports": [{**port, "port": PORT} for port in ports],
                "endpoints": [
                    {
                        "addresses": [network[name].address(family)],  # type: ignore[arg-type]
                        "nodeName": "n1" if name.startswith("pod") else "n2",
                        "conditions": {"ready": True},
                    }
                    for name in names
                ],
            },
        )


async def shrinking(network: Network, folder: Path, left: int, *, is_killed: bool) -> None:
    certificates = make_certificates(folder)
    space = network.node.namespace
    addresses = [f"10.96.1.{number}" for number in range(10)]
    async with serving(certificates) as server:
        put_node(server)
        put_web(server, network, ["far1"])
        for number, address in enumerate(addresses):
            server.objects.put("services", service(f"s{number}", clusterIP=address))
        with daemon(folder, space, server.url, str(certificates.ca), MORE.format("nftables")) as kepd:
            await asyncio.to_thread(kepd.start, "--planes", "services")
            await until(lambda: all(f" {one} " in rules(space) for one in addresses))
            await until((folder / "state" / "services" / "changes.bin").exists)
            await server.refuse()
            if is_killed:
                await asyncio.to_thread(kepd.end, signal.SIGKILL)
            else:
                await until(lambda: '"alone"' in kepd.ctl("explain", "outage", "-o", "json").stdout)
            server.objects.delete("services", "default", "web")
            for number in range(left, 10):
                server.objects.delete("services", "default", f"s{number}")
            server.objects.compact()
            await server.accept()
            if is_killed:
                await asyncio.to_thread(kepd.start, "--planes", "services")
            await until(lambda: "ListDoubted" in kepd.ctl("events").stdout)
            assert all(f" {one} " in rules(space) for one in addresses)
            told = await asyncio.to_thread(kepd.ctl, "explain", "outage")
            assert "OUTAGE returning" in told.stdout
            assert "that were known" in told.stdout
            await until(lambda: sum(f" {one} " in rules(space) for one in addresses) == left)


def rules(space: Any) -> str:
    text = space.run("nft", "list", "ruleset")
    return text.replace(",", " ").replace("{", " ")
