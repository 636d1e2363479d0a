# SPDX-License-Identifier: Apache-2.0
"""Figures of 110 pods with 330 containers: what a scrape takes, and what it costs those who wait for the loop.

The groups are real ones of this machine's kernel, with a process in each sandbox; the runtime's lists are made up, for
they are read once. A scrape is a pass and its page, packed. Names are as long as real ones and as hard to pack, and the
clock says that a quarter of a minute lies between two scrapes, so what is read once a minute is read as often.
"""

import asyncio
import os
import random
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.drivers.clock.driver import SystemClock
from agent.drivers.kernel_files.driver import KernelFiles
from agent.observe.kernel.hierarchies import Hierarchies, read_mounts
from agent.observe.run.collector import Collector, CollectorSettings
from agent.observe.run.oom_book import OomBook
from agent.observe.run.pages import Pages, PageSettings, Sources
from agent.observe.run.roster import Roster
from tests.observe.kernel_tree import ListedInstances
from tests.observe.test_collector import Records

Row = tuple[str, float, str, str]
PODS, CONTAINERS = 110, 3
SCRAPES = 60
EVERY_S, PAUSE_S = 15.0, 0.5
LOOK_S = 0.001


class RealGroups(ListedInstances):
    """Pods whose groups this kernel has."""

    def __init__(self, hierarchies: Hierarchies, top: str) -> None:
        super().__init__(_NoTree())  # type: ignore[arg-type]
        self._hierarchies = hierarchies
        self._top = top
        self.processes: list[subprocess.Popen[bytes]] = []

    def folders(self, group: str) -> list[Path]:
        found = (self._hierarchies.folder(one, f"{self._top}{group}") for one in self._hierarchies.mounts)
        return list(dict.fromkeys(Path(one) for one in found if one))

    def make(self, pod: str, containers: list[str]) -> None:
        self.add_pod(pod, containers)
        sandbox = f"s-{pod}"
        for group in (sandbox, *(one for one in self.containers if one.startswith(f"c-{pod}-"))):
            for folder in self.folders(f"/pod-{pod}/{group}"):
                folder.mkdir(parents=True)
        process = subprocess.Popen(["sleep", "3600"])
        self.processes.append(process)
        self.pids[sandbox] = process.pid
        for folder in self.folders(f"/pod-{pod}/{sandbox}"):
            (folder / "cgroup.procs").write_text(str(process.pid))


class Stepping(SystemClock):
    """Its steps are as long as the time between two scrapes."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.ahead_s


class _NoTree:
    def group(self, group: str) -> None:
        """The kernel has it."""

    def process(self, pid: int, group: str) -> None:
        """A real one is there."""


@contextmanager
def real_groups() -> Iterator[RealGroups]:
    hierarchies = read_mounts(Path("/proc/self/mountinfo").read_text())
    groups = RealGroups(hierarchies, f"/kepd-bench-{os.getpid()}")
    try:
        dice = random.Random(1)
        for _ in range(PODS):
            groups.make(f"{dice.getrandbits(160):040x}", [f"c{one}" for one in range(CONTAINERS)])
        yield groups
    finally:
        for process in groups.processes:
            process.kill()
            process.wait()
        for top in groups.folders(""):
            for place, _, _ in os.walk(top, topdown=False):
                Path(place).rmdir()


async def scrapes(groups: RealGroups) -> tuple[list[float], list[float], list[float], int, int]:
    """Wall and processor time of each, how late the loop was meanwhile, and how large the last page was."""
    files, clock = KernelFiles(), Stepping()
    roster = Roster(groups, files, lambda _one: True, clock.now_s)
    collector = Collector(roster, files, clock, CollectorSettings)
    book = OomBook(roster, Records(), lambda _event: None)
    collector.ooms = book.count
    collector.saw = lambda _node: book.look(None)
    pages = Pages(collector, book, Sources(groups, files, clock), PageSettings, lambda _event: None)
    await pages.cadvisor({"accept-encoding": "gzip"})
    late: list[float] = []
    walls, cpus = [], []
    series = plain = 0
    for number in range(2 * SCRAPES):
        if number == SCRAPES:
            # Who looks takes time of its own, so the times are taken before.
            looking = asyncio.create_task(_lateness(late))
        await asyncio.sleep(PAUSE_S)
        clock.ahead_s += EVERY_S - PAUSE_S
        begun, used = time.monotonic(), _cpu_s()
        await pages.cadvisor({"accept-encoding": "gzip"})
        if number < SCRAPES:
            walls.append(time.monotonic() - begun)
            cpus.append(_cpu_s() - used)
    looking.cancel()
    page = await pages.cadvisor({})
    plain = len(page.body)
    series = page.body.count(b"\n")
    roster.close()
    return walls, cpus, late, series, plain


async def _lateness(late: list[float]) -> None:
    while True:
        began = time.monotonic()
        await asyncio.sleep(LOOK_S)
        late.append(time.monotonic() - began - LOOK_S)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _share(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def measure() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(), real_groups() as groups:
        before = _resident_mib()
        walls, cpus, late, series, size = asyncio.run(scrapes(groups))
        added = _resident_mib() - before
    what = f"{PODS} pods, {PODS * CONTAINERS} containers"
    cpu_s = statistics.median(cpus)
    yield f"{what}: a scrape, median", statistics.median(walls) * 1000, "ms", "≤ 50"
    yield f"{what}: a scrape, p99", _share(walls, 0.99) * 1000, "ms", "≤ 80"
    yield f"{what}: processor time of a scrape", cpu_s * 1000, "ms", "≤ 30"
    yield f"{what}: scraped every {EVERY_S:.0f} s", cpu_s / EVERY_S * 100, "% of a core", "≤ 0.2"
    yield "the event loop late during scrapes, p99", _share(late, 0.99) * 1000, "ms", "≤ 5"
    yield "resident memory added", added, "MiB", "≤ 12"
    yield "lines of the page", series, "", ""
    yield "size of the page", size / (1 << 20), "MiB", "≤ 8"
