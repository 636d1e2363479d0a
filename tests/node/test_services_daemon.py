# SPDX-License-Identifier: Apache-2.0
"""A whole kepd that programs Services from files, under a steady load of connections: changes, restarts and kills."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pytest

from agent.drivers.netlink.connection import open_socket
from tests.contract.test_nft_rights import owned_table
from tests.host.process import Kepd
from tests.lab.network import POD_RANGES, PORT, Network

pytestmark = pytest.mark.node

VIP = "10.96.0.10"
PACE_PER_S = 2000
HEALTH_PORT = 32_000
LOOK_S = 1


class Node:
    """A daemon in the node's namespace."""

    def __init__(self, network: Network, folder: Path, extra: str = "", backend: str = "nftables") -> None:
        self.network = network
        self.backend = backend
        space = network.node.namespace
        settings = (
            f"services: {{healthzAddress: '127.0.0.1:10256', detectLocal: {{clusterCIDRs: ['{POD_RANGES['IPv4']}']}},"
            f" backend: {backend}, syncPeriod: {LOOK_S}s, conntrack: {{maxPerCore: 0}}}}\n{extra}"
        )
        self.kepd = Kepd(folder, 10941, extra=settings, prefix=space.command())
        config = self.kepd.config.read_text().replace("node: {", f"node: {{addresses: ['{network.node.v4}'], ")
        self.kepd.config.write_text(config)

    def switch(self, backend: str) -> None:
        """From the next start on."""
        before, self.backend = f"backend: {self.backend},", backend
        self.kepd.config.write_text(self.kepd.config.read_text().replace(before, f"backend: {backend},"))

    def rules_of(self, backend: str) -> bool:
        """Whether there are any."""
        nft, chains = ("nft", "list", "tables"), ("iptables-save",)
        if backend == "nftables":
            return " kepd" in self.network.node.namespace.run(*nft)
        return "KUBE-" in self.network.node.namespace.run(*chains, "-t", "nat")

    def start(self) -> None:
        self.kepd.start("--planes", "services")
        self.kepd.wait(lambda: self.kepd.ctl("get", "planes").stdout.find("ready") > 0, "ready", 20.0)

    def put(self, *names: str, **spec: Any) -> None:
        """The Service `web` with these pods, as one file that is renamed into its place."""
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"clusterIP": VIP, "ports": [{"name": "http", "port": 80, "nodePort": 0}], **spec},
        }
        endpoints = [{"addresses": [self.network[name].v4], "nodeName": "n1"} for name in names]
        pieces = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": PORT}],
            "endpoints": endpoints,
        }
        for one in (service, pieces):
            one["metadata"]["namespace"] = "shop"  # type: ignore[index]
        fresh = self.kepd.manifests / ".web.json"
        fresh.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [service, pieces]}))
        fresh.rename(self.kepd.manifests / "web.json")

    def used(self) -> set[str]:
        return {one["endpoint"].partition(":")[0] for one in self.kepd.endpoints() if one["isUsed"]}

    def wait_used(self, *names: str) -> None:
        wanted = {self.network[name].v4 for name in names}
        self.kepd.wait(lambda: self.used() == wanted, f"{names} in use", 20.0)


@pytest.fixture(params=["nftables", "iptables"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def node(network: Network, short_path: Path, backend: str) -> Iterator[Node]:
    made = Node(network, short_path, backend=backend)
    with made.kepd:
        made.put("pod1", "pod2", "far1", "far2")
        made.start()
        made.wait_used("pod1", "pod2", "far1", "far2")
        yield made


class Load:
    """Connects from a pod, evenly paced, until told to stop."""

    def __init__(self, network: Network) -> None:
        self.replies: list[str] = []
        self._failed: set[str] = set()
        self._stop = threading.Event()
        self._caller = network["pod3"].caller
        self._thread = threading.Thread(target=lambda: self._caller.run(self._go, 120.0))

    def _go(self) -> None:
        from tests.lab.callers import _connect

        began, own = time.monotonic(), self._caller._v4
        while not self._stop.is_set():
            reply = _connect(VIP, 80, "TCP", own, 2.0)
            self.replies.append(reply.server or reply.outcome)
            if not reply.server:
                self._failed.add(f"{reply.outcome} at {datetime.now(UTC).time()}")
            ahead_s = began + len(self.replies) / PACE_PER_S - time.monotonic()
            if ahead_s > 0:
                time.sleep(ahead_s)

    def __enter__(self) -> Self:
        self._thread.start()
        self._until(200)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30.0)

    def _until(self, count: int) -> None:
        until_s = time.monotonic() + 20.0
        while len(self.replies) < count and time.monotonic() < until_s:
            time.sleep(0.01)

    def go_on(self, more: int = 1000) -> None:
        self._until(len(self.replies) + more)

    def failures(self) -> set[str]:
        """With the time, to be found in the daemon's log."""
        return self._failed


def test_an_endpoint_leaves_and_comes_back_without_a_failed_connection(node: Node) -> None:
    with Load(node.network) as load:
        for _ in range(3):
            node.put("pod1", "far1", "far2")
            node.wait_used("pod1", "far1", "far2")
            load.go_on(200)
            node.put("pod1", "pod2", "far1", "far2")
            node.wait_used("pod1", "pod2", "far1", "far2")
            load.go_on(200)

    assert load.failures() == set()
    assert set(load.replies) == {"pod1", "pod2", "far1", "far2"}


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["restart", "kill"])
def test_the_daemon_ends_and_comes_back_without_a_failed_connection(node: Node, end: signal.Signals) -> None:
    """SY-13: rules stay; the next one finds them and writes nothing."""
    with Load(node.network) as load:
        for _ in range(2):
            node.kepd.end(end)
            load.go_on(300)
            node.start()
            load.go_on(300)

    assert load.failures() == set()
    assert "elements=0 full=true" in node.kepd.log.read_text()


def test_the_backend_changes_without_a_failed_connection(node: Node) -> None:
    """SY-14: the new rules are in before the old ones go."""
    other = {"nftables": "iptables", "iptables": "nftables"}
    with Load(node.network) as load:
        for _ in range(2):
            former = node.backend
            node.kepd.end()
            load.go_on(200)
            node.switch(other[former])
            node.start()
            node.kepd.wait(lambda was=former: not node.rules_of(was), f"no rules of {former}", 20.0)
            load.go_on(300)
            assert node.rules_of(node.backend)

    assert load.failures() == set(), node.kepd.log.read_text()
    assert set(load.replies) == {"pod1", "pod2", "far1", "far2"}


def test_a_removed_endpoint_gets_nothing_more(node: Node) -> None:
    node.put("pod1", "far1")
    node.wait_used("pod1", "far1")

    def answering() -> set[str]:
        return set(node.network["pod3"].caller.spread(VIP, 80, 60, wait_s=5.0))

    node.kepd.wait(lambda: answering() == {"pod1", "far1"}, "the others are out of the kernel", 20.0)
    assert answering() == {"pod1", "far1"}


def test_what_the_commands_show(node: Node) -> None:
    listed = node.kepd.ctl("get", "services")
    assert "shop" in listed.stdout
    assert "4/4" in listed.stdout
    route = node.kepd.ctl("explain", "route", "shop/web:http").stdout
    assert "4 endpoints in use" in route
    assert node.kepd.ctl("diff").returncode == 0
    traced = node.kepd.ctl("trace", "--from", node.network["pod3"].v4, "--to", f"{VIP}:80", "--kernel")
    assert traced.returncode == 0
    assert "=> service/shop/web: dnat to one of" in traced.stdout
    assert node.kepd.ctl("trace", "--from", "1.2.3.4", "--to", f"{VIP}:81").returncode == 1
    told = {"nftables": f"{VIP} . tcp . 80", "iptables": f"-d {VIP}/32 -p tcp"}
    assert told[node.backend] in node.kepd.ctl("rules", "shop/web").stdout

    tamper = {
        "nftables": ("nft", "add", "element", "ip", "kepd", "cluster_ips", "{ 10.96.99.99 }"),
        "iptables": ("iptables", "-t", "nat", "-I", "KUBE-SERVICES", "-d", "10.96.99.99", "-j", "RETURN"),
    }
    node.network.node.namespace.run(*tamper[node.backend])
    seen = node.kepd.wait(lambda: node.kepd.ctl("events").stdout.find("RulesRepaired") > 0, "a repair", 20.0)
    assert seen
    assert node.kepd.ctl("diff").returncode == 0


def test_health_as_load_balancers_ask_for_it(node: Node) -> None:
    """HL-1 to HL-4."""
    node.put("pod1", "pod2", type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=HEALTH_PORT)
    node.wait_used("pod1", "pod2")
    ask = (
        "import sys,urllib.request,urllib.error\n"
        "try: r=urllib.request.urlopen(sys.argv[1],timeout=5)\n"
        "except urllib.error.HTTPError as e: r=e\n"
        "except urllib.error.URLError as e: print(e); sys.exit()\n"
        "print(r.status, r.headers.get('X-Load-Balancing-Endpoint-Weight'), r.read().decode())"
    )

    def get(url: str) -> str:
        return node.network.node.namespace.run("python3", "-c", ask, url)

    url = f"http://{node.network.node.v4}:{HEALTH_PORT}/anything"
    node.kepd.wait(lambda: get(url).startswith("200 2 "), "two of them here", 20.0)
    node.put(type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=HEALTH_PORT)
    node.kepd.wait(lambda: get(url).startswith("503 0 "), "nobody here", 20.0)

    fine = get("http://127.0.0.1:10256/healthz")
    assert fine.startswith("200 None ")
    assert json.loads(fine.split(" ", 2)[2])["nodeEligible"] is True
    assert "nodeEligible" not in get("http://127.0.0.1:10256/livez")


@pytest.mark.parametrize("rival", ["nftables", "iptables"])
def test_beside_kube_proxy_it_says_so_and_waits(network: Network, short_path: Path, backend: str, rival: str) -> None:
    """DS-14: in one line in /readyz and among the planes; it begins when the other is gone."""
    space = network.node.namespace
    rivals = {
        "nftables": (
            "table kube-proxy of kube-proxy",
            "nft -f -",
            "table ip kube-proxy { chain services { ip daddr 10.96.0.1 drop\n }\n}\n",
            "nft delete table ip kube-proxy",
        ),
        "iptables": (
            "chain KUBE-SERVICES of kube-proxy in table nat",
            "iptables-restore --noflush",
            "*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j RETURN\nCOMMIT\n",
            "iptables -t nat -F KUBE-SERVICES",
        ),
    }
    whose, begin, text, end = rivals[rival]
    space.run(*begin.split(), text=text)
    made = Node(network, short_path, backend=backend)
    with made.kepd:
        made.put("pod1")
        made.kepd.start("--planes", "services")
        line = made.kepd.wait(lambda: told(made, "degraded"), "a complaint", 20.0)
        assert whose in line
        assert "services.proxyName" in line
        assert "kepd" not in space.run("nft", "list", "tables", "ip").split()

        space.run(*end.split())
        made.wait_used("pod1")


def test_chains_of_a_kube_proxy_are_shared_with_nobody(network: Network, short_path: Path) -> None:
    """FS-1: with `proxyName` and the same backend as kube-proxy; each took the other's chains for its own old ones."""
    space = network.node.namespace
    theirs = "-A KUBE-SERVICES -d 10.96.0.77/32 -j KUBE-SVC-THEIRS"
    rules = f"*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-THEIRS - [0:0]\n{theirs}\nCOMMIT\n"
    space.run("iptables-nft-restore", "--noflush", text=rules)
    made = Node(network, short_path, backend="iptables")
    made.kepd.config.write_text(made.kepd.config.read_text().replace("services: {", "services: {proxyName: kepd, "))
    with made.kepd:
        made.put("pod1")
        made.kepd.start("--planes", "services")
        line = made.kepd.wait(lambda: told(made, "degraded"), "a complaint", 20.0)

    assert "the names that kepd also uses with iptables" in line
    assert theirs in space.run("iptables-nft-save", "-t", "nat")


def test_without_its_program_it_says_what_is_missing(network: Network, short_path: Path, backend: str) -> None:
    """The daemon runs on, what it lacks stands in the list of planes, and once it is installed all goes its way."""
    made = Node(network, short_path, backend=backend)
    programs = short_path / "programs"
    programs.mkdir()
    made.kepd.environment["PATH"] = str(programs)
    made.kepd.prefix = ("/usr/bin/nsenter", *made.kepd.prefix[1:])
    with made.kepd:
        made.put("pod1")
        made.kepd.start("--planes", "services")
        line = made.kepd.wait(lambda: told(made, "degraded"), "a complaint", 20.0)
        for program in ("nft", *sorted(path.name for path in Path("/usr/sbin").glob("*tables*"))):
            (programs / program).symlink_to(f"/usr/sbin/{program}")
        made.wait_used("pod1")
        made.kepd.wait(lambda: told(made, "ready"), "all well", 20.0)

    assert f"there is no program '{'nft' if backend == 'nftables' else 'iptables'}" in line


@pytest.mark.parametrize("obstacle", ["an old nft", "no right", "another owner"])
def test_what_keeps_it_from_programming_is_said_in_one_line(network: Network, short_path: Path, obstacle: str) -> None:
    """NF-1, DS-14: in the log, among the planes and in /readyz; it begins by itself once that can be."""
    made = Node(network, short_path)
    programs = short_path / "programs"
    programs.mkdir()
    made.kepd.environment["PATH"] = f"{programs}:{made.kepd.environment['PATH']}"
    expected = {
        "an old nft": "0.9.8",
        "no right": "needs CAP_NET_ADMIN",
        "another owner": "belongs to the process with netlink port",
    }[obstacle]
    with ExitStack() as obstacles, made.kepd:
        if obstacle == "an old nft":
            (programs / "nft").write_text("#!/bin/sh\necho 'nftables v0.9.8 (E.D.S.)'\n")
            (programs / "nft").chmod(0o755)
            obstacles.callback((programs / "nft").unlink)
        elif obstacle == "no right":
            made.kepd.prefix = (
                *made.kepd.prefix,
                "setpriv",
                "--bounding-set",
                "-net_admin",
                "--inh-caps",
                "-net_admin",
            )
        else:
            obstacles.enter_context(closing(owned_table(network.node.namespace.call(open_socket))))
        made.put("pod1")
        made.kepd.start("--planes", "services")
        line = made.kepd.wait(lambda: told(made, "degraded"), "a complaint", 20.0)
        page = network.node.namespace.run("python3", "-c", READY, str(made.kepd.port))
        logged = [one for one in made.kepd.log.read_text().splitlines() if "service_sync_failed" in one]
        obstacles.close()
        if obstacle != "no right":
            made.wait_used("pod1")

    assert expected in line
    assert expected in page
    assert [expected in one for one in logged] == [True] * len(logged)
    assert len(logged) <= len(("IPv4", "IPv6"))


def told(made: Node, state: str) -> str:
    lines = made.kepd.ctl("get", "planes").stdout.splitlines()
    return next((line for line in lines if line.startswith("services") and state in line), "")


def test_it_is_ready_without_a_runtime(node: Node) -> None:
    """DS-14: in place of kube-proxy there may be none that it is allowed to see."""
    node.kepd.wait(
        lambda: "ok" in node.network.node.namespace.run("python3", "-c", READY, str(node.kepd.port)), "ready", 20.0
    )


READY = (
    "import sys,urllib.request,urllib.error\n"
    "try: print(urllib.request.urlopen(f'http://127.0.0.1:{sys.argv[1]}/readyz',timeout=5).read().decode())\n"
    "except urllib.error.HTTPError as e: print(e.read().decode().replace('not ok', 'no'))"
)


def test_a_legacy_table_that_may_not_be_read_keeps_no_service_away(network: Network, short_path: Path) -> None:
    """As the DaemonSet runs, with CAP_NET_ADMIN alone: it never got ready on a node with a legacy table."""
    made = Node(network, short_path)
    made.kepd.prefix = (*made.kepd.prefix, "setpriv", "--bounding-set", "-net_raw", "--inh-caps", "-net_raw")
    made.kepd.environment["PYTHONPATH"] = "/usr/lib/python3/dist-packages"
    made.network.node.namespace.run("iptables-legacy", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
    try:
        with made.kepd:
            made.put("pod1", "far1")
            made.start()
            made.wait_used("pod1", "far1")
            said = made.kepd.log.read_text()
    finally:
        made.network.node.namespace.run("iptables-legacy", "-t", "mangle", "-X", "KUBE-KUBELET-CANARY")

    assert "legacy_tables_unread" in said
    assert "that takes CAP_NET_RAW" in said
