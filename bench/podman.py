# SPDX-License-Identifier: Apache-2.0
"""The same pods by kepd and by podman (`KEPD_PODMAN=PROGRAM`), each with a runtime and storage of its own.

A pod has two plain containers, for podman knows no sidecars. It starts by `podman kube play` or by the rename of its
manifest, and the figure is when its last container started by the runtime's clock; it ends by `podman kube down` or by
the removal of its manifest. Both take turns, and the order is turned about in each round. Medians of all rounds.

Memory is what is there beside the containers, by proportional share: podman keeps a `conmon` for each container and no
daemon; kepd's is told alone and with the containerd and the shims that it works with.

Where this process has no right to raise limits, a wrapper of podman's runtime takes its wish for higher ones out, in
2 ms for each container.
"""

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from bench.kubelet import WITHOUT_SIDECAR, Runner, at_rest
from bench.kubelet import kepd as running_kepd
from tests.lab.images import Image, build
from tests.lab.namespace import Namespace
from tests.lab.packages import find_programs

Row = tuple[str, float, str, str]
ROUNDS, SINGLES, CROWD = 5, 2, 20
# A shell that is asked to end before it has its trap waits for the end of its grace.
TRAPPED_S = 1.0
IMAGE = "localhost/bench/podman:1"
LONGEST_S = 180.0
MAY_RAISE_LIMITS = 1 << 24
# Podman asks for higher limits than a process may have that has no right to raise them.
WITHOUT_LIMITS = """#!/bin/sh
bundle=
for word; do [ "$last" = --bundle ] && bundle=$word; last=$word; done
[ -z "$bundle" ] || sed -i 's/,"rlimits":\\[[^]]*\\]//' "$bundle/config.json"
exec runc "$@"
"""
CONFIGURATION = """
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "bench"
[engine.runtimes]
bench = ["PROGRAM"]
"""


class Side(Protocol):
    def start(self, prefix: str, count: int) -> float:
        """Seconds until the last container runs."""

    def end(self) -> float: ...

    def memory_mib(self) -> dict[str, float]:
        """What is there beside the containers."""


def proportional_mib(pids: Sequence[int]) -> float:
    total_kib = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total_kib += int(line.split()[1])
    return total_kib / 1024


def processes(program: str, word: str) -> list[int]:
    """Of a program, whose command line has this word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if Path(words[0]).name.startswith(program) and any(word in one for one in words):
            found.append(int(path.parent.name))
    return found


@dataclass(frozen=True)
class Podman:
    command: tuple[str, ...]
    environment: dict[str, str]
    folder: Path

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [*self.command, *words], env=self.environment, capture_output=True, text=True, timeout=LONGEST_S,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"podman {' '.join(words)}: {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    @property
    def manifest(self) -> Path:
        return self.folder / "pods.yaml"

    def start(self, prefix: str, count: int) -> float:
        pods = (WITHOUT_SIDECAR.replace("NAME", f"{prefix}{number}") for number in range(count))
        self.manifest.write_text("---".join(pods).replace("IMAGE", IMAGE))
        began_s = time.time()
        self.run("kube", "play", str(self.manifest))
        names = self.run("ps", "--quiet", "--no-trunc").split()
        said = self.run("inspect", "--format", "{{.State.StartedAt}}", *names).splitlines()
        return max(moment(one) for one in said) - began_s

    def end(self) -> float:
        began_s = time.monotonic()
        self.run("kube", "down", str(self.manifest))
        return time.monotonic() - began_s

    def memory_mib(self) -> dict[str, float]:
        return {"podman, all conmon": proportional_mib(processes("conmon", str(self.folder)))}


def moment(text: str) -> float:
    """`2026-01-31 12:00:00.123456789 +0000 UTC`."""
    day, clock, zone = text.split()[:3]
    whole, _, part = clock.partition(".")
    return datetime.strptime(f"{day} {whole} {zone}", "%Y-%m-%d %H:%M:%S %z").timestamp() + float(f"0.{part or 0}")


@contextmanager
def podman(program: str) -> Iterator[Podman]:
    """In a network namespace of its own; all of it goes."""
    with Namespace() as network, tempfile.TemporaryDirectory(prefix="kepd-bench-") as path:
        folder = Path(path)
        wrapper = folder / "runtime"
        wrapper.write_text(WITHOUT_LIMITS)
        wrapper.chmod(0o755)
        runtime = "/usr/bin/runc" if _may_raise_limits() else str(wrapper)
        (folder / "containers.conf").write_text(CONFIGURATION.replace("PROGRAM", runtime))
        places = {"--root": "root", "--runroot": "run", "--tmpdir": "tmp", "--network-config-dir": "networks"}
        words = [word for flag, name in places.items() for word in (flag, str(folder / name))]
        environment = {**os.environ, "CONTAINERS_CONF": str(folder / "containers.conf")}
        engine = Podman(network.command(program, *words), environment, folder)
        layout = folder / "layout"
        layout.mkdir()
        archive = build(Image(name="bench/podman"), find_programs().paths["busybox"], layout).archive(
            IMAGE, folder / "image.tar"
        )
        engine.run("load", "--input", str(archive))
        try:
            yield engine
        finally:
            engine.run("pod", "rm", "--force", "--all")
            engine.run("rmi", "--force", "--all")
            subprocess.run(["umount", "-q", "-l", str(folder / "root/overlay")], check=False)


def _may_raise_limits() -> bool:
    status = Path("/proc/self/status").read_text()
    return bool(int(status.partition("CapEff:\t")[2].split()[0], 16) & MAY_RAISE_LIMITS)


@dataclass(frozen=True)
class Kepd:
    runner: Runner

    def start(self, prefix: str, count: int) -> float:
        return max(self.runner.start(prefix, count))

    def end(self) -> float:
        return self.runner.end()

    def memory_mib(self) -> dict[str, float]:
        own = proportional_mib([self.runner.pid])
        runtime = processes("containerd", str(self.runner.lab.place.directory))
        return {"kepd": own, "kepd with containerd and its shims": own + proportional_mib(runtime)}


@dataclass
class Figures:
    name: str
    values: dict[str, list[float]]

    def add(self, what: str, value: float) -> None:
        self.values.setdefault(what, []).append(value)

    def run(self, side: Side, prefix: str) -> None:
        for again in range(SINGLES):
            self.add("1 pod starts", side.start(f"{prefix}s{again}-", 1))
            time.sleep(TRAPPED_S)
            self.add("1 pod ends", side.end())
        at_rest()
        self.add(f"{CROWD} pods start", side.start(f"{prefix}c", CROWD))
        time.sleep(TRAPPED_S)
        for who, value in side.memory_mib().items():
            self.add(f"beside the containers of {CROWD} pods: {who}", value)
        self.add(f"{CROWD} pods end", side.end())


def measure() -> list[Row]:
    program = os.environ.get("KEPD_PODMAN", "")
    if not program:
        raise SystemExit("bench podman: set KEPD_PODMAN to the path of a podman")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    with ExitStack() as stack:
        sides: list[tuple[Side, Figures]] = [
            (stack.enter_context(podman(program)), Figures(f"podman {version}", {})),
            (Kepd(stack.enter_context(running_kepd(WITHOUT_SIDECAR))), Figures("kepd", {})),
        ]
        for side, _ in sides:
            side.start("warm", 1)
            side.end()
        for number in range(ROUNDS):
            for side, figures in sides[:: 1 if number % 2 else -1]:
                at_rest()
                figures.run(side, f"r{number}")
    theirs, ours = (figures for _, figures in sorted(sides, key=lambda one: one[1].name, reverse=True))
    rows: list[Row] = []
    for what, values in theirs.values.items():
        if what in ours.values:
            before, after = statistics.median(values), statistics.median(ours.values[what])
            rows += [(f"{what}, {theirs.name}", before, "s", ""), (f"{what}, kepd", after, "s", "")]
            rows.append(("  kepd's share of it", after / before, "x", ""))
    for figures in (theirs, ours):
        rows += [
            (what, statistics.median(values), "MiB", "")
            for what, values in figures.values.items()
            if what.startswith("beside")
        ]
    return rows
