# SPDX-License-Identifier: Apache-2.0
"""One bare node with its door open: a containerd of its own, the suite's images, kepd with its planes, and names.

Nothing stands between the suite and the door.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.completed import completed
from tests.host.process import PROGRAMS, Kepd
from tests.lab import Lab
from tests.lab.child import Child

NAME, ADDRESS, GATEWAY = "n1", "192.168.77.2", "192.168.77.1"
DOOR, HTTP_PORT = "127.0.0.1:10246", 10956
NAMES, SERVICES = "169.254.20.10", "10.96.0.0/16"
PLANES = "pods,services,images,dns"
READY_S = 120.0


@dataclass(frozen=True, slots=True)
class BareNode:
    lab: Lab
    kepd: Kepd
    kubeconfig: Path

    def command(self, argv: list[str]) -> list[str]:
        """It, inside of the node's network."""
        return self.lab.netns.command(argv)


@contextmanager
def bare_node(folder: Path, images: list[Path]) -> Iterator[BareNode]:
    place = folder / "kepd"
    for name in ("dns", "run", "state"):
        (place / name).mkdir(parents=True)
    with Lab.start(parent=None) as lab:
        _network(lab)
        _give_images(lab, [completed(archive, folder) for archive in images])
        (place / "resolv.conf").write_text("")
        names = Child("dns", lab.netns.command([
            str(PROGRAMS / "kepd-dns"), "--directory", str(place / "dns"), f"--listen={NAMES}",
        ]), log=folder / "dns.log", environment=lab.programs.environment())  # fmt: skip
        kepd = Kepd(place, HTTP_PORT, lab.endpoint, _settings(lab, place), lab.netns.command([]))
        text = kepd.config.read_text()
        node = f"addresses: [{ADDRESS}], labels: {{kubernetes.io/hostname: {NAME}, kubernetes.io/os: linux}}"
        text = text.replace(f"runDirectory: {place}/run}}", f"runDirectory: {place}/run, {node}}}")
        kepd.config.write_text(text.replace("readGroup: ''}", f"readGroup: '', door: {{address: '{DOOR}'}}}}"))
        with kepd:
            names.start()
            try:
                kepd.start("--planes", PLANES)
                kepd.wait(lambda: kepd.ctl("kubeconfig").returncode == 0, "the door is open", READY_S)
                kepd.wait(lambda: kepd.ctl("health").returncode == 0, "the planes are ready", READY_S)
                kubeconfig = folder / "kubeconfig"
                kubeconfig.write_text(kepd.ctl("kubeconfig", "--level", "admin").stdout)
                yield BareNode(lab, kepd, kubeconfig)
                for manifest in kepd.manifests.iterdir():
                    manifest.unlink(missing_ok=True)
            finally:
                names.stop(10.0)


def _settings(lab: Lab, place: Path) -> str:
    return (
        f"pods: {{nameSuffix: false, logDirectory: {place}/logs, logLinkDirectory: '',\n"
        f"  resolvConf: {place}/resolv.conf,\n"
        f"  claimDirectory: {place}/claims, cgroupRoot: '{lab.place.cgroup_parent.strip('/')}'}}\n"
        "images: {gc: {mode: 'off'}}\n"
        f"services: {{serviceCIDRs: [{SERVICES}], healthzAddress: '', conntrack: {{maxPerCore: 0}},\n"
        f"  detectLocal: {{clusterCIDRs: [{lab.place.subnet}]}}}}\n"
        f"dns: {{enabled: true, directory: {place}/dns, resolvConf: {place}/resolv.conf}}\n"
    )


def _network(lab: Lab) -> None:
    """An address of the node that is not that of its bridge, and a way out."""
    for line in (
        f"ip route replace {SERVICES} dev lo", "sysctl -qw net.ipv4.ip_forward=1",
        "ip link add eth0 type veth peer name out0", f"ip address add {ADDRESS}/24 dev eth0",
        "ip link set eth0 up", "ip link set out0 up", f"ip route add default via {GATEWAY}",
        f"ip address add {NAMES}/32 dev lo",
    ):  # fmt: skip
        lab.netns.run(line.split())


def _give_images(lab: Lab, archives: list[Path]) -> None:
    """Into containerd, and into the lab's registry under the suite's names, so that a pull is quick and never fails."""
    hosts = lab.place.directory / "certs.d/_default"
    hosts.mkdir(parents=True)
    address = lab.registry.address
    (hosts / "hosts.toml").write_text(f'[host."http://{address}"]\n  capabilities = ["pull", "resolve"]\n')
    ctr = [lab.programs["ctr"], "--address", str(lab.place.containerd_socket), "--namespace", "k8s.io", "images"]
    for archive in archives:
        for line in lab.netns.run([*ctr, "import", str(archive)], 600.0).splitlines():
            reference = line.split()[1] if line.startswith("unpacking ") else ""
            if reference:
                there = f"{address}/{reference.partition('/')[2]}"
                lab.netns.run([*ctr, "tag", "--force", reference, there])
                lab.netns.run([*ctr, "push", "--plain-http", there], 600.0)
                lab.netns.run([*ctr, "rm", there])
