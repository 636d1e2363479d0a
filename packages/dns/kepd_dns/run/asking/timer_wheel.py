# SPDX-License-Identifier: Apache-2.0
"""Times of many things, in slots of 25 ms: one timer of the loop for all, and none where nothing waits.

Of many that are due at once a few have their turn, then whatever else the loop has to do, then the next.
"""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Generic, TypeVar

SLOT_S = 0.025
MOST_AT_ONCE = 64
What = TypeVar("What")


class Wheel(Generic[What]):
    def __init__(self, due: Callable[[What, float], None]) -> None:
        self._due = due
        self._loop = asyncio.get_running_loop()
        self._slots: dict[int, dict[What, None]] = {}
        self._last_s, self._last = 0.0, dict[What, None]()
        """Many are due at the same time."""
        self._handle: asyncio.TimerHandle | None = None
        self._next = 0

    def slot(self, when_s: float) -> dict[What, None]:
        """Takes what is due then, and gives up what ends before, which it would else keep until then."""
        if when_s == self._last_s:
            return self._last
        number = int(when_s / SLOT_S) + 1
        found = self._slots.get(number)
        if found is None:
            found = self._slots[number] = {}
            if self._handle is None or number < self._next:
                self._set(number)
        self._last_s, self._last = when_s, found
        return found

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def _set(self, slot: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._next = slot
        self._handle = self._loop.call_at(slot * SLOT_S, self._turn)

    def _turn(self) -> None:
        self._handle = None
        now_s = self._loop.time()
        self._last_s = 0.0
        left = MOST_AT_ONCE
        for slot in sorted(slot for slot in self._slots if slot * SLOT_S <= now_s):
            found = self._slots[slot]
            # Whoever is called may give up others.
            for what in tuple(islice(found, left)):
                if found.pop(what, self) is None:
                    self._due(what, now_s)
                    left -= 1
            if found:
                break
            del self._slots[slot]
        # Whoever was called may have set a time beyond that of others.
        if self._slots:
            self._set(min(self._slots))

    def close(self) -> None:
        self._slots.clear()
        if self._handle is not None:
            self._handle.cancel()
