# SPDX-License-Identifier: Apache-2.0
"""The relay in front of the API, with a server that only greets."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agent.api import peer as peer_module
from agent.api.peer import Peer, PeerRelay
from agent.model.allowance import Share

SETTINGS = bytes(3) + b"\x04" + bytes(5)
HEADERS = bytes(3) + b"\x01\x05" + bytes(3) + b"\x01"
PING = bytes((0, 0, 8, 6, 0)) + bytes(12)
ANSWERED = bytes((0, 0, 8, 6, 1)) + bytes(12)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GOAWAY = 7
FRAME = 9
WITHIN_S = 40.0


class Ending(socket.socket):
    """A listener; whoever connects is the last before the process ends."""

    ends: asyncio.Task[None]

    def accept(self) -> Any:
        found = super().accept()
        self.ends.cancel()
        return found


@asynccontextmanager
async def relay_of(listener: Ending, folder: Path) -> AsyncIterator[None]:
    listener.bind(str(folder / "public"))
    listener.listen()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SETTINGS)
        await reader.read()
        writer.close()

    async def until_cancelled(relay: PeerRelay) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        relay.stop_accepting()
        await relay.part(WITHIN_S)

    async def upstream_of(_peer: Peer) -> str:
        return str(folder / "private")

    async with await asyncio.start_unix_server(greet, folder / "private"):
        relay = PeerRelay(listener, upstream_of)
        running = asyncio.ensure_future(relay.run())
        listener.ends = asyncio.ensure_future(until_cancelled(relay))
        await asyncio.sleep(0)
        yield
        await listener.ends
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.sleep(0.01)


async def test_a_client_of_the_last_moment_hears_the_farewell_and_may_write_until_then(short_path: Path) -> None:
    """SYS-08: its call would be cancelled by a server that stops, or its pipe broken, and the call lost."""
    loop = asyncio.get_running_loop()
    with Ending(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        async with asyncio.timeout(WITHIN_S), relay_of(listener, short_path):
            client.connect(str(short_path / "public"))
            heard = b""
            while len(heard) < 2 * FRAME:
                heard += await loop.sock_recv(client, 100)
            await loop.sock_sendall(client, PREFACE + HEADERS)
            client.shutdown(socket.SHUT_WR)

    assert heard.startswith(SETTINGS)
    assert heard[FRAME + 3] == GOAWAY


async def test_a_client_that_has_heard_it_is_hung_up_on(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may keep its end open until its call is answered anew, which nobody does before this process has ended."""
    monkeypatch.setattr(peer_module, "HEARING_S", 2 * WITHIN_S)
    loop = asyncio.get_running_loop()
    with Ending(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        async with asyncio.timeout(WITHIN_S), relay_of(listener, short_path):
            client.connect(str(short_path / "public"))
            await loop.sock_sendall(client, PREFACE)
            heard = b""
            while not heard.endswith(PING):
                heard += await loop.sock_recv(client, 100)
            await loop.sock_sendall(client, ANSWERED)
            assert await loop.sock_recv(client, 100) == b""


async def test_a_client_that_says_nothing_holds_nobody_up(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for it ends in a task that is being cancelled, and what comes after the wait is still done."""
    monkeypatch.setattr(peer_module, "HEARING_S", 0.01)
    with Ending(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        async with asyncio.timeout(WITHIN_S), relay_of(listener, short_path):
            client.connect(str(short_path / "public"))
            await listener.ends

    assert not listener.ends.cancelled()


async def test_answers_count_for_their_user_and_wait_beyond_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of logs at full speed would fill the relay for everybody else."""
    monkeypatch.setitem(peer_module.METERED, "bytes of answers", Share(100_000, 1 / 3600))
    with socket.socket(socket.AF_UNIX) as listener:
        relay = PeerRelay(listener, lambda _peer: asyncio.sleep(0, ""))
        client, near = socket.socketpair()
        server, far = socket.socketpair()
        link = peer_module._Link(near, far, lambda: None, lambda _size: True)
        waits: list[float] = []
        link.charge_answer = lambda size: waits.append(relay._charge_answer(44_001, size)) or 0.0
        answering = asyncio.ensure_future(link.answers())
        # A frame of DATA of a stream that nobody opened passes as it is.
        server.sendall((65_000).to_bytes(3, "big") + bytes(2) + (1).to_bytes(4, "big") + bytes(65_000))
        server.sendall((65_000).to_bytes(3, "big") + bytes(2) + (1).to_bytes(4, "big") + bytes(65_000))
        client.setblocking(False)
        heard = 0
        async with asyncio.timeout(WITHIN_S):
            while heard < 2 * 65_009:
                heard += len(await asyncio.get_running_loop().sock_recv(client, 1 << 16))
        server.close()
        await answering
        link.close()
        client.close()

        assert waits[0] == 0.0
        assert waits[-1] > 0.0
        assert relay._charge_answer(44_002, 1000) == 0.0
