# SPDX-License-Identifier: Apache-2.0
"""The network devices of this host by name, their numbers and bridges, now and after every change.

In the network namespace in which it is used. Changes that come close together are reported once.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

LINK_GROUP = 1
SETTLE_S = 0.5
# A missed message is made good by looking again.
LOOK_AGAIN_S = 60.0
MESSAGE_BYTES = 65536


class Link(NamedTuple):
    number: int
    """A device that comes again has another."""
    bridge: str = ""
    """That it is a port of."""


class Links:
    def __init__(self, sys: Path = Path("/sys/class/net")) -> None:
        self._sys = sys

    def now(self) -> dict[str, Link]:
        return {name: Link(number, self._bridge_of(name)) for number, name in socket.if_nameindex()}

    def _bridge_of(self, name: str) -> str:
        """Packets pass a port below its bridge, whose device is the one that forwards."""
        place = self._sys / name
        with suppress(OSError):
            if (place / "brport").exists():
                return (place / "master").readlink().name
        return ""

    async def snapshots(self) -> AsyncGenerator[dict[str, Link], None]:
        """All of them; again when they differ from the last time."""
        last: dict[str, Link] | None = None
        with _listening() as changed:
            while True:
                found = self.now()
                if found != last:
                    last = found
                    yield found
                await _wait(changed)


def _listening() -> socket.socket:
    listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    listener.setblocking(False)
    listener.bind((0, LINK_GROUP))
    return listener


async def _wait(changed: socket.socket) -> None:
    """Until something is told; what is told meanwhile is one change."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LOOK_AGAIN_S):
            await asyncio.get_running_loop().sock_recv(changed, MESSAGE_BYTES)
        await asyncio.sleep(SETTLE_S)
    with suppress(OSError):
        while changed.recv(MESSAGE_BYTES):
            pass
