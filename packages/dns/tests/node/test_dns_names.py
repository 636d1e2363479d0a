# SPDX-License-Identifier: Apache-2.0
"""A bare node with real pods: one reaches another by its Service's name, through the daemon, kepd-dns and the rules."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tests.host.process import PROGRAMS, Kepd
from tests.lab import Image, Lab
from tests.node.test_bare_node import POD, used

pytestmark = pytest.mark.node

ROOT = Path(__file__).parents[4]
SERVICES = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: web}]}
---
apiVersion: v1
kind: Service
metadata: {name: pets}
spec: {clusterIP: None, selector: {app: web}}
---
apiVersion: v1
kind: Service
metadata: {name: out}
spec: {type: ExternalName, externalName: web.default.svc.cluster.local}
"""
CLIENT = """
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: IMAGE
    command: [sleep, "3600"]
"""


@pytest.fixture
def kepd(lab: Lab, short_path: Path) -> Iterator[Kepd]:
    shared = short_path / "names"
    shared.mkdir()
    extra = (
        f"pods: {{logDirectory: {short_path}/logs, cgroupRoot: '{lab.place.cgroup_parent.strip('/')}'}}\n"
        "services: {healthzAddress: '', conntrack: {maxPerCore: 0}, serviceCIDRs: [10.96.0.0/16]}\n"
        f"dns: {{enabled: true, directory: {shared}}}\n"
    )
    prefix = ("nsenter", f"--net={lab.place.netns}", "--")
    with (short_path / "names.log").open("wb") as log:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "kepd_dns.run.process", "--directory", str(shared),
             "--listen", "169.254.20.10", "--listen", "fd00::a9fe:140a"],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=log,
        )  # fmt: skip
    with Kepd(short_path, 10942, endpoint=lab.endpoint, extra=extra, prefix=prefix) as daemon:
        yield daemon
        for path in daemon.manifests.iterdir():
            path.unlink()
        daemon.wait(lambda: not daemon.pods(), "all pods gone", 20.0)
    process.kill()
    process.wait(10)
    lab.netns.run(["nft", "flush", "ruleset"])
    for address in ("169.254.20.10/32", "fd00::a9fe:140a/128"):
        with suppress(Exception):
            lab.netns.run(["ip", "addr", "del", address, "dev", "lo"])


def inside(kepd: Kepd, *words: str) -> str:
    """The runtime's streams are where it listens, in its network namespace."""
    command = [*kepd.prefix, str(PROGRAMS / "kepctl"), "--endpoint", str(kepd.socket), "exec", "client", "--", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return f"{done.stdout}{done.stderr}"


def as_set(pod: str) -> str:
    """The same pod as a StatefulSet, whose headless Service names each of its own."""
    spec = yaml.safe_load(pod)["spec"]
    labels = {"app": "db"}
    service = {"clusterIP": "None", "selector": labels}
    made = {
        "serviceName": "db", "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }  # fmt: skip
    return yaml.safe_dump_all([
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db"}, "spec": service},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": made},
    ])  # fmt: skip


def ready_address(kepd: Kepd) -> str:
    """Of the pod with a name, where it is ready."""
    found = [one for one in kepd.pods() if one["name"].startswith("one")]
    return next((one["ip"] for one in found if all(each.get("ready") for each in one["containers"])), "")


def test_a_pod_reaches_another_by_its_services_name(kepd: Kepd, lab: Lab) -> None:
    """DNS-71, DNS-74, DNS-75, DNS-100, DNS-101: the first minute, and a name that goes with its Service."""
    image = lab.push(Image(name="node/web"))
    lab.netns.run(["ip", "route", "replace", "10.96.0.0/16", "dev", "lo"])
    pod = (
        POD.replace("IMAGE", image)
        .replace("NAME", "one")
        .replace("spec:", "spec:\n  hostname: rex\n  subdomain: pets", 1)
    )
    (kepd.manifests / "one.yaml").write_text(pod)
    (kepd.manifests / "client.yaml").write_text(CLIENT.replace("IMAGE", image))
    (kepd.manifests / "services.yaml").write_text(SERVICES)
    (kepd.manifests / "set.yaml").write_text(as_set(pod))
    kepd.start("--planes", "pods,services,dns")
    kepd.wait(lambda: used(kepd) >= 1, "an endpoint", 30.0)
    kepd.wait(lambda: "answering" in kepd.ctl("get", "dns").stdout, "answers", 30.0)
    kepd.wait(lambda: "one" in inside(kepd, "wget", "-qO-", "http://web/name"), "the page by name", 20.0)

    assert "nameserver 169.254.20.10" in inside(kepd, "cat", "/etc/resolv.conf")
    assert "ndots:5" in inside(kepd, "cat", "/etc/resolv.conf")
    for name in ("web.default", "web.default.svc.cluster.local", "out"):
        assert "one" in inside(kepd, "wget", "-qO-", f"http://{name}/name"), name
    for name in ("pets", "rex.pets"):
        assert "one" in inside(kepd, "wget", "-qO-", f"http://{name}:8080/name"), name
    kepd.wait(lambda: "one" in inside(kepd, "wget", "-qO-", "http://db-0.db:8080/name"), "a StatefulSet's name", 20.0)
    explained = kepd.ctl("explain", "dns", "web", "--from", "client")
    assert explained.returncode == 0
    assert "QUESTION web.default.svc.cluster.local.  zone cluster.local (own)  NOERROR" in explained.stdout
    assert (
        "asked at 169.254.20.10: NOERROR in" in kepd.ctl("explain", "dns", "web", "--from", "client", "--trace").stdout
    )
    assert kepd.ctl("explain", "dns", "nothing", "--from", "client").returncode == 1
    assert "QUESTION web.default.svc.cluster.local." in kepd.ctl("explain", "dns", "web").stdout
    meant = "- no Service has this name; there is web.default.svc.cluster.local\n"
    assert meant in kepd.ctl("explain", "dns", "wep", "--from", "client").stdout
    assert meant in kepd.ctl("explain", "dns", "web.shop", "--from", "client").stdout
    assert "forgotten" in kepd.ctl("flush", "dns").stdout
    assert "169.254.20.10" in kepd.ctl("get", "pods", "client", "-o", "wide").stdout
    listed = kepd.ctl("get", "dns", "-o", "wide").stdout
    assert "169.254.20.10" in listed

    before = ready_address(kepd)
    (kepd.manifests / "one.yaml").write_text(pod.replace("spec:", "spec:\n  hostAliases: [{ip: 10.9.9.9}]", 1))
    kepd.wait(lambda: ready_address(kepd) not in ("", before), "a pod made anew", 30.0)
    after, begun_s = ready_address(kepd), time.monotonic()
    kepd.wait(lambda: after in kepd.ctl("explain", "dns", "rex.pets", "--from", "client").stdout, "its address", 1.0)
    print(f"told after {time.monotonic() - begun_s:.2f} s")
    assert before not in kepd.ctl("explain", "dns", "rex.pets", "--from", "client").stdout

    (kepd.manifests / "services.yaml").write_text(SERVICES.replace("name: web}", "name: shop}", 1))
    kepd.wait(lambda: "one" in inside(kepd, "wget", "-qO-", "http://shop/name"), "the new name", 10.0)
    kepd.wait(lambda: "bad address" in inside(kepd, "wget", "-qO-", "http://web/name"), "no old name", 10.0)
