# SPDX-License-Identifier: Apache-2.0
"""kepd-dns: answers a second from its cache and from servers, time of an answer, idle cost, memory, start.

Rates are for a whole core: answers by the processor time that the process took for them, so that other work on the
machine counts less; beside them stands what the generator got. The generator is dnsperf (Debian's package). The server
that is asked is a process of plain Python on the other core, which only pipelining makes quick enough. With
KEPD_COREDNS or KEPD_NODE_CACHE naming a program it runs on the same questions.

Times of answers are taken twice. Those with a stated figure have process and generator in the real-time class: where
other processes come between, a late answer is theirs, for a slice of one takes some 3 ms, and one answer in a hundred
makes a p99. Both cores are kept awake meanwhile, for a virtual one that sleeps waits until its host has room. What the
host keeps for itself all the same stands beside it: of one hundredth of the time it makes the p99. The same without all
that, and a server that does nothing but send questions back, show what the place itself adds.

A p99 is that of each second's answers, and the stated figure is for the median of the seconds: one stop of the host
makes the p99 of all of a run, and says nothing of the process. The worst second and the whole run stand beside it.
"""

import asyncio
import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from kepd_dns.handover.state import HOT_FILE, SOCKET_FILE, Settings, Upstream
from kepd_dns.handover.status import StatusRequest
from kepd_dns.run.client import ProcessClient, ProcessUnavailable
from kepd_dns.run.state_writer import StateWriter
from tests.lab.namespace import Namespace

Row = tuple[str, float, str, str]
ROOT = Path(__file__).resolve().parents[1]
# In turns: a thread of the generator that spins would else keep another one from the core for good.
URGENT = ("chrt", "-r", "20")
NAMES, SECONDS = 20_000, 8
SETTLE_S = 70
CLOCK = os.sysconf("SC_CLK_TCK")
SERVER = """
import asyncio, sys
HEAD = b"\\x85\\x80\\0\\1\\0\\1\\0\\0\\0\\0"
RECORD = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\x1e\\0\\4\\x0a\\0\\0\\1"
class Server(asyncio.Protocol):
    def connection_made(self, transport): self.transport, self.rest = transport, b""
    def data_received(self, data):
        data, out, at = self.rest + data, [], 0
        while at + 2 <= len(data):
            size = data[at] << 8 | data[at + 1]
            if at + 2 + size > len(data): break
            one = data[at + 2:at + 2 + size]
            end = one.index(0, 12) + 5
            text = one[:2] + HEAD + one[12:end] + RECORD
            out.append(len(text).to_bytes(2, "big") + text)
            at += 2 + size
        self.rest = data[at:]
        self.transport.write(b"".join(out))
async def main():
    server = await asyncio.get_running_loop().create_server(Server, sys.argv[1], int(sys.argv[2]))
    await server.serve_forever()
asyncio.run(main())
"""
ECHO = """
import socket, sys
opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
opened.bind((sys.argv[1], 54))
while True:
    text, peer = opened.recvfrom(4096)
    opened.sendto(text[:2] + b"\\x81\\x80" + text[4:], peer)
"""


def as_installed(directory: Path) -> dict[str, str]:
    """With the bytecode that an installation has. A tree may have none, and may not be written to."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(directory / "bytecode")
    subprocess.run([sys.executable, "-m", "kepd_dns.run.process", "--help"], cwd=ROOT, env=environment,
                   stdout=subprocess.DEVNULL, check=True)  # fmt: skip
    return environment


class Subject:
    """kepd-dns in a namespace of its own, on one core."""

    def __init__(self, namespace: Namespace, directory: Path, address: str) -> None:
        self.namespace, self.directory, self.address = namespace, directory, address
        self.client = ProcessClient(directory / SOCKET_FILE)
        self._writer = writer = StateWriter(directory, time.time)
        (directory / "resolv.conf").touch()
        writer.set_upstreams((Upstream("127.0.0.1", 5300),))
        self.settings = Settings(
                has_cluster=True, addresses=(address,), per_source_qps=0, resolv_conf=str(directory / "resolv.conf"),
                ttl_min_s=300, ttl_max_s=600, cache_bytes=64 << 20,
            )  # fmt: skip
        writer.begin(self.settings)
        environment = as_installed(directory)
        self.began_s = time.monotonic()
        self.child = subprocess.Popen(
            namespace.command(
                "taskset", "-c", "0", sys.executable, "-m", "kepd_dns.run.process", "--directory", str(directory),
                "--listen", address,
            ),
            cwd=ROOT, stderr=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
        self.ready_s = asyncio.run(self._ready())
        self.ready_processor_s = self.processor_s()

    async def _ready(self) -> float:
        while True:
            with contextlib.suppress(ProcessUnavailable):
                await self.client.ask(StatusRequest(do="status"))
                return time.monotonic() - self.began_s
            await asyncio.sleep(0.005)

    def limit(self, rate: int) -> None:
        """Of each source, as it is without further settings."""
        self._writer.begin(replace(self.settings, per_source_qps=rate))
        asyncio.run(self.client.ask(StatusRequest(do="reread")))

    def settle(self) -> None:
        """Until it has stored what was asked for most, which it does in the minute after the last question."""
        began_s = time.time()
        hot = self.directory / HOT_FILE
        while time.time() - began_s < SETTLE_S and not (hot.exists() and hot.stat().st_mtime > began_s):
            time.sleep(0.5)

    @contextmanager
    def urgent(self) -> Iterator[None]:
        """In the real-time class, where no ordinary process keeps it from its core."""
        os.sched_setscheduler(self.child.pid, os.SCHED_FIFO, os.sched_param(20))
        yield
        os.sched_setscheduler(self.child.pid, os.SCHED_OTHER, os.sched_param(0))

    def processor_s(self) -> float:
        words = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / CLOCK

    def memory_mib(self) -> float:
        text = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) / 1024

    def wake_ups(self) -> int:
        text = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(text.partition("voluntary_ctxt_switches:")[2].split()[0])

    def entries(self) -> int:
        found = asyncio.run(self.client.ask(StatusRequest(do="status"))).status
        return found.entries if found is not None else 0

    def close(self) -> None:
        self.child.terminate()
        self.child.wait(10)


@contextmanager
def place(directory: Path) -> Iterator[tuple[Subject, Namespace, Namespace]]:
    """The node, where the process and the servers are, and two pods, each behind a veth."""
    with Namespace() as node, Namespace() as pod, Namespace() as other:
        node.run("ip", "addr", "add", "169.254.20.10/32", "dev", "lo")
        for number, one in enumerate((pod, other)):
            link, network = f"veth{number}", f"10.77.{number}"
            node.run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", one.path)
            node.run("ip", "addr", "add", f"{network}.1/24", "dev", link)
            node.run("ip", "link", "set", link, "up")
            one.run("ip", "addr", "add", f"{network}.2/24", "dev", "eth0")
            one.run("ip", "link", "set", "eth0", "up")
            one.run("ip", "route", "add", "default", "via", f"{network}.1")
        command = node.command("taskset", "-c", "1", sys.executable, "-c", SERVER, "127.0.0.1", "5300")
        server = subprocess.Popen(command)
        subject = None
        try:
            time.sleep(0.5)
            subject = Subject(node, directory, "169.254.20.10")
            yield subject, pod, other
        finally:
            if subject is not None:
                subject.close()
            server.kill()
            server.wait(10)


def questions(path: Path, count: int, *, shuffled: bool = True, label: str = "n") -> str:
    dice = random.Random(1)
    numbers = [dice.randrange(count) if shuffled else one for one in range(count)]
    path.write_text("".join(f"{label}{one}.default.svc.cluster.local A\n" for one in numbers))
    return str(path)


def dnsperf(place_: Namespace, server: str, file: str, *more: str) -> str:
    command = place_.command("taskset", "-c", "1", "dnsperf", "-s", server, "-d", file, *more)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def figure(text: str, name: str) -> float:
    found = re.search(rf"{name}[^:]*:\s+([\d.]+)", text)
    if found is None:
        raise ValueError(f"dnsperf does not say {name!r}: {text}")
    return float(found[1])


def load(subject: Subject, pod: Namespace, file: str, *more: str) -> tuple[float, float, float]:
    """Answers in a second of the process's core, as the generator saw them, and lost ones in a hundred."""
    before_s = subject.processor_s()
    text = dnsperf(pod, subject.address, file, "-c", "8", "-q", "400", *more)
    answers = figure(text, "Queries completed")
    spent_s = subject.processor_s() - before_s
    lost = 100 * figure(text, "Queries lost") / figure(text, "Queries sent")
    return answers / spent_s, figure(text, "Queries per second"), lost


class Times(NamedTuple):
    """In milliseconds. `median` and `worst` are those of the p99 of each second."""

    p50: float
    median: float
    worst: float
    p99: float


def times_of(seconds: Sequence[float], rate: int) -> Times:
    """Of milliseconds of answers in the order in which they came, so many a second."""
    begins = range(0, max(1, len(seconds) - rate + 1), rate)
    each = [percentile(seconds[one : one + rate], 99) for one in begins]
    return Times(percentile(seconds, 50), percentile(each, 50), max(each), percentile(seconds, 99))


def percentile(values: Sequence[float], share: int) -> float:
    return sorted(values)[len(values) * share // 100]


def latency(
    pod: Namespace, server: str, file: str, rate: int = 5000, *, before: Sequence[str] = (), port: int = 53
) -> Times:
    """At so many questions a second, from a pod. What it says goes into a file, for a reader at its side would take
    processor time."""
    said = Path(f"{file}.said")
    with said.open("wb") as out:
        command = pod.command(
            *before, "taskset", "-c", "1", "dnsperf", "-s", server, "-p", str(port), "-d", file,
            "-c", "4", "-Q", str(rate), "-l", str(SECONDS), "-v",
        )  # fmt: skip
        subprocess.run(command, stdout=out, stderr=subprocess.DEVNULL, check=True)
    found = re.findall(r"^> NOERROR \S+ A ([\d.]+)", said.read_text(), re.MULTILINE)
    return times_of([1000 * float(one) for one in found], rate)


@contextmanager
def flood(folder: Path, other: Namespace, server: str) -> Iterator[None]:
    """Another pod asks for 10 000 names a second that nobody asked for before."""
    names = questions(folder / "flood", 10_000 * (2 * SECONDS + 6), shuffled=False, label="f")
    command = other.command("taskset", "-c", "1", "dnsperf", "-s", server, "-d", names, "-Q", "10000", "-n", "1")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as pouring:
        time.sleep(1.0)
        yield
        pouring.kill()


def stolen_s() -> float:
    """Of both cores, that this machine wanted and its host gave to others."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) / CLOCK


@contextmanager
def awake() -> Iterator[None]:
    """Both cores have something to do, in the class for what nothing waits for."""
    command = ("chrt", "-i", "0", sys.executable, "-c", "while True: pass")
    spinning = [subprocess.Popen(("taskset", "-c", core, *command)) for core in ("0", "1")]
    try:
        yield
    finally:
        for one in spinning:
            one.kill()
            one.wait(10)


def latencies(subject: Subject, pod: Namespace, file: str, rate: int, what: str, stated: str) -> Iterator[Row]:
    """With no other process between, and as it comes."""
    before_s, begun_s = stolen_s(), time.monotonic()
    with subject.urgent(), awake():
        found = latency(pod, subject.address, file, rate, before=URGENT)
    share = 50 * (stolen_s() - before_s) / (time.monotonic() - begun_s)
    yield f"{what}: p50", found.p50, "ms", ""
    yield "the same: p99, median of the seconds", found.median, "ms", stated
    yield "the same: p99 of the worst second", found.worst, "ms", ""
    yield "the same: p99 of the whole run", found.p99, "ms", ""
    yield "meanwhile the host kept from this machine", share, "% of both cores", ""
    found = latency(pod, subject.address, file, rate)
    yield "the same where other processes may come between: p99, median of the seconds", found.median, "ms", ""


def echo_ms(subject: Subject, pod: Namespace, file: str) -> float:
    """p99 as above, with other processes between, of a server on the process's core that sends questions back."""
    command = subject.namespace.command("taskset", "-c", "0", sys.executable, "-c", ECHO, subject.address)
    with subprocess.Popen(command) as echo:
        time.sleep(0.5)
        found = latency(pod, subject.address, file, port=54)
        echo.kill()
    return found.median


def idle(subject: Subject, seconds: int = 20) -> tuple[float, float]:
    before_s, before = subject.processor_s(), subject.wake_ups()
    time.sleep(seconds)
    return 100 * (subject.processor_s() - before_s) / seconds, (subject.wake_ups() - before) / seconds


def measure() -> Iterator[Row]:
    if shutil.which("dnsperf") is None:
        raise SystemExit("there is no program dnsperf; expected Debian's package dnsperf")
    with tempfile.TemporaryDirectory(prefix="kd") as name:
        folder = Path(name)
        (folder / "run").mkdir()
        with place(folder / "run") as (subject, pod, other):
            yield "start to ready", subject.ready_s * 1000, "ms", "≤ 250"
            yield "processor time of that", subject.ready_processor_s * 1000, "ms", ""
            empty = subject.memory_mib()
            yield "memory without any answer", empty, "MiB", "≤ 35"
            known = questions(folder / "known", NAMES, shuffled=False)
            dnsperf(pod, subject.address, known, "-n", "1")
            yield f"memory with {subject.entries()} answers", subject.memory_mib(), "MiB", "≤ 35 + cache"
            hits = questions(folder / "hits", NAMES)
            load(subject, pod, hits, "-l", "2")
            rate, seen, lost = load(subject, pod, hits, "-l", str(SECONDS))
            yield "answers from the cache", rate, "per core-second", "≥ 60 000"
            yield "the same as the generator on the other core saw it", seen, "per second", ""
            yield "of these lost", lost, "%", "0"
            what = "answer from the cache to a pod over veth at 5 000/s"
            yield from latencies(subject, pod, hits, 5000, what, "≤ 0.5")
            echo = echo_ms(subject, pod, hits)
            yield "the same from a server that only sends back: p99, median of the seconds", echo, "ms", ""
            new = questions(folder / "new", 400_000, shuffled=False, label="m")
            rate, seen, lost = load(subject, pod, new, "-n", "1", "-l", str(SECONDS))
            yield "answers from a server, each asked for once", rate, "per core-second", "≥ 15 000"
            yield "the same as the generator saw it, server on its core too", seen, "per second", ""
            yield "of these lost", lost, "%", "0"
            subject.limit(Settings().per_source_qps)
            what = "answer to a pod at 500/s beside another's 10 000 new names a second"
            with flood(folder, other, subject.address):
                yield from latencies(subject, pod, hits, 500, what, "≤ 5")
            subject.settle()
            share, wake_ups = idle(subject)
            yield "idle", share, "% of a core", "≤ 0.1"
            yield "wake-ups when idle", wake_ups, "per second", "≤ 1"
        yield from beside(folder)


def beside(folder: Path) -> Iterator[Row]:
    """The same questions to another program, where one is named."""
    for variable, arguments in (("KEPD_COREDNS", ("-conf",)), ("KEPD_NODE_CACHE", ("-conf",))):
        program = os.environ.get(variable, "")
        if not program:
            continue
        conf = folder / variable
        conf.write_text(".:53 {\n  bind 127.0.0.9\n  cache 300\n  forward . tcp://127.0.0.1:5300\n}\n")
        with Namespace() as node:
            server = subprocess.Popen(node.command(sys.executable, "-c", SERVER, "127.0.0.1", "5300"))
            other = subprocess.Popen(node.command("taskset", "-c", "0", program, *arguments, str(conf)))
            try:
                time.sleep(2.0)
                file = questions(folder / "beside", NAMES)
                dnsperf(node, "127.0.0.9", file, "-n", "2")
                text = dnsperf(node, "127.0.0.9", file, "-l", str(SECONDS), "-c", "8", "-q", "400")
                yield (
                    f"{Path(program).name}: answers from its cache",
                    figure(text, "Queries per second"),
                    "per second",
                    "",
                )
            finally:
                for one in (server, other):
                    one.kill()
                    one.wait(10)
