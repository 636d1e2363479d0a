# SPDX-License-Identifier: Apache-2.0
"""One end of a link, at its end."""

import asyncio
import socket
from typing import Any

import pytest

from agent.proxy.run import side as side_module
from agent.proxy.run.side import ConnectionEnd


class NoLink:
    def __init__(self) -> None:
        self.front = self.back = ConnectionEnd(self, lambda _data: None)

    def connected(self, side: ConnectionEnd) -> None: ...

    def lost(self, side: ConnectionEnd | None = None) -> None: ...


async def test_what_ended_in_time_is_not_ended_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio raises where a transport is aborted that wrote its last bytes after it was closed."""
    monkeypatch.setattr(side_module, "FLUSH_S", 0.05)
    loop, wrong = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _loop, context: wrong.append(context))
    ours, theirs = socket.socketpair()
    link = NoLink()
    await loop.create_connection(lambda: link.front, sock=ours)
    reader, writer = await asyncio.open_connection(sock=theirs)
    link.front.write(bytes(4 << 20))

    link.front.close()
    came: Any = await reader.read(-1)
    await asyncio.sleep(0.1)

    assert (len(came), wrong) == (4 << 20, [])
    writer.close()
