# SPDX-License-Identifier: Apache-2.0
"""So many at once, and from then on so many a second."""


class Allowance:
    def __init__(self, at_once: float, a_second: float, now_s: float) -> None:
        self._most, self._a_second = at_once, a_second
        self._left, self._at_s = at_once, now_s

    def take(self, now_s: float) -> bool:
        """Whether there was one left. Who goes on in spite of a no waits the longer for the next yes."""
        self._left = min(self._left + (now_s - self._at_s) * self._a_second, self._most) - 1
        self._at_s = now_s
        return self._left >= 0

    @property
    def owed_s(self) -> float:
        """Until who took more than there was has made up for it."""
        return max(-self._left / self._a_second, 0.0)
