# SPDX-License-Identifier: Apache-2.0
"""The same manifests on kepd and on a kubelet of one's own (`KEPD_KUBELET=PROGRAM`), each with a containerd of its own.

From the rename of the last manifest until the last container has started by the runtime's clock; from the removal of
the files until none runs. They take turns, each in the state that it starts in. Medians, and kepd's share of the
kubelet's time. Version 1 of control groups needs a kubelet that is told to take it, so this one is.
"""

import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.wire.cri import runtime_v1_pb2 as pb
from bench.daemon import cpu_s, free_port, resident_mib
from bench.pods import POD
from tests.daemon.process import Kepd
from tests.lab import Image, Lab

Row = tuple[str, float, str, str]
ROUNDS = 5
CROWD, CROWDS, MANY = 20, 3, 100
IDLE_S, SETTLE_S, WITHIN_S = 20.0, 3.0, 180.0
KUBELET = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: {manifests}
cgroupDriver: cgroupfs
cgroupRoot: {group}
enforceNodeAllocatable: []
failSwapOn: false
failCgroupV1: false
podLogsDir: {folder}/logs
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
registerNode: false
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
port: {port}
healthzPort: 0
containerRuntimeEndpoint: {endpoint}
maxPods: 500
"""


@dataclass(frozen=True)
class Runner:
    """Something that runs the pods of a directory."""

    pid: int
    manifests: Path
    lab: Lab
    image: str

    def write(self, names: list[str]) -> float:
        for name in names:
            hidden = self.manifests / f".{name}"
            hidden.write_text(POD.replace("NAME", name).replace("IMAGE", self.image))
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
def kepd() -> Iterator[Runner]:
    with Lab.start() as lab, tempfile.TemporaryDirectory(prefix="kepd-bench-") as path:
        image = lab.push(Image(name="bench/kubelet"))
        lab.cri.pull(image)
        extra = f"pods: {{logDirectory: {path}/logs, logLinkDirectory: ''}}\n"
        with Kepd(Path(path), free_port(), endpoint=lab.endpoint, extra=extra) as daemon:
            daemon.start("--planes", "pods").wait_ready()
            assert daemon.process is not None
            yield Runner(daemon.process.pid, daemon.manifests, lab, image)


@contextmanager
def kubelet(program: str) -> Iterator[Runner]:
    """One without an API server. Its mounts, control groups and sysctls are undone."""
    with ExitStack() as stack:
        group = f"kepd-bench-{os.getpid()}"
        stack.callback(remove_groups, group)
        make_groups(group)
        lab = stack.enter_context(Lab.start())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kepd-bench-")))
        for name in ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops"):
            file = Path("/proc/sys", name)
            stack.callback(file.write_text, file.read_text())
        image = lab.push(Image(name="bench/kubelet"))
        lab.cri.pull(image)
        manifests = folder / "manifests"
        manifests.mkdir()
        (folder / "logs").mkdir()
        settings = KUBELET.format(
            manifests=manifests, folder=folder, endpoint=lab.endpoint, port=free_port(), group=f"/{group}"
        )
        (folder / "config.yaml").write_text(settings)
        flags = ["--config", f"{folder}/config.yaml", "--root-dir", f"{folder}/root", "--cert-dir", f"{folder}/certs"]
        command = lab.netns.command([program, *flags, "--hostname-override=n1", "--node-ip=127.0.0.1"])
        log = stack.enter_context((folder / "log").open("w"))
        process = subprocess.Popen(command, stdout=log, stderr=log)
        stack.callback(unmount, folder)
        stack.callback(process.wait, 30)
        stack.callback(process.terminate)
        time.sleep(2 * SETTLE_S)
        yield Runner(process.pid, manifests, lab, image)


def make_groups(name: str) -> None:
    """Where the kubelet's are to be; in version 1, in every hierarchy."""
    root = Path("/sys/fs/cgroup")
    for place in [root] if (root / "cgroup.controllers").exists() else root.iterdir():
        made = place / name
        made.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            if place.name == "cpuset":
                (made / file).write_text((place / file).read_text())


def remove_groups(name: str) -> None:
    for made in Path("/sys/fs/cgroup").glob(f"**/{name}"):
        for place, _, _ in os.walk(made, topdown=False):
            Path(place).rmdir()


def unmount(folder: Path) -> None:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for place in reversed([one for one in mounts if one.startswith(str(folder))]):
        subprocess.run(["umount", "-l", place], check=True)


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
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v[\d.]+", told)
    version = found[0] if found else told.strip()
    theirs, ours = figures(kubelet(program)), figures(kepd())
    rows: list[Row] = []
    for what, value in theirs.items():
        unit = UNITS.get(what.partition(" ")[0], "s")
        rows += [(f"{what}, kubelet {version}", value, unit, ""), (f"{what}, kepd", ours[what], unit, "")]
        rows.append(("  kepd's share of it", ours[what] / value, "x", "< 1"))
    return rows
