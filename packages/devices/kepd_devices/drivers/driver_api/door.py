# SPDX-License-Identifier: Apache-2.0
"""The port of the API for drivers, which every user of the node can connect to: so many connections and no more.

The oldest gives way to the next, so that somebody who connects and says nothing keeps no driver out, nor takes the
descriptors of the daemon.
"""

import asyncio
import socket
import ssl
from contextlib import suppress
from functools import partial

from aiohttp import web

MOST_CONNECTIONS, MOST_GREETINGS = 128, 32
HANDSHAKE_S, PAUSE_S = 5.0, 0.5
BACKLOG = 128


class Door:
    def __init__(self, server: web.Server, address: str, context: ssl.SSLContext) -> None:
        self._server = server
        self._address = address
        self._context = context
        self._listener: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._greetings: dict[asyncio.Task[None], None] = {}

    def open(self) -> None:
        """Raises OSError."""
        host, _, port = self._address.rpartition(":")
        host = host.strip("[]")
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, int(port)))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise OSError(error.errno, f"devices.api.address {self._address}: {error.strerror}") from error
        listener.setblocking(False)
        self._listener = listener
        self._task = asyncio.create_task(self._take(listener), name="driver-api-door")

    async def close(self) -> None:
        tasks = [*self._greetings, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    async def _take(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(PAUSE_S)
                continue
            if len(self._greetings) >= MOST_GREETINGS:
                next(iter(self._greetings)).cancel()
            open_now = self._server.connections
            if len(open_now) >= MOST_CONNECTIONS and (transport := open_now[0].transport) is not None:
                transport.abort()
            task = asyncio.create_task(self._greet(client))
            self._greetings[task] = None
            task.add_done_callback(partial(self._greeted, client))

    async def _greet(self, client: socket.socket) -> None:
        """The loop closes what it cannot make a connection of."""
        loop = asyncio.get_running_loop()
        with suppress(OSError, ssl.SSLError):
            await loop.connect_accepted_socket(
                self._server, client, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
            )

    def _greeted(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        del self._greetings[task]
        if task.cancelled():
            client.close()
