# SPDX-License-Identifier: Apache-2.0
"""Local ports that lead into a pod, over a WebSocket to the runtime for each connection.

Source: the port forward protocol of Kubernetes over WebSockets: channel 2n is data, 2n+1 is errors, and the first
message of each holds the port.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import aiohttp

from agent.cli.session import CommandFailed
from agent.cli.streams.remote_streams import opened_socket
from agent.model.exit_codes import FAILURE

PROTOCOL = "v4.channel.k8s.io"
DATA, ERROR = 0, 1
READ_BYTES = 32 << 10


async def forward(
    pairs: Sequence[tuple[int, int]],
    address: str,
    url_of: Callable[[int], Awaitable[str]],
    say: Callable[[str], object],
) -> None:
    """Until cancelled. `pairs` are local ports, 0 for any, and ports of the pod."""
    async with aiohttp.ClientSession() as session:
        servers = []
        try:
            for local, remote in pairs:
                servers.append(await _listening(session, address, local, remote, url_of))
                where = servers[-1].sockets[0].getsockname()
                say(f"forwarding from {where[0]}:{where[1]} to {remote}")
            await asyncio.Event().wait()
        finally:
            for server in servers:
                server.close()


async def _listening(
    session: aiohttp.ClientSession, address: str, local: int, remote: int, url_of: Callable[[int], Awaitable[str]]
) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            opened = await opened_socket(session, await url_of(remote), PROTOCOL)
            await _carry(opened, reader, writer)
        except CommandFailed as error:
            sys.stderr.write(f"kepctl: {error}\n")
        finally:
            with suppress(OSError):
                writer.close()

    try:
        return await asyncio.start_server(serve, address, local)
    except OSError as error:
        raise CommandFailed(f"cannot listen at {address}:{local}: {error.strerror}", FAILURE) from error


async def _carry(
    opened: aiohttp.ClientWebSocketResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    async def send() -> None:
        with suppress(OSError, aiohttp.ClientError):
            while data := await reader.read(READ_BYTES):
                await opened.send_bytes(bytes((DATA,)) + data)

    sending = asyncio.create_task(send())
    try:
        announced: set[int] = set()
        async for message in opened:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel not in announced:
                announced.add(channel)
            elif channel == DATA:
                writer.write(data)
                await writer.drain()
            elif channel == ERROR and data:
                sys.stderr.write(f"kepctl: {data.decode(errors='replace').strip()}\n")
                return
    except OSError:
        return
    finally:
        sending.cancel()
        await opened.close()
