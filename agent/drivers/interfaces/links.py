# SPDX-License-Identifier: Apache-2.0
"""The network devices of this host by name, now and after every change.

In the network namespace in which it is used. Changes that come close together are reported once.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

LINK_GROUP = 1
SETTLE_S = 0.5
# A missed message is made good by looking again.
LOOK_AGAIN_S = 60.0
MESSAGE_BYTES = 65536


class Links:
    def __init__(self, sys: Path = Path("/sys/class/net")) -> None:
        self._sys = sys

    def now(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(name for _, name in socket.if_nameindex()))

    def is_bridge_port(self, name: str) -> bool:
        """Whether packets pass it below a bridge, whose device is the one that forwards."""
        return (self._sys / name / "brport").exists()

    async def snapshots(self) -> AsyncGenerator[tuple[str, ...], None]:
        """All names; again when they differ from the last time."""
        last: tuple[str, ...] | None = None
        with _listening() as changed:
            while True:
                names = self.now()
                if names != last:
                    last = names
                    yield names
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
