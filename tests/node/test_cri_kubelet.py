# SPDX-License-Identifier: Apache-2.0
"""A real kubelet behind the proxy, with pods from files: what no scripted one can tell.

Runs where KEPD_KUBELET names a kubelet program, 1.29 or newer. A kubelet changes settings of the whole machine and
links logs into a directory of the machine; all is put back.
"""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.wire.cri import runtime_v1_pb2 as pb
from tests.host.process import Kepd
from tests.lab import Image, Lab, Throttle
from tests.lab.kubelet import Program, machine_as_before

PROGRAM = os.environ.get("KEPD_KUBELET", "")
pytestmark = [
    pytest.mark.node,
    pytest.mark.timeout(180),
    pytest.mark.beside("KEPD_KUBELET"),
]

STAY = "trap 'exit 0' TERM; sleep 3600 & wait"
SLOW = "trap 'sleep 2; exit 0' TERM; sleep 3600 & wait"
SIDECAR = {"kepd.dev/sidecars": "side", "kepd.dev/mains": "main"}
LIMIT = 2


class Node:
    """A kubelet without an API server, kepd in front of its runtime, and the pods that it finds in a directory."""

    def __init__(self, kepd: Kepd, lab: Lab) -> None:
        self.kepd, self.lab, self.folder = kepd, lab, kepd.folder
        self.link = self.folder / "run" / "cri" / "kubelet.sock"
        self.pods = self.folder / "pods"
        self.pods.mkdir()
        self.program = Program.ask(PROGRAM)
        self.log = self.folder / "kubelet.log"
        self.settings = self.folder / "kubelet.json"
        self.settings.write_text(json.dumps(self._settings()))
        self.process: subprocess.Popen[bytes] | None = None

    def _settings(self) -> dict[str, Any]:
        own = {"staticPodPath": str(self.pods), "cgroupRoot": self.lab.place.cgroup_parent, "cgroupsPerQOS": False}
        return self.program.settings(self.lab, self.folder, f"unix://{self.link}", **own)

    def start_kubelet(self) -> None:
        command = self.program.command(self.lab, self.folder, f"unix://{self.link}")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop_kubelet(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)

    def put(
        self,
        name: str,
        containers: Sequence[Mapping[str, Any]],
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """A pod begins to be wanted; `spec` beside its containers."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {"terminationGracePeriodSeconds": 8, **spec, "containers": containers},
        }
        draft = self.folder / name
        draft.write_text(json.dumps(pod))
        draft.rename(self.pods / f"{name}.json")

    def containers(self, pod: str) -> dict[str, pb.ContainerStatus]:
        """The newest of each name, from the runtime itself."""
        labels = {"io.kubernetes.pod.name": f"{pod}-n1"}
        request = pb.ListContainersRequest(filter=pb.ContainerFilter(label_selector=labels))
        found = {}
        for one in sorted(self.lab.cri.call("ListContainers", request).containers, key=lambda one: one.created_at):
            try:
                status = pb.ContainerStatusRequest(container_id=one.id)
                found[one.metadata.name] = self.lab.cri.call("ContainerStatus", status).status
            except grpc.RpcError:
                continue  # gone since
        return found

    def running(self, pod: str) -> set[str]:
        return {name for name, one in self.containers(pod).items() if one.state == pb.CONTAINER_RUNNING}

    def wait_running(self, pod: str, *names: str, within_s: float = 40.0) -> dict[str, pb.ContainerStatus]:
        self.kepd.wait(lambda: self.running(pod) == set(names), f"{pod} runs; {self.errors()}", within_s)
        return self.containers(pod)

    def ends(self, *pods: str) -> dict[str, dict[str, pb.ContainerStatus]]:
        """Remove pods; their containers as they were last seen, since a kubelet removes them soon after their end."""
        seen: dict[str, dict[str, pb.ContainerStatus]] = {pod: {} for pod in pods}
        for pod in pods:
            (self.pods / f"{pod}.json").unlink()

        def are_over() -> bool:
            for pod in pods:
                seen[pod].update(self.containers(pod))
            return all(one.state == pb.CONTAINER_EXITED for pod in pods for one in seen[pod].values())

        self.kepd.wait(are_over, f"{pods} end", 40.0)
        return seen

    def errors(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if re.match(r"E\d{4} ", line)][-10:]


def container(name: str, image: str, script: str = STAY, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": image, "command": ["sh", "-c", script], "imagePullPolicy": "IfNotPresent", **more}


@pytest.fixture
def node(lab: Lab, short_path: Path, free_port: int) -> Iterator[Node]:
    extra = f"proxy: {{kubeletConfig: {short_path}/kubelet.json}}\nimages: {{maxParallelPulls: {LIMIT}}}\n"
    with (
        machine_as_before(lab, short_path),
        Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as kepd,
    ):
        made = Node(kepd, lab)
        kepd.start("--planes", "proxy,images").wait_ready()
        made.start_kubelet()
        try:
            yield made
        finally:
            made.stop_kubelet()
            lab.cri.remove_all_pods(20.0)
        assert "Traceback" not in kepd.log.read_text(), kepd.log.read_text()


@pytest.fixture
def image(lab: Lab) -> str:
    reference = lab.push(Image(name="node/kubelet"))
    lab.cri.pull(reference)
    return reference


def test_sidecars_start_first_and_stop_last_by_annotation_and_by_the_kubelet_itself(node: Node, image: str) -> None:
    """ORD-3, STO-1, STO-9: the same order for containers listed the wrong way round and for native sidecars."""
    native = {"initContainers": [container("side", image, restartPolicy="Always")]}
    node.put("listed", [container("main", image, SLOW), container("side", image)], SIDECAR)
    node.put("native", [container("main", image, SLOW)], SIDECAR, **native)
    for pod in ("listed", "native"):
        started = node.wait_running(pod, "main", "side")

        assert started["side"].started_at < started["main"].started_at
        assert {one.metadata.attempt for one in started.values()} == {0}
    for ended in node.ends("listed", "native").values():
        assert ended["side"].finished_at > ended["main"].finished_at
        assert {one.exit_code for one in ended.values()} == {0}


def test_pulls_of_many_pods_stay_below_the_limit(node: Node, lab: Lab, throttle: Throttle) -> None:
    """IMG-S01, NOH-7: the kubelet asks for all at once, the registry sees two."""
    images = [Image.sized(f"node/many{number}", 400_000) for number in range(6)]
    for one in images:
        lab.push(one)
    throttle.limit(total_bytes_s=800_000)
    for number, one in enumerate(images):
        node.put(f"many{number}", [container("main", lab.throttled(one))])
    for number in range(len(images)):
        node.wait_running(f"many{number}", "main")

    own_layers = "|".join(lab.build(one).layer_digests[-1] for one in images)
    assert throttle.peak_in_flight(own_layers) == LIMIT


def test_kill_9_while_a_main_waits_restarts_nothing(node: Node, image: str) -> None:
    """REC-1, REC-5: the kubelet asks again, and its pod is as if nothing had happened."""
    slow = "trap 'exit 0' TERM; sleep 4; touch /tmp/ready; sleep 3600 & wait"
    ready = {"kepd.dev/ready.side": 'exec:["test", "-e", "/tmp/ready"]'}
    node.put("kill", [container("side", image, slow), container("main", image)], {**SIDECAR, **ready})
    node.kepd.wait(lambda: "held:" in node.kepd.ctl("get", "proxy").stderr, "main is held", 40.0)
    node.kepd.end(signal.SIGKILL)
    node.kepd.start("--planes", "proxy,images")
    started = node.wait_running("kill", "main", "side")

    assert started["main"].started_at - started["side"].started_at > 3.5e9
    assert {one.metadata.attempt for one in started.values()} == {0}
    time.sleep(2)
    assert node.running("kill") == {"main", "side"}
