# SPDX-License-Identifier: Apache-2.0
"""The same manifests on kepd and on a kubelet of one's own (`KEPD_KUBELET=PROGRAM`), each with a containerd of its own.

From the rename of the last manifest until the last container has started by the runtime's clock; from the removal of
the files until none runs. They take turns, each in the state that it starts in. Medians, and kepd's share of the
kubelet's time. Version 1 of control groups needs a kubelet that is told to take it, so this one is.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.wire.cri import runtime_v1_pb2 as pb
from bench.daemon import cpu_s, free_port, resident_mib
from bench.pods import POD as WITH_SIDECAR
from tests.daemon.process import Kepd
from tests.lab import Image, Lab
from tests.lab.kubelet import Program, groups
from tests.lab.kubelet import kubelet as running_kubelet

Row = tuple[str, float, str, str]
ROUNDS = 5
CROWD, CROWDS, MANY = 20, 3, 100
IDLE_S, SETTLE_S, WITHIN_S = 20.0, 3.0, 180.0


# For kubelets before 1.29, where an init container that stays holds the others up for ever.
WITHOUT_SIDECAR = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - {name: side, image: "IMAGE", imagePullPolicy: IfNotPresent}
  - {name: main, image: "IMAGE", imagePullPolicy: IfNotPresent}
"""
SIDECARS = (1, 29)


@dataclass(frozen=True)
class Runner:
    """Something that runs the pods of a directory."""

    pid: int
    manifests: Path
    lab: Lab
    image: str
    pod: str = WITH_SIDECAR

    def write(self, names: list[str]) -> float:
        for name in names:
            hidden = self.manifests / f".{name}"
            hidden.write_text(self.pod.replace("NAME", name).replace("IMAGE", self.image))
            hidden.rename(self.manifests / f"{name}.yaml")
        return time.time()

    def running(self) -> list[str]:
        running = pb.ContainerFilter(state=pb.ContainerStateValue(state=pb.CONTAINER_RUNNING))
        found = self.lab.cri.call("ListContainers", pb.ListContainersRequest(filter=running))
        return [one.id for one in found.containers]

    def started_s(self) -> float:
        """When the last one did."""
        asked = [pb.ContainerStatusRequest(container_id=one) for one in self.running()]
        return float(max(self.lab.cri.call("ContainerStatus", one).status.started_at for one in asked)) / 1e9

    def start(self, prefix: str, count: int) -> float:
        """Seconds until all run."""
        began_s, deadline_s = self.write([f"{prefix}{number}" for number in range(count)]), time.monotonic() + WITHIN_S
        while len(self.running()) < 2 * count:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"not {count} pods within {WITHIN_S} s")
            time.sleep(0.05)
        return self.started_s() - began_s

    def end(self) -> float:
        """Seconds until none runs."""
        began_s = time.monotonic()
        for path in self.manifests.glob("*.yaml"):
            path.unlink()
        while self.running():
            time.sleep(0.02)
        took_s = time.monotonic() - began_s
        time.sleep(SETTLE_S)
        return took_s


@contextmanager
def kepd(pod: str = WITH_SIDECAR) -> Iterator[Runner]:
    with Lab.start() as lab, tempfile.TemporaryDirectory(prefix="kepd-bench-") as path:
        image = lab.push(Image(name="bench/kubelet"))
        lab.cri.pull(image)
        extra = f"pods: {{logDirectory: {path}/logs, logLinkDirectory: ''}}\n"
        with Kepd(Path(path), free_port(), endpoint=lab.endpoint, extra=extra) as daemon:
            daemon.start("--planes", "pods").wait_ready()
            assert daemon.process is not None
            yield Runner(daemon.process.pid, daemon.manifests, lab, image, pod)


def pod_for(program: Program) -> str:
    return WITH_SIDECAR if program.version >= SIDECARS else WITHOUT_SIDECAR


@contextmanager
def kubelet(program: Program) -> Iterator[Runner]:
    """One without an API server. What it does to the machine is undone."""
    with ExitStack() as stack:
        group = stack.enter_context(groups(f"kepd-bench-{os.getpid()}"))
        lab = stack.enter_context(Lab.start())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kepd-bench-")))
        image = lab.push(Image(name="bench/kubelet"))
        lab.cri.pull(image)
        settings = program.settings(lab, folder, lab.endpoint, cgroupRoot=group, port=free_port())
        process = stack.enter_context(running_kubelet(program, lab, folder, settings))
        time.sleep(2 * SETTLE_S)
        yield Runner(process.pid, folder / "manifests", lab, image, pod_for(program))


def figures(begun: AbstractContextManager[Runner]) -> dict[str, float]:
    """Of one of them."""
    with begun as runner:
        starts, ends = [], []
        for number in range(ROUNDS):
            starts.append(runner.start(f"one{number}", 1))
            ends.append(runner.end())
        crowds, crowd_ends, idle, memory = [], [], 0.0, 0.0
        for number in range(CROWDS):
            crowds.append(runner.start(f"crowd{number}x", CROWD))
            if not number:
                time.sleep(SETTLE_S)
                before_s = cpu_s(runner.pid)
                time.sleep(IDLE_S)
                idle = (cpu_s(runner.pid) - before_s) / IDLE_S * 100
                memory = resident_mib(runner.pid)
            crowd_ends.append(runner.end())
        many_s = runner.start("many", MANY)
        return {
            "one pod: starts": statistics.median(starts),
            "one pod: ends": statistics.median(ends),
            f"{CROWD} pods: start": statistics.median(crowds),
            f"{CROWD} pods: end": statistics.median(crowd_ends),
            f"{MANY} pods: start": many_s,
            f"{MANY} pods: end": runner.end(),
            f"idle with {CROWD} pods": idle,
            f"resident with {CROWD} pods": memory,
        }


UNITS = {"idle": "% of a core", "resident": "MiB"}


def measure() -> list[Row]:
    """Both, and what is left of the kubelet's figure."""
    program = os.environ.get("KEPD_KUBELET", "")
    if not program:
        raise SystemExit("bench kubelet: set KEPD_KUBELET to the path of a kubelet")
    asked = Program.ask(program)
    theirs, ours = figures(kubelet(asked)), figures(kepd(pod_for(asked)))
    rows: list[Row] = []
    for what, value in theirs.items():
        unit = UNITS.get(what.partition(" ")[0], "s")
        rows += [(f"{what}, kubelet {asked.label}", value, unit, ""), (f"{what}, kepd", ours[what], unit, "")]
        rows.append(("  kepd's share of it", ours[what] / value, "x", "< 1"))
    return rows
