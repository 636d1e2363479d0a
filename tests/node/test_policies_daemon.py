# SPDX-License-Identifier: Apache-2.0
"""NetworkPolicies on real containers: before the first packet, after kill -9, and as people see them."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.process import Kepd
from tests.lab import Image, Lab

pytestmark = [pytest.mark.node, pytest.mark.timeout(240)]

WEB = """
apiVersion: v1
kind: Pod
metadata: {name: web, uid: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: IfNotPresent
    ports: [{name: http, containerPort: 8080}]
    command: [sh, -c, "mkdir /w; echo welcome > /w/page; exec httpd -f -p 8080 -h /w"]
"""
# It asks from its first moment on, and writes down each time that it was answered.
CLIENT = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, uid: NAME, labels: {app: NAME}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: out, hostPath: {path: OUT}}]
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: IfNotPresent
    volumeMounts: [{name: out, mountPath: /out}]
    command:
    - sh
    - -c
    - |
      while true; do
        if echo | nc -w 1 ADDRESS 8080; then echo yes >> /out/NAME; else echo no >> /out/NAME; fi
        sleep 0.1
      done
"""
POLICY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: friend}}}]
    ports: [{port: http}]
"""


@pytest.fixture
def kepd(lab: Lab, short_path: Path, free_port: int) -> Iterator[Kepd]:
    """In the network of the pods."""
    extra = f"pods: {{logDirectory: {short_path}/logs, cgroupRoot: '{lab.place.cgroup_parent.strip('/')}'}}\n"
    prefix = ("nsenter", f"--net={lab.place.netns}", "--")
    with Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra, prefix=prefix) as daemon:
        begin(daemon)
        yield daemon
        for path in daemon.manifests.iterdir():
            path.unlink()
        daemon.wait(lambda: not daemon.pods(), "all pods gone", 60.0)


def begin(kepd: Kepd) -> None:
    """Its HTTP port is in the other network, so kepctl is asked."""
    kepd.start("--planes", "pods")
    kepd.wait(lambda: kepd.ctl("status").returncode == 0, "kepd is ready")


def answers(kepd: Kepd, name: str) -> list[str]:
    path = kepd.folder / name
    return path.read_text().split() if path.exists() else []


def test_policies_hold_from_the_first_packet_and_over_kill_9(lab: Lab, kepd: Kepd) -> None:
    """POL-04, POL-12."""
    image = lab.push(Image(name="node/policies"))
    (kepd.manifests / "policy.yaml").write_text(POLICY)
    (kepd.manifests / "web.yaml").write_text(WEB.replace("IMAGE", image))
    kepd.wait(lambda: any(one.get("ip") and one["phase"] == "Running" for one in kepd.pods()), "web runs")
    address = next(one["ip"] for one in kepd.pods())
    for name in ("friend", "stranger"):
        text = CLIENT.replace("NAME", name).replace("IMAGE", image).replace("ADDRESS", address)
        (kepd.manifests / f"{name}.yaml").write_text(text.replace("OUT", str(kepd.folder)))
    kepd.wait(lambda: "yes" in answers(kepd, "friend") and "no" in answers(kepd, "stranger"), "both have asked")
    explained = kepd.ctl("explain", "policy", "web").stdout
    listed = kepd.ctl("get", "netpol").stdout
    described = kepd.ctl("describe", "netpol", "web").stdout
    bridges = lab.netns.run(["nft", "list", "table", "bridge", "kepd_policies"])

    assert kepd.process is not None
    os.kill(kepd.process.pid, signal.SIGKILL)
    kepd.process.wait()
    while_away = len(answers(kepd, "stranger"))
    kepd.wait(lambda: len(answers(kepd, "stranger")) > while_away + 1, "the stranger asks while kepd is away")
    begin(kepd)
    again = len(answers(kepd, "stranger"))
    kepd.wait(lambda: len(answers(kepd, "stranger")) > again + 1, "the stranger asks the next kepd's rules")
    friend = len(answers(kepd, "friend"))
    kepd.wait(lambda: "yes" in answers(kepd, "friend")[friend:], "the friend is answered")
    (kepd.manifests / "policy.yaml").unlink()
    kepd.wait(lambda: "yes" in answers(kepd, "stranger"), "without the policy everybody is answered")
    tables = lab.netns.run(["nft", "list", "tables"])

    assert set(answers(kepd, "stranger")[: again + 2]) == {"no"}
    # kepd takes none of its own changes for those of others.
    assert "policies_touched" not in kepd.log.read_text()
    assert "POLICY default/web  in force" in explained
    assert f"default/web-n1 {address}" in explained
    assert "ingress: from pods of namespace default by app=friend (default/friend-n1 " in explained
    assert listed.split()[:4] == ["NAMESPACE", "NAME", "POD-SELECTOR", "AGE"]
    assert "app=web" in listed
    assert "PodSelector:" in described
    assert "kepd_policies" not in tables
    # The link of each is known, and held to the address of its pod.
    assert re.search(rf'"veth[0-9a-f]+" . {re.escape(address)}', bridges)
    assert "on no bridge" not in explained
