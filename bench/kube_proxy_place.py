# SPDX-License-Identifier: Apache-2.0
"""Where bench/kube_proxy runs its contenders: the API server with its objects, the way to it, and the two programs.

Owns: what is written to the server, a relay into a network namespace without a link to anywhere, and the command lines.
`python -m bench.kube_proxy_place serve|relay …` are the processes beside it. Never: measures.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from msgspec.structs import replace

from agent.drivers.clock.driver import SystemClock
from agent.drivers.kube.client import KubeClient
from agent.drivers.kube.connection import KubeRequest
from agent.drivers.kube.errors import KubeError
from agent.drivers.kube.kubeconfig import load_kubeconfig
from agent.drivers.kube.resource import ENDPOINT_SLICES, NODES, SERVICES
from bench.services_inside import HERE, endpoints, kubeconfig, service_object, slice_object
from tests.drivers.kube.api_server import ApiServer
from tests.drivers.kube.certificates import make_certificates
from tests.lab.namespace import Namespace

SPACE = "kepd-bench"
NODE = "n0"
FIRST = 4096
"""Numbers of Services begin here, so that their addresses are far from those a cluster gives to its own."""
WATCHED = 50
"""So many Services have an endpoint that answers."""
WRITERS = 16
OURSELVES = (sys.executable, "-m", "bench.kube_proxy_place")


class Cluster:
    """The API server and the objects on it. Asked through `client`; contenders get `kubeconfig`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.client = KubeClient(load_kubeconfig(path), clock=SystemClock(), qps=1e5, burst=10**5)
        self.services = SERVICES.narrowed(namespace=SPACE)
        self.slices = ENDPOINT_SLICES.narrowed(namespace=SPACE)

    async def fill(self, size: int) -> None:
        """A node, and Services of ten endpoints; some have a single one, which answers."""
        namespaces = replace(NODES, plural="namespaces")
        node = {"metadata": {"name": NODE}, "kind": "Node", "apiVersion": "v1"}
        with suppress(KubeError):
            await self.client.create(namespaces, {"metadata": {"name": SPACE}})
        with suppress(KubeError):
            await self.client.create(NODES, node)
        status = {"status": {"addresses": [{"type": "InternalIP", "address": HERE[0]}]}}
        await self.client.patch(NODES, NODE, status, subresource="status")
        await self._each(range(FIRST, FIRST + size), self._make, size)

    async def _make(self, number: int, size: int) -> None:
        await self.client.create(self.services, clean(service_object(number)))
        addresses = [HERE[0]] if number in watched(size) else endpoints(number)
        await self.client.create(self.slices, clean(slice_object(number, addresses)))

    async def point(self, number: int, addresses: Sequence[str]) -> None:
        """Other endpoints for this Service."""
        body = {"endpoints": slice_object(number, list(addresses))["endpoints"]}
        await self.client.patch(self.slices, f"s{number}-x", body)

    async def empty(self, size: int) -> None:
        """As it was, but for the node and the namespace."""
        await self._each(range(FIRST, FIRST + size), self._drop, size)

    async def _drop(self, number: int, _size: int) -> None:
        for path in (self.services.object_path(f"s{number}"), self.slices.object_path(f"s{number}-x")):
            with suppress(KubeError):
                await self.client._once(  # noqa: SLF001  # no other part of kepd deletes objects
                    KubeRequest(verb="delete", what=path, path=path, method="DELETE")
                )

    async def _each(self, numbers: Sequence[int], work: Callable[..., Awaitable[object]], size: int) -> None:
        todo = iter(numbers)

        async def go() -> None:
            for number in todo:
                await work(number, size)

        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(go())


def clean(item: dict[str, Any]) -> dict[str, Any]:
    """Without what only a server gives."""
    meta = {key: value for key, value in item["metadata"].items() if key != "uid"}
    return {**item, "metadata": {**meta, "namespace": SPACE}}


def watched(size: int) -> range:
    return range(FIRST, FIRST + size, max(1, size // WATCHED))


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    """That of KUBECONFIG, or one of our own in another process."""
    async with AsyncExitStack() as stack:
        path = Path(os.environ.get("KUBECONFIG", ""))
        if not os.environ.get("KUBECONFIG"):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            path = folder / "kubeconfig"
            server = await asyncio.to_thread(
                subprocess.Popen, (sys.executable, "-m", "bench.kube_proxy_place", "serve", str(folder))
            )
            stack.callback(server.wait)
            stack.callback(server.terminate)
            while not path.exists():
                await asyncio.sleep(0.05)
        made = Cluster(path)
        stack.push_async_callback(made.client.close)
        yield made


async def serve(folder: Path) -> None:
    """The test server, whose second is a second here."""
    certificates = make_certificates(folder)
    server = ApiServer(certificates, second_s=1.0)
    await server.start()
    ready = folder / ".kubeconfig"
    ready.write_text(json.dumps(kubeconfig(server.url, str(certificates.ca))))
    ready.rename(folder / "kubeconfig")
    await asyncio.Event().wait()


async def relay(descriptor: int, host: str, port: int) -> None:
    """From a socket that listens in another network namespace to a server that is reached from here."""

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while content := await source.read(1 << 18):
                target.write(content)
                await target.drain()
        target.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(host, port)
        await asyncio.gather(copy(reader, there_writer), copy(there_reader, writer))

    server = await asyncio.start_server(forward, sock=socket.socket(fileno=descriptor))
    await server.serve_forever()


@contextmanager
def reachable(path: Path, space: Namespace, folder: Path) -> Iterator[Path]:
    """A kubeconfig for use inside: the same server, through a relay."""
    document = yaml.safe_load(path.read_text())
    for part in (*(one["cluster"] for one in document["clusters"]), *(one["user"] for one in document["users"])):
        for key in ("certificate-authority", "client-certificate", "client-key", "tokenFile"):
            if key in part:
                part[key] = str(path.parent / part[key])
    entry = document["clusters"][0]["cluster"]
    url = urlsplit(entry["server"])
    listener = space.call(lambda: socket.create_server(("127.0.0.1", 0), backlog=64))
    entry["server"] = f"https://127.0.0.1:{listener.getsockname()[1]}"
    if not entry.get("insecure-skip-tls-verify"):
        entry.setdefault("tls-server-name", url.hostname)
    inside = folder / "kubeconfig"
    inside.write_text(json.dumps(document))
    argv = (
        sys.executable,
        "-m",
        "bench.kube_proxy_place",
        "relay",
        str(listener.fileno()),
        url.hostname,
        str(url.port),
    )
    running = subprocess.Popen(argv, pass_fds=(listener.fileno(),))
    try:
        yield inside
    finally:
        running.terminate()
        running.wait()
        listener.close()


@dataclass
class Contender:
    """One of the two, as a process in a namespace."""

    name: str
    argv: tuple[str, ...]
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> float:
        """When that was."""
        began_s = time.perf_counter()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.argv, stdout=log, stderr=log)
        return began_s

    def end(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)

    @property
    def pid(self) -> int:
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended: {self.log.read_text()[-2000:]}")
        return self.process.pid

    def cpu_s(self) -> float:
        """With that of the programs it called."""
        fields_ = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return sum(map(int, fields_[11:15])) / os.sysconf("SC_CLK_TCK")


def kepd_in(space: Namespace, folder: Path, backend: str, inside: Path) -> Contender:
    config = folder / "config.yaml"
    config.write_text(
        "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\n"
        f"node: {{name: {NODE}, stateDirectory: {folder}/state, runDirectory: {folder}/run}}\n"
        f"runtime: {{endpoint: 'unix://{folder}/none.sock'}}\nkubernetes: {{kubeconfig: '{inside}'}}\n"
        f"api: {{httpAddress: '', readGroup: ''}}\nservices: {{backend: {backend}, conntrack: {{maxPerCore: 0}}}}\n"
    )
    program = str(Path(sys.executable).parent / "kepd")
    argv = space.command(program, "run", "--config", str(config), "--planes", "services")
    return Contender("kepd", argv, folder / "log")


def kube_proxy_in(space: Namespace, folder: Path, backend: str, inside: Path) -> Contender:
    limits = ("--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0")
    flags = (f"--kubeconfig={inside}", f"--proxy-mode={backend}", f"--hostname-override={NODE}", *limits)
    argv = space.command(program_path(), *flags, "--conntrack-tcp-timeout-close-wait=0")
    return Contender("kube-proxy", argv, folder / "log")


def program_path() -> str:
    return shutil.which(os.environ.get("KEPD_KUBE_PROXY", "")) or ""


def version() -> str:
    printed = subprocess.run((program_path(), "--version"), check=True, capture_output=True, text=True).stdout
    return f"kube-proxy {printed.split()[-1]}"


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        if sys.argv[1] == "serve":
            asyncio.run(serve(Path(sys.argv[2])))
        else:
            asyncio.run(relay(int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
