# SPDX-License-Identifier: Apache-2.0
"""kepd's own driver in a cluster of one node: a scheduler allocates, a kubelet has claims prepared, and what pods had
is reset and given to the next.

Runs where the variables of tests/e2e/programs.py name a kubelet, an API server, controllers, a scheduler, etcd and
kubectl. kepd has the rights of deploy/devices.yaml and no more.
"""

import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from tests.e2e.control import Control, kubeconfig
from tests.e2e.nodes import Node, Side, connect, patch_of
from tests.e2e.programs import VARIABLES, Programs
from tests.host.process import ROOT, Kepd
from tests.lab import Image
from tests.lab.namespace import Namespace

pytestmark = [pytest.mark.node, pytest.mark.timeout(400), pytest.mark.beside("KEPD_SCHEDULER")]
DRIVER = "devices.kepd.dev"
CLASS = f"""
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: {DRIVER}}}
spec: {{selectors: [{{cel: {{expression: "device.driver == '{DRIVER}'"}}}}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {{name: modem}}
spec: {{spec: {{devices: {{requests: [{{name: one, exactly: {{deviceClassName: {DRIVER}}}}}]}}}}}}
"""
OTHERS = f"""
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {{name: stolen}}
spec: {{driver: {DRIVER}, nodeName: n2, pool: {{name: n2, generation: 1, resourceSliceCount: 1}}, devices: []}}
"""


class Cluster:
    def __init__(self, control: Control, node: Node, kepd: Kepd, folder: Path, devices: list[Path]) -> None:
        self.control, self.node, self.kepd, self.folder, self.devices = control, node, kepd, folder, devices
        self.image = node.lab.push(Image(name="e2e/devices"))

    def pod(self, name: str) -> None:
        container = {
            "name": "main", "image": self.image,
            "command": ["sh", "-c", "env; [ -c /dev/modem ] && echo NODE; trap 'exit 0' TERM; sleep 3600 & wait"],
            "resources": {"claims": [{"name": "mine"}]},
        }  # fmt: skip
        pod = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 2, "tolerations": [{"operator": "Exists"}],
                "resourceClaims": [{"name": "mine", "resourceClaimTemplateName": "modem"}], "containers": [container],
            },
        }  # fmt: skip
        self.control.kubectl("apply", "-f", "-", given=json.dumps(pod))

    def logs(self, name: str) -> str:
        return self.control.kubectl("logs", name, check=False)

    def resets(self) -> list[str]:
        path = self.folder / "witness"
        return path.read_text().split() if path.exists() else []

    def until(self, condition: Callable[[], object], what: str) -> None:
        until_s = time.monotonic() + 120
        while not condition():
            if time.monotonic() > until_s:
                told = self.control.kubectl("get", "pods,resourceclaims,events", "-o", "wide", check=False)
                raise AssertionError(f"not in time: {what}\n{told}\n{self.kepd.log.read_text()[-4000:]}")
            time.sleep(0.1)


@pytest.fixture
def cluster(short_path: Path) -> Iterator[Cluster]:
    found = {part: shutil.which(os.environ.get(name, "")) or "" for part, (name, _) in VARIABLES.items()}
    programs = Programs(**found, images=())
    mark = f"kepd-e2e-{uuid4().hex[:8]}"
    devices = [Path(f"/dev/{mark}-{letter}") for letter in "ab"]
    reset = short_path / "reset"
    reset.write_text(f"#!/bin/sh\nsleep 0.5\necho $DEVICE_NAME >> {short_path}/witness\n")
    reset.chmod(0o755)
    pool = {
        "match": {"glob": f"/dev/{mark}-*"}, "name": "modem-{index}", "env": {"MODEM": "{name}"},
        "nodes": [{"path": "{path}", "as": "/dev/modem"}], "reset": {"command": [str(reset)]},
    }  # fmt: skip
    with ExitStack() as stack:
        for device in devices:
            os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            stack.callback(device.unlink)
        switch, inside = stack.enter_context(Namespace()), stack.enter_context(Namespace())
        control = Control(programs, short_path / "c", inside)
        node = stack.enter_context(Node(1, Side("none"), programs, short_path, control))
        connect(switch, inside, [node])
        stack.enter_context(control)
        node.start()
        control.wait("n1 is there", "--for=create", "node/n1")
        control.kubectl("patch", "node", "n1", "--type=merge", "-p", json.dumps(patch_of(node)))
        control.wait("n1 is ready", "--for=condition=Ready", "node/n1")
        control.kubectl("apply", "-f", str(ROOT / "deploy/devices.yaml"), "-f", "-", given=CLASS)
        given = ("-n", "kube-system", "create", "token", "kepd-devices", "--bound-object-kind=Node")
        token = control.kubectl(*given, "--bound-object-name=n1").strip()
        path = short_path / "kepd.kubeconfig"
        path.write_text(json.dumps(kubeconfig(token, short_path / "c" / "ca.crt")))
        path.chmod(0o600)
        cdi = str(short_path / "cdi") if node.lab.containerd.version < (2, 0) else str(node.lab.place.cdi)
        section = {
            "driver": {"enabled": True, "pools": [pool], "kubeletDirectory": str(node.folder / "root")},
            "cdi": {"output": cdi, "directories": [cdi]},
        }
        extra = (
            f"devices: {json.dumps(section)}\nkubernetes: {{kubeconfig: {path}}}\n"
            "pods: {enabled: false}\nservices: {enabled: false}\nimages: {enabled: false}\n"
        )
        (short_path / "k").mkdir()
        kepd = Kepd(short_path / "k", 10241, node.lab.endpoint, extra, node.lab.netns.command([]))
        stack.enter_context(kepd)
        kepd.start()
        yield Cluster(control, node, kepd, short_path, devices)


def has_cdi(cluster: Cluster) -> bool:
    return cluster.node.lab.containerd.version >= (2, 0)


def test_a_scheduler_gives_the_devices_of_kepd_and_gets_them_back_reset(cluster: Cluster) -> None:
    """DVD-1 to DVD-7: kepd and the kubelet begin anew while pods have devices; a third pod has what was reset."""
    control, kepd = cluster.control, cluster.kepd
    cluster.until(lambda: "n1-" in control.kubectl("get", "resourceslices", "-o", "name"), "slices are written")
    for name in ("one", "two", "three"):
        cluster.pod(name)
    for name in ("one", "two"):
        control.wait(f"{name} runs", "--for=condition=Ready", f"pod/{name}")
    # Which two are first is the scheduler's choice only where they come at once; these came in turn.
    claims = json.loads(control.kubectl("get", "resourceclaims", "-o", "json"))["items"]
    results = [
        one["device"]
        for claim in claims
        for one in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    ]
    assert sorted(results) == ["modem-0", "modem-1"]
    if has_cdi(cluster):
        cluster.until(lambda: "NODE" in cluster.logs("one"), "it sees its device")
        assert "MODEM=modem-" in cluster.logs("one")
    assert cluster.resets() == []

    kepd.end(9)
    kepd.start()
    cluster.until(lambda: kepd.log.read_text().count("registered=true") == 2, "registered again")
    control.kubectl("delete", "pod", "one", "--wait=false")
    cluster.until(lambda: len(cluster.resets()) == 1, "it is reset")
    control.wait("three runs", "--for=condition=Ready", "pod/three")
    control.kubectl("delete", "pod", "two", "three")
    cluster.until(lambda: len(cluster.resets()) == 3, "all are reset")
    cluster.until(lambda: not control.kubectl("get", "resourceclaims", "-o", "name"), "claims went with their pods")
    place = kepd.folder / "state" / "devices" / "kubelet" / "claims"
    assert list(place.iterdir()) == []


def test_the_token_of_a_node_writes_no_slices_of_another(cluster: Cluster) -> None:
    """DVD-6: the policy, by the API server itself; the role alone would allow it."""
    control = cluster.control
    cluster.until(lambda: "n1-" in control.kubectl("get", "resourceslices", "-o", "name"), "slices are written")
    own = f"--kubeconfig={cluster.folder}/kepd.kubeconfig"
    told = ""
    try:
        control.kubectl(own, "create", "-f", "-", given=OTHERS)
    except RuntimeError as error:
        told = str(error)

    assert "kepd may write the slices of the node that its token names and no others" in told
    control.kubectl(own, "delete", "resourceslices", "--all")
    cluster.until(lambda: "n1-" in control.kubectl("get", "resourceslices", "-o", "name"), "they are written again")
