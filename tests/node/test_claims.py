# SPDX-License-Identifier: Apache-2.0
"""Claims with real containers: a tutorial's volume, claim and pod; data over deletions, kills and both policies."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.node.pods import pods_daemon

pytestmark = [pytest.mark.node, pytest.mark.timeout(240)]

TUTORIAL = """
apiVersion: v1
kind: PersistentVolume
metadata: {name: task-pv, labels: {type: local}}
spec: {storageClassName: manual, capacity: {storage: 10Gi}, accessModes: [ReadWriteOnce], hostPath: {path: DISK}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: task-claim}
spec: {storageClassName: manual, accessModes: [ReadWriteOnce], resources: {requests: {storage: 3Gi}}}
"""
CLAIM = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: gone}
provisioner: kepd.dev/directory
reclaimPolicy: Delete
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: gone, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {runAsUser: 65534}
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "echo run >> /task/runs; echo run >> /data/runs; trap exit TERM; while true; do sleep 1; done"]
    volumeMounts: [{name: task, mountPath: /task}, {name: data, mountPath: /data, subPath: "a/b"}]
  volumes:
  - {name: task, persistentVolumeClaim: {claimName: task-claim}}
  - {name: data, persistentVolumeClaim: {claimName: data}}
"""


@pytest.fixture
def kepd(lab: Lab, short_path: Path, free_port: int) -> Iterator[Kepd]:
    door = {"KEPD_API__DOOR__ADDRESS": f"127.0.0.1:{free_port + 1}"}
    with pods_daemon(lab, short_path, free_port, "nameSuffix: false", **door) as daemon:
        yield daemon


def apply(kepd: Kepd, text: str) -> None:
    file = kepd.folder / "given.yaml"
    file.write_text(text)
    done = kepd.ctl("apply", "-f", str(file))
    assert done.returncode == 0, done.stderr


def phases(kepd: Kepd, kind: str) -> dict[str, str]:
    return {one["metadata"]["name"]: one["status"]["phase"] for one in kepd.json("get", kind)["items"]}


def kubectl(kepd: Kepd, *words: str) -> str:
    config = kepd.folder / "kubeconfig"
    config.write_text(kepd.ctl("kubeconfig", "--level", "operate").stdout)
    command = [shutil.which("kubectl") or "kubectl", "--kubeconfig", str(config), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_tutorial_runs_and_its_data_stays_or_goes_as_its_policy_says(kepd: Kepd, lab: Lab, short_path: Path) -> None:
    image = lab.push(Image(name="node/claims"))
    lab.cri.pull(image)
    disk, own = short_path / "disk", short_path / "state/claims/default/data"
    disk.mkdir()
    disk.chmod(0o777)
    apply(kepd, POD.replace("IMAGE", image))
    kepd.wait(
        lambda: 'persistentvolumeclaim "task-claim" not found' in kepd.ctl("explain", "pod", "web").stdout, "told"
    )
    apply(kepd, TUTORIAL.replace("DISK", str(disk)))
    kepd.wait(lambda: 'persistentvolumeclaim "data" not found' in kepd.ctl("explain", "pod", "web").stdout, "the other")
    assert phases(kepd, "pvc") == {"task-claim": "Bound"}
    apply(kepd, CLAIM)
    kepd.wait(lambda: (own / "a/b/runs").exists() and (disk / "runs").exists(), "it runs")
    assert phases(kepd, "pvc") == {"task-claim": "Bound", "data": "Bound"}
    heads = {kind: kubectl(kepd, "get", kind).split("\n")[0].split() for kind in ("pvc", "pv")}
    described = kubectl(kepd, "describe", "pvc", "task-claim")
    volumes: dict[str, Any] = json.loads(kubectl(kepd, "get", "pv", "-o", "json"))
    assert kepd.process is not None
    os.kill(kepd.process.pid, signal.SIGKILL)
    kepd.process.wait()
    kepd.start("--planes", "pods").wait_ready()
    assert phases(kepd, "pvc") == {"task-claim": "Bound", "data": "Bound"}
    kubectl(kepd, "delete", "pvc", "data", "--wait=false")
    assert own.exists(), "a pod uses it"
    assert kepd.ctl("delete", "pod", "web").returncode == 0
    kepd.wait(lambda: not own.exists(), "its class says Delete")
    assert kepd.ctl("delete", "pvc", "task-claim").returncode == 0
    kepd.wait(lambda: phases(kepd, "pv") == {"task-pv": "Released"}, "it is kept")
    assert (disk / "runs").read_text() == "run\n"

    assert heads["pvc"][:4] == ["NAME", "STATUS", "VOLUME", "CAPACITY"]
    assert heads["pv"][:3] == ["NAME", "CAPACITY", "ACCESS"]
    assert "Volume:        task-pv" in described
    assert {one["spec"]["claimRef"]["name"] for one in volumes["items"]} == {"task-claim", "data"}
