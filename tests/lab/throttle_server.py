# SPDX-License-Identifier: Apache-2.0
"""The throttle itself: an HTTP proxy in front of the registry that is slow, counts, and misbehaves on request.

Owns: both listening sockets (TCP for clients, unix for control) and every connection in between; runs as a process of
its own inside the lab's namespace and ends when its standard input closes.
Never: keeps a connection open for a second request (containerd opens one per layer anyway), alters a body, or
limits what clients send.
"""

import asyncio
import contextlib
import http
import json
import re
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator

from tests.lab.faults import Request
from tests.lab.pace import Pace, chunk_bytes
from tests.lab.throttle_state import ActiveFault, State

__all__ = ["serve"]

HEAD_LIMIT = 64 * 1024
LARGEST_READ = 64 * 1024
HEAD_WITHIN_S = 30.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Exchange:
    """One connection with one request: at most one fault, one answer."""

    def __init__(self, state: State, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._state = state
        self._reader = reader
        self._writer = writer
        self._upstream: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
        self._pace = Pace()

    async def run(self) -> None:
        async with asyncio.timeout(HEAD_WITHIN_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        request = Request(method=method, path=target.partition("?")[0], started_s=time.monotonic())
        self._state.requests.append(request)
        try:
            async with asyncio.TaskGroup() as tasks:
                client = tasks.create_task(self._pass_request_body(), name="client")
                answer = tasks.create_task(self._answer(request, target, _closing(head)), name="answer")
                await asyncio.wait((client, answer), return_when=asyncio.FIRST_COMPLETED)
                client.cancel()  # either the answer is complete, or the client left and nobody wants it
                answer.cancel()
        finally:
            request.ended_s = time.monotonic()

    async def _pass_request_body(self) -> None:
        """Ends when the client closes its side."""
        while chunk := await self._reader.read(LARGEST_READ):
            upstream = await asyncio.shield(self._upstream)
            upstream.write(chunk)
            await upstream.drain()

    async def _answer(self, request: Request, target: str, head: bytes) -> None:
        active = self._state.meet(request)
        fault = active.fault if active else None
        if active is None or fault is None:
            await self._relay(request, head, None)
            return
        match fault.kind:
            case "status":
                await self._say(request, fault.status, dict(fault.headers))
            case "redirect":
                hop = int(found[1]) + 1 if (found := re.search(r"lab-hop=(\d+)", target)) else 1
                await self._say(request, 307, {"Location": f"{request.path}?lab-hop={hop}"})
            case "delay":
                await asyncio.sleep(fault.delay_s)
                await self._relay(request, head, None)
            case "reset" if fault.after_bytes == 0:
                self._reset()
            case "hang" if fault.after_bytes == 0:
                await active.cleared.wait()
                await self._relay(request, head, None)
            case _:
                await self._relay(request, head, active)

    async def _relay(self, request: Request, head: bytes, active: ActiveFault | None) -> None:
        """Fetch the registry's answer and pass it on at the set pace, up to the point where the fault strikes."""
        reader, upstream = await asyncio.open_connection("127.0.0.1", self._state.upstream_port, limit=HEAD_LIMIT)
        try:
            upstream.write(head)
            self._upstream.set_result(upstream)
            while True:
                answer = await reader.readuntil(b"\r\n\r\n")
                request.status = int(answer.split(b" ", 2)[1])
                self._writer.write(answer)
                if request.status >= http.HTTPStatus.OK:  # before that come interim answers such as 100 Continue
                    break
            await self._writer.drain()
            async for chunk in self._body(reader, request, active):
                self._writer.write(chunk)
                await self._writer.drain()
                request.body_bytes += len(chunk)
        finally:
            upstream.close()

    async def _body(
        self, reader: asyncio.StreamReader, request: Request, active: ActiveFault | None
    ) -> AsyncIterator[bytes]:
        strike_at = active.fault.after_bytes if active else None
        while True:
            size = chunk_bytes(self._state.per_connection_bytes_s, self._state.total_bytes_s)
            if active is not None and strike_at is not None:
                if request.body_bytes < strike_at:
                    size = min(size, strike_at - request.body_bytes)
                elif await self._strike(active):
                    return
                else:
                    strike_at = None
            chunk = await reader.read(size)
            if not chunk:
                return
            await self._wait_turn(len(chunk))
            yield chunk

    async def _strike(self, active: ActiveFault) -> bool:
        """Do what the fault does in the middle of a body; returns whether the answer ends here."""
        if active.fault.kind == "hang":
            await active.cleared.wait()
            return False
        if active.fault.kind == "reset":
            self._reset()
        return True

    async def _wait_turn(self, size_bytes: int) -> None:
        now_s = time.monotonic()
        own_s = self._pace.reserve(size_bytes, self._state.per_connection_bytes_s, now_s)
        shared_s = self._state.total.reserve(size_bytes, self._state.total_bytes_s, now_s)
        await asyncio.sleep(max(own_s, shared_s) - now_s)

    async def _say(self, request: Request, status: int, headers: dict[str, str]) -> None:
        phrase = http.HTTPStatus(status).phrase if status in set(http.HTTPStatus) else "Injected"
        errors = [{"code": phrase.upper().replace(" ", "_"), "message": f"injected status {status}"}]
        body = b"" if request.method == "HEAD" else json.dumps({"errors": errors}).encode()
        fields = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"} | headers
        lines = [f"HTTP/1.1 {status} {phrase}", *(f"{key}: {value}" for key, value in fields.items()), "", ""]
        request.status, request.body_bytes = status, len(body)
        self._writer.write("\r\n".join(lines).encode("latin-1") + body)
        await self._writer.drain()

    def _reset(self) -> None:
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self._writer.transport.abort()


def _closing(head: bytes) -> bytes:
    """The request's head with `Connection: close`, so that the end of the answer is the end of the connection."""
    lines = head[:-4].split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith((b"connection:", b"keep-alive:"))]
    return b"\r\n".join([*kept, b"Connection: close", b"", b""])


async def serve(port: int, upstream_port: int, control_path: str) -> None:
    """Run until standard input ends."""
    state = State(upstream_port)

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(0)  # so that drain() waits until the kernel has it all
        try:
            await Exchange(state, reader, writer).run()
        except* (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # one side left in the middle, which is part of the game
        finally:
            writer.close()

    async def on_control(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        try:
            reply: dict[str, object] = {"result": state.control(json.loads(line))}
        except (ValueError, TypeError, RuntimeError) as error:
            reply = {"error": str(error)}
        writer.write(json.dumps(reply).encode() + b"\n")
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    clients = await asyncio.start_server(on_client, "127.0.0.1", port, limit=HEAD_LIMIT)
    control = await asyncio.start_unix_server(on_control, control_path, limit=1 << 20)
    await asyncio.to_thread(sys.stdin.buffer.read)
    control.close()
    clients.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
