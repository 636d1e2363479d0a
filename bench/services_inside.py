# SPDX-License-Identifier: Apache-2.0
"""The half of bench/services that runs inside a network namespace of its own. Prints its rows as JSON."""

import asyncio
import gc
import json
import re
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import structlog

from agent.drivers.clock.driver import SystemClock
from agent.drivers.nft.driver import NftTable
from agent.kit.memory import large_work, settle_memory
from agent.model.component import Board, State
from agent.services.objects.node_state import NodeSettings
from agent.services.run.intake import ServiceInputs
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane
from bench.daemon import resident_mib
from bench.services_tenants import tenant_rows
from tests.drivers.kube.api_server import ApiServer
from tests.drivers.kube.certificates import make_certificates
from tests.drivers.kube.fake_objects import FakeObjects
from tests.services.making import make_service, make_slice

Row = tuple[str, float, str, str]
ENDPOINTS = 10
VIP, HERE = "10.96.0.1", ("10.200.0.1", "10.200.0.2")
CHANGES = 200
READY = {"ready": True, "serving": True, "terminating": False}
OUTAGE_S = 600
FINISHED = re.compile(r"event=service_sync_finished family=IPv4 .*elements=(\d+) full=true duration_s=([0-9.]+)")


def vip(number: int) -> str:
    return f"10.{96 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def endpoints(number: int) -> list[str]:
    first = number * ENDPOINTS
    return [f"10.{128 + (one >> 16)}.{one >> 8 & 255}.{one & 255}" for one in range(first, first + ENDPOINTS)]


async def plan_rows(size: int) -> list[Row]:
    """The plane without an API: from the arrived lists to the kernel, and single changes."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    intake = ServiceInputs(NodeSettings(node="n0", addresses=("192.168.0.10",)), tell=print, started_s=0.0)
    table = NftTable("IPv4")
    plane = ServicesPlane(intake, {"IPv4": NftRuleset(table)}, clock=SystemClock(), tell=print)
    intake.replace_services(make_service(f"s{number}", ip=vip(number)) for number in range(1, size + 1))
    intake.replace_slices(
        make_slice(endpoints(number), service=f"s{number}", name=f"s{number}-x") for number in range(1, size + 1)
    )
    gc.collect()
    resting = ExitStack()
    resting.enter_context(large_work())
    report = Board(time.time).add("services", State.STARTING)
    began_s = time.perf_counter()
    done = plane.measures.transactions
    async with asyncio.TaskGroup() as group:
        running = group.create_task(plane.run(report))
        while not plane.families["IPv4"].is_synced:
            await asyncio.sleep(0.001)
        first_s = time.perf_counter() - began_s
        resting.close()
        settle_memory()
        times = []
        for change in range(CHANGES):
            number = change * 7919 % size + 1
            await asyncio.sleep(0.06)
            before, began_s = done["IPv4", "ok"], time.perf_counter()
            intake.put_slice(
                make_slice([*endpoints(number)[1:], f"10.250.{change}.1"], service=f"s{number}", name=f"s{number}-x")
            )
            while done["IPv4", "ok"] == before:
                await asyncio.sleep(0)
            times.append((time.perf_counter() - began_s) * 1000)
        running.cancel()
    await table.close()
    what = f"{size} Services x {ENDPOINTS}"
    return [
        (f"{what}: lists arrived to first programming", first_s, "s", "≤ 1.0 at 10 000" if size == 10000 else ""),
        (f"{what}: one endpoint replaced, event to kernel", statistics.median(times), "ms p50", "≤ 10, flat"),
    ]


def objects(size: int) -> FakeObjects:
    """A cluster in one of whose three zones the node is; hints leave it every endpoint, so none is saved."""
    found = FakeObjects()
    found.load(
        "nodes",
        {"metadata": {"name": "n0"}, "status": {"addresses": [{"type": "InternalIP", "address": "10.200.0.1"}]}},
    )
    for number in range(1, size + 1):
        found.load("services", service_object(number))
        found.load("endpointslices", slice_object(number, endpoints(number)))
    return found


def service_object(number: int) -> dict[str, Any]:
    address = vip(number)
    return {
        "metadata": {"name": f"s{number}", "namespace": "shop", "uid": f"u{number}"},
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
            "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
        },
    }  # fmt: skip


def slice_object(number: int, addresses: list[str]) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"s{number}-x",
            "uid": f"x{number}",
            "namespace": "shop",
            "labels": {"kubernetes.io/service-name": f"s{number}", "endpointslice.kubernetes.io/managed-by": "bench"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": [
            {"addresses": [one], "conditions": READY, "nodeName": f"n{place}"}
            for place, one in enumerate(addresses)
        ],
    }  # fmt: skip


def kubeconfig(url: str, authority: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "b",
        "contexts": [{"name": "b", "context": {"cluster": "b", "user": "b"}}],
        "clusters": [{"name": "b", "cluster": {"server": url, "certificate-authority": authority}}],
        "users": [{"name": "b", "user": {"token": "good-token"}}],
    }


class Answering:
    """Servers on the two local addresses; each says which it is."""

    def __init__(self) -> None:
        self._sockets = []
        for address in HERE:
            listener = socket.create_server((address, 8080), backlog=4096)
            self._sockets.append(listener)
            threading.Thread(target=self._serve, args=(listener, address[-1].encode()), daemon=True).start()

    @staticmethod
    def _serve(listener: socket.socket, word: bytes) -> None:
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.send(word)


def connect(word: bool = True, address: str = VIP) -> bytes:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.settimeout(0.2)
        client.connect((address, 80))
        return client.recv(1) if word else b""


def reached() -> bytes:
    """Which server answers; nothing while none does."""
    with suppress(OSError):
        return connect()
    return b""


class Daemon:
    """A kepd of its own."""

    def __init__(self, folder: Path, kubeconfig: str) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.config = folder / "config.yaml"
        self.config.write_text(
            "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\n"
            f"node: {{name: n0, stateDirectory: {folder}/state, runDirectory: {folder}/run}}\n"
            f"runtime: {{endpoint: 'unix://{folder}/none.sock'}}\n"
            f"kubernetes: {{kubeconfig: '{kubeconfig}'}}\n"
            "api: {httpAddress: '', readGroup: ''}\nservices: {healthzAddress: ''}\ntelemetry: {logFormat: logfmt}\n"
        )

    def start(self) -> float:
        """Returns how long it took until the first sync was over."""
        self.log.write_text("")
        program = str(Path(sys.executable).parent / "kepd")
        began_s = time.perf_counter()
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [program, "run", "--config", str(self.config), "--planes", "services"], stdout=log, stderr=log
            )
        while not FINISHED.search(self.log.read_text()):
            if self.process.poll() is not None or time.perf_counter() - began_s > 120:
                raise RuntimeError(self.log.read_text())
            time.sleep(0.005)
        return time.perf_counter() - began_s

    def first_sync(self) -> tuple[int, float]:
        found = FINISHED.search(self.log.read_text())
        assert found is not None
        return int(found[1]), float(found[2])

    def end(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(30)


@asynccontextmanager
async def beside_server(size: int) -> AsyncIterator[tuple[ApiServer, Daemon]]:
    """A daemon that follows a server with so many Services, and something that answers at two endpoints."""
    Answering()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificates = make_certificates(folder)
        server = ApiServer(certificates, objects(size), second_s=1.0)
        await server.start()
        (folder / "kubeconfig").write_text(json.dumps(kubeconfig(server.url, str(certificates.ca))))
        daemon = Daemon(folder, str(folder / "kubeconfig"))
        await asyncio.to_thread(daemon.start)
        yield server, daemon
        await asyncio.to_thread(daemon.end)
        await server.stop()


async def daemon_rows(size: int) -> list[Row]:
    """A process beside an API server."""
    async with beside_server(size) as (server, daemon):
        elements, first_s = daemon.first_sync()
        await asyncio.sleep(2.0)
        memory = resident_mib(daemon.process.pid)
        delays = [delay async for delay in traffic_delays(server)]
        await asyncio.to_thread(daemon.end)
        await asyncio.to_thread(daemon.start)
        written, again_s = daemon.first_sync()
    what = f"daemon, {size} Services x {ENDPOINTS}"
    return [
        (f"{what}: first sync ({elements} elements)", first_s, "s", "≤ 1.0"),
        (f"{what}: resident memory after it", memory, "MiB", "≤ 143 (150 MB)"),
        (f"{what}: API write to traffic", statistics.median(delays), "ms p50", "≤ 50"),
        (f"{what}: the same", sorted(delays)[int(len(delays) * 0.99)], "ms p99", "≤ 100"),
        (f"{what}: restart, elements written", written, "", "0"),
        (f"{what}: restart, reading and comparing", again_s, "s", "≤ 3"),
    ]


async def traffic_delays(server: ApiServer) -> AsyncIterator[float]:
    """From the write of a slice to the first connection that reaches the new endpoint."""
    server.objects.put("endpointslices", slice_object(1, [HERE[1]]))
    while await asyncio.to_thread(reached) != b"2":
        await asyncio.sleep(0.05)
    for change in range(CHANGES):
        target = HERE[change % 2]
        await asyncio.sleep(0.1)
        began_s = time.perf_counter()
        server.objects.put("endpointslices", slice_object(1, [target]))
        while await asyncio.to_thread(reached) != target[-1].encode():
            pass
        yield (time.perf_counter() - began_s) * 1000


async def outage_rows(size: int) -> list[Row]:
    """Ten minutes without an API server: rules stay, nothing grows, and what was missed is made up for."""
    async with beside_server(size) as (server, daemon):
        server.objects.put("endpointslices", slice_object(1, [HERE[0]]))
        while await asyncio.to_thread(reached) != b"1":
            await asyncio.sleep(0.05)
        before = resident_mib(daemon.process.pid)
        await server.refuse()
        failed, made, until_s = 0, 0, time.perf_counter() + OUTAGE_S
        while time.perf_counter() < until_s:
            failed += await asyncio.to_thread(reached) != b"1"
            made += 1
            await asyncio.sleep(0.1)
        server.objects.put("endpointslices", slice_object(1, [HERE[1]]))
        grown = resident_mib(daemon.process.pid) - before
        await server.accept()
        began_s = time.perf_counter()
        while await asyncio.to_thread(reached) != b"2":
            await asyncio.sleep(0.01)
        back_s = time.perf_counter() - began_s
    what = f"{OUTAGE_S} s without API server, {size} Services"
    return [
        (f"{what}: failed connects of {made}", failed, "", "0"),
        (f"{what}: memory grew by", grown, "MiB", ""),
        (f"{what}: server back to traffic moved", back_s, "s", "≤ 30 + its list"),
    ]


def prepare() -> None:
    for argv in (
        *(("ip", "addr", "add", f"{address}/32", "dev", "lo") for address in HERE),
        ("ip", "route", "add", "10.96.0.0/11", "dev", "lo"),
    ):
        subprocess.run(argv, check=True)


def main() -> None:
    prepare()
    work = {"plan": plan_rows, "daemon": daemon_rows, "outage": outage_rows, "tenants": tenant_rows}[sys.argv[1]]
    made = work(int(sys.argv[2]))
    print(json.dumps(made if isinstance(made, list) else asyncio.run(made)))


if __name__ == "__main__":
    main()
