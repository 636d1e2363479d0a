# SPDX-License-Identifier: Apache-2.0
"""The socket by which the daemon asks kepd-dns: status, explain, flush, and that there is a new state."""

import asyncio
import socket
import struct
from collections.abc import Callable, Collection
from contextlib import suppress

import msgspec

from kepd_dns.handover.status import LENGTH_BYTES, Reply, StatusRequest, framed

LARGEST_REQUEST = 65536
IDLE_S = 60.0
MOST_CALLERS = 16


class ControlSocket:
    """`answer` makes the reply. Only callers with one of these user ids are heard."""

    def __init__(self, answer: Callable[[StatusRequest], Reply], users: Collection[int]) -> None:
        self._answer, self._users = answer, users
        self._server: asyncio.Server | None = None
        self._callers = 0

    async def listen(self, opened: socket.socket) -> None:
        self._server = await asyncio.start_unix_server(self._serve, sock=opened)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._callers += 1
        try:
            peer = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            uid = struct.unpack("iII", peer)[1]
            if uid not in self._users or self._callers > MOST_CALLERS:
                return
            while await self._one(reader, writer):
                pass
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            self._callers -= 1
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
        if size > LARGEST_REQUEST:
            return False
        async with asyncio.timeout(IDLE_S):
            content = await reader.readexactly(size)
        try:
            reply = self._answer(msgspec.json.decode(content, type=StatusRequest))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            reply = Reply(error=str(error))
        writer.write(framed(reply))
        await writer.drain()
        return True

    def close(self) -> None:
        if self._server is not None:
            with suppress(OSError):
                self._server.close()
