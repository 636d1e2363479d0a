# SPDX-License-Identifier: Apache-2.0
"""The door: what it costs to have it open, lists of pods, 50 watchers while pods change, and a key in a terminal.

The door is the real one in a process of its own, on a node of 100 pods that are given to it; the runtime's streaming
server is one that sends back what it gets. The processor's time is that of the door's process.
"""

import asyncio
import contextlib
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import structlog
import yaml
from msgspec.structs import replace

from agent.api.errors import Absent
from agent.config.document import Door
from agent.model.component import Board, State
from agent.model.pods.state import ContainerState, PodState
from agent.pods.attach.pod_service import PodService
from agent.wire.kepd.v1 import (
    cri_proxy_pb2,
    device_pb2,
    dns_pb2,
    image_pb2,
    node_pb2,
    object_pb2,
    pod_pb2,
    service_proxy_pb2,
)
from bench.daemon import PROGRAMS, free_port, resident_mib
from kepd_door.attach.unit import DoorUnit
from tests.cli.node_in_process import Pods

Row = tuple[str, float, str, str]
PODS, MANY, LISTS, WATCHERS, KEYS = 100, 500, 200, 50, 500
CHURN_S, A_SECOND = 10.0, 10
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
LIST = "/api/v1/namespaces/default/pods"
OTHERS = (cri_proxy_pb2, device_pb2, dns_pb2, image_pb2, node_pb2, object_pb2, service_proxy_pb2)


def measure() -> list[Row]:
    closed, opened = (statistics.median(_idle_mib(is_open=one) for _ in range(3)) for one in (False, True))
    with tempfile.TemporaryDirectory(prefix="kb") as name, served(Path(name)) as door:
        return [
            ("an open door beside a closed one: resident memory", opened - closed, "MiB", "≤ 12"),
            *_listed(door),
            *_watched(door),
            *_typed(door),
            *_waited(),
        ]


def _idle_mib(*, is_open: bool) -> float:
    with tempfile.TemporaryDirectory(prefix="kb") as name:
        folder, port = Path(name), free_port()
        address = f"127.0.0.1:{port}" if is_open else ""
        config = folder / "config.yaml"
        config.write_text(
            "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\n"
            f"node: {{stateDirectory: {folder}/state, runDirectory: {folder}/run}}\n"
            f"runtime: {{endpoint: 'unix://{folder}/none.sock'}}\n"
            f"api: {{httpAddress: '', readGroup: '', door: {{address: '{address}'}}}}\n"
        )
        with (folder / "log").open("w") as log:
            command = [str(PROGRAMS / "kepd"), "run", "--config", str(config), "--planes", ""]
            kepd = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            while "daemon_ready" not in (folder / "log").read_text():
                time.sleep(0.02)
            time.sleep(2)
            return float(resident_mib(kepd.pid))
        finally:
            kepd.terminate()
            kepd.wait(30)


class Served:
    def __init__(self, process: "subprocess.Popen[str]", port: int, given: Any, echo: int) -> None:
        self.process, self.port, self.echo = process, port, echo
        cluster = given["clusters"][0]["cluster"]
        self.token = given["users"][0]["user"]["token"]
        self.context = ssl.create_default_context(cadata=b64decode(cluster["certificate-authority-data"]).decode())

    def open(self) -> HTTPSConnection:
        opened = HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self.context)
        opened.connect()
        opened.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    def ask(self, opened: HTTPSConnection, path: str, **headers: str) -> Any:
        opened.request("GET", path, headers={"Authorization": f"Bearer {self.token}", **headers})
        return opened.getresponse()

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def served(folder: Path, count: int = PODS) -> Iterator[Served]:
    with socket.create_server(("127.0.0.1", 0)) as echo:
        threading.Thread(target=_echo, args=(echo,), daemon=True).start()
        port = free_port()
        command = [sys.executable, "-m", "bench.door", str(folder), str(port), str(echo.getsockname()[1]), str(count)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        try:
            given = yaml.safe_load(json.loads(process.stdout.readline()))
            yield Served(process, port, given, echo.getsockname()[1])
        finally:
            process.terminate()
            process.wait(30)


def _echo(listener: socket.socket) -> None:
    """Answers the head of a request as a runtime does that upgrades, and sends back what follows."""
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(4096)
            client.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n\r\n")
            while piece := client.recv(4096):
                client.sendall(piece)


def _listed(door: Served) -> list[Row]:
    opened = door.open()
    door.ask(opened, LIST, Accept=TABLE).read()
    before = door.cpu_s()
    for _ in range(LISTS):
        assert len(door.ask(opened, LIST, Accept=TABLE).read()) > PODS * 100
    opened.close()
    return [(f"{PODS} pods as a table: processor", (door.cpu_s() - before) / LISTS * 1000, "ms", "≤ 15")]


def _waited() -> list[Row]:
    """How long a client waits for a large list, which nothing has changed since."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="kb") as name, served(Path(name), MANY) as door:
        opened = door.open()
        for what, headers, stated in (("a table", {"Accept": TABLE}, "≤ 15"), ("objects", {}, "≤ 21")):
            door.ask(opened, LIST, **headers).read()
            times = []
            for _ in range(LISTS):
                began_s = time.perf_counter()
                door.ask(opened, LIST, **headers).read()
                times.append(time.perf_counter() - began_s)
            rows.append((f"{MANY} pods as {what}: median", statistics.median(times) * 1000, "ms", stated))
    return rows


def _watched(door: Served) -> list[Row]:
    """Each watcher reads all changes; how many came is counted, so that none of them was left out."""
    counts = [0] * WATCHERS

    def watch(number: int) -> None:
        opened = door.open()
        answer = door.ask(opened, f"{LIST}?watch=1&resourceVersion={version}&timeoutSeconds={int(CHURN_S) + 5}")
        with contextlib.suppress(OSError):
            while answer.readline():
                counts[number] += 1

    opened = door.open()
    version = json.loads(door.ask(opened, LIST).read())["metadata"]["resourceVersion"]
    threads = [threading.Thread(target=watch, args=(number,)) for number in range(WATCHERS)]
    for one in threads:
        one.start()
    time.sleep(1.0)
    before, began_s = door.cpu_s(), time.monotonic()
    assert door.process.stdin is not None
    door.process.stdin.write("churn\n")
    door.process.stdin.flush()
    time.sleep(CHURN_S)
    share = (door.cpu_s() - before) / (time.monotonic() - began_s) * 100
    for one in threads:
        one.join()
    missed = max(counts) - min(counts)
    return [
        (f"{WATCHERS} watchers, {A_SECOND} changes a second of {PODS} pods: processor", share, "% of a core", "≤ 10"),
        ("changes that one of them missed", missed, f"of {max(counts)}", "0"),
    ]


def _typed(door: Served) -> list[Row]:
    """The way of a key to the runtime and back, through the door and without it."""
    direct = HTTPConnection("127.0.0.1", door.echo, timeout=30)
    direct.connect()
    direct.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = "POST /exec/x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
    through = door.open()
    path = f"{LIST}/web-0/exec?command=sh&stdin=1&stdout=1"
    way = head.replace("/exec/x", path).replace("Host: x", f"Host: x\r\nAuthorization: Bearer {door.token}")
    beside_ms = _keys_ms(direct.sock, head)
    direct.close()
    door_ms = _keys_ms(through.sock, way)
    through.close()
    return [
        ("a key in a terminal and back, without the door", beside_ms, "ms", ""),
        ("what the door adds to it", door_ms - beside_ms, "ms", "≤ 1"),
    ]


def _keys_ms(opened: socket.socket, head: str) -> float:
    opened.sendall(head.encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += opened.recv(4096)
    assert b" 101 " in answer, answer
    times = []
    for _ in range(KEYS):
        began_s = time.perf_counter()
        opened.sendall(b"k")
        assert opened.recv(16) == b"k"
        times.append(time.perf_counter() - began_s)
    return statistics.median(times) * 1000


class Streams:
    def __init__(self, port: int) -> None:
        self._port = port

    async def exec_url(self, *_: object, **__: object) -> str:
        return f"http://127.0.0.1:{self._port}/exec/x"


async def serve(folder: Path, port: int, echo: int, count: int) -> None:
    pods = Pods()
    container = ContainerState(name="main", image="docker.io/library/nginx:1", started_at_s=1.0, is_ready=True)
    for number in range(count):
        pod = PodState(
            namespace="default", name=f"web-{number}", uid=f"{number:032}", phase="Running", created_at_s=1.0,
            ip=f"10.88.{number // 250}.{number % 250}", containers=(container, replace(container, name="side")),
        )  # fmt: skip
        pods.pods.put(pod.key, pod)
    by_file = {
        pod_pb2: PodService(pods, Streams(echo)),  # type: ignore[arg-type]
        **{one: Absent("none") for one in OTHERS},
    }
    door = DoorUnit(Door(address=f"127.0.0.1:{port}"), folder, "n1")
    door.services = {one: made for file, made in by_file.items() for one in file.DESCRIPTOR.services_by_name.values()}
    board = Board(time.time)
    report = board.add("door", State.STARTING)
    async with asyncio.TaskGroup() as group:
        group.create_task(door.run(report))
        while board.line("door").state is not State.READY:
            await asyncio.sleep(0.01)
        print(json.dumps(door.kubeconfig("admin")), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for number in range(int(CHURN_S * A_SECOND)):
            pod = pods.pods.items[f"default/web-{number % PODS}"]
            pods.pods.put(pod.key, replace(pod, reason=f"changed-{number}"))
            await asyncio.sleep(1 / A_SECOND)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
