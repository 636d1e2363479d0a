# SPDX-License-Identifier: Apache-2.0
"""kepctl against the API server and a pods plane over fakes, all in one process; a runtime whose streams are real."""

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aiohttp import WSMsgType, web
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from agent.api.server import ApiServer
from agent.api.services.node import NodeService
from agent.api.socket_path import listen_at
from agent.cli.main import _hoisted, cli
from agent.kit.event_ring import EventRing
from agent.model.component import State
from agent.objects.run.writer import take_out
from agent.pods.attach.pod_service import PodService
from agent.pods.run.commands import PodCommands
from agent.pods.run.draining import Drainer
from agent.pods.run.stream_urls import StreamUrls
from agent.wire.cri import runtime_v1_pb2 as cri_pb
from agent.wire.kepd.v1 import node_pb2, pod_pb2
from tests.api.objects import with_objects
from tests.api.test_server import ROOT_ONLY
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import News, Plane, Slow, running

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"


class ShellStreams:
    """The stream server of a runtime. What is asked of a container runs on this machine, in `root` instead of `/`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.base = ""
        self.commands: list[list[str]] = []
        self.ports: list[int] = []
        self.failure: Exception | None = None
        self.protocol = V5
        self.runs: Callable[[list[str]], list[str]] = lambda command: command

    async def exec_url(self, request: cri_pb.ExecRequest) -> str:
        if self.failure is not None:
            raise self.failure
        self.commands.append(list(request.cmd))
        return f"{self.base}/exec/{len(self.commands) - 1}"

    async def attach_url(self, _request: cri_pb.AttachRequest) -> str:
        return await self.exec_url(cri_pb.ExecRequest(cmd=["cat"]))

    async def port_forward_url(self, request: cri_pb.PortForwardRequest) -> str:
        self.ports += request.port
        return f"{self.base}/forward"

    @asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        application = web.Application()
        application.router.add_get("/exec/{place}", self._exec)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=(self.protocol,), max_msg_size=0)
        await socket.prepare(request)
        command = self.runs(self.commands[int(request.match_info["place"])])
        process = await asyncio.create_subprocess_exec(
            *command, cwd=self.root, stdin=-1, stdout=-1, stderr=-1, env={"PATH": "/usr/bin:/bin"}
        )
        assert process.stdin is not None

        async def feed() -> None:
            async for message in socket:
                if message.type is WSMsgType.BINARY and message.data[0] == 0:
                    process.stdin.write(message.data[1:])
                    await process.stdin.drain()
                elif message.type is WSMsgType.BINARY and message.data[0] == 255:
                    process.stdin.close()

        async def tell(channel: int, source: asyncio.StreamReader | None) -> None:
            assert source is not None
            while data := await source.read(32 << 10):
                await socket.send_bytes(bytes((channel,)) + data)

        feeding = asyncio.create_task(feed())
        await asyncio.gather(tell(1, process.stdout), tell(2, process.stderr))
        code = await process.wait()
        cause = f'{{"reason":"ExitCode","message":"{code}"}}'
        failed = f'{{"status":"Failure","message":"exit code {code}","details":{{"causes":[{cause}]}}}}'
        await socket.send_bytes(b"\x03" + (failed if code else '{"status":"Success"}').encode())
        await socket.close()
        feeding.cancel()
        return socket


@dataclass
class PodNode:
    """What a test gets. `ctl` takes a command line as a user types it."""

    plane: Plane
    path: Path
    streams: ShellStreams
    ring: EventRing
    findings: list[Any]

    async def ctl(self, line: str | Sequence[str], stdin: bytes | None = None) -> Result:
        words = shlex.split(line) if isinstance(line, str) else list(line)
        full = _hoisted(["--endpoint", str(self.path), *words])
        return await asyncio.to_thread(lambda: CliRunner().invoke(cli, full, input=stdin))

    def container_id(self, name: str, pod: str = "web-n") -> str:
        return next(one.id for one in self.plane.pod(pod).containers if one.name == name)

    def log_file(self, container: str, attempt: int = 0, pod: str = "web-n") -> Path:
        keeper = self.plane.runner.keeper("default", pod)
        assert keeper is not None
        return keeper.run.log_directory / container / f"{attempt}.log"

    def reads_log(self, container: str, attempt: int = 0, pod: str = "web-n") -> bool:
        """Whether the API has the file open now."""
        place = str(self.log_file(container, attempt, pod))
        return any(place == str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink())

    def write_log(self, container: str, *lines: str, attempt: int = 0, pod: str = "web-n") -> None:
        """Lines as a runtime writes them, at seconds 0, 1, 2 … of 2026 unless a line begins with `@SECOND `."""
        path = self.log_file(container, attempt, pod)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as log:
            for place, line in enumerate(lines):
                log.write(f"2026-01-01T00:00:{place:02}.000000000Z stdout F {line}\n")


@asynccontextmanager
async def pod_node(
    tmp_path: Path, short_path: Path, manifests: dict[str, bytes], cri: Any = None, **settings: Any
) -> AsyncIterator[PodNode]:
    cri = cri or Slow()
    given = FakeManifestDirectory(manifests)
    # What kepd logs would go into what a command is seen to print.
    with capture_logs():
        async with _node(cri, given, tmp_path, short_path, settings) as node:
            yield node


@asynccontextmanager
async def _node(
    cri: Any, given: FakeManifestDirectory, tmp_path: Path, short_path: Path, settings: dict[str, Any]
) -> AsyncIterator[PodNode]:
    root = tmp_path / "root"
    root.mkdir()
    streams = ShellStreams(root)
    findings: list[Any] = []

    async def advice() -> list[Any]:
        return findings

    async with running(cri, given, tmp_path / "logs", events=News(cri), **settings) as plane, streams.served():
        context = plane.runner._context
        commands = PodCommands(plane.runner, Drainer(plane.runner, context), context, take_out)
        ring = EventRing(tmp_path, 1000, context.clock.wall_s)
        node: Any = SimpleNamespace(node=lambda: node_pb2.Node(name="n", kepd_version="1"))
        configuration: Any = SimpleNamespace(files=lambda: ())
        services = {
            node_pb2.DESCRIPTOR.services_by_name["NodeService"]: NodeService(
                node, plane.board, configuration, ring.events, [advice]
            ),
            pod_pb2.DESCRIPTOR.services_by_name["PodService"]: PodService(
                commands,
                StreamUrls(commands, streams, streams),  # type: ignore[arg-type]
            ),
        }
        path = short_path / "kepd.sock"
        listener = listen_at(path, 0o666)
        server = ApiServer(with_objects(services), listener, short_path / "private", lambda: ROOT_ONLY, lambda *_: None)
        task = asyncio.create_task(server.run(plane.board.add("api", State.STARTING)))
        while plane.board.line("api").state is not State.READY:
            await asyncio.sleep(0.01)
        try:
            yield PodNode(plane, path, streams, ring, findings)
        finally:
            task.cancel()
            await asyncio.wait([task])
            listener.close()
