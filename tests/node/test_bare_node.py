# SPDX-License-Identifier: Apache-2.0
"""A bare node: pods and a Service from files, no EndpointSlice, no API server, and the Service answers."""

import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from agent.drivers.interfaces.default_route import default_addresses
from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.lab.namespace import Namespace

pytestmark = pytest.mark.node

VIP = "10.96.0.10"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, "mkdir /w; echo NAME > /w/name; exec httpd -f -p 8080 -h /w"]
    ports: [{name: web, containerPort: 8080}]
    readinessProbe: {tcpSocket: {port: web}, periodSeconds: 1}
"""
SERVICE = f"""
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{clusterIP: {VIP}, selector: {{app: web}}, ports: [{{port: 80, targetPort: web}}]}}
"""
ASK = f"import urllib.request as u; print(u.urlopen('http://{VIP}/name', timeout=5).read().decode().strip())"


@pytest.fixture
def kepd(lab: Lab, short_path: Path) -> Iterator[Kepd]:
    extra = (
        f"pods: {{logDirectory: {short_path}/logs, cgroupRoot: '{lab.place.cgroup_parent.strip('/')}'}}\n"
        "services: {healthzAddress: '', conntrack: {maxPerCore: 0}}\n"
    )
    prefix = ("nsenter", f"--net={lab.place.netns}", "--")
    with Kepd(short_path, 10941, endpoint=lab.endpoint, extra=extra, prefix=prefix) as daemon:
        yield daemon
        for path in daemon.manifests.iterdir():
            path.unlink()
        daemon.wait(lambda: not daemon.pods(), "all pods gone", 20.0)
    lab.netns.run(["nft", "flush", "ruleset"])


def test_a_service_finds_the_pods_of_its_node_by_their_labels(kepd: Kepd, lab: Lab) -> None:
    image = lab.push(Image(name="node/web"))
    for name in ("one", "two"):
        (kepd.manifests / f"{name}.yaml").write_text(POD.replace("NAME", name).replace("IMAGE", image))
    (kepd.manifests / "service.yaml").write_text(SERVICE)
    kepd.start("--planes", "pods,services")
    kepd.wait(lambda: used(kepd) == 2, "two endpoints", 30.0)
    lab.netns.run(["ip", "route", "replace", f"{VIP}/32", "dev", "lo"])
    answers = {lab.netns.run(["python3", "-c", ASK]).strip() for _ in range(30)}
    assert answers == {"one", "two"}

    (kepd.manifests / "one.yaml").unlink()
    kepd.wait(lambda: used(kepd) == 1, "one endpoint", 30.0)
    assert {lab.netns.run(["python3", "-c", ASK]).strip() for _ in range(10)} == {"two"}


def used(kepd: Kepd) -> int:
    return sum(one["isUsed"] for one in kepd.endpoints())


def test_the_addresses_of_the_default_route_are_this_nodes() -> None:
    """FS-22: without a cluster nothing else says which of its addresses node ports are served on."""
    with Namespace() as node:
        node.run("ip", "link", "set", "lo", "up")
        without = node.call(default_addresses)
        for link in ("other", "uplink"):
            node.run("ip", "link", "add", link, "type", "veth", "peer", "name", f"{link}-end")
            node.run("ip", "link", "set", f"{link}-end", "up")
        for link, address in (("other", "10.8.0.5/24"), ("uplink", "10.9.0.5/24"), ("uplink", "fd00:9::5/64")):
            node.run("ip", "address", "add", address, "dev", link, *(("nodad",) if ":" in address else ()))
            node.run("ip", "link", "set", link, "up")
        node.run("ip", "route", "add", "default", "via", "10.9.0.1")
        node.run("ip", "-6", "route", "add", "default", "via", "fd00:9::1")

        assert without == ()
        assert node.call(default_addresses) == (ip_address("10.9.0.5").packed, ip_address("fd00:9::5").packed)


def test_an_address_for_days_is_none_of_this_nodes() -> None:
    """What privacy extensions make is for connections that begin here, not for those that come."""
    with Namespace() as node:
        node.run("ip", "link", "add", "uplink", "type", "veth", "peer", "name", "end")
        node.run("sh", "-c", "echo 2 >/proc/sys/net/ipv6/conf/uplink/use_tempaddr")
        for link in ("end", "uplink"):
            node.run("ip", "link", "set", link, "up")
        node.run("ip", "address", "add", "fd00:9::5/64", "dev", "uplink", "nodad", "mngtmpaddr")
        node.run("ip", "-6", "route", "add", "default", "via", "fd00:9::1", "dev", "uplink")
        listed = ""
        for _ in range(50):
            listed = node.run("ip", "-6", "address", "show", "dev", "uplink", "temporary", "-tentative")
            if listed:
                break
            time.sleep(0.1)

        assert "temporary" in listed
        assert node.call(default_addresses) == (ip_address("fd00:9::5").packed,)
