# SPDX-License-Identifier: Apache-2.0
"""Random numbers from the kernel, a page of them at a time: ids and spellings of questions.

The module `secrets` has the same ones, but takes 15 ms to be there.
"""

import os
from collections.abc import Iterator

PAGE = 4096


class Randomness:
    def __init__(self) -> None:
        self._page, self._at = b"", 0
        self._ids: Iterator[int] = iter(())

    def id(self) -> int:
        """Of two bytes."""
        found = next(self._ids, None)
        if found is None:
            self._ids = iter(memoryview(os.urandom(PAGE)).cast("H"))
            return next(self._ids)
        return found

    def bits(self, size: int) -> int:
        """Of so many bytes."""
        if self._at + size > len(self._page):
            self._page, self._at = os.urandom(PAGE), 0
        self._at += size
        return int.from_bytes(self._page[self._at - size : self._at], "big")
