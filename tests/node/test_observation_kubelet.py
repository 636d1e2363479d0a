# SPDX-License-Identifier: Apache-2.0
"""The same containers on kepd's page and on a kubelet's: the same families, labels and figures (CMX-04).

Runs where KEPD_KUBELET names a kubelet program, 1.34 or newer.
"""

import os
import subprocess
import time
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from agent.wire.cri import runtime_v1_pb2 as pb
from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.lab.kubelet import Program, groups, kubelet
from tests.observe.kubelets_families import LEFT_OUT, OURS_ALONE

PROGRAM = os.environ.get("KEPD_KUBELET", "")
pytestmark = [pytest.mark.node, pytest.mark.timeout(180), pytest.mark.beside("KEPD_KUBELET")]
POD = """
apiVersion: v1
kind: Pod
metadata: {name: seen, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: "IMAGE"
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "dd if=/dev/zero of=/x bs=1M count=8; while true; do :; done"]
    resources: {limits: {cpu: 200m, memory: 64Mi}}
"""
COMMON = ("container", "id", "image", "name", "namespace", "pod")
PAGES = ("/metrics/cadvisor", "/metrics/resource")


def theirs(lab: Lab, path: str) -> dict[str, Metric]:
    command = ["curl", "-fsk", "--max-time", "20", f"https://127.0.0.1:10250{path}"]
    done = subprocess.run(lab.netns.command(command), capture_output=True, text=True, check=False)
    return {one.name: one for one in text_string_to_metric_families(done.stdout)} if done.returncode == 0 else {}


def ours(kepd: Kepd, path: str) -> dict[str, Metric]:
    return {one.name: one for one in text_string_to_metric_families(kepd.get(path)[1])}


def of_container(families: dict[str, Metric]) -> dict[str, float]:
    """Every series of the container, with labels that only tell series of it apart."""
    return {
        f"{one.name} {sorted(item for item in one.labels.items() if item[0] not in COMMON)}": one.value
        for family in families.values()
        for one in family.samples
        if one.labels.get("container") == "main" and one.labels.get("pod", "").startswith("seen")
    }


def test_a_kubelet_shows_the_same_families_and_figures(lab: Lab, short_path: Path, free_port: int) -> None:
    program = Program.ask(PROGRAM)
    image = lab.push(Image(name="node/seen"))
    extra = "telemetry: {containers: {of: all, spaceEvery: 1s}}\n"
    with groups(f"kepd-seen-{os.getpid()}") as root:
        settings = program.settings(lab, short_path, lab.endpoint, cgroupRoot=root)
        # Its cAdvisor knows containers by their runtime, which it looks for by a flag of its own.
        with kubelet(program, lab, short_path, settings, f"--containerd={lab.endpoint.removeprefix('unix://')}"):
            (short_path / "manifests/seen.yaml").write_text(POD.replace("IMAGE", image))
            (short_path / "kepd").mkdir()
            with Kepd(short_path / "kepd", free_port, endpoint=lab.endpoint, extra=extra) as kepd:
                kepd.start("--planes", "pods").wait_ready()
                kepd.wait(lambda: of_container(theirs(lab, PAGES[0])), "the kubelet shows it", within_s=90)
                for _ in range(2):
                    kepd.wait(lambda: of_container(ours(kepd, PAGES[0])), "kepd shows it")
                    time.sleep(12)
                pages = {path: (ours(kepd, path), theirs(lab, path)) for path in PAGES}
            (short_path / "manifests/seen.yaml").unlink()
            deadline_s = time.monotonic() + 60
            while lab.cri.call("ListPodSandbox", pb.ListPodSandboxRequest()).items and time.monotonic() < deadline_s:
                time.sleep(0.5)
    for path, (found, expected) in pages.items():
        missing = {name for name in expected if name not in found} - LEFT_OUT.keys()
        assert (path, missing) == (path, set())
        assert (path, {name for name in found if name not in expected} - OURS_ALONE.keys()) == (path, set())
        series, wanted = of_container(found), of_container(expected)
        for name in ("container_spec_memory_limit_bytes []", "container_spec_cpu_quota []", "container_memory_rss []"):
            if path == PAGES[0]:
                assert series[name] == pytest.approx(wanted[name], rel=0.05, abs=1 << 17), name
