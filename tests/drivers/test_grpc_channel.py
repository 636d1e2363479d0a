# SPDX-License-Identifier: Apache-2.0
"""The connection to a runtime."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agent.drivers.grpc_channel import open_channel

EMPTY_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
WITHIN_S = 30.0


class Greeter:
    """A runtime that greets after some time, and says no more."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self.attempts = 0
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.attempts += 1
        self.open += 1
        await asyncio.sleep(self._after_s)
        writer.write(EMPTY_SETTINGS)
        await reader.read()
        writer.close()
        self.open -= 1


@asynccontextmanager
async def listening(path: Path, after_s: float = 0.0) -> AsyncIterator[Greeter]:
    greeter = Greeter(after_s)
    server = await asyncio.start_unix_server(greeter.serve, path)
    try:
        yield greeter
    finally:
        server.close()
        while greeter.open:
            await asyncio.sleep(0.01)


async def test_a_runtime_that_is_slow_to_greet_is_connected_to_all_the_same(short_path: Path) -> None:
    """On a node whose processors are busy; the attempt is not given up for another one that would take as long."""
    async with listening(short_path / "s", after_s=0.7) as greeter, asyncio.timeout(WITHIN_S):
        channel = open_channel(f"unix://{short_path}/s")
        await channel.channel_ready()
        await channel.close()

    assert greeter.attempts == 1


async def test_a_runtime_that_comes_back_is_found_soon(short_path: Path) -> None:
    """What refuses is asked again after a moment, however long an attempt may take."""
    channel = open_channel(f"unix://{short_path}/s")
    ready = asyncio.ensure_future(channel.channel_ready())
    await asyncio.sleep(0.5)
    async with listening(short_path / "s"):
        async with asyncio.timeout(30):
            await ready
        await channel.close()
