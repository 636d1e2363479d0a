# SPDX-License-Identifier: Apache-2.0
"""The same manifests on kepd and on a kubelet of one's own (`KEPD_KUBELET=PROGRAM`), each with a containerd of its own.

From the rename of the last manifest until each pod's last container has started by the runtime's clock; from the
removal of the files until none runs. Both are up all the time and take turns. Medians of all rounds, and kepd's share
of the kubelet's figure. Version 1 of control groups needs a kubelet that is set to take it, so this one is.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
CROWD, MANY = 20, 100
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

    def running(self) -> list[pb.Container]:
        running = pb.ContainerFilter(state=pb.ContainerStateValue(state=pb.CONTAINER_RUNNING))
        return list(self.lab.cri.call("ListContainers", pb.ListContainersRequest(filter=running)).containers)

    def ready_s(self, since_s: float) -> list[float]:
        """For each pod, when the last of its containers started."""
        latest: dict[str, int] = {}
        for one in self.running():
            status = self.lab.cri.call("ContainerStatus", pb.ContainerStatusRequest(container_id=one.id)).status
            latest[one.pod_sandbox_id] = max(status.started_at, latest.get(one.pod_sandbox_id, 0))
        return [at / 1e9 - since_s for at in latest.values()]

    def start(self, prefix: str, count: int) -> list[float]:
        """Seconds until each runs."""
        began_s, deadline_s = self.write([f"{prefix}{number}" for number in range(count)]), time.monotonic() + WITHIN_S
        while len(self.running()) < 2 * count:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"not {count} pods within {WITHIN_S} s")
            time.sleep(0.05)
        return self.ready_s(began_s)

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


def one_round(runner: Runner, number: int, figures: dict[str, list[float]]) -> None:
    """One pod, some, and many, each started and ended; adds to what earlier rounds measured."""

    def add(what: str, value: float) -> None:
        figures.setdefault(what, []).append(value)

    for count in (1, CROWD, MANY):
        ready = runner.start(f"r{number}c{count}x", count)
        add(f"{count} pods: mean time to ready", statistics.mean(ready))
        add(f"{count} pods: last ready", max(ready))
        time.sleep(SETTLE_S)
        if count == CROWD:
            before_s = cpu_s(runner.pid)
            time.sleep(IDLE_S)
            add(f"idle with {CROWD} pods", (cpu_s(runner.pid) - before_s) / IDLE_S * 100)
            add(f"resident with {CROWD} pods", resident_mib(runner.pid))
        before_s = cpu_s(runner.pid)
        add(f"{count} pods: all ended, after a rest", runner.end())
        add(f"{count} pods: own CPU of their end", cpu_s(runner.pid) - before_s)
        # A kubelet that has just started a pod sees it at its next look at all of them, up to a second later: for one
        # pod that is chance, and takes more rounds.
        for again in range({1: 4, CROWD: 1}.get(count, 0)):
            runner.start(f"r{number}c{count}y{again}", count)
            add(f"{count} pods: all ended, as soon as they ran", runner.end())


UNITS = {"idle": "% of a core", "resident": "MiB"}
GOALS = {
    "1 pods: last ready": "≤ 0.95",
    "1 pods: all ended, as soon as they ran": "≤ 0.2",
    "20 pods: mean time to ready": "≤ 0.7",
    "20 pods: last ready": "≤ 1.0",
    "20 pods: all ended, as soon as they ran": "≤ 0.8",
    "100 pods: mean time to ready": "≤ 0.6",
    "100 pods: last ready": "≤ 1.0",
    "100 pods: all ended, after a rest": "≤ 1.0",
    "idle with 20 pods": "≤ 0.15",
    "resident with 20 pods": "≤ 0.85",
}


def measure() -> list[Row]:
    """Both, and what is left of the kubelet's figure."""
    program = os.environ.get("KEPD_KUBELET", "")
    if not program:
        raise SystemExit("bench kubelet: set KEPD_KUBELET to the path of a kubelet")
    asked = Program.ask(program)
    theirs: dict[str, list[float]] = {}
    ours: dict[str, list[float]] = {}
    with kubelet(asked) as one, kepd(pod_for(asked)) as other:
        for number in range(ROUNDS):
            one_round(one, number, theirs)
            one_round(other, number, ours)
    rows: list[Row] = []
    for what, values in theirs.items():
        unit = UNITS.get(what.partition(" ")[0], "s")
        before, after = statistics.median(values), statistics.median(ours[what])
        rows += [(f"{what}, kubelet {asked.label}", before, unit, ""), (f"{what}, kepd", after, unit, "")]
        rows.append(("  kepd's share of it", after / before, "x", GOALS.get(what, "")))
    return rows
