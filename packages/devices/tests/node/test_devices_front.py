# SPDX-License-Identifier: Apache-2.0
"""kepd between a scripted plugin and a real kubelet: what a pod has used is reset before the next pod has it.

Runs where KEPD_KUBELET names a kubelet program. Its directory of plugins is /var/lib/kubelet whatever its flags say, so
the kubelet has a mount namespace of its own in which that is a directory of the test.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agent.wire.cri import runtime_v1_pb2 as pb
from packages.devices.tests.node.test_devices_kubelet import PROGRAM, clear_sandboxes, started
from tests.host.process import ROOT, Kepd
from tests.lab import Image, Lab
from tests.lab.kubelet import Program, groups, machine_as_before

pytestmark = [pytest.mark.node, pytest.mark.timeout(240), pytest.mark.beside("KEPD_KUBELET")]
GPU = "example.com/gpu"
OFF = "pods: {enabled: false}\nservices: {enabled: false}\nimages: {enabled: false}\n"
UNSHARED = 'mkdir -p /var/lib/kubelet && mount --bind {place} /var/lib/kubelet && exec "$@"'


class Node:
    """A kubelet with pods from files, kepd and a plugin."""

    def __init__(self, lab: Lab, folder: Path, port: int, group: str) -> None:
        self.lab, self.folder = lab, folder
        self.place = folder / "kubelet"
        for name in ("kubelet/device-plugins", "manifests", "out"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.gate, self.witness = folder / "gate", folder / "witness"
        self.gate.touch()
        reset = folder / "reset"
        reset.write_text(
            f"#!/bin/sh\nwhile [ ! -e {self.gate} ]; do sleep 0.05; done\necho $DEVICE_NAME >> {self.witness}\n"
        )
        reset.chmod(0o755)
        front = {"enabled": True, "resources": {GPU: {"command": [str(reset)], "timeout": "60s"}}}
        devices = {"front": front, "driver": {"kubeletDirectory": str(self.place)}}
        self.kepd = Kepd(folder, port, endpoint=lab.endpoint, extra=f"devices: {json.dumps(devices)}\n{OFF}")
        self.pods = folder / "static"
        self.pods.mkdir()
        self.image = lab.push(Image(name="node/front"))
        self.plugin: subprocess.Popen[bytes] | None = None
        program = Program.ask(PROGRAM)
        settings = program.settings(
            lab, folder, lab.endpoint, cgroupRoot=group, cgroupsPerQOS=False, staticPodPath=str(self.pods)
        )
        (folder / "kubelet.json").write_text(json.dumps(settings))
        script = UNSHARED.format(place=self.place)
        own = ["unshare", "--mount", "sh", "-c", script, "sh", *program.command(lab, folder, lab.endpoint)]
        self.command = own
        self.kubelet: subprocess.Popen[bytes] | None = None

    def start_kubelet(self) -> None:
        self.kubelet = started(self.command, self.folder / "kubelet.log")

    def start_plugin(self) -> None:
        vendors = self.folder / "run" / "device-plugins"
        given = {"lists": [{"gpu-0": "Healthy"}], "nodes": ["/dev/null"]}
        argv = [sys.executable, "-m", "packages.devices.tests.scripted_plugin", str(vendors), json.dumps(given)]
        self.plugin = subprocess.Popen(argv, cwd=ROOT)

    def add(self, name: str) -> None:
        """A pod that writes down what it sees."""
        container = {
            "name": "main", "image": self.image, "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", f"env > /out/{name}; trap 'exit 0' TERM; sleep 3600 & wait"],
            "resources": {"limits": {GPU: "1"}},
            "volumeMounts": [{"name": "out", "mountPath": "/out"}],
        }  # fmt: skip
        pod = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "hostNetwork": True, "terminationGracePeriodSeconds": 2, "containers": [container],
                "volumes": [{"name": "out", "hostPath": {"path": str(self.folder / "out")}}],
            },
        }  # fmt: skip
        hidden = self.pods / f".{name}"
        hidden.write_text(yaml.safe_dump(pod))
        hidden.rename(self.pods / f"{name}.yaml")

    def remove(self, name: str) -> None:
        (self.pods / f"{name}.yaml").unlink()

    def runs(self, name: str) -> bool:
        return (self.folder / "out" / name).exists()

    def state(self) -> str:
        lines = self.kepd.ctl("get", "devices").stdout.splitlines()
        return next((line.split()[1] for line in lines if line.startswith(f"{GPU}/gpu-0")), "")

    def resets(self) -> int:
        return len(self.witness.read_text().splitlines()) if self.witness.exists() else 0

    def annotations(self) -> list[dict[str, str]]:
        items = self.lab.cri.call("ListContainers", pb.ListContainersRequest()).containers
        return [dict(one.annotations) for one in items if one.state == pb.CONTAINER_RUNNING]

    def told(self, text: str) -> bool:
        return text in (self.folder / "kubelet.log").read_text(errors="replace")

    def end(self) -> None:
        for process in (self.plugin, self.kubelet):
            if process is not None:
                process.terminate()
                process.wait(30)
        self.kepd.end()
        clear_sandboxes(self.lab)


@pytest.fixture
def node(lab: Lab, short_path: Path, free_port: int) -> Iterator[Node]:
    with groups(f"kepd-{free_port}") as group, machine_as_before(lab, short_path):
        made = Node(lab, short_path, free_port, group)
        made.kepd.start()
        try:
            yield made
        finally:
            made.end()


def test_a_kubelet_gives_a_device_to_the_next_pod_only_after_its_reset(node: Node) -> None:
    """DVP-22 to DVP-25: kepd, the plugin and the kubelet begin anew in between; the pod keeps its device."""
    kepd = node.kepd
    node.start_kubelet()
    kepd.wait_ready()
    node.start_plugin()
    kepd.wait(lambda: node.state() == "free", "clean")
    kepd.wait(lambda: kepd.log.read_text().count("front_registered") == 1, "registered")
    node.add("first")
    kepd.wait(lambda: node.runs("first"), "it runs")
    kepd.wait(lambda: node.state() == "held", "held")
    (notes,) = [{key: one for key, one in found.items() if key.startswith("kepd.dev/")} for found in node.annotations()]
    assert list(notes.values()) == [f"{GPU}=gpu-0"]
    assert node.resets() == 1

    assert node.kubelet is not None
    node.kubelet.terminate()
    node.kubelet.wait(30)
    node.start_kubelet()
    kepd.wait(lambda: kepd.log.read_text().count("front_registered") == 2, "registered with the new one")
    kepd.end(9)
    kepd.start().wait_ready()
    assert node.plugin is not None
    node.plugin.kill()
    node.plugin.wait()
    node.start_plugin()
    kepd.wait(lambda: node.state() == "held", "held, as before")
    kepd.wait(lambda: kepd.log.read_text().count("front_registered") == 3, "registered by the new kepd")
    assert node.resets() == 1

    node.gate.unlink()
    node.remove("first")
    kepd.wait(lambda: node.state() == "resetting", "it is reset")
    node.add("second")
    kepd.wait(lambda: node.told("example.com/gpu") and node.told("default/second"), "the kubelet thinks of it")
    assert not node.runs("second")
    node.gate.touch()
    kepd.wait(lambda: node.state() != "resetting", "clean")
    if node.state() == "free":
        # The kubelet had heard, and refused the pod for good; it does not try a pod of a file again.
        node.remove("second")
        node.add("third")
    kepd.wait(lambda: node.runs("second") or node.runs("third"), "it has the device")
    assert node.resets() >= 2
    assert "GPUS=gpu-0" in next((node.folder / "out").glob("[st]*")).read_text()
