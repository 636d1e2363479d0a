# SPDX-License-Identifier: Apache-2.0
"""`kepd cleanup`, `takeover` and `node-init` as people run them, on real rules."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.drivers.containerd.driver import Containerd
from agent.images.attach.content_fetch import CONTENT_NAMESPACE
from tests.host.process import PROGRAMS, Kepd
from tests.lab import Image, Lab
from tests.lab.network import PORT, Network
from tests.node.test_services_daemon import Load, Node

pytestmark = pytest.mark.node

# As kube-proxy leaves them: the same address and port, to a pod, and its names.
LEFT_IN_NFTABLES = """
table ip kube-proxy {{
  map service-ips {{
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = {{ {vip} . tcp . 80 : goto service-x }}
  }}
  chain service-x {{
    meta l4proto tcp dnat to {pod}:{port}
  }}
  chain services {{
    ip daddr . meta l4proto . th dport vmap @service-ips
  }}
  chain nat-prerouting {{
    type nat hook prerouting priority dstnat; jump services
  }}
}}
"""
LEFT_IN_IPTABLES = """*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-X - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -d {vip}/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-X
-A KUBE-SVC-X -p tcp -m tcp -j DNAT --to-destination {pod}:{port}
COMMIT
"""


@pytest.fixture
def node(network: Network, short_path: Path) -> Iterator[Node]:
    made = Node(network, short_path)
    yield made
    if made.kepd.process is not None:
        made.kepd.end()


def kepd(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In the namespace of the node, with the daemon's configuration."""
    command = [*node.kepd.prefix, str(PROGRAMS / "kepd"), *arguments, "--config", str(node.kepd.config)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def tables(node: Node) -> str:
    return node.network.node.namespace.run("nft", "list", "tables")


def test_cleanup_says_first_and_takes_away_what_is_ours(node: Node) -> None:
    """DS-13: refused while the daemon runs; what others have stays."""
    space = node.network.node.namespace
    space.run("nft", "add", "table", "ip", "mine")
    node.put("pod1")
    node.start()
    node.wait_used("pod1")
    refused = kepd(node, "cleanup", "--services")
    node.kepd.end()
    for ip, name in (("ip", "kepd_guard"), ("ip6", "kepd_fast")):
        space.run("nft", "add", "table", ip, name)
    guard = node.kepd.config.parent / "state" / "services" / "guard.nft"
    guard.parent.mkdir(parents=True, exist_ok=True)
    guard.write_text("# what a boot loads\n")
    planned = kepd(node, "cleanup", "--services", "--dry-run")
    before = tables(node)
    done = kepd(node, "cleanup", "--services")
    again = kepd(node, "cleanup", "--services")

    assert (refused.returncode, "stop it first" in refused.stderr) == (6, True)
    assert "would remove nftables: table kepd of ip\n" in planned.stdout
    assert "table ip kepd" in before
    assert "would remove nftables: table kepd_fast of ip6\n" in planned.stdout
    assert "removed nftables: table kepd of ip\n" in done.stdout
    assert f"would remove {guard}; disable kepd-guard.service too" in planned.stdout
    assert (f"removed {guard}; disable" in done.stdout, guard.exists()) == (True, False)
    assert "table ip mine" in tables(node)
    assert "kepd" not in tables(node)
    assert (again.returncode, again.stdout) == (0, "")


@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_cleanup_takes_chains_of_both_variants_away(node: Node, variant: str) -> None:
    """IP-13, DS-13: kube-proxy's chains, which have the same names, stay."""
    space = node.network.node.namespace
    for owner, table in (("KEPD-OWNER", "filter"), ("KUBE-SERVICES", "nat")):
        space.run(f"iptables-{variant}", "-t", table, "-N", owner)
    space.run(f"iptables-{variant}", "-t", "filter", "-N", "KUBE-FORWARD")
    space.run(f"iptables-{variant}", "-t", "filter", "-A", "FORWARD", "-j", "KUBE-FORWARD")
    done = kepd(node, "cleanup", "--services")
    left = space.run(f"iptables-{variant}-save")
    for table in ("filter", "nat"):
        space.run(f"iptables-{variant}", "-t", table, "-F")
        space.run(f"iptables-{variant}", "-t", table, "-X")

    assert done.stdout.count("removed") == 1
    assert "KUBE-FORWARD" not in left
    assert "KUBE-SERVICES" in left


@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_cleanup_leaves_chains_to_a_kube_proxy_that_goes_on_with_them(node: Node, variant: str) -> None:
    """SY-14: only what told them from kube-proxy's own goes, so that nothing fails on the way back."""
    space = node.network.node.namespace
    for owner in ("KEPD-OWNER", "KUBE-SERVICES"):
        space.run(f"iptables-{variant}", "-t", "nat", "-N", owner)
    done = kepd(node, "cleanup", "--services", "--to-kube-proxy")
    left = space.run(f"iptables-{variant}-save")
    again = kepd(node, "cleanup", "--services")

    assert "the mark of kepd in nat; the chains are kube-proxy's now" in done.stdout
    assert "KEPD-OWNER" not in left
    assert "KUBE-SERVICES" in left
    assert again.stdout == ""


@pytest.mark.parametrize("left", ["nftables", "iptables-nft", "iptables-legacy"])
def test_a_takeover_moves_traffic_without_a_failed_connection(node: Node, left: str) -> None:
    """SY-14, DS-14: ours go in, then kube-proxy's go; until it is told to, kepd programs nothing beside them."""
    space, network = node.network.node.namespace, node.network
    values = {"vip": "10.96.0.10", "pod": network["pod1"].v4, "port": PORT}
    if left == "nftables":
        space.run("nft", "-f", "-", text=LEFT_IN_NFTABLES.format(**values))
    else:
        space.run(f"{left}-restore", "--noflush", text=LEFT_IN_IPTABLES.format(**values))
    node.put("pod2")
    checked = kepd(node, "takeover", "kube-proxy", "--check")
    node.kepd.start("--planes", "services")
    node.kepd.wait(lambda: "services.proxyName" in node.kepd.ctl("get", "planes").stdout, "a complaint", 20.0)
    with Load(network) as load:
        asked = kepd(node, "takeover", "kube-proxy", "--apply")
        node.kepd.wait(lambda: "takeover_finished" in node.kepd.log.read_text(), "the takeover", 45.0)
        node.wait_used("pod2")
        load.go_on(200)
    after = kepd(node, "takeover", "kube-proxy", "--check")

    assert (checked.returncode, "kepd adds its rules first" in checked.stdout) == (0, True)
    assert (asked.returncode, "requested" in asked.stdout) == (0, True)
    assert load.failures() == set(), node.kepd.log.read_text()
    assert set(load.replies) == {"pod1", "pod2"}
    assert "left nothing here" in after.stdout


def test_node_init_does_what_a_container_cannot(node: Node) -> None:
    """DS-07."""
    done = kepd(node, "node-init", "--set", "services.conntrack.udpTimeout=47s")

    assert done.returncode == 0, done.stderr
    assert node.network.node.namespace.run("cat", "/proc/sys/net/netfilter/nf_conntrack_udp_timeout").strip() == "47"


def test_what_is_to_be_done_has_to_be_said(node: Node) -> None:
    assert kepd(node, "cleanup").returncode == 2
    assert kepd(node, "takeover", "kube-proxy").returncode == 2


async def test_cleanup_takes_leases_and_content_of_ours_out_of_the_runtime(
    lab: Lab, short_path: Path, free_port: int
) -> None:
    """DS-13: leases of others and images of pods stay."""
    daemon = Kepd(short_path, free_port, endpoint=lab.endpoint)
    names = ("kepd-hold-left", "others-lease")
    image = await asyncio.to_thread(lab.push, Image.sized("upkeep/ahead", 50_000))
    shared, content = Containerd(lab.endpoint), Containerd(lab.endpoint, CONTENT_NAMESPACE)
    for name in names:
        await shared.create_lease(name, {})
    await asyncio.to_thread(lab.cri.pull, image)
    known = next(record for record in await shared.image_records() if record.name == image)
    await content.create_image(known)

    def run(*more: str) -> str:
        command = [str(PROGRAMS / "kepd"), "cleanup", "--images", *more, "--config", str(daemon.config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    planned = await asyncio.to_thread(run, "--dry-run")
    still = await shared.list_leases()
    done = await asyncio.to_thread(run)
    leases, ahead = await shared.list_leases(), await content.image_records()
    is_kept = await asyncio.to_thread(lab.cri.has_image, image)
    await shared.delete_lease("others-lease")
    await asyncio.to_thread(lab.cri.remove_image, image)
    await shared.close()
    await content.close()

    assert "would remove lease kepd-hold-left" in planned
    assert set(names) <= set(still)
    assert f"removed content of {image}, fetched ahead" in done
    assert [name for name in names if name in leases] == ["others-lease"]
    assert image not in [record.name for record in ahead]
    assert is_kept
