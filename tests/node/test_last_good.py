# SPDX-License-Identifier: Apache-2.0
"""One node with every kind of object that kepd reads from files, and all that may happen to them while it is killed:
nothing that was in force goes."""

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.host.process import Kepd
from tests.lab import Image, Lab

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

POD = """terminationGracePeriodSeconds: 0
  containers: [{name: main, image: IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "1000"]}]
"""
BELOW = POD.replace("\n", "\n    ").rstrip()
LABELS = "  selector: {matchLabels: {app: NAME}}\n  template:\n    metadata: {labels: {app: NAME}}\n"
# It reads what it is given whenever it starts.
READS = "echo $FROM_MAP $(cat /secret/key) >> /out/started; sleep 1000"
ALL = f"""
apiVersion: v1
kind: Pod
metadata: {{name: alone, labels: {{app: alone}}}}
spec:
  {POD}
---
apiVersion: v1
kind: Pod
metadata: {{name: reader}}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{{name: out, hostPath: {{path: OUT}}}}, {{name: secret, secret: {{secretName: key}}}}]
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: IfNotPresent
    env: [{{name: FROM_MAP, valueFrom: {{configMapKeyRef: {{name: map, key: value}}}}}}]
    volumeMounts: [{{name: out, mountPath: /out}}, {{name: secret, mountPath: /secret}}]
    command: [sh, -c, "{READS}"]
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: map}}
data: {{value: from-map}}
---
apiVersion: v1
kind: Secret
metadata: {{name: key}}
stringData: {{key: from-secret}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: 1
{LABELS.replace("NAME", "web")}    spec:
      {BELOW}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: log}}
spec:
{LABELS.replace("NAME", "log")}    spec:
      {BELOW}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: db}}
spec:
  replicas: 2
  podManagementPolicy: Parallel
{LABELS.replace("NAME", "db")}    spec:
      {BELOW}
  volumeClaimTemplates:
  - metadata: {{name: data}}
    spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}
  persistentVolumeClaimRetentionPolicy: {{whenScaled: Delete, whenDeleted: Delete}}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: work}}
spec:
  template:
    spec:
      restartPolicy: Never
      {BELOW}
---
apiVersion: batch/v1
kind: CronJob
metadata: {{name: tidy}}
spec:
  schedule: "0 0 1 1 *"
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers: [{{name: main, image: IMAGE, command: [sleep, "1"]}}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: alone}}
spec: {{minAvailable: 1, selector: {{matchLabels: {{app: alone}}}}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: closed}}
spec: {{podSelector: {{matchLabels: {{app: db}}}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{clusterIP: 10.96.0.10, selector: {{app: web}}, ports: [{{port: 80, targetPort: 8080}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: far}}
spec: {{clusterIP: 10.96.0.11, ports: [{{port: 80, targetPort: 8080}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: far-1, labels: {{kubernetes.io/service-name: far}}}}
addressType: IPv4
ports: [{{port: 8080}}]
endpoints: [{{addresses: [192.0.2.7], conditions: {{ready: true}}}}]
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: mine}}
spec: {{selectors: [{{cel: {{expression: "device.driver == 'fake.kepd.dev'"}}}}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: gpu}}
spec: {{devices: {{requests: [{{name: one, exactly: {{deviceClassName: mine}}}}]}}}}
"""
NAMES = ("alone", "reader", "web", "log", "db-0", "db-1", "work")


class Node:
    def __init__(self, lab: Lab, kepd: Kepd) -> None:
        self.lab, self.kepd = lab, kepd
        self.file, self.out, self.claims = kepd.manifests / "z.yaml", kepd.folder / "out", kepd.folder / "claims"

    def begin(self) -> None:
        self.kepd.start("--planes", "pods,services,devices")
        self.kepd.wait(lambda: self.kepd.ctl("status").returncode == 0, "kepd answers")

    def kill(self) -> None:
        assert self.kepd.process is not None
        os.kill(self.kepd.process.pid, signal.SIGKILL)
        self.kepd.process.wait()

    def starts(self) -> list[str]:
        path = self.out / "started"
        return path.read_text().splitlines() if path.exists() else []

    def in_force(self) -> Mapping[str, object]:
        """All that can be seen from outside of what manifests say."""
        kepd = self.kepd
        endpoints = kepd.endpoints()
        policed = self.lab.netns.run(["sh", "-c", "nft -j list map inet kepd_policies ingress4 || true"])
        claims = kepd.objects("claims")
        return {
            "pods": sorted((one["name"], one["uid"], one["phase"]) for one in kepd.pods()),
            "directories": sorted(path.name for path in self.claims.glob("*/*")),
            "endpoints": sorted(one["endpoint"] for one in endpoints),
            "policed": len(json.loads(policed)["nftables"][1]["map"].get("elem") or ()) if policed else 0,
            "claims": [one["metadata"]["name"] for one in claims],
            "cron": sum(1 for _ in kepd.folder.rglob("cronjobs/*.json")),
        }

    def is_all_there(self) -> bool:
        now = self.in_force()
        return now["policed"] == 2 and len(str(now["endpoints"]).split(",")) == 2 and bool(now["claims"])


def broken(node: Node) -> None:
    node.file.write_text(node.file.read_text() + "---\n{")


def faulty(node: Node) -> None:
    """A slip in each object, by which it loses its version or its name."""
    text = node.file.read_text()
    node.file.write_text(text.replace("apiVersion: ", "apiVersion: x", 99).replace("stringData", "stringDate"))


def unread(node: Node) -> None:
    node.file.chmod(0o666)


def unread_directory(node: Node) -> None:
    node.kepd.manifests.chmod(0o777)


def missing(node: Node) -> None:
    node.kepd.manifests.rename(node.kepd.folder / "aside")


def emptied(node: Node) -> None:
    """As when a disk is not mounted."""
    missing(node)
    node.kepd.manifests.mkdir()


def rival(node: Node) -> None:
    text = node.file.read_text().replace("replicas: ", "replicas: 0 # ").replace("from-", "rival-")
    text = text.replace("sleep, ", "true, ").replace("192.0.2.7", "192.0.2.8").replace("app: db", "app: other")
    (node.kepd.manifests / "a.yaml").write_text(text)


def mended(node: Node) -> None:
    aside = node.kepd.folder / "aside"
    if aside.exists():
        if node.kepd.manifests.exists():
            node.kepd.manifests.rmdir()
        aside.rename(node.kepd.manifests)
    node.kepd.manifests.chmod(0o700)
    (node.kepd.manifests / "a.yaml").unlink(missing_ok=True)


@pytest.fixture
def node(lab: Lab, short_path: Path, free_port: int) -> Iterator[Node]:
    root = lab.place.cgroup_parent.strip("/")
    devices = {"manager": {"enabled": True, "registry": f"{short_path}/r", "slices": f"{short_path}/s"}}
    devices |= {"cdi": {"directories": [f"{short_path}/cdi"], "output": f"{short_path}/cdi"}}  # type: ignore[dict-item]
    devices |= {"driver": {"enabled": True, "fake": {"count": 1}}}  # type: ignore[dict-item]
    pods = {"logDirectory": f"{short_path}/logs", "cgroupRoot": root, "claimDirectory": f"{short_path}/claims"}
    extra = f"pods: {json.dumps({**pods, 'reducedBackoff': True})}\ndevices: {json.dumps(devices)}\n"
    extra += "services: {healthzAddress: '', conntrack: {maxPerCore: 0}}\n"
    prefix = ("nsenter", f"--net={lab.place.netns}", "--")
    with Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra, prefix=prefix) as daemon:
        made = Node(lab, daemon)
        made.out.mkdir()
        yield made
        mended(made)
        for path in daemon.manifests.iterdir():
            path.unlink()
        daemon.wait(lambda: not daemon.pods(), "all pods gone", 60.0)
    lab.netns.run(["nft", "flush", "ruleset"])


def test_whatever_becomes_of_the_files_nothing_in_force_goes_over_kill_9(node: Node, lab: Lab) -> None:
    """MAN-14, MAN-08, MAN-03."""
    kepd, text = node.kepd, ALL.replace("IMAGE", lab.push(Image(name="node/last-good"))).replace("OUT", str(node.out))
    node.file.write_text(text)
    node.file.chmod(0o600)
    node.begin()
    kepd.wait(lambda: sum(one["phase"] == "Running" for one in kepd.pods()) == len(NAMES), "all pods run")
    kepd.wait(node.is_all_there, "everything is in force")
    before = node.in_force()
    changes: tuple[Callable[[Node], None], ...] = (broken, faulty, unread, unread_directory, missing, emptied, rival)
    for number, change in enumerate(changes, 2):
        node.kill()
        change(node)
        node.begin()
        kepd.wait(lambda: "degraded" in kepd.ctl("get", "planes").stdout, f"the trouble of {change.__name__} is told")
        kepd.wait(lambda: kepd.ctl("restart", "reader").returncode == 0, "the reader is to start again")
        kepd.ctl("retry", "reader")
        kepd.wait(lambda count=number: len(node.starts()) == count, f"the reader starts with {change.__name__}")
        kepd.wait(node.is_all_there, f"everything is known with {change.__name__}")

        assert node.in_force() == before, change.__name__
        mended(node)
        node.file.write_text(text)
        node.file.chmod(0o600)
    held = kepd.ctl("drain", "--selector", "app=alone")
    assert held.returncode == 1
    assert set(node.starts()) == {"from-map from-secret"}
    assert "alone" in {one["name"].removesuffix("-n1") for one in kepd.pods()}
