# SPDX-License-Identifier: Apache-2.0
"""kepctl as a whole process, from its start to its end, on a node of 100 pods.

The API server is the real one in a process of its own; the pods are given to it. Each figure is the median of 25 runs;
the processor's time beside it is what a busy machine cannot stretch.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from agent.model.pods.state import ContainerState, PodState
from tests.cli.node_in_process import Node, running_node

Row = tuple[str, float, str, str]
PODS = 100
RUNS = 25
KEPCTL = Path(sys.executable).with_name("kepctl")
TASKS = (
    ("kepctl get pods", ("get", "pods"), "≤ 120"),
    ("kepctl get pods -o wide", ("get", "pods", "-o", "wide"), ""),
    ("kepctl get pods -o json", ("get", "pods", "-o", "json"), ""),
    ("kepctl get events", ("get", "events"), ""),
)


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="kb") as name, served(Path(name)) as path:
        rows = [row for what, words, stated in TASKS for row in _rows(what, [str(KEPCTL), *words], path, {}, stated)]
        asked = {"_KEPCTL_COMPLETE": "bash_complete", "COMP_WORDS": "kepctl get pods w", "COMP_CWORD": "3"}
        return rows + _rows("completion of a pod's name", [str(KEPCTL)], path, asked, "≤ 100")


def _rows(what: str, command: Sequence[str], path: str, asked: Mapping[str, str], stated: str) -> list[Row]:
    environment = {**os.environ, "KEPD_ENDPOINT": path, **asked}
    whole, own = zip(*(_run(command, environment) for _ in range(RUNS)), strict=True)
    return [
        (f"{what}, {PODS} pods", statistics.median(whole), "ms", stated),
        (f"{what}, {PODS} pods: processor", statistics.median(own), "ms", ""),
    ]


def _run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Milliseconds of one run by the clock, and of its processor."""
    began_s, before = time.perf_counter(), os.times()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    whole_s, after = time.perf_counter() - began_s, os.times()
    used_s = after.children_user + after.children_system - before.children_user - before.children_system
    return whole_s * 1000, used_s * 1000


@contextmanager
def served(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "bench.commands", str(folder)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        # With its standard input it ends.
        server.communicate()


def _fill(node: Node) -> None:
    container = ContainerState(name="main", image="docker.io/library/nginx:1", started_at_s=1.0, is_ready=True)
    for number in range(PODS):
        pod = PodState(
            namespace="default", name=f"web-{number}", uid=f"{number:032}", phase="Running", created_at_s=1.0,
            ip=f"10.88.0.{number}", containers=(container, replace(container, name="side")),
        )  # fmt: skip
        node.pods.pods.put(pod.key, pod)


if __name__ == "__main__":
    with running_node(Path(sys.argv[1]), _fill) as node:
        print(node.path, flush=True)
        sys.stdin.read()
