# SPDX-License-Identifier: Apache-2.0
"""A node of the small cluster: a lab with a link to the others, a kubelet, and either kube-proxy or kepd.

Without kepd the kubelet calls containerd, and kube-proxy programs Services. With it the kubelet calls kepd, which calls
containerd, and kepd programs Services. Nothing else differs.
"""

import ipaddress
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from bench.daemon import cpu_s, resident_mib
from tests.e2e.control import ADDRESS, Control
from tests.e2e.programs import Programs
from tests.host.process import Kepd
from tests.lab import Lab
from tests.lab.child import Child
from tests.lab.kubelet import Program, groups, machine_as_before
from tests.lab.namespace import Namespace

LAN = {"IPv4": "192.168.9.{}", "IPv6": "fd00:9::{}"}
PODS = {"IPv4": "10.128.0.0/9", "IPv6": "fd00:77::/32"}
HTTP_PORT = 10241
# Kept short: sockets are below it.
POD_RANGE_6 = "fd00:77:{:x}::/64"


@dataclass(frozen=True, slots=True)
class Side:
    """What the cluster's nodes have. `backend` is nftables or iptables, for kube-proxy and kepd alike."""

    proxy: Literal["kepd", "kube-proxy", "none"]
    backend: str = "nftables"

    @property
    def name(self) -> str:
        return f"{self.proxy}, {self.backend}"


class Node:
    """Runs from `__enter__` on; its number is the last part of its address."""

    def __init__(self, number: int, side: Side, programs: Programs, folder: Path, control: Control) -> None:
        self.name, self.number, self.side = f"n{number}", number, side
        self._programs, self._control = programs, control
        self.folder = folder / self.name
        self._stack = ExitStack()
        self._kept: list[Child] = []
        self._kepd: Kepd | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        enter = self._stack.enter_context
        self._group = enter(groups(f"kepd-e2e-{os.getpid()}-{self.number}"))
        self.lab = enter(Lab.start())
        enter(machine_as_before(self.lab, self.folder))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def addresses(self) -> dict[str, str]:
        return {family: pattern.format(self.number) for family, pattern in LAN.items()}

    @property
    def pod_ranges(self) -> dict[str, str]:
        return {"IPv4": self.lab.place.subnet, "IPv6": POD_RANGE_6.format(self.number)}

    def give_images(self) -> None:
        """Into the lab's registry, under the suite's names, so that every pull is one."""
        hosts = self.lab.place.directory / "certs.d/_default"
        hosts.mkdir(parents=True)
        address = self.lab.registry.address
        (hosts / "hosts.toml").write_text(f'[host."http://{address}"]\n  capabilities = ["pull", "resolve"]\n')
        for archive in self._programs.images:
            for name in self._ctr("images", "import", str(archive)).splitlines():
                reference = name.split()[1] if name.startswith("unpacking ") else ""
                if reference:
                    path = reference.partition("/")[2]
                    self._ctr("images", "tag", "--force", reference, f"{address}/{path}")
                    self._ctr("images", "push", "--plain-http", f"{address}/{path}")
                    self._ctr("images", "rm", reference, f"{address}/{path}")

    def add_image(self, archive: Path) -> None:
        """Straight into containerd, as `kind load` does."""
        self._ctr("images", "import", str(archive))

    @contextmanager
    def host_directories(self, place: Path) -> Iterator[None]:
        """What a DaemonSet mounts of its node, for this node alone."""
        mine = place / self.name
        for name in ("run", "state", "locks", "registries", "containerd"):
            (mine / name).mkdir(parents=True)
        command = ("mount", "--bind", str(self.lab.place.directory), str(mine / "containerd"))
        subprocess.run(command, check=True)
        try:
            yield
        finally:
            subprocess.run(("umount", "--lazy", str(mine / "containerd")), check=True)

    def start(self) -> None:
        """The kubelet, and before it what it calls."""
        self._write_network()
        endpoint = self.lab.endpoint
        if self.side.proxy == "kepd":
            self._start_kepd()
            endpoint = f"unix://{self.folder}/kepd/run/cri/kubelet.sock"
        elif self.side.proxy == "kube-proxy":
            self._start_kube_proxy()
        self._start_kubelet(endpoint)

    def cost(self) -> dict[str, tuple[float, float]]:
        """Seconds of processor and MiB of memory, by program."""
        found = {child.name: child.pid for child in self._kept if child.is_running}
        if self._kepd is not None and self._kepd.process is not None:
            found["kepd"] = self._kepd.process.pid
        found["containerd"] = self.lab.containerd.pid
        return {name: (cpu_s(pid), resident_mib(pid)) for name, pid in found.items()}

    def _write_network(self) -> None:
        """The lab's bridge in both families."""
        path = self.lab.place.directory / "cni/10-lab.conflist"
        network = json.loads(path.read_text())
        ipam = network["plugins"][0]["ipam"]
        ipam["ranges"] = [[{"subnet": one}] for one in self.pod_ranges.values()]
        ipam["routes"] = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(network))
        draft.rename(path)

    def _start_kubelet(self, endpoint: str) -> None:
        program = Program.ask(self._programs.kubelet)
        (self.folder / "manifests").mkdir()
        settings = program.settings(
            self.lab, self.folder, endpoint, cgroupRoot=self._group, registerNode=True, maxPods=110,
            clusterDomain="cluster.local", clusterDNS=[ADDRESS["IPv4"]], healthzPort=10248, fileCheckFrequency="20s",
            address="0.0.0.0", nodeStatusUpdateFrequency="10s",
        )  # fmt: skip
        (self.folder / "kubelet.json").write_text(json.dumps(settings))
        places = {"config": "kubelet.json", "root-dir": "root", "cert-dir": "certs"}
        argv = [
            program.path, *(f"--{flag}={self.folder / name}" for flag, name in places.items()),
            f"--hostname-override={self.name}", f"--node-ip={','.join(self.addresses.values())}",
            f"--kubeconfig={self._control.kubeconfig}",
            f"--node-labels=topology.kubernetes.io/zone={'abc'[self.number - 1]}",
        ]  # fmt: skip
        self._begin("kubelet", argv)

    def _start_kube_proxy(self) -> None:
        flags = {
            "kubeconfig": self._control.kubeconfig, "proxy-mode": self.side.backend, "hostname-override": self.name,
            "cluster-cidr": ",".join(PODS.values()), "conntrack-max-per-core": 0,
            "conntrack-tcp-timeout-established": 0, "conntrack-tcp-timeout-close-wait": 0,
        }  # fmt: skip
        self._begin("kube-proxy", [self._programs.proxy, *(f"--{flag}={value}" for flag, value in flags.items())])

    def _start_kepd(self) -> None:
        place = self.folder / "kepd"
        place.mkdir()
        extra = (
            f"kubernetes: {{kubeconfig: '{self._control.kubeconfig}'}}\n"
            f"proxy: {{kubeletConfig: {self.folder}/kubelet.json}}\n"
            f"services: {{backend: {self.side.backend}, profile: kube-proxy, conntrack: {{maxPerCore: 0}},\n"
            f"  detectLocal: {{clusterCIDRs: [{', '.join(map(repr, PODS.values()))}]}}}}\n"
        )
        kepd = Kepd(place, HTTP_PORT, self.lab.endpoint, extra, self.lab.netns.command([]))
        text = kepd.config.read_text()
        kepd.config.write_text(text.replace("name: n1", f"name: {self.name}"))
        self._kepd = self._stack.enter_context(kepd)
        kepd.start("--planes", "proxy,images,services")
        kepd.wait(lambda: (place / "run/cri/kubelet.sock").exists(), "kepd has its socket for the kubelet")

    def _begin(self, name: str, argv: Sequence[str]) -> None:
        environment = self.lab.programs.environment()
        log = self.folder / f"{name}.log"
        child = Child(name, self.lab.netns.command(argv), log=log, environment=environment)
        child.start()
        self._stack.callback(child.stop, 30.0)
        self._kept.append(child)

    def _ctr(self, *arguments: str) -> str:
        program, socket = self.lab.programs["ctr"], str(self.lab.place.containerd_socket)
        return self.lab.netns.run([program, "--address", socket, "--namespace", "k8s.io", *arguments], 300.0)


def connect(switch: Namespace, control: Namespace, nodes: Sequence[Node]) -> None:
    """One link for each to a switch, and the ways to everybody's pods."""
    switch.run("ip", "link", "add", "br0", "type", "bridge")
    switch.run("ip", "link", "set", "br0", "up")
    _plug(switch, control.path, "control", ADDRESS)
    for node in nodes:
        _plug(switch, str(node.lab.place.netns), node.name, node.addresses)
    for here in (control.path, *(str(node.lab.place.netns) for node in nodes)):
        for node in nodes:
            for family, address in node.addresses.items():
                if here != str(node.lab.place.netns):
                    _inside(here, "ip", _flag(family), "route", "add", node.pod_ranges[family], "via", address)
    for node in nodes:
        for family, address in ADDRESS.items():
            _inside(str(node.lab.place.netns), "ip", _flag(family), "route", "add", "default", "via", address)


def _plug(switch: Namespace, path: str, name: str, addresses: Mapping[str, str]) -> None:
    for key in ("all", "default"):
        for setting in (f"ipv6.conf.{key}.accept_dad=0", f"ipv6.conf.{key}.forwarding=1"):
            _inside(path, "sysctl", "-qw", f"net.{setting}")
    _inside(path, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    switch.run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", path)
    switch.run("ip", "link", "set", name, "master", "br0", "up")
    _inside(path, "ip", "link", "set", "lo", "up")
    _inside(path, "ip", "link", "set", "eth0", "up")
    for family, address in addresses.items():
        width = 24 if family == "IPv4" else 64
        nodad = [] if family == "IPv4" else ["nodad"]
        _inside(path, "ip", _flag(family), "address", "add", f"{address}/{width}", "dev", "eth0", *nodad)


def _inside(path: str, *argv: str) -> None:
    done = subprocess.run(("nsenter", f"--net={path}", "--", *argv), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr}")


def _flag(family: str) -> str:
    return "-4" if family == "IPv4" else "-6"


def patch_of(node: Node) -> dict[str, Any]:
    """What a controller of node addresses would write."""
    ranges = list(node.pod_ranges.values())
    for one in ranges:
        ipaddress.ip_network(one)
    return {"spec": {"podCIDR": ranges[0], "podCIDRs": ranges}}
