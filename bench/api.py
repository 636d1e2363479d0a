# SPDX-License-Identifier: Apache-2.0
"""The local API: latency of a call through the relay, and of the same call without it.

Measures round trips of one small rpc, back to back, over the public socket (relay, credentials, access) and over the
private one, which has the same server without the relay.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2

from agent.api.access import AccessRule
from agent.api.server import ApiServer
from agent.api.services.health import HealthService
from agent.api.socket_path import listen_at
from agent.model.component import Board, State

Row = tuple[str, float, str, str]
CALLS = 2000


async def round_trip_ms(path: Path, *, refused: bool) -> float:
    """Median of many calls; the private socket refuses everybody, which costs the server the same."""
    options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        call = channel.unary_unary("/grpc.health.v1.Health/Check")
        times = []
        for _ in range(CALLS):
            began_s = time.perf_counter()
            try:
                await call(b"")
            except grpc.aio.AioRpcError:
                assert refused
            times.append((time.perf_counter() - began_s) * 1000)
    return statistics.median(times)


async def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="kb") as name:
        folder = Path(name)
        board = Board(time.time)
        listener = listen_at(folder / "kepd.sock", 0o600)
        services = {health_pb2.DESCRIPTOR.services_by_name["Health"]: HealthService(board)}
        rule = AccessRule(None, None)
        server = ApiServer(services, listener, folder / "private", lambda: rule, lambda _method, _code: None)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(server.run(board.add("api", State.STARTING)))
            while board.line("api").state is not State.READY:
                await asyncio.sleep(0.01)
            public_ms = await round_trip_ms(folder / "kepd.sock", refused=False)
            (private,) = (folder / "private").glob("admin-*")
            private_ms = await round_trip_ms(private, refused=True)
            task.cancel()
        listener.close()
    return [
        ("API call through the relay, client in the same process", public_ms, "ms p50", ""),
        ("the same without the relay (refused)", private_ms, "ms p50", ""),
        ("relay against no relay", public_ms / private_ms, "×", ""),
    ]


def measure() -> list[Row]:
    """All rows."""
    return asyncio.run(rows())
