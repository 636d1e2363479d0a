# SPDX-License-Identifier: Apache-2.0
"""A runtime that does what a test says, and a proxy in front of it; both in the test's own loop."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from agent.drivers.clock.driver import SystemClock
from agent.model.span import Traces
from agent.proxy.run.call import ProxyCall, Refusal, Verdict
from agent.proxy.run.server import ProxyServer

LARGE = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1 << 20),
    ("grpc.absolute_max_metadata_size", 1 << 20),
]
CLIENT = [*LARGE, ("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
Method = Callable[[AsyncIterator[bytes], grpc.aio.ServicerContext], AsyncIterator[bytes]]


class Runtime(grpc.GenericRpcHandler):
    """`methods` by path; every one is a stream of bytes both ways, which covers the other kinds."""

    def __init__(self) -> None:
        self.methods: dict[str, Method] = {}
        self.seen: list[tuple[str, bytes]] = []
        self.metadata: list[tuple[tuple[str, str | bytes], ...]] = []
        self.cancelled: list[str] = []

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = self.methods.get(details.method)
        if method is None:
            return None

        async def handle(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
            self.metadata.append(context.invocation_metadata())

            async def noted() -> AsyncIterator[bytes]:
                async for one in requests:
                    self.seen.append((details.method, one))
                    yield one

            try:
                async for answer in method(noted(), context):
                    yield answer
            except asyncio.CancelledError:
                self.cancelled.append(details.method)
                raise

        return grpc.stream_stream_rpc_method_handler(handle)


class CallJudge:
    """Passes everything, unless a test replaces one of its methods."""

    def __init__(self) -> None:
        self.finished: list[ProxyCall] = []
        self.verdict: Callable[[ProxyCall, bytes], Verdict | Refusal] = lambda _call, _message: Verdict.PASS
        self.change: Callable[[ProxyCall, bytes], bytes] = lambda _call, message: message

    def judge(self, call: ProxyCall, message: bytes) -> Verdict | Refusal:
        return self.verdict(call, message)

    def finish(self, call: ProxyCall) -> None:
        self.finished.append(call)

    def rewrite(self, call: ProxyCall, message: bytes) -> bytes:
        return self.change(call, message)


class Wire:
    """Paths of both sockets, and what stands behind them."""

    def __init__(self, folder: Path, traces: Traces | None = None) -> None:
        self.direct, self.through = folder / "runtime.sock", folder / "proxy.sock"
        self.runtime, self.judge = Runtime(), CallJudge()
        self.events: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.server = ProxyServer(str(self.direct), self.judge, SystemClock(), self._subscribe, traces)

    async def _subscribe(self) -> AsyncIterator[bytes]:
        """What a test puts into `events`."""
        while not isinstance(event := await self.events.get(), Exception):
            yield event
        raise event

    def channel(self, *, direct: bool = False, **options: int) -> grpc.aio.Channel:
        path = self.direct if direct else self.through
        more = [(f"grpc.{name}", value) for name, value in options.items()]
        return grpc.aio.insecure_channel(f"unix:{path}", options=[*CLIENT, *more])

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[grpc.aio.Server]:
        """The runtime alone."""
        server = grpc.aio.server(options=LARGE)
        server.add_generic_rpc_handlers((self.runtime,))
        server.add_insecure_port(f"unix:{self.direct}")
        await server.start()
        try:
            yield server
        finally:
            await server.stop(0)


@asynccontextmanager
async def wired(folder: Path, traces: Traces | None = None) -> AsyncIterator[Wire]:
    """Both."""
    wire = Wire(folder, traces)
    async with wire.serving(), proxied(wire):
        yield wire


@asynccontextmanager
async def proxied(wire: Wire) -> AsyncIterator[None]:
    """The proxy alone."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(wire.through))
    listener.listen(128)
    forever: Callable[[], Awaitable[None]] = asyncio.Event().wait  # type: ignore[assignment]
    task = asyncio.create_task(wire.server.run(listener, forever))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
