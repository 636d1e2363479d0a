# SPDX-License-Identifier: Apache-2.0
"""What callers may hold of this daemon at once: each user a share, and all of them together a part.

Bounds per connection multiply: 16 connections of 16 calls each made 64 KiB into 16 MiB, and an answer of 16 MiB that
is never read into 4 GiB. Shares are of a user, however many connections and calls it has. Root is not counted: it may
end the daemon anyway.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from agent.wire.kepd.v1 import access_pb2

MIB = 1 << 20


class Bounds(msgspec.Struct, frozen=True):
    """Of one request, and of calls at once on a connection, by the level of the caller."""

    name: str
    request_bytes: int
    streams: int


BOUNDS = {
    access_pb2.LEVEL_READ: Bounds("read", 64 << 10, 16),
    access_pb2.LEVEL_OPERATE: Bounds("operate", 2 << 20, 16),
    access_pb2.LEVEL_ADMIN: Bounds("admin", 16 << 20, 64),
}


class Shares:
    """Bytes in our memory that a caller has yet to send the rest of, or to read."""

    def __init__(self, each_bytes: int, all_bytes: int) -> None:
        self._each, self._all = each_bytes, all_bytes
        self._held: Counter[int] = Counter()

    @property
    def held_bytes(self) -> int:
        return self._held.total()

    def take(self, uid: int, size: int) -> bool:
        """Whether there is room; a negative size gives back."""
        if is_trusted(uid):
            return True
        if size > 0 and (self._held[uid] + size > self._each or self.held_bytes + size > self._all):
            return False
        self._held[uid] += size
        return True


class Turns:
    """Calls at work at once. Those that wait cost nothing but their request, and each user has a line of its own."""

    def __init__(self, each: int, together: int) -> None:
        self._each = each
        self._together = asyncio.Semaphore(together)
        self._lines: dict[int, tuple[asyncio.Semaphore, list[None]]] = {}

    @asynccontextmanager
    async def turn(self, uid: int) -> AsyncIterator[None]:
        if is_trusted(uid):
            yield
            return
        line, waiting = self._lines.setdefault(uid, (asyncio.Semaphore(self._each), []))
        waiting.append(None)
        try:
            async with line, self._together:
                yield
        finally:
            waiting.pop()
            if not waiting:
                del self._lines[uid]


def is_trusted(uid: int) -> bool:
    return uid in (0, os.geteuid())
