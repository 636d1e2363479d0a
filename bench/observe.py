# SPDX-License-Identifier: Apache-2.0
"""Figures of 110 pods with 330 containers: what a scrape takes, and what it costs those who wait for the loop.

The groups are real ones of this machine's kernel, with a process and a network in each sandbox; the runtime's lists are
made up, for they are read once. A scrape is a pass and its page, packed, with all that the daemon does between them.
Names are as long as real ones and as hard to pack, and the clock says that a quarter of a minute lies between two
scrapes, so what is read once a minute is read as often. Containers do nothing; then, in the last lines, each has a
process that does a little before each scrape, so every file of every group is read.
"""

import asyncio
import os
import random
import resource
import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from agent.drivers.clock.driver import SystemClock
from agent.drivers.kernel_files.driver import KernelFiles
from agent.drivers.oom_signals.driver import OomSignals
from agent.kit.memory import share_heaps
from agent.model.runtime.event import RuntimeEvent
from agent.observe.kernel.hierarchies import Hierarchies, read_mounts
from agent.observe.run.collector import Collector, CollectorSettings
from agent.observe.run.container_registry import Roster
from agent.observe.run.observer import Observer
from agent.observe.run.oom_book import OomBook
from agent.observe.run.oom_watch import OomWatch
from agent.observe.run.pages import Pages, PageSettings, PageSources
from tests.observe.kernel_tree import ListedInstances
from tests.observe.test_collector import Records

Row = tuple[str, float, str, str]
PODS, CONTAINERS = 110, 3
SCRAPES = 60
EVERY_S, PAUSE_S = 15.0, 0.5
PACKED = {"accept-encoding": "gzip"}
LOOK_S = 0.001
# The other end of the link has a name that is not shown.
SANDBOX = "ip link add eth0 type veth peer name veth0 && exec sleep 3600"


class RealGroups(ListedInstances):
    """Pods whose groups this kernel has."""

    def __init__(self, hierarchies: Hierarchies, top: str, *, is_at_work: bool) -> None:
        super().__init__(_NoTree())  # type: ignore[arg-type]
        self._hierarchies = hierarchies
        self._top = top
        self._is_at_work = is_at_work
        self.processes: list[subprocess.Popen[bytes]] = []
        self._groups: dict[int, str] = {}

    def folders(self, group: str) -> list[Path]:
        found = (self._hierarchies.folder(one, f"{self._top}{group}") for one in self._hierarchies.mounts)
        return list(dict.fromkeys(Path(one) for one in found if one))

    def make(self, pod: str, containers: list[str]) -> None:
        self.add_pod(pod, containers)
        sandbox = f"s-{pod}"
        own = [one for one in self.containers if one.startswith(f"c-{pod}-")]
        for group in (sandbox, *own):
            for folder in self.folders(f"/pod-{pod}/{group}"):
                folder.mkdir(parents=True)
        self.pids[sandbox] = self._run("unshare", "--net", "sh", "-c", SANDBOX)
        self._groups[self.pids[sandbox]] = f"/pod-{pod}/{sandbox}"
        for group in own if self._is_at_work else ():
            self._groups[self._run("cat")] = f"/pod-{pod}/{group}"

    def _run(self, *command: str) -> int:
        self.processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL))
        return self.processes[-1].pid

    def enter(self) -> None:
        """Each process its group, once each sandbox has its network: what it took to get there is not the group's."""
        for pid in self.pids.values():
            while "eth0:" not in Path(f"/proc/{pid}/net/dev").read_text():
                time.sleep(LOOK_S)
        for pid, group in self._groups.items():
            for folder in self.folders(group):
                (folder / "cgroup.procs").write_text(str(pid))

    def work(self) -> None:
        """A little, in each container."""
        for process in self.processes if self._is_at_work else ():
            assert process.stdin is not None
            process.stdin.write(b"a line\n")
            process.stdin.flush()


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


async def _nothing() -> AsyncIterator[Any]:
    """No container ends, and the runtime tells of none."""
    nothing: tuple[Any, ...] = ()
    for one in nothing:
        yield one


class _NoEvents:
    def listen(self) -> AsyncIterator[RuntimeEvent]:
        return _nothing()


@contextmanager
def real_groups(*, is_at_work: bool = False) -> Iterator[RealGroups]:
    hierarchies = read_mounts(Path("/proc/self/mountinfo").read_text())
    groups = RealGroups(hierarchies, f"/kepd-bench-{os.getpid()}", is_at_work=is_at_work)
    try:
        dice = random.Random(1)
        for _ in range(PODS):
            groups.make(f"{dice.getrandbits(160):040x}", [f"c{one}" for one in range(CONTAINERS)])
        groups.enter()
        yield groups
    finally:
        for process in groups.processes:
            process.kill()
            process.communicate()
        for top in groups.folders(""):
            for place, _, _ in os.walk(top, topdown=False):
                Path(place).rmdir()


class Scraped(msgspec.Struct):
    """Wall and processor time of each scrape, how late the loop was meanwhile and without, and what a page has before
    it is packed."""

    walls_s: list[float] = msgspec.field(default_factory=list)
    cpus_s: list[float] = msgspec.field(default_factory=list)
    late_s: list[float] = msgspec.field(default_factory=list)
    late_without_s: list[float] = msgspec.field(default_factory=list)
    added_mib: float = 0.0
    series: int = 0
    size: int = 0


async def scrapes(groups: RealGroups, count: int) -> Scraped:
    found = Scraped()
    looking = asyncio.create_task(_lateness(found.late_without_s))
    await asyncio.sleep(count * PAUSE_S)
    looking.cancel()
    before = _resident_mib()
    files, clock = KernelFiles(), Stepping()
    roster = Roster(groups, files, lambda _one: True, clock.now_s)
    collector = Collector(roster, files, clock, CollectorSettings)
    book = OomBook(roster, Records(), lambda _event: None)
    watch = OomWatch(collector, roster, OomSignals(), clock, lambda: False)
    Observer(collector, roster, book, _NoEvents(), _nothing(), watch)
    pages = Pages(collector, book, PageSources(groups, files, clock), PageSettings, lambda _event: None)
    await pages.cadvisor(PACKED)
    for number in range(2 * count):
        if number == count:
            # Who looks takes time and memory of its own, so both are taken before.
            found.added_mib = _resident_mib() - before
            looking = asyncio.create_task(_lateness(found.late_s))
        groups.work()
        await asyncio.sleep(PAUSE_S)
        clock.ahead_s += EVERY_S - PAUSE_S
        begun, used = time.monotonic(), _cpu_s()
        await pages.cadvisor(PACKED)
        if number < count:
            found.walls_s.append(time.monotonic() - begun)
            found.cpus_s.append(_cpu_s() - used)
    looking.cancel()
    page = await pages.cadvisor({})
    found.series, found.size = page.body.count(b"\n"), len(page.body)
    roster.close()
    return found


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
    # As the daemon does before it has threads.
    share_heaps()
    with real_groups() as groups:
        found = asyncio.run(scrapes(groups, SCRAPES))
    what = f"{PODS} pods, {PODS * CONTAINERS} containers"
    cpu_s = statistics.median(found.cpus_s)
    yield f"{what}: a scrape, median", statistics.median(found.walls_s) * 1000, "ms", "≤ 50"
    yield f"{what}: a scrape, p99", _share(found.walls_s, 0.99) * 1000, "ms", "≤ 80"
    yield f"{what}: processor time of a scrape", cpu_s * 1000, "ms", "≤ 30"
    yield f"{what}: scraped every {EVERY_S:.0f} s", cpu_s / EVERY_S * 100, "% of a core", "≤ 0.2"
    yield "the event loop late during scrapes, p99", _share(found.late_s, 0.99) * 1000, "ms", "≤ 5"
    yield "the event loop late without a scrape, p99", _share(found.late_without_s, 0.99) * 1000, "ms", ""
    yield "resident memory added", found.added_mib, "MiB", "≤ 12"
    yield "lines of the page", found.series, "", ""
    yield "size of the page", found.size / (1 << 20), "MiB", "≤ 8"
    with real_groups(is_at_work=True) as groups:
        found = asyncio.run(scrapes(groups, SCRAPES // 3))
    yield "each container at work: a scrape, median", statistics.median(found.walls_s) * 1000, "ms", ""
    yield "each container at work: processor time", statistics.median(found.cpus_s) * 1000, "ms", ""
    yield "each container at work: the event loop late, p99", _share(found.late_s, 0.99) * 1000, "ms", ""
