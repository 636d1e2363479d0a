# SPDX-License-Identifier: Apache-2.0
"""What the daemon costs with every plane off, and how quick the programs start.

Measures: time from the start of the process until the API answers, resident memory, share of a core while idle, and
whole-process times of kepctl. Uses directories and a loopback port of its own and ends what it started.
"""

import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

Row = tuple[str, float, str, str]
PROGRAMS = Path(sys.executable).parent
IDLE_S = 20.0
RUNS = 9


def whole_process_ms(*command: str) -> float:
    """Median of several runs."""
    times = []
    for _ in range(RUNS):
        began_s = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append((time.perf_counter() - began_s) * 1000)
    return statistics.median(times)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no memory figure")


def daemon_rows(folder: Path) -> list[Row]:
    """One daemon, watched from start to end."""
    config = folder / "config.yaml"
    config.write_text(
        "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\n"
        f"node: {{stateDirectory: {folder}/state, runDirectory: {folder}/run}}\n"
        f"runtime: {{endpoint: 'unix://{folder}/none.sock'}}\n"
        f"api: {{httpAddress: '127.0.0.1:{free_port()}', readGroup: ''}}\n"
    )
    path = folder / "run" / "kepd.sock"
    began_s = time.perf_counter()
    with (folder / "log").open("w") as log:
        kepd = subprocess.Popen(
            [str(PROGRAMS / "kepd"), "run", "--config", str(config), "--planes", ""], stdout=log, stderr=log
        )
    try:
        while "daemon_ready" not in (folder / "log").read_text():
            time.sleep(0.005)
        ready_s = time.perf_counter() - began_s
        assert answers(path)
        time.sleep(2)
        before_s, at_s = cpu_s(kepd.pid), time.monotonic()
        time.sleep(IDLE_S)
        share = (cpu_s(kepd.pid) - before_s) / (time.monotonic() - at_s) * 100
        return [
            ("kepd run, every plane off: ready", ready_s, "s", "≤ 1"),
            ("kepd run, every plane off: resident memory", resident_mib(kepd.pid), "MiB", "≤ 64"),
            ("kepd run, every plane off: idle", share, "% of a core", "≤ 0.5"),
        ]
    finally:
        kepd.send_signal(signal.SIGTERM)
        kepd.wait(30)


def measure() -> list[Row]:
    """All rows."""
    with tempfile.TemporaryDirectory(prefix="kb") as name:
        rows = daemon_rows(Path(name))
    bare_ms = whole_process_ms(sys.executable, "-c", "pass")
    rows += [
        ("kepctl version, whole process", whole_process_ms(str(PROGRAMS / "kepctl"), "version"), "ms", "≤ 120"),
        ("an empty Python process, to compare", bare_ms, "ms", ""),
        ("kepd config check", whole_process_ms(str(PROGRAMS / "kepd"), "config", "check"), "ms", ""),
    ]
    return rows
