# SPDX-License-Identifier: Apache-2.0
"""A restart of kepd while the service manager holds the API's socket: whoever calls waits, and nobody is refused."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import grpc
import pytest

from agent.wire.kepd.v1 import node_pb2
from tests.host.process import PROGRAMS, Kepd

METHOD = "/kepd.v1.NodeService/GetNode"
PER_S = 200
AROUND_S = 1.0
DEADLINE_S = 20.0
# On a machine that is too busy for this pace calls would pile up until the line in front of the socket is full, which
# says nothing about restarts. A pause of more than a second and a half is waited for with fewer calls.
MOST_AT_ONCE = 300
MOST_STREAMS = 32
# As a service manager starts a service: in the child, because the environment names its process.
STARTER = (
    "import os,sys; os.dup2(int(sys.argv[1]), 3); os.set_inheritable(3, True); "
    "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1', LISTEN_FDNAMES='api'); "
    "os.execv(sys.argv[2], sys.argv[2:])"
)


class Manager:
    """What systemd does with kepd.socket and kepd.service."""

    def __init__(self, folder: Path, port: int) -> None:
        self.kepd = Kepd(folder, port)
        self.kepd.socket.parent.mkdir()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.kepd.socket))
        self.listener.listen(512)

    def start(self) -> None:
        command = [str(PROGRAMS / "kepd"), "run", "--config", str(self.kepd.config), "--planes", ""]
        number = self.listener.fileno()
        with self.kepd.log.open("a") as log:
            self.kepd.process = subprocess.Popen(
                [sys.executable, "-c", STARTER, str(number), *command], stdout=log, stderr=log, pass_fds=[number]
            )

    async def restart(self) -> float:
        """As `systemctl restart`; how long the daemon was not there."""
        process = self.kepd.process
        assert process is not None
        process.terminate()
        while process.poll() is None:
            await asyncio.sleep(0.005)
        ended_s = time.monotonic()
        assert process.returncode == 0, self.kepd.log.read_text()
        self.start()
        while (await asyncio.to_thread(self.kepd.get, "/livez"))[0] != 200:
            await asyncio.sleep(0.02)
        return time.monotonic() - ended_s

    def close(self) -> None:
        with self.kepd:
            pass
        self.listener.close()


class Load:
    """Calls at a steady pace; every other one over a connection of its own, as kepctl makes them."""

    def __init__(self, target: Path) -> None:
        self._target = f"unix:{target}"
        self._lasting = self._channel()
        self.failures: list[str] = []
        self.waited_s: list[float] = []
        self._room = asyncio.Semaphore(MOST_AT_ONCE)
        # The server counts a call until it has cleared it away, and refuses from 64 on a connection.
        self._streams = asyncio.Semaphore(MOST_STREAMS)

    def _channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self._target, options=[("grpc.use_local_subchannel_pool", 1)])

    async def call(self, *, is_alone: bool) -> None:
        channel = self._channel() if is_alone else self._lasting
        began_s = time.monotonic()
        ask = channel.unary_unary(
            METHOD,
            request_serializer=node_pb2.GetNodeRequest.SerializeToString,
            response_deserializer=node_pb2.GetNodeResponse.FromString,
        )
        try:
            async with nullcontext() if is_alone else self._streams:
                answer = await ask(node_pb2.GetNodeRequest(), timeout=DEADLINE_S)
                assert answer.ByteSize() > 0
        except grpc.aio.AioRpcError as error:
            self.failures.append(f"{'alone' if is_alone else 'lasting'}: {error.code().name}: {error.details()}")
        else:
            self.waited_s.append(time.monotonic() - began_s)
        finally:
            self._room.release()
        if is_alone:
            await channel.close()

    async def run(self, end: asyncio.Event) -> None:
        """Until told to end, then until every call has its answer."""
        async with asyncio.TaskGroup() as calls:
            count, began_s = 0, time.monotonic()
            while not end.is_set():
                await self._room.acquire()
                calls.create_task(self.call(is_alone=count % 2 == 0))
                count += 1
                await asyncio.sleep(max(0.0, began_s + count / PER_S - time.monotonic()))
        await self._lasting.close()


@pytest.fixture
def manager(short_path: Path, free_port: int) -> Iterator[Manager]:
    made = Manager(short_path, free_port)
    made.start()
    try:
        made.kepd.wait(lambda: made.kepd.get("/livez")[0] == 200, "a sign of life")
        yield made
    finally:
        made.close()


@pytest.mark.timeout(120)
async def test_a_restart_under_load_loses_no_call(manager: Manager) -> None:
    """SYS-08: 200 calls a second, one restart after the other."""
    load, end = Load(manager.kepd.socket), asyncio.Event()
    gone_s = []
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run(end))
        for _ in range(3):
            await asyncio.sleep(AROUND_S)
            gone_s.append(await manager.restart())
        await asyncio.sleep(AROUND_S)
        end.set()
    print(f"{len(load.waited_s)} calls, longest wait {max(load.waited_s):.2f} s, away for {max(gone_s):.2f} s")

    assert load.failures == []
    assert len(load.waited_s) > PER_S * AROUND_S
