# SPDX-License-Identifier: Apache-2.0
"""The same manifests on kepd and on a kubelet of one's own (`KEPD_KUBELET=PROGRAM`), each with a containerd of its own.

From the rename of the last manifest until each pod's last container has started by the runtime's clock; from the
removal of the files until none runs. Both are up all the time and take turns. Medians of all rounds, and kepd's share
of the kubelet's figure. Version 1 of control groups needs a kubelet that is set to take it, so this one is.

Of two equal daemons the one that is measured right after the other starts 20 pods up to a fifth slower, since the
kernel still takes down the networks of the pods before; and so does the one whose containerd started last. So both wait
until the machine has come to rest and take turns step by step, and after half of the rounds both start anew, in the
other order. Both are slower where they have had hundreds of pods than where they have had none, a kubelet more so.
"""

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.wire.cri import runtime_v1_pb2 as pb
from bench.daemon import cpu_s, free_port, resident_mib
from bench.pods import POD as WITH_SIDECAR
from bench.runtime_calls import RuntimeLog
from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.lab.kubelet import Program, groups
from tests.lab.kubelet import kubelet as running_kubelet

Row = tuple[str, float, str, str]
ROUNDS = 3
FRESH_STARTS = 10
CROWD, MANY = 20, 100
IDLE_S, SETTLE_S, REST_S, WITHIN_S = 20.0, 3.0, 4.0, 180.0


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

    def start_one(self, name: str) -> tuple[float, float]:
        """Seconds until it runs, and how many of them no call of the runtime for it was under way."""
        log = RuntimeLog(self.lab.place.log("containerd"))
        began_s = self.write([name])
        while len(self.running()) < 2:
            time.sleep(0.05)
        ready_s = max(self.ready_s(began_s))
        return ready_s, log.outside_s(began_s, began_s + ready_s)

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

    def end_by_hand(self) -> float:
        """Seconds that the runtime itself takes to end the containers of a pod one after the other, the last to begin
        first, while its keeper stands still: what is left if that takes no time at all."""
        os.kill(self.pid, signal.SIGSTOP)
        began_s = time.monotonic()
        for one in sorted(self.running(), key=lambda one: -one.created_at):
            self.lab.cri.call("StopContainer", pb.StopContainerRequest(container_id=one.id, timeout=5))
        took_s = time.monotonic() - began_s
        os.kill(self.pid, signal.SIGCONT)
        self.end()
        return took_s


@contextmanager
def kepd(pod: str = WITH_SIDECAR) -> Iterator[Runner]:
    with Lab.start() as lab, tempfile.TemporaryDirectory(prefix="kepd-bench-") as path:
        image = lab.push(Image(name="bench/kubelet"))
        lab.cri.pull(image)
        extra = f"pods: {{logDirectory: {path}/logs, logLinkDirectory: ''}}\n"
        # As it is on a node, where a kubelet looks for what runs short too.
        given = {"KEPD_PODS__EVICTION__MODE": "auto"}
        with Kepd(Path(path), free_port(), endpoint=lab.endpoint, extra=extra, **given) as daemon:
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


@dataclass
class Side:
    runner: Runner
    figures: dict[str, list[float]]

    def add(self, what: str, value: float) -> None:
        self.figures.setdefault(what, []).append(value)

    def start(self, prefix: str, count: int) -> None:
        ready = self.runner.start(prefix, count)
        self.add(f"{count} pods: mean time to ready", statistics.mean(ready))
        self.add(f"{count} pods: last ready", max(ready))

    def run(self, prefix: str, count: int) -> None:
        """So many pods, started and ended; adds to what earlier rounds measured."""
        runner = self.runner
        self.start(f"{prefix}x", count)
        time.sleep(SETTLE_S)
        if count == CROWD:
            before_s = cpu_s(runner.pid)
            time.sleep(IDLE_S)
            self.add(f"idle with {CROWD} pods", (cpu_s(runner.pid) - before_s) / IDLE_S * 100)
            self.add(f"resident with {CROWD} pods", resident_mib(runner.pid))
        before_s = cpu_s(runner.pid)
        self.add(f"{count} pods: all ended, after a rest", runner.end())
        self.add(f"{count} pods: own CPU of their end", cpu_s(runner.pid) - before_s)
        # A kubelet that has just started a pod sees it at its next look at all of them, up to a second later: for one
        # pod that is chance, and takes more rounds.
        for again in range({1: 2, CROWD: 1}.get(count, 0)):
            at_rest()
            self.start(f"{prefix}y{again}", count)
            self.add(f"{count} pods: all ended, as soon as they ran", runner.end())
        for again in range({1: 2}.get(count, 0)):
            at_rest()
            self.start(f"{prefix}z{again}", count)
            self.add(f"{count} pods: ended by hand", runner.end_by_hand())


def at_rest() -> None:
    """Until the kernel has taken down the networks of pods that are gone: it does so one after the other, later."""
    before = -1
    while (now := networks()) != before:
        before = now
        time.sleep(REST_S)


def networks() -> int:
    lines = Path("/proc/slabinfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("net_namespace"))


FRESH = "1 pods: ready, on a fresh node"
OUTSIDE = "1 pods: the same, while the runtime is asked for nothing"
UNITS = {"idle": "% of a core", "resident": "MiB"}
GOALS = {
    FRESH: "≤ 0.95",
    "20 pods: mean time to ready": "≤ 0.7",
    "20 pods: last ready": "≤ 1.0",
    "20 pods: all ended, as soon as they ran": "≤ 0.8",
    "100 pods: mean time to ready": "≤ 0.6",
    "100 pods: last ready": "≤ 1.0",
    "100 pods: all ended, after a rest": "≤ 1.0",
    "idle with 20 pods": "≤ 0.15",
    "resident with 20 pods": "≤ 0.85",
}


def _one_start(sides: list[Side], name: str) -> None:
    """Of one pod, by daemons that have had few others."""
    for side in sides:
        at_rest()
        ready_s, outside_s = side.runner.start_one(f"f{name}")
        side.add(FRESH, ready_s)
        side.add(OUTSIDE, outside_s)
        time.sleep(SETTLE_S)
        side.runner.end()
    sides.reverse()


def _one_round(sides: list[Side], name: str) -> None:
    for count in (1, CROWD, MANY):
        for side in sides:
            at_rest()
            side.run(f"r{name}c{count}", count)
        sides.reverse()


def measure() -> list[Row]:
    """Both, and what is left of the kubelet's figure."""
    program = os.environ.get("KEPD_KUBELET", "")
    if not program:
        raise SystemExit("bench kubelet: set KEPD_KUBELET to the path of a kubelet")
    asked = Program.ask(program)
    theirs: dict[str, list[float]] = {}
    ours: dict[str, list[float]] = {}
    order: list[tuple[Callable[[], AbstractContextManager[Runner]], dict[str, list[float]]]]
    order = [(lambda: kubelet(asked), theirs), (lambda: kepd(pod_for(asked)), ours)]
    for half in "ab":
        with ExitStack() as stack:
            sides = [Side(stack.enter_context(begin()), figures) for begin, figures in order]
            for number in range(FRESH_STARTS):
                _one_start(sides, f"{half}{number}")
            for number in range(ROUNDS):
                _one_round(sides, f"{half}{number}")
        order.reverse()
    rows: list[Row] = []
    for what, values in theirs.items():
        unit = UNITS.get(what.partition(" ")[0], "s")
        before, after = statistics.median(values), statistics.median(ours[what])
        rows += [(f"{what}, kubelet {asked.label}", before, unit, ""), (f"{what}, kepd", after, unit, "")]
        rows.append(("  kepd's share of it", after / before, "x", GOALS.get(what, "")))
    return [*rows, *what_is_added(theirs, ours)]


def what_is_added(theirs: dict[str, list[float]], ours: dict[str, list[float]]) -> list[Row]:
    """To the runtime's own time for the end of one pod. A kubelet ends a pod at once or at its next look around, a
    second later: the mean of many tells more of that than a median, which is one or the other."""
    ended, by_hand = "1 pods: all ended, as soon as they ran", "1 pods: ended by hand"
    floor_s = statistics.mean((*theirs[by_hand], *ours[by_hand]))
    before, after = (statistics.mean(side[ended]) - floor_s for side in (theirs, ours))
    return [
        ("1 pods: added to the runtime's own time for the end, mean, kubelet", before, "s", ""),
        ("1 pods: added to the runtime's own time for the end, mean, kepd", after, "s", ""),
        ("  kepd's share of it", after / before, "x", "≤ 0.2"),
    ]
