# SPDX-License-Identifier: Apache-2.0
"""Keeps one reading of the kernel for the pages of a list, until it has ended or a while has passed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")
KEPT_S = 10.0


class Kept(Generic[T]):
    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._found: tuple[T, ...] = ()
        self._end: asyncio.TimerHandle | None = None

    async def get(self, *, is_first: bool) -> T:
        if is_first or not self._found:
            self.forget()
            self._found = (await self._read(),)
        (found,) = self._found
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(KEPT_S, self.forget)
        return found

    def forget(self) -> None:
        self._found = ()
        if self._end is not None:
            self._end.cancel()
            self._end = None
