# SPDX-License-Identifier: Apache-2.0
"""Pods from files: from the rename of a manifest until its containers run, and what the runtime's part of that is.

Real containers on a containerd of its own; images are there. The runtime's share is the sum of kepd's CRI calls for the
pod, as its log tells at level 6, so that what is left is kepd's own. Then 20 pods at once, 100 pods at once, and what
20 pods cost while nothing happens.
"""

import re
import statistics
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.daemon import cpu_s, free_port, resident_mib
from tests.host.process import Kepd
from tests.host.shown_pods import LIST_PODS, pods_in
from tests.lab import Image, Lab

Row = tuple[str, float, str, str]
ROUNDS = 7
IDLE_S = 20.0
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 5
  initContainers:
  - {name: side, image: "IMAGE", imagePullPolicy: IfNotPresent, restartPolicy: Always}
  containers:
  - {name: main, image: "IMAGE", imagePullPolicy: IfNotPresent}
"""
CALL = re.compile(r"time=(\S+) .*event=cri_call_finished method=(\w+) code=(\w+) duration_s=(\S+)")
STARTED = re.compile(r"time=(\S+) .*event=pod_moment_noted .*kind=started ")
STARTING = frozenset({
    "RunPodSandbox", "PodSandboxStatus", "ImageStatus", "CreateContainer", "StartContainer", "ContainerStatus",
})  # fmt: skip


class Node:
    """A daemon with the pods plane on a lab."""

    def __init__(self, kepd: Kepd, image: str) -> None:
        self.kepd = kepd
        self.image = image

    def write(self, name: str) -> float:
        """Rename a manifest into the directory; the moment of that."""
        hidden = self.kepd.manifests / f".{name}"
        hidden.write_text(POD.replace("NAME", name).replace("IMAGE", self.image))
        began_s = time.time()
        hidden.rename(self.kepd.manifests / f"{name}.yaml")
        return began_s

    def pods(self) -> list[dict[str, Any]]:
        done = self.kepd.ctl(*LIST_PODS)
        return pods_in(done.stdout) if done.returncode == 0 else []

    def wait_running(self, count: int, from_s: float, within_s: float = 120.0) -> float:
        """When kepd knew that the last container of so many pods runs. Its log tells: asking it would cost more."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            moments = [
                datetime.fromisoformat(found[1]).timestamp() for found in STARTED.finditer(self.kepd.log.read_text())
            ]
            started = [at_s for at_s in moments if at_s >= from_s]
            if len(started) >= 2 * count:
                return max(started)
            time.sleep(0.05)
        raise RuntimeError(f"not {count} pods within {within_s} s: {self.pods()}")

    def clear(self) -> None:
        """End all pods."""
        for path in self.kepd.manifests.glob("*.yaml"):
            path.unlink()
        deadline_s = time.monotonic() + 120
        while self.pods():
            if time.monotonic() > deadline_s:
                raise RuntimeError("pods are left")
            time.sleep(0.05)

    def calls(self, from_s: float, to_s: float) -> float:
        """Seconds of CRI calls for starts between two moments."""
        total = 0.0
        for found in CALL.finditer(self.kepd.log.read_text()):
            at_s = datetime.fromisoformat(found[1]).timestamp()
            if found[2] in STARTING and from_s <= at_s <= to_s:
                total += float(found[4])
        return total


def one_pod(node: Node) -> list[Row]:
    """Medians over several pods, one after the other."""
    wholes, runtimes, owns = [], [], []
    for number in range(ROUNDS):
        began_s = node.write(f"one{number}")
        ended_s = node.wait_running(1, began_s)
        runtime_s = node.calls(began_s, ended_s)
        wholes.append(ended_s - began_s)
        runtimes.append(runtime_s)
        owns.append(ended_s - began_s - runtime_s)
        node.clear()
    return [
        (
            "one pod (sidecar + main): rename to both running",
            statistics.median(wholes),
            "s",
            "≤ 0.15, or own part ≤ 0.03",
        ),
        ("  of that the runtime's calls", statistics.median(runtimes), "s", ""),
        ("  kepd's own part", statistics.median(owns), "s", "≤ 0.03"),
    ]


def many_pods(node: Node, count: int, stated: str) -> list[Row]:
    """All at once."""
    began_s = time.time()
    for number in range(count):
        node.write(f"p{number}")
    ended_s = node.wait_running(count, began_s)
    faults = sum(
        "level=error" in line or "container_not_started" in line for line in node.kepd.log.read_text().splitlines()
    )
    runtime_s = node.calls(began_s, ended_s)
    return [
        (f"{count} pods ({2 * count} containers): all running", ended_s - began_s, "s", stated),
        ("  of that the runtime's calls, which overlap", runtime_s, "s", ""),
        ("  errors", float(faults), "", "0"),
    ]


def idle(node: Node) -> list[Row]:
    """With pods that do nothing."""
    process = node.kepd.process
    assert process is not None
    time.sleep(3)
    before_s, at_s = cpu_s(process.pid), time.monotonic()
    time.sleep(IDLE_S)
    share = (cpu_s(process.pid) - before_s) / (time.monotonic() - at_s) * 100
    return [
        ("idle with 20 pods", share, "% of a core", "≤ 0.5"),
        ("resident memory with 20 pods", resident_mib(process.pid), "MiB", "≤ 90"),
    ]


def measure() -> list[Row]:
    """All rows."""
    with Lab.start() as lab, tempfile.TemporaryDirectory(prefix="kb") as name:
        folder = Path(name)
        image = lab.push(Image(name="bench/pod"))
        lab.cri.pull(image)
        root = lab.place.cgroup_parent.strip("/")
        extra = f"pods: {{logDirectory: {folder}/logs, cgroupRoot: '{root}', logLinkDirectory: ''}}\n"
        with Kepd(folder, free_port(), endpoint=lab.endpoint, extra=extra) as kepd:
            kepd.start("--planes", "pods", "-v", "6").wait_ready()
            node = Node(kepd, image)
            rows = one_pod(node)
            rows += many_pods(node, 20, "≤ 2.2")
            rows += idle(node)
            node.clear()
            rows += many_pods(node, 100, "no error")
            node.clear()
    return rows
