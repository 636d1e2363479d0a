# SPDX-License-Identifier: Apache-2.0
"""A logind in memory that refuses what the real one refuses."""

import asyncio
from collections.abc import AsyncIterator


class FakeLogind:
    """Same methods as the driver. `reachable` and `may_lengthen` are for tests to switch."""

    def __init__(self, longest_s: float = 5.0) -> None:
        self.reachable = True
        self.may_lengthen = True
        self.is_preparing = False
        self.is_locked = False
        self.is_stopping = False
        self.locks_taken = 0
        self._longest_s = longest_s
        self._news: asyncio.Queue[bool | None] | None = None

    def announce(self, *, is_preparing: bool) -> None:
        """A shutdown begins, or is called off."""
        self.is_preparing = is_preparing
        if self._news is not None:
            self._news.put_nowait(is_preparing)

    def restart(self) -> None:
        """It ends and begins anew; locks are forgotten."""
        self.is_locked = False
        if self._news is not None:
            self._news.put_nowait(None)

    def is_expected(self) -> bool:
        return self.reachable

    async def connect(self) -> None:
        if not self.reachable:
            raise OSError("no connection to the system bus: [Errno 2] No such file or directory")
        self._news = asyncio.Queue()

    async def close(self) -> None:
        self._news = None

    async def take_lock(self) -> None:
        self._connected()
        if self.is_preparing:
            raise OSError("org.freedesktop.login1 refused Inhibit: a shutdown is under way")
        if not self.is_locked:
            self.is_locked = True
            self.locks_taken += 1

    def drop_lock(self) -> None:
        self.is_locked = False

    async def longest_delay_s(self) -> float:
        self._connected()
        return self._longest_s

    async def raise_longest_delay(self, delay_s: float) -> None:
        self._connected()
        if not self.may_lengthen:
            raise OSError("/run/systemd/logind.conf.d/99-kepd.conf cannot be written: Read-only file system")
        self._longest_s = delay_s

    async def is_going_down(self) -> bool:
        if not self.reachable:
            raise OSError("no connection to the system bus: [Errno 2] No such file or directory")
        return self.is_stopping

    async def news(self) -> AsyncIterator[bool]:
        news = self._connected()
        yield self.is_preparing
        while (one := await news.get()) is not None:
            yield one
        raise ConnectionError("systemd-logind ended or was restarted")

    def _connected(self) -> "asyncio.Queue[bool | None]":
        if self._news is None:
            raise ConnectionError("not connected to the system bus")
        return self._news
