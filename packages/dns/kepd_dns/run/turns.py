# SPDX-License-Identifier: Apache-2.0
"""Questions that wait to be read, by who asked. Each asker has its turn, so that one who asks much waits for itself."""

from collections import deque
from typing import Generic, TypeVar

What = TypeVar("What")


class Turns(Generic[What]):
    """With bounded room, of which one asker gets a part."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._waiting: dict[bytes, deque[What]] = {}
        self._order: deque[bytes] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def has_room(self, who: bytes) -> bool:
        return self._count < self._most and len(self._waiting.get(who, ())) < self._most_of_one

    def put(self, who: bytes, what: What) -> None:
        found = self._waiting.get(who)
        if found is None:
            found = self._waiting[who] = deque()
            self._order.append(who)
        found.append(what)
        self._count += 1

    def take(self) -> What:
        """The oldest of whoever waits longest for a turn."""
        who = self._order.popleft()
        found = self._waiting[who]
        what = found.popleft()
        self._count -= 1
        if found:
            self._order.append(who)
        else:
            del self._waiting[who]
        return what
