# SPDX-License-Identifier: Apache-2.0
"""A sandbox that dies under a pod: stopped by others, or its pause process killed."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.wire.cri import runtime_v1_pb2 as pb
from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.node.pods import pods_daemon

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, uid: web}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: out, hostPath: {path: OUT}}]
  initContainers:
  - name: first
    image: IMAGE
    imagePullPolicy: IfNotPresent
    volumeMounts: [{name: out, mountPath: /out}]
    command: [sh, -c, "echo first >> /out/starts"]
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: IfNotPresent
    volumeMounts: [{name: out, mountPath: /out}]
    command: [sh, -c, "echo main >> /out/starts; trap 'exit 0' TERM; while true; do sleep 0.1; done"]
"""


@pytest.fixture
def kepd(lab: Lab, short_path: Path, free_port: int) -> Iterator[Kepd]:
    with pods_daemon(lab, short_path, free_port) as daemon:
        yield daemon


def shown(kepd: Kepd) -> dict[str, Any]:
    return next(iter(kepd.pods()), {})


def stopped(lab: Lab, sandbox: str) -> None:
    lab.cri.call("StopPodSandbox", pb.StopPodSandboxRequest(pod_sandbox_id=sandbox))


def killed(lab: Lab, sandbox: str) -> None:
    request = pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox, verbose=True)
    status = lab.cri.call("PodSandboxStatus", request)
    os.kill(json.loads(status.info["info"])["pid"], signal.SIGKILL)


@pytest.mark.parametrize("death", [stopped, killed])
def test_a_pod_whose_sandbox_dies_begins_anew_with_its_init_containers(
    kepd: Kepd, lab: Lab, short_path: Path, death: Callable[[Lab, str], Any]
) -> None:
    """SBX-02: soon, for the news of it are followed until lists know; the next list by the clock is a minute away."""
    out = short_path / "out"
    out.mkdir()
    image = lab.push(Image(name="node/dead-sandboxes"))
    (kepd.manifests / "web.yaml").write_text(POD.replace("IMAGE", image).replace("OUT", str(out)))
    kepd.wait(lambda: shown(kepd).get("phase") == "Running", "it runs")
    before = shown(kepd)
    death(lab, before["sandboxId"])
    kepd.wait(lambda: shown(kepd).get("sandboxId", "") not in (before["sandboxId"], ""), "another sandbox", 40.0)
    kepd.wait(lambda: len((out / "starts").read_text().split()) >= 4, "it runs again")

    assert (out / "starts").read_text().split() == ["first", "main"] * 2
