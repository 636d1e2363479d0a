# SPDX-License-Identifier: Apache-2.0
"""The CRI proxy: what it adds to a call, what it bears at once, and what it remembers of 100 000 calls.

A real containerd and a kepd of its own with the planes proxy and images. Calls go direct and through the proxy in
turns of a few hundred, so that what else the machine does falls on both; rows are differences of quantiles. The last
rows are those of a kepd that follows a hundred pulls in the same process.
"""

import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc

from agent.wire.cri import runtime_v1_pb2 as pb
from bench.daemon import free_port, resident_mib
from tests.lab import STAY, Image, Lab

Row = tuple[str, float, str, str]
PROGRAMS = Path(sys.executable).parent
VERSION = "/runtime.v1.RuntimeService/Version"
CONTAINERS = "/runtime.v1.RuntimeService/ListContainers"
TURN = 250
TURNS = 24
RATE = 50
RATE_CALLS = 1500
AT_ONCE = 500
MANY = 100_000
PODS = 20
PULLS = 100
PULL_BYTES = 4_000_000
LINK_BYTES_S = 4_000_000
SETTLE_S = 5.0
PULL_CALLS = 1000


class Kepd:
    """A proxy in a process of its own."""

    def __init__(self, lab: Lab, folder: Path, extra: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self.socket = folder / "run" / "kepd.sock"
        config = folder / "config.yaml"
        config.write_text(
            "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\n"
            f"node: {{name: bench, stateDirectory: {folder}/state, runDirectory: {folder}/run}}\n"
            f"runtime: {{endpoint: '{lab.endpoint}'}}\n"
            f"api: {{httpAddress: '127.0.0.1:{free_port()}', readGroup: ''}}\n{extra}"
        )
        self.link = folder / "run" / "cri" / "kubelet.sock"
        began_s = time.perf_counter()
        with (folder / "log").open("w") as log:
            command = [str(PROGRAMS / "kepd"), "run", "--config", str(config), "--planes", "proxy,images"]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        while not answers(self.link):
            time.sleep(0.005)
        self.ready_s = time.perf_counter() - began_s

    def ctl(self, *arguments: str) -> str:
        """What kepctl prints."""
        command = [str(PROGRAMS / "kepctl"), "--endpoint", str(self.socket), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
        client.connect(str(path))
        return True
    return False


class Client:
    """One connection."""

    def __init__(self, path: Path) -> None:
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(
            f"unix:{path}", options=[*options, ("grpc.max_receive_message_length", -1)]
        )
        self.invoke = self.channel.unary_unary(VERSION)
        self.message = pb.VersionRequest().SerializeToString()

    def time_ms(self) -> float:
        began_s = time.perf_counter()
        self.invoke(self.message, timeout=120)
        return (time.perf_counter() - began_s) * 1000


def quantiles(times_ms: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(times_ms, n=100)
    return cuts[49], cuts[98]


def added(times: dict[Client, list[float]], direct: Client, through: Client) -> list[float]:
    """p50 and p99 added, and those of the direct call."""
    low, high = quantiles(times[direct]), quantiles(times[through])
    return [high[0] - low[0], high[1] - low[1], low[0], low[1]]


def back_to_back(direct: Client, through: Client) -> list[float]:
    times: dict[Client, list[float]] = {direct: [], through: []}
    for turn in range(1 + TURNS):
        for client in (direct, through):
            made = [client.time_ms() for _ in range(TURN)]
            times[client] += made if turn else []
    return added(times, direct, through)


def spread(direct: Client, through: Client, calls: int) -> list[float]:
    """Fifty calls a second by each, as a busy kubelet makes them. Each call of one is followed by one of the other, so
    that what else the machine does for a while falls on both."""
    times: dict[Client, list[float]] = {direct: [], through: []}
    next_s = time.perf_counter()
    for _ in range(calls):
        for client in (direct, through):
            next_s += 1 / RATE / 2
            times[client].append(client.time_ms())
            time.sleep(max(0.0, next_s - time.perf_counter()))
    return added(times, direct, through)


def at_once(path: Path) -> tuple[float, int]:
    """Seconds and errors of many calls that begin together."""
    client = Client(path)
    failed = []
    barrier = threading.Barrier(50)

    def some() -> None:
        barrier.wait()
        calls = [client.invoke.future(client.message, timeout=60) for _ in range(AT_ONCE // 50)]
        for call in calls:
            try:
                call.result()
            except grpc.RpcError as error:
                failed.append(error)

    began_s = time.perf_counter()
    with ThreadPoolExecutor(50) as pool:
        for _ in range(50):
            pool.submit(some)
    took_s = time.perf_counter() - began_s
    client.channel.close()
    return took_s, len(failed)


def list_ms(client: Client) -> float:
    """A list of all containers, as the kubelet asks for once a second."""
    invoke, message = client.channel.unary_unary(CONTAINERS), pb.ListContainersRequest().SerializeToString()
    times = []
    for _ in range(300):
        began_s = time.perf_counter()
        invoke(message, timeout=60)
        times.append((time.perf_counter() - began_s) * 1000)
    return statistics.median(times)


def measure_at(lab: Lab, kepd: Kepd) -> list[Row]:
    direct, through = Client(lab.place.containerd_socket), Client(kepd.link)
    busy = back_to_back(direct, through)
    calm = spread(direct, through, RATE_CALLS)
    listed = [list_ms(client) for client in (direct, through)]
    took_s, failed = at_once(kepd.link)
    for _ in range(5000):
        through.time_ms()
    before_mib = resident_mib(kepd.process.pid)
    began_s = time.perf_counter()
    for _ in range(MANY):
        through.time_ms()
    rate = MANY / (time.perf_counter() - began_s)
    grown_mib = resident_mib(kepd.process.pid) - before_mib
    return [
        ("added to a unary call, back to back, p50", busy[0], "ms", "≤ 0.5"),
        ("added to a unary call, back to back, p99", busy[1], "ms", "≤ 2"),
        ("the same call direct, p50", busy[2], "ms", ""),
        ("the same call direct, p99", busy[3], "ms", ""),
        ("added to a unary call, 50 a second, p50", calm[0], "ms", "≤ 1.2"),
        ("added to a unary call, 50 a second, p99", calm[1], "ms", "≤ 4"),
        (f"added to ListContainers of {PODS} pods, p50", listed[1] - listed[0], "ms", ""),
        (f"{AT_ONCE} calls at once: all answered after", took_s, "s", ""),
        (f"{AT_ONCE} calls at once: errors", failed, "", "0"),
        ("calls a second over one connection", rate, "1/s", ""),
        (f"memory after {MANY} calls, grown by", grown_mib, "MiB", "flat"),
        ("memory", resident_mib(kepd.process.pid), "MiB", ""),
        ("from the start of the process until the link answers", kepd.ready_s, "s", ""),
    ]


def measure_with_pulls(lab: Lab, folder: Path) -> list[Row]:
    """Calls at fifty a second while a hundred pulls are under way in the process that passes them on (FI-23)."""
    names = []
    for number in range(PULLS):
        image = Image.sized(f"bench/under-way{number}", PULL_BYTES)
        lab.push(image)
        names.append(lab.throttled(image))
    lab.throttle.limit(total_bytes_s=LINK_BYTES_S)
    kepd = Kepd(lab, folder, "images: {maxParallelPulls: 0, sizeProbe: 'off', drain: 0s}\n")
    try:
        while not kepd.ctl("health").startswith("ok"):
            time.sleep(0.1)
        kepd.ctl("pull", "--no-wait", *names)
        time.sleep(SETTLE_S)
        direct, through = Client(lab.place.containerd_socket), Client(kepd.link)
        low_high = spread(direct, through, PULL_CALLS)
        pulls = json.loads(kepd.ctl("get", "pulls", "-o", "json"))["items"]
        under_way = sum(one["stage"] in ("resolving", "downloading", "unpacking") for one in pulls)
    finally:
        kepd.close()
        lab.throttle.limit(total_bytes_s=None)
    return [
        (f"{PULLS} pulls in the same process: under way at the end", under_way, "", ""),
        (f"{PULLS} pulls in the same process: a call at 50 a second, p50", low_high[0] + low_high[2], "ms", ""),
        (f"{PULLS} pulls in the same process: a call at 50 a second, p99", low_high[1] + low_high[3], "ms", "≤ 4"),
        (f"{PULLS} pulls in the same process: the same call direct, p99", low_high[3], "ms", ""),
        (f"{PULLS} pulls in the same process: added to it, p99", low_high[1], "ms", "≤ 4"),
    ]


def measure() -> list[Row]:
    """All rows."""
    with tempfile.TemporaryDirectory(prefix="kb") as name, Lab.start() as lab:
        image = lab.push(Image(name="bench/proxy"))
        lab.cri.pull(image)
        for number in range(PODS):
            lab.run_pod(f"bench{number}").run("main", image, STAY)
        kepd = Kepd(lab, Path(name) / "alone")
        try:
            rows = measure_at(lab, kepd)
        finally:
            kepd.close()
        return rows + measure_with_pulls(lab, Path(name) / "pulls")
